"""Measures a daemon with many awake users, and the rates of recall and ingest on one single-core machine and on two
such machines.

Also measures the memory use of a machine that joined a cluster. The machines are processes on this machine, with
loopback addresses. Each is pinned to its own core; the clients share the core of the daemon. The results therefore show
the gain from a second core, without a network.

To run only this benchmark: `python -m ops.bench --only nodes [--quick] [--json]`.
"""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import time
from collections import Counter
from contextlib import ExitStack, suppress
from itertools import chain
from pathlib import Path
from typing import Any

import psutil

from memory_agent import AsyncMemoryClient, MemoryClient
from memory_agent.evaluation import publish_events, temporary_daemon
from memory_agent.settings import DaemonSettings, Settings
from memory_agent.storage.folders import user_folder
from ops.bench.cluster import ONE_HOST, cluster_daemon, joined_machine
from ops.bench.filled_store import filled_store
from ops.bench.machine import load_per_core
from ops.bench.spread import percentile, spread
from ops.bench.texts import events, passages, queries
from ops.bench.timing import milliseconds
from ops.process_memory import measure_tree, process_tree, role_of

_AWAKE = 1_000
QUICK_AWAKE = 50
_AWAKE_MEMORIES = 100
_AWAKE_RECALLS = 2_000
_AWAKE_CLIENTS = 4
_USERS = 8
_STORED = 150  # per user, before the recalls
_EVENTS = 300  # per user and turn
_RECALLS = 30  # per user and turn
_TURNS = 3
_MEGABYTE = 1e6
_DEADLINE_MS = 60_000.0
_TIMEOUT_S = 600.0


def measure(users: int = _AWAKE) -> dict[str, Any]:
    """Return all figures, for both forms of the daemon."""
    return {
        "awake": {
            "light": measure_awake(is_light=True, users=users),
            "full": measure_awake(is_light=False, users=users),
        },
        "joined": measure_joined(),
        "pinned": measure_pinned(),
    }


def measure_awake(*, is_light: bool, users: int = _AWAKE) -> dict[str, Any]:
    """Wake `users` users with small stores, one after another, then recall for random users; return memory and
    latency.
    """
    settings = Settings(daemon=DaemonSettings(light=is_light, dedicated_hosts=0, idle_sleep_s=1e6, most_awake=users))
    names = [f"user-{number}" for number in range(users)]
    with filled_store(_AWAKE_MEMORIES) as store, temporary_daemon(settings) as data_dir:
        for name in names:
            shutil.copytree(store, user_folder(data_dir, name))
        busy = load_per_core()
        sizes, woke_ms = {}, []
        questions = queries(users, seed=11)
        for number, (name, question) in enumerate(zip(names, questions, strict=True), 1):
            with MemoryClient(name, data_dir=data_dir) as client:
                woke_ms.append(milliseconds(client.recall, question, deadline_ms=_DEADLINE_MS))
                if number in (1, users):
                    sizes[number] = _size(client)
        again_ms, took_s = asyncio.run(_at_random(data_dir, names))
        with MemoryClient(names[0], data_dir=data_dir) as client:
            awake, after = len({*client.status().active_users} & {*names}), _size(client)
    return {
        "form": "light" if is_light else "full",
        "users_awake": awake,
        "memories_of_each": _AWAKE_MEMORIES,
        "pss_mb_with_one": sizes[1],
        "pss_mb_with_all": sizes[users],
        "pss_mb_after_recalls": after,
        "pss_mb_per_user": round((after - sizes[1]) / (users - 1), 3),
        "first_recall_ms": _latency(woke_ms),
        "recall_ms": _latency(again_ms),
        "recalls_per_s": round(len(again_ms) / took_s, 1),
        "clients": _AWAKE_CLIENTS,
        "load_per_core": [busy, load_per_core()],
    }


def _latency(values: list[float]) -> dict[str, float]:
    return {"p50": round(percentile(values, 50), 1), "p99": round(percentile(values, 99), 1)}


def _size(client: MemoryClient) -> float:
    daemon = next(part.pid for part in client.status().parts if part.name == "daemon")
    assert daemon is not None
    return round(sum(process.pss_bytes for process in measure_tree(daemon)) / _MEGABYTE, 1)


async def _at_random(data_dir: Path, names: list[str]) -> tuple[list[float], float]:
    """Recall for random users with several clients at once; return each recall's time in ms and the total in s."""

    async def ask(number: int) -> list[float]:
        chosen = random.Random(number)
        taken = []
        for question in queries(_AWAKE_RECALLS // _AWAKE_CLIENTS, seed=20 + number):
            async with AsyncMemoryClient(chosen.choice(names), data_dir=data_dir) as client:
                started_s = time.perf_counter()
                await client.recall(question, deadline_ms=_DEADLINE_MS)
                taken.append((time.perf_counter() - started_s) * 1000)
        return taken

    started_s = time.perf_counter()
    blocks = await asyncio.gather(*(ask(number) for number in range(_AWAKE_CLIENTS)))
    return list(chain.from_iterable(blocks)), time.perf_counter() - started_s


def measure_joined() -> dict[str, Any]:
    """Return the memory use of a joined machine, first without users and then with users that the daemon has placed on
    it.
    """
    with cluster_daemon() as (home, folder), joined_machine(home, folder) as node:
        without = measure_tree(node.pid)
        for number in range(4):  # a new user goes to the machine with the fewest users
            with MemoryClient(f"user-{number}", data_dir=home) as client:
                client.remember("Staging needs the VPN")
        with_hosts = measure_tree(node.pid)
    sizes: Counter[str] = Counter()
    for process in with_hosts:
        sizes[process.role] += process.pss_bytes
    return {
        "pss_mb_without_users": round(sum(process.pss_bytes for process in without) / _MEGABYTE, 1),
        "pss_mb_with_hosts": round(sum(process.pss_bytes for process in with_hosts) / _MEGABYTE, 1),
        "hosts": sum(process.role == "host" for process in with_hosts),
        "parts_mb": {role: round(size / _MEGABYTE, 1) for role, size in sorted(sizes.items())},
        "load_per_core": load_per_core(),
    }


def measure_pinned() -> dict[str, Any]:
    """Return recalls and ingested events per second, and the processor time that they take, in two configurations that
    alternate: a daemon on one core, and a daemon and a joined machine on one core each.
    """
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        return {}
    os.sched_setaffinity(0, {cores[0]})
    try:
        with ExitStack() as stack:
            alone = stack.enter_context(temporary_daemon(Settings(daemon=ONE_HOST)))
            home, machine = stack.enter_context(cluster_daemon())
            pinned = ("taskset", "--cpu-list", str(cores[1]))
            node = stack.enter_context(joined_machine(home, machine, prefix=pinned))
            homes = {"one": alone, "two": home}
            for folder in homes.values():
                for user in _users():  # one at a time, so that each machine gets the same number of users
                    with MemoryClient(user, data_dir=folder) as client:
                        client.remember(f"The staging area of {user} needs the VPN")
                _ingest(folder, _STORED, turn=-1)
            figures = _recalled(homes, node.pid)
            for name, ingested in _ingested(homes, node.pid).items():
                figures[name] |= ingested
    finally:
        os.sched_setaffinity(0, cores)
    one, two = (figures[name]["recalls_per_s"]["median"] for name in ("one", "two"))
    return figures | {"growth": round(two / one, 2), "load_per_core": load_per_core()}


def _users() -> list[str]:
    return [f"user-{number}" for number in range(_USERS)]


def _ingest(home: Path, count: int, turn: int) -> float:
    """Publish `count` events for each user; return how many events per second became recallable."""
    texts = passages(count * _USERS, seed=31 + turn)
    made = [events(texts[place::_USERS], user, f"{user}-{turn}") for place, user in enumerate(_users())]
    mixed = list(chain.from_iterable(zip(*made, strict=True)))
    summary = publish_events(mixed, home / "events.jsonl", home, _TIMEOUT_S)
    assert summary.recallable_s is not None
    return len(mixed) / summary.recallable_s


def _ingested(homes: dict[str, Path], node: int) -> dict[str, dict[str, Any]]:
    rates: dict[str, list[float]] = {name: [] for name in homes}
    spent_s: Counter[str] = Counter()
    for turn in range(_TURNS):
        for name, home in homes.items():
            before = _processor_s(home, node)
            rates[name].append(_ingest(home, _EVENTS, turn))
            spent_s[name] += sum(_processor_s(home, node).values()) - sum(before.values())
    events_in_all = _TURNS * _EVENTS * _USERS
    return {
        name: {
            "events_per_s": spread(rates[name], 1),
            "processor_ms_per_event": round(spent_s[name] * 1000 / events_in_all, 2),
        }
        for name in homes
    }


def _recalled(homes: dict[str, Path], node: int) -> dict[str, dict[str, Any]]:
    rates: dict[str, list[float]] = {name: [] for name in homes}
    taken_ms: dict[str, list[float]] = {name: [] for name in homes}
    spent_ms: dict[str, Counter[str]] = {name: Counter() for name in homes}
    for turn in range(-1, _TURNS):
        for name, home in homes.items():
            before = _processor_s(home, node)
            block, took_s = asyncio.run(_load(home, _users(), turn))
            if turn >= 0:
                rates[name].append(len(block) / took_s)
                taken_ms[name] += block
                after = _processor_s(home, node)
                spent_ms[name].update({part: (after[part] - before[part]) * 1000 for part in after})
    return {
        name: {
            "recalls_per_s": spread(rates[name], 1),
            "recall_ms": _latency(taken_ms[name]),
            "processor_ms_per_recall": {
                part: round(spent / len(taken_ms[name]), 2) for part, spent in sorted(spent_ms[name].items())
            },
        }
        for name in homes
    }


def _processor_s(home: Path, node: int) -> Counter[str]:
    """Return the processor time, in seconds, that each part of the daemon and of the joined machine has used."""
    with MemoryClient(data_dir=home) as client:
        daemon = next(part.pid for part in client.status().parts if part.name == "daemon")
    assert daemon is not None
    spent: Counter[str] = Counter()
    for prefix, root in (("", daemon), ("joined ", node)):
        for process in process_tree(root):
            with suppress(psutil.NoSuchProcess):
                role = role_of(process)
                role = "Ray" if role.startswith("Ray") else role
                spent[prefix + role] += sum(process.cpu_times()[:2])
    return spent


async def _load(home: Path, users: list[str], turn: int) -> tuple[list[float], float]:
    async def ask(number: int) -> list[float]:
        taken = []
        async with AsyncMemoryClient(users[number], data_dir=home) as client:
            for question in queries(_RECALLS, seed=1_000 * (turn + 2) + number):
                started_s = time.perf_counter()
                await client.recall(question, deadline_ms=_DEADLINE_MS)
                taken.append((time.perf_counter() - started_s) * 1000)
        return taken

    started_s = time.perf_counter()
    blocks = await asyncio.gather(*(ask(number) for number in range(len(users))))
    return list(chain.from_iterable(blocks)), time.perf_counter() - started_s
