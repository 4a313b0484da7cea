"""Test the host processes of users, without Ray or stores: placement, waking, sleeping, released state."""

from __future__ import annotations

import asyncio
import random
import threading
from collections import Counter
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memory_agent.daemon import hosts as hosts_module
from memory_agent.daemon.capacity import capacity_of
from memory_agent.daemon.directory import Directory, rendezvous
from memory_agent.daemon.host import MemoryHost
from memory_agent.daemon.hosts import Hosts
from memory_agent.daemon.ray_supervisor import Cluster
from memory_agent.embedders.remote import RemoteEmbedder
from memory_agent.errors import DeadlineExceededError, HostDiedError, UnavailableError
from memory_agent.records.memories import IngestReport
from memory_agent.settings import DaemonSettings, Settings
from memory_agent.verbs.protocol import HostRequest, IngestBatch, encode_result

USERS = [f"user-{number}" for number in range(5_000)]


class Host:
    """A host that answers all requests until it ends, except those of stuck users."""

    can_be_killed = True
    node = ""
    restarts = 0

    def __init__(self, name: str, world: Processes) -> None:
        self.name = name
        self.is_gone = False
        self._world = world
        self.is_starting = 0
        self._is_ended = False

    async def request(self, request: HostRequest, body: bytes, timeout_s: float) -> bytes:
        if self.is_starting:
            self.is_starting -= 1
            raise UnavailableError(f"{self.name} is not up")
        if not request.method:
            return encode_result(IngestReport(kept=3))
        self._world.awake.add(request.user_id)
        self._world.most = max(self._world.most, len(self._world.awake))
        await asyncio.sleep(0)
        if request.user_id in self._world.stuck:
            await self._world.go_on.wait()
        if self._is_ended:
            self.is_gone = True
            raise HostDiedError(self.name)
        return request.user_id.encode()

    async def sleep(self, user_id: str, timeout_s: float) -> None:
        await asyncio.sleep(0)
        self._world.awake.discard(user_id)
        self._world.slept.append(user_id)

    def end(self) -> None:
        self._is_ended = True


class Processes:
    """Starts hosts. Requests from `stuck` users wait for `go_on`."""

    def __init__(self) -> None:
        self.hosts: list[Host] = []
        self.awake: set[str] = set()
        self.most = 0
        self.slept: list[str] = []
        self.stuck: set[str] = set()
        self.go_on = asyncio.Event()

    def start_host(self, *, shared: bool = False, node: str = "") -> Host:
        self.hosts.append(Host(f"host-{len(self.hosts)}", self))
        return self.hosts[-1]


def hosts_of(world: Processes, **settings: Any) -> Hosts:
    daemon = DaemonSettings(**settings)
    return Hosts(cast(Cluster, world), daemon, capacity_of(daemon, cores=2, memory_bytes=8 << 30))


async def ask(hosts: Hosts, user_id: str, deadline_ms: float = 60_000.0) -> bytes:
    return await hosts.call(user_id, "stats", b"", deadline_ms)


def test_nothing_is_kept_for_users_that_sleep() -> None:
    async def go() -> None:
        hosts = hosts_of(Processes(), idle_sleep_s=1e-9)
        users = USERS[:1_500]  # more than the maximum of awake users
        replies = await asyncio.gather(*(ask(hosts, user_id) for user_id in users))
        assert replies == [user_id.encode() for user_id in users]
        await asyncio.gather(hosts.sleep_idle(), *(ask(hosts, user_id) for user_id in users))
        await hosts.sleep_idle()
        assert (hosts.awake(), len(hosts._user_locks), len(hosts._busy), len(hosts._pool)) == ((), 0, 0, 0)

    asyncio.run(go())


def test_awake_users_are_bounded_and_all_are_answered() -> None:
    async def go() -> None:
        world = Processes()
        hosts = hosts_of(world, most_awake=20)
        users = random.Random(9).choices(USERS[:200], k=2_000)
        replies = await asyncio.gather(*(ask(hosts, user_id) for user_id in users))
        assert replies == [user_id.encode() for user_id in users]
        assert 10 < world.most <= 20
        assert len(hosts.awake()) <= 20

    asyncio.run(go())


def test_the_least_recently_used_idle_user_sleeps_first() -> None:
    async def go() -> None:
        world = Processes()
        world.stuck = {"a"}
        hosts = hosts_of(world, most_awake=3)
        busy = asyncio.create_task(ask(hosts, "a"))
        for user_id in ("b", "c", "b", "d", "e"):
            await ask(hosts, user_id)
        assert world.slept == ["c", "b"]
        assert set(hosts.awake()) == {"a", "d", "e"}
        world.go_on.set()
        assert await busy == b"a"

    asyncio.run(go())


def test_waking_waits_for_an_idle_user_until_its_deadline() -> None:
    async def go() -> None:
        world = Processes()
        world.stuck = {"a", "b"}
        hosts = hosts_of(world, most_awake=2)
        busy = [asyncio.create_task(ask(hosts, user_id)) for user_id in ("a", "b")]
        patient = asyncio.create_task(ask(hosts, "c"))
        await asyncio.sleep(0)
        with pytest.raises(DeadlineExceededError):
            await ask(hosts, "d", 1.0)
        assert not patient.done()
        assert set(hosts.awake()) == {"a", "b"}
        world.go_on.set()
        assert await asyncio.gather(*busy, patient) == [b"a", b"b", b"c"]
        assert len(hosts.awake()) == 2
        await hosts.close()
        assert (len(hosts._user_locks), len(hosts._busy), len(hosts._pool)) == (0, 0, 0)

    asyncio.run(go())


def test_empty_processes_are_kept_as_spares_up_to_the_limit() -> None:
    async def go() -> None:
        world = Processes()
        hosts = hosts_of(world, idle_sleep_s=1e-9, spare_hosts=1)
        for user_id in ("a", "b"):
            await ask(hosts, user_id)
        await hosts.sleep_idle()
        assert [host._is_ended for host in world.hosts] == [False, True]
        for user_id in ("c", "d"):
            await ask(hosts, user_id)
        assert len(world.hosts) == 3
        await hosts.close()
        assert all(host._is_ended for host in world.hosts)

    asyncio.run(go())


def test_a_process_that_ray_does_not_restart_is_replaced() -> None:
    """Regression: every later call of the user retried the dead process until its deadline."""

    async def go() -> None:
        world = Processes()
        hosts = hosts_of(world)
        await ask(hosts, "a")
        world.hosts[0].end()
        assert await ask(hosts, "a", 20_000.0) == b"a"
        assert len(world.hosts) == 2

    asyncio.run(go())


def test_a_request_that_was_never_sent_is_always_retried() -> None:
    async def go() -> None:
        world = Processes()
        hosts = hosts_of(world)
        await ask(hosts, "a")
        world.hosts[0].is_starting = 2
        assert await hosts.call("a", "remember", b"", 60_000.0) == b"a"
        world.hosts[0].is_starting = 2
        assert (await hosts.ingest("a", IngestBatch(events=()))).kept == 3
        world.hosts[0].end()
        with pytest.raises(HostDiedError):
            await hosts.call("a", "remember", b"", 60_000.0)

    asyncio.run(go())


def test_a_busy_user_moves_to_an_idle_host_after_its_running_request() -> None:
    async def go() -> None:
        world = Processes()
        hosts = hosts_of(world, dedicated_hosts=0, shared_hosts=2)
        users = ("a", "b", "c")
        for user_id in users:
            await ask(hosts, user_id)
        alone = next(user_id for user_id in users if len(sharing(hosts, user_id)) == 1)
        await hosts.balance()
        assert world.slept == []
        await hosts.sleep(alone)
        first, second = sorted(set(users) - {alone})
        world.stuck = {first, second}
        busy = [asyncio.create_task(ask(hosts, user_id)) for user_id in (first, second)]
        await asyncio.sleep(0)
        moving = asyncio.create_task(hosts.balance())
        for _ in range(10):
            await asyncio.sleep(0)
        assert world.slept == [alone], "running requests are waited for"
        world.go_on.set()
        await asyncio.gather(moving, *busy)
        moved = world.slept[-1]
        assert moved in (first, second)
        await ask(hosts, moved)
        assert sharing(hosts, first) == {first}
        assert sharing(hosts, second) == {second}

    asyncio.run(go())


def test_a_user_with_a_long_request_is_not_moved_and_its_other_requests_do_not_wait_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(hosts_module, "_MOVE_PATIENCE_S", 0.01)

    async def go() -> None:
        world = Processes()
        hosts = hosts_of(world, dedicated_hosts=0, shared_hosts=2)
        users = ("a", "b", "c")
        for user_id in users:
            await ask(hosts, user_id)
        alone = next(user_id for user_id in users if len(sharing(hosts, user_id)) == 1)
        await hosts.sleep(alone)
        both = set(users) - {alone}
        world.stuck = set(both)
        long = [asyncio.create_task(ask(hosts, user_id)) for user_id in both]
        await asyncio.sleep(0)
        await hosts.balance()
        assert world.slept == [alone]
        world.stuck = set()
        for user_id in both:
            assert await ask(hosts, user_id) == user_id.encode()
            assert sharing(hosts, user_id) == both
        world.go_on.set()
        await asyncio.gather(*long)
        await hosts.balance()
        assert len(world.slept) == 2

    asyncio.run(go())


def sharing(hosts: Hosts, user_id: str) -> set[str]:
    """Return the awake users on the host of this user."""
    seats = hosts._directory._seats
    return {other for other, seat in seats.items() if seat.host == seats[user_id].host}


def test_a_host_keeps_no_lock_of_users_that_sleep(tmp_path: Path) -> None:
    host = MemoryHost(tmp_path, Settings(), cast(RemoteEmbedder, None))

    def visit() -> None:
        for user_id in USERS:
            host.sleep(user_id)

    threads = [threading.Thread(target=visit) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not host._locks
    host.close()


users = st.lists(st.text("abcdefgh", min_size=1, max_size=3), max_size=40)


@given(users, st.integers(0, 5), st.integers(1, 4))
def test_users_up_to_the_limit_have_their_own_host_and_others_share(names: list[str], limit: int, shared: int) -> None:
    directory = Directory(limit, shared)
    for name in names:
        directory.seat(name, 0.0)
    hosts = [directory.seat(name, 0.0) for name in set(names)]
    assert sum(host.startswith("user-") for host in hosts) == min(limit, len(set(names)))
    assert len(set(hosts)) <= limit + shared


@given(users)
def test_a_user_keeps_its_host_while_awake(names: list[str]) -> None:
    directory = Directory(2, 3)
    first = {}
    for name in names:
        assert directory.seat(name, 1.0) == first.setdefault(name, directory.seat(name, 0.0))


@given(users, st.integers(1, 5))
def test_users_spread_evenly(names: list[str], shared: int) -> None:
    directory = Directory(0, shared)
    for name in names:
        directory.seat(name, 0.0)
    loads = Counter({f"shared-{number}": 0 for number in range(shared)})
    loads.update(directory.seat(name, 0.0) for name in set(names))
    assert max(loads.values()) - min(loads.values()) <= 1


@given(st.lists(st.tuples(st.sampled_from("abcdefghijkl"), st.booleans()), max_size=60), st.integers(2, 5))
def test_a_waking_user_never_joins_a_busy_user_while_a_host_is_idle(
    events: list[tuple[str, bool]], shared: int
) -> None:
    directory, now_s, last_s = Directory(1, shared), 0.0, {}
    for name, sleeps in events:
        now_s += 7.0
        if sleeps:
            directory.leave(name)
            last_s.pop(name, None)
            continue
        was_awake = name in directory
        before = {user: seat.host for user, seat in directory._seats.items() if now_s - last_s[user] < 30.0}
        host = directory.seat(name, now_s)
        last_s[name] = now_s
        if not was_awake and host.startswith("shared-") and host in before.values():
            assert {f"shared-{number}" for number in range(shared)} <= set(before.values())


def test_a_user_returns_to_its_host_when_loads_are_equal() -> None:
    directory = Directory(0, 4)
    first = directory.seat("a", 0.0)
    directory.leave("a")
    assert directory.seat("a", 9.0) == first


def test_one_of_two_busy_users_on_a_host_moves_to_an_idle_host() -> None:
    directory = Directory(0, 2)
    names = [f"user-{number}" for number in range(4)]
    hosts = {name: directory.seat(name, 0.0) for name in names}
    together = [name for name in names if hosts[name] == "shared-0"]
    assert directory.misplaced(0.0) is None, "both hosts have busy users"
    for name in together:
        directory.seat(name, 100.0)
    moved = directory.misplaced(100.0)
    assert moved in together
    directory.leave(moved)
    assert directory.seat(moved, 101.0) == "shared-1"
    assert directory.misplaced(101.0) is None


def test_no_user_moves_for_an_idle_host_on_another_node() -> None:
    directory = Directory(0, 2)
    for user_id in ("a", "b", "c"):
        directory.seat(user_id, 0.0, "one")
    assert directory.misplaced(1.0) is None


def test_users_leave_a_crowded_node_until_the_nodes_are_balanced_even_if_they_are_busy() -> None:
    directory, cores = Directory(0, 1), {"": 2, "one": 2}
    for number in range(8):
        directory.seat(f"user-{number}", float(number))
    moved = []
    while (crowded := directory.crowded(cores)) is not None:
        user_id, node = crowded
        directory.leave(user_id)
        directory.seat(user_id, 9.0, node)
        moved.append((user_id, node))
    assert moved == [("user-0", "one"), ("user-1", "one"), ("user-2", "one")]


def test_a_host_is_released_when_its_last_user_sleeps() -> None:
    directory = Directory(0, 1)
    assert directory.seat("a", 0.0) == directory.seat("b", 0.0) == "shared-0"
    assert directory.leave("a") is None
    assert directory.leave("b") == "shared-0"
    assert directory.leave("b") is None


def test_only_users_without_requests_are_idle() -> None:
    directory = Directory(2, 1)
    directory.seat("a", 0.0)
    directory.seat("b", 0.0)
    directory.seat("a", 9.0)
    assert directory.idle(10.0, 5.0) == ("b",)


@given(st.sets(st.text("0123456789", min_size=1, max_size=4), min_size=2, max_size=6), st.text(max_size=8))
def test_removing_a_node_moves_only_its_own_keys(nodes: set[str], key: str) -> None:
    chosen = rendezvous(key, tuple(sorted(nodes)))
    for gone in nodes - {chosen}:
        assert rendezvous(key, tuple(sorted(nodes - {gone}))) == chosen


@given(users, st.integers(0, 5))
def test_a_user_apart_has_a_fixed_host_and_counts_towards_no_limit(names: list[str], limit: int) -> None:
    directory, without = Directory(limit, 2, {"apart": "its-own"}), Directory(limit, 2)
    for name in names:
        assert directory.seat("apart", 0.0) == "its-own"
        assert directory.seat(name, 0.0) == without.seat(name, 0.0)
    assert (len(directory), list(directory)) == (len(without), list(without))
    assert directory.idle(1e6, 1.0) == without.idle(1e6, 1.0)
    assert directory.misplaced(0.0) == without.misplaced(0.0)
    if names:
        assert "apart" in directory
        assert "apart" in directory.awake()
        assert directory.leave("apart") == "its-own"
