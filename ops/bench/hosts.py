"""Measures the cost of the processes between a caller and a memory, and how recall and ingest scale with the number of
hosts.

Compares an empty call through a Ray actor with an empty call through the host's socket. Compares a recall through RPC
with an in-process recall, in units of one query embedding. Compares a daemon with one host and a daemon with two hosts,
both under load from several users' clients. Reports the processor time of a recall in each process. Variants alternate,
and no question is repeated.

To run only this benchmark: `python -m ops.bench --only hosts [--quick] [--json]`.
"""

from __future__ import annotations

import asyncio
import shutil
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from memory_agent import AsyncMemoryClient, Memory, MemoryClient
from memory_agent.daemon.capacity import capacity_here
from memory_agent.daemon.ray_supervisor import Cluster
from memory_agent.embedders import open_embedder
from memory_agent.embedders.lanes import usable_cores
from memory_agent.evaluation import publish_events, temporary_daemon
from memory_agent.layout import Layout
from memory_agent.settings import DaemonSettings, EmbedderSettings, Settings
from memory_agent.storage.folders import user_folder
from memory_agent.verbs.params import GetParams
from memory_agent.verbs.protocol import HostRequest, encode
from ops.bench.processor import processor_s, spent_ms
from ops.bench.spread import Block, medians, pooled, ratios, spread
from ops.bench.texts import events, passages, queries
from ops.bench.timing import milliseconds

TARGET_RPC_EMBEDDINGS = 1.2
TARGET_ALL_EMBEDDINGS = 4.0
TARGET_P99_RATIO = 5.0
TARGET_GROWTH = 1.0

_USERS = tuple(f"bench-{number}" for number in range(4))
_HOSTS = (1, 2)
_CLIENTS_PER_CORE = 4
_CALLS = 400
_CALL_TURNS = 5
_QUESTIONS = 60
_TURNS = 5
_RECALLS = 60  # per client and turn
_LOAD_TURNS = 4
_EVENTS = 150  # per user and turn
_WARM_UP = 20
_TOP_K = 5
_DEADLINE_MS = 30_000.0
_TIMEOUT_S = 300.0


def measure(store: Path) -> dict[str, Any]:
    """Return all measurements; the filled store is not changed."""
    calls = asyncio.run(_measure_calls())
    with ExitStack() as stack:
        folders = {hosts: stack.enter_context(temporary_daemon(_settings(hosts))) for hosts in _HOSTS}
        for folder in folders.values():
            for user in _USERS:
                shutil.copytree(store, user_folder(folder, user))
        alone = _measure_alone(store, folders[_HOSTS[-1]])
        load, ingest = _measure_load(folders), _measure_ingest(folders)
    return {
        "calls": calls,
        "alone": alone,
        "load": load | {"clients": _clients(), "target_p99_over_p50": TARGET_P99_RATIO},
        "ingest": ingest,
        "target_growth": TARGET_GROWTH,
    }


def _settings(hosts: int) -> Settings:
    return Settings(daemon=DaemonSettings(dedicated_hosts=0, shared_hosts=hosts))


def _clients() -> int:
    return _CLIENTS_PER_CORE * usable_cores()


async def _measure_calls() -> dict[str, Any]:
    """Time a minimal request to one host, through Ray (returns the process id) and through its socket (returns no
    records).
    """
    with tempfile.TemporaryDirectory(prefix="hosts-") as folder, ExitStack() as stack:
        layout = Layout(Path(folder))
        layout.create()
        cluster = Cluster(Settings(), layout, capacity_here(DaemonSettings()))
        stack.callback(cluster.close)
        cluster.open()
        host = cluster.start_host()
        stack.callback(host.end)
        request, params = HostRequest(user_id="bench", method="get"), encode(GetParams(ids=()))
        ways: dict[str, Callable[[], Awaitable[object]]] = {
            "ray": lambda: host.pid(_TIMEOUT_S),
            "socket": lambda: host.request(request, params, _DEADLINE_MS / 1000),
        }
        taken_ms: dict[str, list[Block]] = {name: [] for name in ways}
        for turn in range(-1, _CALL_TURNS):
            for name, call in ways.items():
                block = [await _awaited_ms(call) for _ in range(_CALLS)]
                if turn >= 0:
                    taken_ms[name].append(block)
    return {f"{name}_ms": spread(medians(blocks)) for name, blocks in taken_ms.items()}


def _measure_alone(store: Path, data_dir: Path) -> dict[str, Any]:
    """Time query embeddings, recalls in process and recalls through RPC, and measure the processor time of the last."""
    settings = EmbedderSettings(allow_download=False)
    taken_ms: dict[str, list[Block]] = {"embedding": [], "in_process": [], "rpc": []}
    spent: list[dict[str, float]] = []
    with ExitStack() as stack:
        near = Path(shutil.copytree(store, Path(stack.enter_context(tempfile.TemporaryDirectory())) / "near"))
        memory = stack.enter_context(Memory.open(near, embedder_settings=settings))
        client = stack.enter_context(MemoryClient(_USERS[0], data_dir=data_dir))
        embedder = open_embedder(settings)
        stack.callback(embedder.close)
        ways: dict[str, Callable[[str], object]] = {
            "embedding": embedder.embed_query,
            "in_process": lambda question: memory.recall(question, _TOP_K, min_relevance=0.0),
            "rpc": lambda question: client.recall(question, _TOP_K, deadline_ms=_DEADLINE_MS, min_relevance=0.0),
        }
        for turn in range(-1, _TURNS):
            for place, (name, ask) in enumerate(ways.items()):
                questions = queries(_WARM_UP if turn < 0 else _QUESTIONS, seed=5_000 + 10 * turn + place)
                before = processor_s(client)
                block = [milliseconds(ask, question) for question in questions]
                if turn < 0:
                    continue
                taken_ms[name].append(block)
                if name == "rpc":
                    one = spent_ms(before, processor_s(client), len(questions))
                    spent.append({name: ms for name, ms in one.items() if name != "relay"})
    return _report_alone(taken_ms, spent)


def _report_alone(taken_ms: dict[str, list[Block]], spent: list[dict[str, float]]) -> dict[str, Any]:
    p50_ms = {name: medians(blocks) for name, blocks in taken_ms.items()}
    turns = list(zip(p50_ms["embedding"], p50_ms["in_process"], p50_ms["rpc"], strict=True))
    parts = {name: round(statistics.median(turn.get(name, 0.0) for turn in spent), 2) for name in spent[0]}
    all_ms = [sum(turn.values()) for turn in spent]
    return {
        **{f"{name}_ms": spread(values) for name, values in p50_ms.items()},
        "over_in_process_embeddings": spread([(rpc - near) / one for one, near, rpc in turns]),
        "target_rpc_embeddings": TARGET_RPC_EMBEDDINGS,
        "processor_ms": parts,
        "processor_embeddings": spread(ratios(all_ms, p50_ms["embedding"])),
        "target_all_embeddings": TARGET_ALL_EMBEDDINGS,
    }


def _measure_load(folders: dict[int, Path]) -> dict[str, Any]:
    """Recall from each daemon in turn, with all clients at once."""
    rates: dict[int, Block] = {hosts: [] for hosts in folders}
    blocks: dict[int, list[Block]] = {hosts: [] for hosts in folders}
    for turn in range(-1, _LOAD_TURNS):
        for hosts, folder in _in_turn(folders, turn):
            count = _RECALLS if turn >= 0 else _WARM_UP
            block, took_s = asyncio.run(_load(folder, count, seed=7_000 + 1_000 * turn + 100_000 * hosts))
            if turn >= 0:
                rates[hosts].append(len(block) / took_s)
                blocks[hosts].append(block)
    figures = {str(hosts): _load_figures(rates[hosts], blocks[hosts]) for hosts in folders}
    return {"by_hosts": figures, "growth": _growth(rates)}


def _load_figures(rates: Block, blocks: list[Block]) -> dict[str, Any]:
    p50, p99 = pooled(blocks, 50), pooled(blocks, 99)
    return {
        "recalls_per_s": spread(rates, 1),
        "p50_ms": round(p50, 1),
        "p99_ms": round(p99, 1),
        "p99_over_p50": round(p99 / p50, 2),
    }


async def _load(data_dir: Path, count: int, seed: int) -> tuple[Block, float]:
    """Recall `count` times from every client at once; return each recall's time in ms, and the total time in s."""

    async def ask(number: int) -> Block:
        async with AsyncMemoryClient(_USERS[number % len(_USERS)], data_dir=data_dir) as client:
            recall = partial(client.recall, top_k=_TOP_K, deadline_ms=_DEADLINE_MS)
            return [await _awaited_ms(partial(recall, question)) for question in queries(count, seed + number)]

    started_s = time.perf_counter()
    blocks = await asyncio.gather(*(ask(number) for number in range(_clients())))
    return list(chain.from_iterable(blocks)), time.perf_counter() - started_s


def _measure_ingest(folders: dict[int, Path]) -> dict[str, Any]:
    """Publish all users' events at once to each daemon in turn; time how long it takes until all are recallable."""
    rates: dict[int, Block] = {hosts: [] for hosts in folders}
    spent: dict[int, list[dict[str, float]]] = {hosts: [] for hosts in folders}
    with tempfile.TemporaryDirectory() as scratch:
        for turn in range(_LOAD_TURNS):
            for hosts, folder in _in_turn(folders, turn):
                texts = passages(_EVENTS * len(_USERS), seed=9_000 + 10 * turn + hosts)
                made = [
                    events(texts[place :: len(_USERS)], user, f"{user}-{turn}") for place, user in enumerate(_USERS)
                ]
                mixed = list(chain.from_iterable(zip(*made, strict=True)))
                with MemoryClient(data_dir=folder) as client:
                    before = processor_s(client)
                    summary = publish_events(mixed, Path(scratch) / "events.jsonl", folder, _TIMEOUT_S)
                    spent[hosts].append(spent_ms(before, processor_s(client), len(mixed)))
                assert summary.recallable_s is not None
                rates[hosts].append(len(mixed) / summary.recallable_s)
    return {
        "by_hosts": {str(hosts): _ingest_figures(rates[hosts], spent[hosts]) for hosts in folders},
        "growth": _growth(rates),
    }


def _ingest_figures(rates: Block, spent: list[dict[str, float]]) -> dict[str, Any]:
    """`busy` is the share of all cores' time that the ingest took. If it is near 1, the machine is the bottleneck."""
    all_ms = [sum(turn.values()) for turn in spent]
    busy = [rate * ms / 1000 / usable_cores() for rate, ms in zip(rates, all_ms, strict=True)]
    return {
        "events_per_s": spread(rates, 0),
        "processor_ms": spread(all_ms),
        "embedder_ms": spread([turn["embedder"] for turn in spent]),
        "hosts_ms": spread([turn["hosts"] for turn in spent]),
        "busy": spread(busy),
    }


def _in_turn(folders: dict[int, Path], turn: int) -> list[tuple[int, Path]]:
    """Return the daemons, reversed every other turn, since one daemon's upkeep may overlap the next measurement."""
    return list(folders.items())[:: -1 if turn % 2 else 1]


def _growth(rates: dict[int, Block]) -> dict[str, float]:
    """Return the ratio of the rate with the most hosts to the rate with the fewest, as a spread over the turns."""
    return spread(ratios(rates[_HOSTS[-1]], rates[_HOSTS[0]]))


async def _awaited_ms(call: Callable[[], Awaitable[object]]) -> float:
    started_s = time.perf_counter()
    await call()
    return (time.perf_counter() - started_s) * 1000
