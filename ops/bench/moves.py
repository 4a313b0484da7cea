"""Measures request latency while users with many memories move between the machines of a cluster, and the time until
their requests succeed again after a machine is killed.

A daemon and two machines that joined it run as processes on this machine, with loopback addresses. Clients recall and
write continuously. Machines leave and rejoin, and the daemon rebalances the users; then, machines are killed. The
clients pause while a machine starts, because on a real cluster, a starting machine would not use the processors of the
other machines.

To run only this benchmark: `python -m ops.bench --only moves [--quick] [--json]`.
"""

from __future__ import annotations

import asyncio
import json
import random
import shutil
import subprocess
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import datetime
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import psutil
from msgspec.structs import replace

from memory_agent import AsyncMemoryClient, MemoryAgentError, MemoryClient
from memory_agent.archiving import read_placement
from memory_agent.storage.folders import user_folder
from ops.bench.cluster import ONE_HOST, cluster_daemon, joined_machine
from ops.bench.machine import load_per_core
from ops.bench.spread import percentile, spread
from ops.bench.texts import event_of, passages, queries
from ops.process_memory import process_tree
from relay import Publisher, relay_endpoints

TARGET_P99_MS = 250.0
TARGET_RECOVERY_S = 3.0

_USERS = 12
_ADDRESSES = {"one": "127.0.0.3", "two": "127.0.0.4"}
_LEAVES = 4
_KILLS = 4
_PAUSE_S = 0.5  # between a client's requests, on average
_EVENTS_PAUSE_S = 1.0
_WRITES = 0.25  # the share of requests that write
_CLIENTS_PER_USER = 1
_SETTLE_S = 3.0
_QUIET_S = 8.0
_UPKEEP_S = 1.0
_POLL_S = 0.02
_DEADLINE_MS = 30_000.0
_TIMEOUT_S = 60.0


class Answered(NamedTuple):
    """One request; times are seconds since 1970. `refusal` is the code of its error, or ""."""

    user: str
    began_s: float
    ended_s: float
    refusal: str
    is_degraded: bool

    @property
    def took_ms(self) -> float:
        """How long the caller waited."""
        return (self.ended_s - self.began_s) * 1000


class Load:
    """Clients that recall and write, and an event publisher, running in threads until `stop` is called."""

    def __init__(self, home: Path, users: list[str]) -> None:
        self._home = home
        self._users = users
        self._is_over = threading.Event()
        self._may_run = threading.Event()
        self._may_run.set()
        self.answered: list[Answered] = []
        self.remembered: defaultdict[str, list[str]] = defaultdict(list)
        """The ids of acknowledged memories of each user."""
        self.published: list[dict[str, Any]] = []
        """The acknowledged events."""
        self.published_through: dict[str, int] = {}
        self._threads = [
            threading.Thread(target=lambda: asyncio.run(self._request_all()), name="clients"),
            threading.Thread(target=self._publish, name="publisher"),
        ]
        for thread in self._threads:
            thread.start()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Pause all requests inside the context."""
        self._may_run.clear()
        try:
            yield
        finally:
            self._may_run.set()

    def stop(self) -> None:
        """End all clients after their current requests."""
        self._is_over.set()
        for thread in self._threads:
            thread.join()

    async def _request_all(self) -> None:
        clients = enumerate(self._users * _CLIENTS_PER_USER)
        await asyncio.gather(*(self._request(number, user) for number, user in clients))

    async def _request(self, number: int, user: str) -> None:
        chosen = random.Random(number)
        questions = queries(1_000, seed=50 + number)
        async with AsyncMemoryClient(user, data_dir=self._home) as client:
            for place in count():
                await asyncio.sleep(chosen.uniform(0, 2 * _PAUSE_S))
                while not self._may_run.is_set():
                    await asyncio.sleep(_POLL_S)
                if self._is_over.is_set():
                    return
                is_write, text = chosen.random() < _WRITES, f"{questions[place % 1_000]} ({number}, {place})"
                began_s, refusal, degraded = time.time(), "", ()
                try:
                    if is_write:
                        self.remembered[user].append((await client.remember(text)).id)
                    else:
                        degraded = (await client.recall(text, deadline_ms=_DEADLINE_MS)).degraded
                except MemoryAgentError as error:
                    refusal = error.code
                self.answered.append(Answered(user, began_s, time.time(), refusal, bool(degraded)))

    def _publish(self) -> None:
        """Publish one event for each user, repeatedly; record those that were acknowledged."""
        texts = passages(2_000, seed=99)
        with Publisher(relay_endpoints(self._home).ingest) as publisher:
            for place in count():
                if self._is_over.wait(_EVENTS_PAUSE_S):
                    return
                self._may_run.wait()
                made = [event_of(f"{texts[place % 2_000]} {place}", place, user, _series(user)) for user in self._users]
                for event in made:
                    publisher.publish(event)
                if not publisher.flush(_TIMEOUT_S).pending:
                    self.published += made
                    self.published_through = publisher.acked_through


def _series(user: str) -> str:
    return f"{user}-moves"


class Move(NamedTuple):
    """A user was placed on a machine at `at_s`."""

    user: str
    node: str
    at_s: float


class Kill(NamedTuple):
    """The times at which a machine with these users was killed, and at which the daemon gave up on its first host."""

    users: list[str]
    killed_s: float
    detected_s: float


class Moves:
    """Records when the placement of a user changes, by polling its file."""

    def __init__(self, home: Path, users: list[str]) -> None:
        self._folders = {user: user_folder(home, user) for user in users}
        self._is_over = threading.Event()
        self.seen: list[Move] = []
        self._thread = threading.Thread(target=self._watch, name="placements")
        self._thread.start()

    def stop(self) -> None:
        """Stop watching."""
        self._is_over.set()
        self._thread.join()

    def users_on(self, node: str) -> list[str]:
        """Return the users that are currently placed on a machine."""
        return [user for user, folder in self._folders.items() if read_placement(folder).node == node]

    def _watch(self) -> None:
        epochs = {user: read_placement(folder) for user, folder in self._folders.items()}
        while not self._is_over.wait(_POLL_S):
            for user, folder in self._folders.items():
                found = read_placement(folder)
                if (found.node, found.epoch) != (epochs[user].node, epochs[user].epoch):
                    self.seen.append(Move(user, found.node, (folder / "placement.json").stat().st_mtime))
                    epochs[user] = found


class Machines:
    """The machines of a daemon's cluster, with users, clients, and a record of placements."""

    def __init__(self, stack: ExitStack, store: Path) -> None:
        """Start a daemon and its machines, and wake users with copies of `store`; closing `stack` ends them."""
        self.users = [f"user-{number}" for number in range(_USERS)]
        self.home, self._folder = stack.enter_context(cluster_daemon(replace(ONE_HOST, upkeep_interval_s=_UPKEEP_S)))
        self._joined = {name: stack.enter_context(ExitStack()) for name in _ADDRESSES}
        self._processes: dict[str, subprocess.Popen[str]] = {}
        for name in _ADDRESSES:
            self._join(name)
        self.memories = 0
        for user in self.users:
            shutil.copytree(store, user_folder(self.home, user))
            with MemoryClient(user, data_dir=self.home) as client:
                self.memories = client.stats().memories
        self.moves = Moves(self.home, self.users)
        stack.callback(self.moves.stop)
        self.load = Load(self.home, self.users)
        stack.callback(self.load.stop)

    def leave_and_join(self, name: str) -> None:
        """Make a machine leave and rejoin, and wait until users have moved back to it."""
        self._joined[name].close()
        time.sleep(_SETTLE_S)
        self._join_again(name)

    def kill(self, name: str) -> Kill:
        """Kill all processes of a machine, wait until its users are served elsewhere, and make it rejoin."""
        users, killed_s = self.moves.users_on(name), time.time()
        for process in process_tree(self._processes[name].pid):
            with suppress(psutil.NoSuchProcess):
                process.kill()
        detected_s = None
        while detected_s is None and time.time() < killed_s + _TIMEOUT_S:
            time.sleep(_POLL_S)
            detected_s = next((at_s for at_s in _given_up(self.home, name) if at_s >= killed_s), None)
        assert detected_s is not None, f"the daemon is still waiting for {name}"
        time.sleep(_SETTLE_S + TARGET_RECOVERY_S)
        self._joined[name].close()
        self._join_again(name)
        return Kill(users, killed_s, detected_s)

    def _join(self, name: str) -> None:
        process = joined_machine(self.home, self._folder, name, _ADDRESSES[name])
        self._processes[name] = self._joined[name].enter_context(process)

    def _join_again(self, name: str) -> None:
        with self.load.paused():
            self._join(name)
        deadline_s = time.monotonic() + _TIMEOUT_S
        while not self.moves.users_on(name):
            assert time.monotonic() < deadline_s, f"no user moved to {name}"
            time.sleep(_POLL_S)
        time.sleep(_SETTLE_S)


def measure(store: Path) -> dict[str, Any]:
    """Return request latencies measured while users with copies of `store` move, and after machines are killed."""
    with ExitStack() as stack:
        machines = Machines(stack, store)
        load, names = machines.load, list(_ADDRESSES)
        before = load_per_core()
        time.sleep(_SETTLE_S)  # first requests
        quiet_s = time.time()
        time.sleep(_QUIET_S)
        moving_s = time.time()
        for turn in range(_LEAVES):
            machines.leave_and_join(names[turn % len(names)])
        killing_s = time.time()
        kills = [machines.kill(names[turn % len(names)]) for turn in range(_KILLS)]
        load.stop()
        machines.moves.stop()
        lost = _lost(machines.home, load)
    moves = [move for move in machines.moves.seen if moving_s <= move.at_s < killing_s]
    moving = [one for one in load.answered if moving_s <= one.began_s < killing_s]
    return {
        "memories": machines.memories,
        "users": _USERS,
        "quiet": _requests([one for one in load.answered if quiet_s <= one.began_s < moving_s]),
        "moving": _requests(moving) | {"moves": len(moves), "met": _requests(_met(moving, moves))},
        "target_p99_ms": TARGET_P99_MS,
        "killed": _killed(kills, load.answered),
        "target_recovery_s": TARGET_RECOVERY_S,
        "acknowledged": len(load.published) + sum(map(len, load.remembered.values())),
        "lost": lost,
        "load_per_core": [before, load_per_core()],
    }


def _given_up(home: Path, name: str) -> Iterator[float]:
    """Yield the times at which the daemon logged the loss of a host on the machine."""
    for line in (home / "daemon.log").read_text(encoding="utf-8").splitlines():
        if '"host.gone"' in line and (entry := json.loads(line))["node"] == name:
            yield datetime.fromisoformat(entry["timestamp"]).timestamp()


def _requests(answered: list[Answered]) -> dict[str, Any]:
    took_ms = [one.took_ms for one in answered]
    return {
        "requests": len(answered),
        "refusals": sum(bool(one.refusal) for one in answered),
        "codes": sorted({one.refusal for one in answered if one.refusal}),
        "degraded": sum(one.is_degraded for one in answered),
        "p50_ms": round(percentile(took_ms, 50), 1),
        "p99_ms": round(percentile(took_ms, 99), 1),
        "most_ms": round(max(took_ms), 1),
    }


def _met(answered: list[Answered], moves: list[Move]) -> list[Answered]:
    """Return, for each move, the first request answered after it, and the requests that began before that answer."""
    met = []
    for move in moves:
        later = [one for one in answered if one.user == move.user and one.ended_s > move.at_s]
        until_s = min((one.ended_s for one in later), default=move.at_s)
        met += [one for one in later if one.began_s < until_s]
    return met


def _killed(kills: list[Kill], answered: list[Answered]) -> dict[str, Any]:
    """Return the times until detection, and from detection until each user's first answer."""
    first_s = []
    for kill in kills:
        for user in kill.users:
            ends_s = (one.ended_s for one in answered if one.user == user and not one.refusal)
            first_s.append(min(end_s for end_s in ends_s if end_s > kill.detected_s) - kill.detected_s)
    return {
        "kills": len(kills),
        "users": len(first_s),
        "detected_s": spread([kill.detected_s - kill.killed_s for kill in kills]),
        "first_answer_s": spread(first_s),
    }


def _lost(home: Path, load: Load) -> int:
    """Return how many acknowledged memories and events are missing."""
    lost = 0
    for user, ids in load.remembered.items():
        with MemoryClient(user, data_dir=home) as client:
            lost += len(ids) - len(client.get(ids))
    with MemoryClient(data_dir=home) as client:
        client.wait(load.published_through, _TIMEOUT_S)
    sessions = {(event["user_id"], event["session_id"]) for event in load.published}
    found: set[str | None] = set()
    for user, session in sessions:
        with MemoryClient(user, data_dir=home) as client:
            found |= {record.event_id for record in client.list({"session_id": session}).records}
    return lost + sum(event["event_id"] not in found for event in load.published)
