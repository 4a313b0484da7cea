"""Test behaviour on full disks: small file systems are filled, and made read-only."""

from __future__ import annotations

import asyncio
import resource
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from polling import until
from structlog.testing import capture_logs

from memory_agent.daemon.disk_room import DiskRoom
from memory_agent.embedders import Embedder
from memory_agent.settings import StoreSettings
from relay import Broker
from tests.crash.disk import CannotMountError, fill, small_disk
from tests.memory_agent.daemon.several_nodes import cluster, contents, dispatched, publish, remember

RESERVE_BYTES = 512 << 10


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 8 MB, in the folder of the node `one`."""
    with ExitStack() as stack:
        try:
            folder = stack.enter_context(small_disk(tmp_path / "one", 8 << 20))
        except CannotMountError as error:
            pytest.skip(str(error))
        yield folder


def test_a_disk_is_full_below_twice_the_reserve_and_has_room_again_at_eight_times(disk: Path) -> None:
    room = DiskRoom(disk, RESERVE_BYTES)
    assert room.check(was_full=False)
    ballast = fill(disk, 3 * RESERVE_BYTES)
    assert room.check(was_full=False)
    ballast.unlink()
    fill(disk, RESERVE_BYTES)
    assert not room.check(was_full=False)
    ballast.unlink()
    fill(disk, 7 * RESERVE_BYTES)
    assert not room.check(was_full=True)
    ballast.unlink()
    assert room.check(was_full=True)


def test_a_disk_that_became_read_only_has_no_room_once_a_write_failed(disk: Path) -> None:
    room = DiskRoom(disk, RESERVE_BYTES)
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    assert room.check(was_full=False)  # no write has failed yet
    room.suspect()
    assert not room.check(was_full=False)
    assert not room.check(was_full=True)
    subprocess.run(["mount", "-o", "remount,rw", str(disk)], check=True)
    assert room.check(was_full=True)


@pytest.mark.parametrize("left_bytes", [0, RESERVE_BYTES], ids=["to the last byte", "to the reserve"])
def test_users_leave_a_node_with_a_full_disk_without_losses_until_it_has_room(
    broker: Broker, disk: Path, tmp_path: Path, embedder: Embedder, left_bytes: int
) -> None:
    async def go() -> None:
        store = StoreSettings(reserve_bytes=RESERVE_BYTES)
        async with (
            cluster(tmp_path, ("one", "two"), embedder, lease_s=6.0, store=store) as (hosts, machines, placements),
            dispatched(broker, tmp_path, hosts, 3600.0) as (dispatcher, _),
        ):
            users = ("alice", "bob")
            for user_id in users:
                placements.move(user_id, "one")
                await remember(hosts, user_id, "staging needs the VPN")
                await asyncio.to_thread(publish, broker, user_id, range(10))
            await dispatcher.wait({"bob": 20}, 30.0)
            ballast = fill(disk, left_bytes)
            await until(lambda: hosts.full_nodes() == {"one"})
            await asyncio.to_thread(publish, broker, "alice", range(10, 15))
            await dispatcher.wait({"alice": 25}, 60.0)
            await until(lambda: "one" not in [placements.of(user_id).node for user_id in users])
            for user_id, expected in (("alice", 16), ("bob", 11)):
                texts = await contents(hosts, user_id)
                assert len(texts) == len(set(texts)) == expected
                assert machines.nodes["one"].files_of(user_id) == []
            await remember(hosts, "carol", "the least loaded node would be one")
            assert placements.of("carol").node != "one"
            ballast.unlink()
            await until(lambda: not hosts.full_nodes())
            placements.move("dave", "one")
            await remember(hosts, "dave", "staging needs the VPN")
            assert placements.of("dave").node == "one"

    with capture_logs() as logs:
        asyncio.run(go())
    assert [log["event"] for log in logs if log["event"].startswith("node.")] == ["node.full", "node.has_room"]


@contextmanager
def largest_file(size_bytes: int) -> Iterator[None]:
    """Prevent this process from writing larger files, as a quota would."""
    usual = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, usual[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, usual)


def test_a_node_is_full_as_long_as_writes_fail_in_one_of_its_hosts(tmp_path: Path, embedder: Embedder) -> None:
    async def go() -> None:
        async with cluster(tmp_path, ("one",), embedder, lease_s=1.0) as (hosts, machines, placements):
            for user_id in ("alice", "bob"):
                placements.move(user_id, "one")
                await remember(hosts, user_id, "staging needs the VPN")
            machine = machines.nodes["one"]
            with largest_file(StoreSettings().reserve_bytes):
                machine.hosts[-1].memories._room.suspect()  # as if bob's write had failed
                await until(lambda: hosts.full_nodes() == {"one"})
                before = machine.renewals
                await until(lambda: machine.renewals > before + 6)
                assert hosts.full_nodes() == {"one"}
            await until(lambda: not hosts.full_nodes())

    asyncio.run(go())


@pytest.mark.parametrize("is_full", [True, False])
def test_closing_ends_the_moves_away_from_a_node(tmp_path: Path, embedder: Embedder, is_full: bool) -> None:
    async def go() -> None:
        async with cluster(tmp_path, ("one",), embedder, lease_s=600.0) as (hosts, machines, placements):
            placements.move("alice", "one")
            await remember(hosts, "alice", "staging needs the VPN")
            machines.nodes["one"].pause()
            asking = asyncio.create_task(contents(hosts, "alice"))
            await until(lambda: hosts.calls_under_way == 1)
            if is_full:
                hosts._leave_full("one")
            else:
                leaving = asyncio.create_task(hosts.drain("one"))  # as `memory-agent leave` does
            await until(lambda: "alice" in hosts._user_locks)  # the move waits for the request
            async with asyncio.timeout(30):
                await hosts.close()
                await until(lambda: not hosts._leaving if is_full else leaving.cancelled())
            asking.cancel()

    asyncio.run(go())
