"""Test a cluster in which requests are delayed and replies are lost while users are moved or erased."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Awaitable
from contextlib import nullcontext, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import pytest
from dispatching import dispatching
from msgspec.structs import replace

from memory_agent.archiving import UserFiles
from memory_agent.daemon import directory as directory_module
from memory_agent.daemon import host_pool as host_pool_module
from memory_agent.daemon import hosts as hosts_module
from memory_agent.daemon.erasure import DaemonEraser, RetentionRounds
from memory_agent.daemon.host import MemoryHost
from memory_agent.daemon.hosts import Hosts
from memory_agent.daemon.lease import Lease
from memory_agent.embedders import Embedder
from memory_agent.errors import (
    DeadlineExceededError,
    FencedError,
    HostDiedError,
    MemoryAgentError,
    StoreError,
    StoreFullError,
    StoreOwnedElsewhereError,
)
from memory_agent.records.memories import MemoryPage
from memory_agent.records.placement import Placement, Position
from memory_agent.settings import DaemonSettings, IngestSettings, RetentionSettings
from memory_agent.signals import SignalTable
from memory_agent.storage.folders import user_folder
from memory_agent.verbs.protocol import HostRequest, decode_reply, encode_fields
from memory_agent.verbs.table import BY_NAME
from relay import AsyncSubscriber, Broker
from tests.memory_agent.daemon.several_nodes import (
    Held,
    Machines,
    NodeHost,
    cluster,
    contents,
    dispatched,
    objects,
    publish,
    refusing_archive,
    remember,
)

LIST = encode_fields(BY_NAME["list"].call({}).params)
NOW = datetime(2026, 2, 16, tzinfo=UTC)
PATIENCE_S = 20.0


async def move(hosts: Hosts, user_id: str, node: str) -> None:
    async with hosts.kept_asleep(user_id):
        await hosts._move(user_id, node)


async def erase(hosts: Hosts, user_id: str, home: Path) -> None:
    """Erase all of a user's data, in the order of a real erasure."""
    async with hosts.kept_home(user_id), hosts.kept_asleep(user_id):
        await hosts.erase_archive(user_id)
        shutil.rmtree(user_folder(home, user_id))


def answer_late(host: NodeHost, placement: Placement) -> None:
    """Run a late request, sent under this placement, on a host; the host must refuse it."""
    with pytest.raises(FencedError):
        decode_reply(host.memories.call("alice", "list", LIST, 1_000.0, placement=placement), MemoryPage)


# Requests and replies that arrive late


@pytest.mark.parametrize("was_placed", [False, True])
def test_a_late_request_at_home_keeps_what_was_written_elsewhere(
    tmp_path: Path, embedder: Embedder, was_placed: bool
) -> None:
    async def go() -> None:
        async with cluster(tmp_path, ("one", "two"), embedder) as (hosts, machines, placements):
            for node in ("one", "two"):
                machines.nodes[node].is_up = False  # a new user starts at home
            if was_placed:
                placements.move("alice", "")
            await remember(hosts, "alice", "first")
            former = placements.of("alice")
            (home,) = machines.nodes[""].hosts
            for node in ("one", "two"):
                machines.nodes[node].is_up = True
            await move(hosts, "alice", "one")
            await remember(hosts, "alice", "second")
            answer_late(home, former)
            home.memories.sleep("alice")
            assert objects(tmp_path)
            await remember(hosts, "alice", "third")
            machines.nodes["one"].pause()
            assert await contents(hosts, "alice") == ["first", "second", "third"]

    asyncio.run(go())


def test_a_request_that_outlives_its_deadline_and_a_move_changes_nothing(
    tmp_path: Path, embedder: Embedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def go() -> None:
        async with cluster(tmp_path, ("one",), embedder) as (hosts, machines, placements):
            placements.move("alice", "")
            await remember(hosts, "alice", "first")
            (home,) = machines.nodes[""].hosts
            held, call = Held(), home.memories.call

            def late(*request: Any) -> bytes:
                held.here()
                try:
                    return call(*request)
                finally:
                    held.end()

            monkeypatch.setattr(home.memories, "call", late)
            with pytest.raises(DeadlineExceededError):
                await hosts.call("alice", "list", LIST, 300.0)
            await held.reached()
            monkeypatch.setattr(home.memories, "call", call)
            await move(hosts, "alice", "one")
            await remember(hosts, "alice", "second")
            held.go_on()
            await held.ended()
            assert objects(tmp_path)
            await remember(hosts, "alice", "third")
            machines.nodes["one"].pause()
            assert await contents(hosts, "alice") == ["first", "second", "third"]

    asyncio.run(go())


def test_a_late_request_keeps_the_newer_files_of_its_node(broker: Broker, tmp_path: Path, embedder: Embedder) -> None:
    async def go() -> None:
        async with (
            cluster(tmp_path, ("one", "two"), embedder, lease_s=60.0) as (hosts, machines, placements),
            dispatched(broker, tmp_path, hosts, 3_600.0) as (dispatcher, journal),
        ):
            placements.move("alice", "one")
            await remember(hosts, "alice", "first")
            former = placements.of("alice")
            await move(hosts, "alice", "two")
            await move(hosts, "alice", "one")
            await asyncio.to_thread(publish, broker, "alice", range(4))
            await dispatcher.wait({"alice": 4}, 30.0)
            (host,) = (host for host in machines.nodes["one"].hosts if "alice" in host.memories._memories)
            answer_late(host, former)
            await hosts.sleep("alice")
            await dispatcher.commit()
            assert await journal.cursor() == 4
            assert len(await contents(hosts, "alice")) == 5

    asyncio.run(go())


def test_a_late_request_leaves_no_files_on_a_node_that_its_user_left(tmp_path: Path, embedder: Embedder) -> None:
    async def go() -> None:
        async with cluster(tmp_path, ("one", "two"), embedder, lease_s=60.0) as (hosts, machines, placements):
            placements.move("alice", "one")
            await remember(hosts, "alice", "staging needs the VPN")
            former = placements.of("alice")
            (host,) = machines.nodes["one"].hosts
            await move(hosts, "alice", "two")
            answer_late(host, former)
            async with hosts.kept_home("alice"):
                assert not machines.nodes["one"].files_of("alice")
                assert not host.memories._memories

    asyncio.run(go())


def test_files_that_a_late_request_opened_are_discarded(tmp_path: Path, embedder: Embedder) -> None:
    async def go() -> None:
        async with cluster(tmp_path, ("one",), embedder, lease_s=60.0) as (hosts, machines, placements):
            placements.move("alice", "one")
            await remember(hosts, "alice", "staging needs the VPN")
            former = placements.of("alice")
            (host,) = machines.nodes["one"].hosts
            await hosts.sleep("alice")
            host.memories.call("alice", "list", LIST, 1_000.0, placement=former)  # after the user fell asleep
            assert list(host.memories._memories) == ["alice"]
            async with hosts.kept_home("alice"):
                assert not machines.nodes["one"].files_of("alice")
                assert not host.memories._memories
                assert await contents(hosts, "alice") == ["staging needs the VPN"]

    asyncio.run(go())


@pytest.mark.parametrize(("held_in", "owns"), [("require_current", False), ("_archive_of", True)])
def test_a_release_that_outlives_its_caller_keeps_what_is_acknowledged(
    tmp_path: Path, embedder: Embedder, held_in: str, owns: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`owns`: whether the release already owns the user's files, so that no memory can be opened meanwhile."""

    async def go() -> None:
        async with cluster(tmp_path, ("one",), embedder) as (hosts, machines, placements):
            placements.move("alice", "")
            placements.move("bob", "")
            await remember(hosts, "bob", "first")  # in the host that will release files
            await remember(hosts, "alice", "first")
            releasing = machines.nodes[""].hosts[0]
            files = releasing.memories._files
            assert files is not None
            held, release, step = Held(), files.release, getattr(files, held_in)

            def late(*request: Any) -> Position | None:
                try:
                    return release(*request)
                finally:
                    held.end()

            def held_step(*args: Any) -> Any:
                result = step(*args)
                held.here()
                return result

            monkeypatch.setattr(files, "release", late)
            monkeypatch.setattr(files, held_in, held_step)
            moving = asyncio.create_task(move(hosts, "alice", "one"))
            await held.reached()
            moving.cancel()
            with pytest.raises(asyncio.CancelledError):
                await moving
            with pytest.raises(StoreOwnedElsewhereError) if owns else nullcontext():
                await remember(hosts, "alice", "during the release")
            held.go_on()
            await held.ended()
            await remember(hosts, "alice", "second")
            assert not hosts.is_away("alice")
            await hosts.sleep("alice")
            expected = ["first", "second"] if owns else ["during the release", "first", "second"]
            assert await contents(hosts, "alice") == expected

    asyncio.run(go())


def test_a_state_of_the_archive_that_arrives_after_an_erasure_does_not_count(
    tmp_path: Path, embedder: Embedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def go() -> None:
        async with cluster(tmp_path, ("one",), embedder) as (hosts, machines, placements):
            placements.move("alice", "one")
            await remember(hosts, "alice", "of the erased user")
            (host,) = machines.nodes["one"].hosts
            is_archived, goes_on, archive = asyncio.Event(), asyncio.Event(), host.archive

            async def late(*request: Any) -> Position:
                position = await archive(*request)
                is_archived.set()
                await goes_on.wait()
                return position

            monkeypatch.setattr(host, "archive", late)
            saving = asyncio.create_task(hosts.archive("alice"))
            await is_archived.wait()
            await erase(hosts, "alice", tmp_path / "home")
            goes_on.set()
            with suppress(MemoryAgentError):
                await saving
            placements.move("alice", "one")
            await remember(hosts, "alice", "of a new user")
            assert await contents(hosts, "alice") == ["of a new user"]

    asyncio.run(go())


def test_an_upload_that_ends_after_an_erasure_is_never_restored(tmp_path: Path, embedder: Embedder) -> None:
    async def go() -> None:
        async with cluster(tmp_path, ("one",), embedder) as (hosts, _, placements):
            placements.move("alice", "one")
            await remember(hosts, "alice", "of the erased user")
            (snapshot,) = (tmp_path / "archive").rglob("*.snapshot")
            uploaded = snapshot.read_bytes()
            await erase(hosts, "alice", tmp_path / "home")
            assert not objects(tmp_path)
            snapshot.parent.mkdir(parents=True)
            snapshot.write_bytes(uploaded)
            placements.move("alice", "one")
            assert await contents(hosts, "alice") == []

    asyncio.run(go())


def test_a_user_who_is_placed_again_right_after_an_erasure_gets_a_later_epoch(
    tmp_path: Path, embedder: Embedder
) -> None:
    async def go() -> None:
        async with cluster(tmp_path, ("one",), embedder) as (hosts, _, placements):
            placements.move("alice", "one")
            for _ in range(5):  # moves within one second
                former = placements.move("alice", "")
            await erase(hosts, "alice", tmp_path / "home")
            assert placements.move("alice", "one").epoch > former.epoch

    asyncio.run(go())


# Ending hosts, failures and lost files


def restarted(host: NodeHost, machines: Machines, embedder: Embedder) -> MemoryHost:
    """Return the memories of the process that replaces a killed process."""
    for memory in host.memories._memories.values():
        memory.abandon()
    folder = host.machine.folder
    files = UserFiles(folder, machines.settings, is_home=False)
    return MemoryHost(folder, machines.settings, embedder, files=files, lease=Lease())


def failed(host: NodeHost, machines: Machines, embedder: Embedder) -> MemoryHost:
    """Simulate a storage error that closes alice's memory; return the host's memories."""
    host.memories._fault("alice", host.memories._memories["alice"], StoreError("users/alice: Input/output error"))
    return host.memories


@pytest.mark.parametrize("after", [restarted, failed])
def test_what_a_former_process_had_not_archived_is_archived_when_its_user_sleeps(
    broker: Broker, tmp_path: Path, embedder: Embedder, after: Any
) -> None:
    async def go() -> None:
        async with (
            cluster(tmp_path, ("one", "two"), embedder) as (hosts, machines, placements),
            dispatched(broker, tmp_path, hosts, 3_600.0) as (dispatcher, journal),
        ):
            placements.move("alice", "one")
            await asyncio.to_thread(publish, broker, "alice", range(4))
            await dispatcher.wait({"alice": 4}, 30.0)
            (host,) = machines.nodes["one"].hosts
            host.memories = after(host, machines, embedder)
            await hosts.sleep("alice")
            await dispatcher.commit()
            assert await journal.cursor() == 4
            await move(hosts, "alice", "two")
            assert len(await contents(hosts, "alice")) == 4

    asyncio.run(go())


def test_a_user_whose_files_a_node_lost_wakes_and_sleeps_there(tmp_path: Path, embedder: Embedder) -> None:
    async def go() -> None:
        async with cluster(tmp_path, ("one",), embedder, lease_s=60.0) as (hosts, machines, placements):
            placements.move("alice", "one")
            for number in range(4):
                await remember(hosts, "alice", f"{number}")
                await hosts.sleep("alice")
            for _ in range(2):
                shutil.rmtree(machines.nodes["one"].folder / "users")
                assert len(await contents(hosts, "alice")) == 4
                await hosts.sleep("alice")
                assert not hosts.awake()
            shutil.rmtree(machines.nodes["one"].folder / "users")
            await remember(hosts, "alice", "4")
            assert len(await contents(hosts, "alice")) == 5

    asyncio.run(go())


def test_a_host_that_ends_without_users_leaves_its_node_usable(
    tmp_path: Path, embedder: Embedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(NodeHost, "can_be_killed", True)

    async def go() -> None:
        async with cluster(tmp_path, ("one", "two"), embedder, lease_s=0.5) as (hosts, machines, placements):
            hosts._pool._spares_kept = 0
            placements.move("alice", "one")
            await remember(hosts, "alice", "staging needs the VPN")
            (lease,) = hosts._pool._leases.values()
            await hosts.sleep("alice")
            assert machines.nodes["one"].hosts[0].is_gone
            await asyncio.wait((lease,))
            assert "one" in hosts._pool.nodes()
            assert await contents(hosts, "alice") == ["staging needs the VPN"]
            assert placements.of("alice").node == "one"

    asyncio.run(go())


@pytest.mark.parametrize("error", [MemoryAgentError("internal error (KeyError)"), RuntimeError("unforeseen")])
def test_a_host_whose_lease_cannot_be_renewed_is_replaced(
    tmp_path: Path, embedder: Embedder, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def go() -> None:
        async with cluster(tmp_path, ("one",), embedder, lease_s=1.0) as (hosts, machines, placements):
            placements.move("alice", "one")
            await remember(hosts, "alice", "staging needs the VPN")
            (host,) = machines.nodes["one"].hosts

            def fail(*_: float) -> float:
                raise error

            monkeypatch.setattr(host.memories, "renew", fail)
            (lease,) = hosts._pool._leases.values()
            await asyncio.wait((lease,))
            assert not host.memories._has_lease
            assert await contents(hosts, "alice") == ["staging needs the VPN"]
            assert placements.of("alice").node == ""

    asyncio.run(go())


def test_an_event_that_kills_hosts_on_other_nodes_is_quarantined(
    broker: Broker, tmp_path: Path, embedder: Embedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_pool_module, "_AVOIDED_S", 0.0)  # the user returns to the same node

    async def go() -> None:
        settings, journal = DaemonSettings(crashes_before_quarantine=1), AsyncSubscriber(*broker.endpoints, "memory")
        async with (
            cluster(tmp_path, ("one",), embedder, lease_s=0.5) as (hosts, _, placements),
            dispatching(journal, tmp_path, hosts, settings, 3_600.0) as dispatcher,
        ):
            deaths, request = [], NodeHost.request

            async def dies(host: NodeHost, sent: HostRequest, body: bytes, timeout_s: float) -> bytes:
                if sent.method:
                    return await request(host, sent, body, timeout_s)
                deaths.append(host.name)
                host.end()
                raise HostDiedError(host.name)

            monkeypatch.setattr(NodeHost, "request", dies)
            placements.move("alice", "one")
            await asyncio.to_thread(publish, broker, "alice", range(1))
            await dispatcher.wait({"alice": 1}, 60.0)
            assert len(await journal.quarantined(0, 10)) == 1
            assert len(set(deaths)) > 1  # a single loss could be a failure of the machine

    asyncio.run(go())


# Concurrent moves, erasures and upkeep


def test_a_user_is_at_home_inside_kept_home_although_it_was_waking_elsewhere(
    tmp_path: Path, embedder: Embedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def go() -> None:
        async with cluster(tmp_path, ("one",), embedder) as (hosts, machines, placements):
            placements.move("alice", "")
            await remember(hosts, "alice", "first")
            await hosts.sleep("alice")
            (home,) = machines.nodes[""].hosts
            held, release = Held(), home.memories.release

            def slow(*request: Any) -> Position | None:
                held.here()
                return release(*request)

            monkeypatch.setattr(home.memories, "release", slow)
            monkeypatch.setattr(hosts_module, "chosen_node", lambda *_: "one")
            waking = asyncio.create_task(contents(hosts, "alice"))
            await held.reached()
            pinning = asyncio.create_task(pinned_contents(hosts, machines))
            await asyncio.sleep(0)  # the new task waits for the user's lock
            held.go_on()
            assert await pinning == ["first", "second"]
            await waking

    asyncio.run(go())


async def pinned_contents(hosts: Hosts, machines: Machines) -> list[str]:
    async with hosts.kept_home("alice"):
        await remember(hosts, "alice", "second")
        assert not hosts.is_away("alice")
        assert not machines.nodes["one"].files_of("alice")
        return await contents(hosts, "alice")


class Erasing:
    """Keeps each user asleep once the user's host is lost, as an erasure or a drain at that moment would."""

    def __init__(self, hosts: Hosts) -> None:
        self.tasks: list[asyncio.Task[None]] = []
        self._hosts = hosts

    def saved(self, user_id: str) -> None:
        pass

    def lost(self, user_id: str) -> Awaitable[None] | None:
        self.tasks.append(asyncio.create_task(self._hosts._leave(user_id)))
        return None


@pytest.mark.parametrize("is_erasing", [False, True])
def test_a_request_an_erasure_and_lost_events_do_not_wait_for_each_other(
    broker: Broker, tmp_path: Path, embedder: Embedder, is_erasing: bool
) -> None:
    async def go() -> None:
        async with (
            cluster(tmp_path, ("one", "two"), embedder, lease_s=1.0) as (hosts, machines, placements),
            dispatched(broker, tmp_path, hosts, 3_600.0) as (dispatcher, _),
        ):
            placements.move("alice", "one")
            await asyncio.to_thread(publish, broker, "alice", range(8))
            await dispatcher.wait({"alice": 8}, 30.0)
            erasing = Erasing(hosts)
            if is_erasing:
                hosts.watch(erasing)
            machines.nodes["one"].pause()
            page = decode_reply(await hosts.call("alice", "list", LIST, PATIENCE_S * 1_000), MemoryPage)
            assert len(page.records) == 8
            assert len(erasing.tasks) == is_erasing
            await asyncio.gather(*erasing.tasks)

    asyncio.run(go())


def test_balancing_goes_on_while_the_archive_refuses(
    tmp_path: Path, embedder: Embedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(directory_module, "_BUSY_S", 0.0)
    users = ("alice", "bob", "carol", "dave")

    async def go() -> None:
        async with cluster(tmp_path, ("one",), embedder) as (hosts, machines, placements):
            for user_id in users:
                placements.move(user_id, "one")
                await remember(hosts, user_id, "first")
            with refusing_archive(tmp_path, *users):
                for host in machines.nodes["one"].hosts:
                    for memory in host.memories._memories.values():
                        memory.remember("second")
                await hosts.balance()
                assert hosts.count_on("one") == len(users)
            await hosts.balance()
            assert hosts.count_on("one") < len(users)
            for user_id in users:
                assert await contents(hosts, user_id) == ["first", "second"]

    asyncio.run(go())


def test_a_full_disk_at_home_does_not_end_upkeep(
    tmp_path: Path, embedder: Embedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def go() -> None:
        async with cluster(tmp_path, ("one",), embedder) as (hosts, _, placements):
            hosts._settings = replace(hosts._settings, idle_sleep_s=0.0)
            placements.move("alice", "one")
            await remember(hosts, "alice", "staging needs the VPN")

            def refuse(*_: Any) -> None:
                raise StoreFullError("placement.json", 0)

            with monkeypatch.context() as full:
                full.setattr(placements, "_write", refuse)
                await hosts.sleep_idle()
            await hosts.sleep_idle()
            assert not hosts.awake()
            assert await contents(hosts, "alice") == ["staging needs the VPN"]

    asyncio.run(go())


def test_a_damaged_placement_does_not_end_retention(tmp_path: Path, embedder: Embedder) -> None:
    async def go() -> None:
        async with cluster(tmp_path, ("one",), embedder) as (hosts, _, _):
            folder = user_folder(tmp_path / "home", "alice")
            folder.mkdir(parents=True)
            (folder / "placement.json").write_bytes(b"damaged")
            table = SignalTable.load(IngestSettings().signals)
            eraser = cast(DaemonEraser, None)
            await RetentionRounds(hosts, eraser, tmp_path / "home", RetentionSettings(), table).go_round(NOW)

    asyncio.run(go())
