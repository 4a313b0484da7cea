"""Many users come and go: their state is released, and a bounded number is awake. No Ray, no store."""

from __future__ import annotations

import asyncio
import random
import threading
from pathlib import Path
from typing import Any, cast

import pytest

from memory_agent.daemon import hosts as hosts_module
from memory_agent.daemon.actors import Cluster
from memory_agent.daemon.capacity import capacity_of
from memory_agent.daemon.host import MemoryHost
from memory_agent.daemon.hosts import Hosts
from memory_agent.embedders.remote import RemoteEmbedder
from memory_agent.errors import DeadlineExceededError, HostDiedError, UnavailableError
from memory_agent.records.memories import IngestReport
from memory_agent.settings import DaemonSettings, Settings
from memory_agent.verbs.protocol import IngestBatch, encode_result

USERS = [f"user-{number}" for number in range(5_000)]


class Host:
    """A process that answers when its world allows it, until it is ended for good."""

    def __init__(self, name: str, world: Processes) -> None:
        self.name = name
        self.is_gone = False
        self._world = world
        self.is_starting = 0
        self._is_ended = False

    async def ingest(self, user_id: str, batch: bytes, timeout_s: float) -> bytes:
        self._check_up()
        return encode_result(IngestReport(kept=3))

    def _check_up(self) -> None:
        if self.is_starting:
            self.is_starting -= 1
            raise UnavailableError(f"{self.name} is not up")

    async def call(self, user_id: str, method: str, params: bytes, deadline_ms: float, *_: object) -> bytes:
        self._check_up()
        self._world.awake.add(user_id)
        self._world.most = max(self._world.most, len(self._world.awake))
        await asyncio.sleep(0)
        if user_id in self._world.stuck:
            await self._world.go_on.wait()
        if self._is_ended:
            self.is_gone = True
            raise HostDiedError(self.name)
        return user_id.encode()

    async def sleep(self, user_id: str, timeout_s: float) -> None:
        await asyncio.sleep(0)
        self._world.awake.discard(user_id)
        self._world.slept.append(user_id)

    def end(self) -> None:
        self._is_ended = True


class Processes:
    """What starts processes; `stuck` users are not answered before `go_on`."""

    def __init__(self) -> None:
        self.hosts: list[Host] = []
        self.awake: set[str] = set()
        self.most = 0
        self.slept: list[str] = []
        self.stuck: set[str] = set()
        self.go_on = asyncio.Event()

    def start_host(self) -> Host:
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
        replies = await asyncio.gather(*(ask(hosts, user_id) for user_id in USERS))
        assert replies == [user_id.encode() for user_id in USERS]
        await asyncio.gather(hosts.sleep_idle(), *(ask(hosts, user_id) for user_id in USERS))
        await hosts.sleep_idle()
        assert (hosts.awake(), len(hosts._user_locks), len(hosts._busy), len(hosts._hosts)) == ((), 0, 0, 0)

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
        assert (len(hosts._user_locks), len(hosts._busy), len(hosts._hosts)) == (0, 0, 0)

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


def test_a_process_that_is_gone_for_good_is_replaced() -> None:
    """It used to be asked again and again until the deadline, and so was every later call of the user."""

    async def go() -> None:
        world = Processes()
        hosts = hosts_of(world)
        await ask(hosts, "a")
        world.hosts[0].end()
        assert await ask(hosts, "a", 20_000.0) == b"a"
        assert len(world.hosts) == 2

    asyncio.run(go())


def test_what_was_not_sent_because_no_process_was_up_is_sent_again_whatever_it_is() -> None:
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


def test_a_busy_user_moves_to_a_host_that_idles_and_waits_for_its_running_request() -> None:
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
    """The awake users of one host."""
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
