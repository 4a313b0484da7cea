"""Compares searches of shared items with recalls from the same number of the user's own memories, and measures the cost
of the shared tier.

Each of the daemon's users has a copy of a large store; the shared store contains the same texts as shared items. The
same questions are asked alternately of the user's own memories, of the items, and of both. The additional time that a
recall from both tiers takes is the cost to users who request the shared tier.

With as many cores as processes, the two stores are searched concurrently. The time that a recall of both tiers would
then take is estimated from the processor time of each process: the sum over the client, the daemon, the embedder, and
the slower of the two hosts.

The cost to other users is measured in two ways. First, recalls of a user's own memories alternate with the same recalls
in a second daemon, which has no shared items. Second, these recalls run while another user, in a separate process,
recalls continuously, either only from that user's own memories or from both tiers.

To run only this benchmark: `python -m ops.bench --only shared [--quick]`.
"""

from __future__ import annotations

import itertools
import multiprocessing
import shutil
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import msgspec

from memory_agent import MemoryClient
from memory_agent.evaluation import temporary_daemon
from memory_agent.records.memories import MemoryRecord, Tier
from memory_agent.settings import DaemonSettings, Settings, SharedSettings, StoreSettings
from memory_agent.storage.archive import Archive
from memory_agent.storage.folders import user_folder
from ops.bench.grown_stores import Growth
from ops.bench.processor import is_host, processor_s
from ops.bench.spread import medians, pooled, ratios, spread
from ops.bench.texts import queries
from ops.bench.timing import milliseconds
from relay import SHARED_USER

TARGET_OVER_OWN = 1.5
TARGET_LOCAL = 1.1

_USER, _OTHER = "bench", "other"
_TURNS = 6
_QUESTIONS = 50
_PATH_QUESTIONS = 200  # because processor time is counted in hundredths of a second
_WARM_UP = 40
_AT_ONCE = 1_000
_TOP_K = 5
_POLL_S = 0.2
_OTHER_STARTS_S = 60.0
_OTHERS_QUESTIONS, _OTHERS_SEED = 2_000, 900
_BOTH: tuple[Tier, ...] = ("local", "global")
_OTHERS_WAYS: tuple[tuple[str, tuple[Tier, ...]], ...] = (("beside_own", ("local",)), ("beside_both", _BOTH))
_SETTINGS = Settings(
    shared=SharedSettings(searches=1_000_000, searches_per_s=1e6), daemon=DaemonSettings(upkeep_interval_s=600.0)
)

Ask = Callable[[str], None]
Blocks = list[list[float]]


def measure(growth: Growth) -> dict[str, Any]:
    """Return the measurements by store size; the stores are not changed."""
    return {str(size): _measure_one(folder) for size, folder in growth.folders.items()}


def _measure_one(folder: Path) -> dict[str, Any]:
    with (
        temporary_daemon(_SETTINGS) as bare_dir,
        temporary_daemon(_SETTINGS) as data_dir,
        MemoryClient(_USER, data_dir=bare_dir) as bare,
        MemoryClient(_USER, data_dir=data_dir) as client,
    ):
        for memory in (user_folder(bare_dir, _USER), user_folder(data_dir, _USER), user_folder(data_dir, _OTHER)):
            shutil.copytree(folder, memory)
        share(Path(shutil.copytree(folder, user_folder(data_dir, SHARED_USER))))
        client.shared.set_name(None)  # starts the user's host
        _await_words(bare)
        _await_words(client)
        ways: dict[str, Ask] = {name: partial(_recall, one) for name, one in (("unshared", bare), ("own", client))}
        ways |= {"items": partial(_search, client), "both": partial(_recall, client, tiers=_BOTH)}
        taken_ms = _take_turns(ways, 0)
        for series, (name, tiers) in enumerate((*_OTHERS_WAYS, *reversed(_OTHERS_WAYS)), 1):
            with _another_user(data_dir, tiers):
                taken_ms.setdefault(name, []).extend(_take_turns({"own": ways["own"]}, series)["own"])
        path = _path({name: ways[name] for name in ("own", "both")}, client)
        return _figures(taken_ms) | path | {"target_over_own": TARGET_OVER_OWN, "target_local": TARGET_LOCAL}


def _await_words(client: MemoryClient) -> None:
    while client.recall("are the words there", deadline_ms=60_000.0).degraded:
        time.sleep(_POLL_S)  # a large store loads word vectors in the background


@contextmanager
def _another_user(data_dir: Path, tiers: tuple[Tier, ...]) -> Iterator[None]:
    """While the block runs, recall continuously as another user."""
    spawn = multiprocessing.get_context("spawn")
    begun, ended = spawn.Event(), spawn.Event()
    process = spawn.Process(target=_ask_on, args=(data_dir, tiers, begun, ended))
    process.start()
    try:
        assert begun.wait(_OTHER_STARTS_S)
        yield
    finally:
        ended.set()
        process.join()
    assert process.exitcode == 0


def _ask_on(data_dir: Path, tiers: tuple[Tier, ...], begun: Event, ended: Event) -> None:
    with MemoryClient(_OTHER, data_dir=data_dir) as client:
        _await_words(client)
        for question in itertools.cycle(queries(_OTHERS_QUESTIONS, seed=_OTHERS_SEED + len(tiers))):
            client.recall(question, _TOP_K, min_relevance=0.0, tiers=tiers)
            begun.set()
            if ended.is_set():
                return


def share(folder: Path) -> None:
    """Publish every memory in `folder` as a shared item visible to all users."""
    archive = Archive.open(folder, StoreSettings(), "library")
    try:
        with archive.store.snapshot() as snapshot:
            rows = [row for row, _ in snapshot.scan()]
        for start in range(0, len(rows), _AT_ONCE):
            with archive.batch() as batch:
                for row in rows[start : start + _AT_ONCE]:
                    record = batch.record(row)
                    assert record is not None
                    batch.update(_item(record))
    finally:
        archive.close()


def _item(record: MemoryRecord) -> MemoryRecord:
    about = {
        "author": "user-1",
        "version": "1",
        "content_type": "document",
        "policy": "public",
        "digest": "",
        "summary_chars": len(record.text),
    }
    return msgspec.structs.replace(record, metadata={"shared": about}, session_id=None, run_id=None)


def _recall(client: MemoryClient, question: str, tiers: tuple[Tier, ...] = ("local",)) -> None:
    result = client.recall(question, _TOP_K, min_relevance=0.0, tiers=tiers)
    assert len(result.memories) == _TOP_K
    assert not result.degraded, result.degraded
    assert len(tiers) == 1 or any(found.shared for found in result.memories)


def _search(client: MemoryClient, question: str) -> None:
    assert len(client.shared.search(question, _TOP_K, min_relevance=0.0)) == _TOP_K


def _take_turns(ways: dict[str, Ask], series: int) -> dict[str, Blocks]:
    """Return each question's latency, for each way to ask it and each turn. Each series uses different questions."""
    names = list(ways)
    taken_ms: dict[str, Blocks] = {name: [[] for _ in range(_TURNS)] for name in names}
    for question in queries(_WARM_UP, seed=700 + series):
        for ask in ways.values():
            ask(question)
    for turn in range(_TURNS):
        for place in range(_QUESTIONS):
            first = place % len(names)
            for way, name in enumerate((*names[first:], *names[:first])):
                seed = 10_000 * (1 + series) + 1_000 * turn + 10 * place + way
                (question,) = queries(1, seed=seed)  # a new question, not yet in any cache
                taken_ms[name][turn].append(milliseconds(ways[name], question))
    return taken_ms


def _path(ways: dict[str, Ask], client: MemoryClient) -> dict[str, Any]:
    """Return each way's processor time per process, and the ratio of recalls from both tiers to local recalls.

    The ratio includes only the slower host.
    """
    turns: dict[str, list[dict[str, float]]] = {name: [] for name in ways}
    for turn in range(_TURNS):
        for place, (name, ask) in enumerate(list(ways.items())[:: -1 if turn % 2 else 1]):
            before = processor_s(client)
            for question in queries(_PATH_QUESTIONS, seed=90_000 + 10 * turn + place):
                ask(question)
            after = processor_s(client)
            each = {one: (after[one] - before.get(one, 0.0)) * 1000 / _PATH_QUESTIONS for one in after}
            own, *others = sorted((ms for one, ms in each.items() if is_host(one)), reverse=True)
            parts = {one: each[one] for one in ("client", "daemon", "embedder")}
            turns[name].append(parts | {"slower host": own, "other hosts": sum(others)})
    path_ms = {name: [sum(one.values()) - one["other hosts"] for one in spent] for name, spent in turns.items()}
    return {
        "processor_ms": {
            name: {part: round(statistics.median(one[part] for one in spent), 2) for part in spent[0]}
            for name, spent in turns.items()
        },
        "path_both_over_own": spread(ratios(path_ms["both"], path_ms["own"])),
    }


def _figures(taken_ms: dict[str, Blocks]) -> dict[str, Any]:
    p50 = {name: medians(blocks) for name, blocks in taken_ms.items()}
    return {
        **{f"{name}_ms": spread(p50[name]) | {"p99": round(pooled(taken_ms[name], 99), 1)} for name in p50},
        "items_over_own": spread(ratios(p50["items"], p50["own"])),
        "both_over_own": spread(ratios(p50["both"], p50["own"])),
        "own_over_unshared": spread(ratios(p50["own"], p50["unshared"])),
        "beside_both_over_beside_own": spread(ratios(p50["beside_both"], p50["beside_own"])),
    }
