"""Test a daemon with users on several nodes: moves, lost nodes, leases and the archive. Hosts, stores and the archive
are real.
"""

from __future__ import annotations

import asyncio
import shutil
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import pytest
from dispatching import dispatching

from memory_agent.archiving import is_away
from memory_agent.care import destroy_user_key, export_user, make_backup, restore_user, verify_folder
from memory_agent.care.offline import open_memory
from memory_agent.embedders import Embedder
from memory_agent.erasure.logs import INTENT_FILE
from memory_agent.errors import (
    ArchiveDamagedError,
    ArchiveUnavailableError,
    EncryptionKeyMissingError,
    SettingsError,
    UnavailableError,
)
from memory_agent.records.placement import HOME
from memory_agent.settings import DaemonSettings, Settings
from memory_agent.storage.folders import user_folder
from memory_agent.verbs.protocol import NOT_DONE, encode_fields
from memory_agent.verbs.table import BY_NAME
from relay import AsyncSubscriber, Broker
from tests.memory_agent.daemon.several_nodes import NodeHost, cluster, contents, dispatched, publish, remember

NOW = datetime(2026, 2, 16, tzinfo=UTC)


def test_what_was_acknowledged_on_a_lost_node_is_found_on_another(tmp_path: Path, embedder: Embedder) -> None:
    async def go() -> None:
        async with cluster(tmp_path, ("one", "two"), embedder) as (hosts, machines, placements):
            placements.move("alice", "one")
            await remember(hosts, "alice", "staging needs the VPN")
            await remember(hosts, "alice", "staging is reset on Mondays")
            assert hosts.is_away("alice")
            first = placements.of("alice")
            machines.nodes["one"].pause()
            assert await contents(hosts, "alice") == ["staging is reset on Mondays", "staging needs the VPN"]
            second = placements.of("alice")
            assert second.node != "one"
            assert second.epoch > first.epoch

    asyncio.run(go())


def test_a_user_takes_its_memories_along_and_leaves_none_behind(tmp_path: Path, embedder: Embedder) -> None:
    async def go() -> None:
        async with cluster(tmp_path, ("one", "two"), embedder, lease_s=60.0) as (hosts, machines, _):
            await remember(hosts, "alice", "staging needs the VPN")
            expected = ["staging needs the VPN"]
            for node in ("one", "two", "one", "two"):
                async with hosts.kept_asleep("alice"):
                    await hosts._move("alice", node)
                assert await contents(hosts, "alice") == expected
                expected.append(f"staging was on {node} {len(expected)}")
                await remember(hosts, "alice", expected[-1])
                expected.sort()
                assert "columns.arrays" in machines.nodes[node].files_of("alice"), "it would be rebuilt"
                left = {name: machine.files_of("alice") for name, machine in machines.nodes.items() if name != node}
                assert left.pop("") == ["placement.json"]
                assert not any(left.values())
            async with hosts.kept_home("alice"):
                assert await contents(hosts, "alice") == expected
                assert not any(machine.files_of("alice") for name, machine in machines.nodes.items() if name)
                assert not list((tmp_path / "archive").rglob("*.snapshot"))

    asyncio.run(go())


def test_busy_users_of_a_leaving_node_are_awake_elsewhere_before_their_next_request(
    tmp_path: Path, embedder: Embedder
) -> None:
    async def go() -> None:
        async with cluster(tmp_path, ("one", "two"), embedder, lease_s=60.0) as (hosts, machines, placements):
            users = ("alice", "bob", "carol")
            for user_id in users:
                placements.move(user_id, "one")
                await remember(hosts, user_id, f"{user_id} needs the VPN")
            machines.nodes["one"].is_up = False
            await hosts.drain("one")
            assert not hosts.count_on("one")
            assert set(hosts.awake()) == set(users)
            for user_id in users:
                assert await contents(hosts, user_id) == [f"{user_id} needs the VPN"]

    asyncio.run(go())


def test_a_node_that_left_and_joins_again_receives_users_at_once(tmp_path: Path, embedder: Embedder) -> None:
    """Regression: the hosts of a node that had left counted as lost, and the node received no users for 10 s."""

    async def go() -> None:
        async with cluster(tmp_path, ("one",), embedder, lease_s=0.5) as (hosts, machines, placements):
            placements.move("alice", "one")
            await remember(hosts, "alice", "staging needs the VPN")
            leases = list(hosts._pool._leases.values())
            machines.nodes["one"].is_up = False
            await hosts.vacate("one")
            for host in machines.nodes["one"].hosts:
                host.end()  # ends with its machine
            await asyncio.wait(leases)
            machines.nodes["one"].is_up = True
            assert "one" in hosts._pool.nodes()
            assert hosts.figures().lost == 0

    asyncio.run(go())


def test_a_node_that_is_drained_without_leaving_keeps_its_spare_hosts(tmp_path: Path, embedder: Embedder) -> None:
    """A node is drained while its disk is full, even the daemon's own machine."""

    async def go() -> None:
        async with cluster(tmp_path, ("one",), embedder) as (hosts, _, _):
            for node in (HOME, "one"):
                spare = hosts._pool.any_on(node)
                await hosts.drain(node)
                assert hosts._pool.any_on(node) is spare

    asyncio.run(go())


def test_events_that_a_lost_node_had_not_archived_are_delivered_again(
    broker: Broker, tmp_path: Path, embedder: Embedder
) -> None:
    async def go() -> None:
        async with (
            cluster(tmp_path, ("one", "two"), embedder) as (hosts, machines, placements),
            dispatched(broker, tmp_path, hosts, 3600.0) as (dispatcher, journal),
        ):
            placements.move("alice", "one")
            await asyncio.to_thread(publish, broker, "alice", range(10))
            await dispatcher.wait({"alice": 10}, 30.0)
            assert len(await contents(hosts, "alice")) == 10
            await dispatcher.commit()
            assert await journal.cursor() == 0  # nothing is archived yet
            machines.nodes["one"].pause()
            await asyncio.to_thread(publish, broker, "alice", range(10, 15))
            await dispatcher.wait({"alice": 15}, 30.0)
            assert len(await contents(hosts, "alice")) == 15
            assert placements.of("alice").node != "one"

    asyncio.run(go())


def test_the_journal_is_freed_once_events_are_archived(broker: Broker, tmp_path: Path, embedder: Embedder) -> None:
    async def go() -> None:
        async with (
            cluster(tmp_path, ("one",), embedder) as (hosts, machines, placements),
            dispatched(broker, tmp_path, hosts, 0.05) as (_, journal),
        ):
            placements.move("alice", "one")
            placements.move("bob", "one")
            await asyncio.to_thread(publish, broker, "alice", range(10))
            await asyncio.to_thread(publish, broker, "bob", range(10))
            while await journal.cursor() < 20:
                await asyncio.sleep(0.05)
            machines.nodes["one"].pause()
            assert len(await contents(hosts, "alice")) == len(await contents(hosts, "bob")) == 10
            assert placements.of("alice").archived is not None

    asyncio.run(go())


def test_nothing_is_acknowledged_that_the_archive_refuses(tmp_path: Path, embedder: Embedder) -> None:
    async def go() -> None:
        async with cluster(tmp_path, ("one", "two"), embedder) as (hosts, machines, placements):
            placements.move("alice", "one")
            await remember(hosts, "alice", "staging needs the VPN")
            archive = tmp_path / "archive" / "users" / "alice"
            archive.rename(tmp_path / "away")
            archive.touch()  # a file, so that no folder can be created in it
            with pytest.raises(ArchiveUnavailableError):
                await remember(hosts, "alice", "staging is reset on Mondays")
            await hosts.sleep("alice")
            assert hosts.is_away("alice")  # alice stays awake, because her changes exist only on that node
            archive.unlink()
            (tmp_path / "away").rename(archive)
            await hosts.sleep("alice")
            assert not hosts.is_away("alice")
            machines.nodes["one"].is_up = False
            assert len(await contents(hosts, "alice")) == 2

    asyncio.run(go())


def test_an_archive_that_returns_an_older_state_is_noticed(tmp_path: Path, embedder: Embedder) -> None:
    async def go() -> None:
        async with cluster(tmp_path, ("one", "two"), embedder) as (hosts, machines, placements):
            placements.move("alice", "one")
            await remember(hosts, "alice", "staging needs the VPN")
            shutil.copytree(tmp_path / "archive", tmp_path / "older")
            await remember(hosts, "alice", "staging is reset on Mondays")
            await hosts.archive("alice")
            shutil.rmtree(tmp_path / "archive")
            (tmp_path / "older").rename(tmp_path / "archive")
            machines.nodes["one"].pause()
            with pytest.raises(ArchiveDamagedError):
                await contents(hosts, "alice")

    asyncio.run(go())


def test_users_return_to_a_node_whose_unneeded_host_was_ended(
    tmp_path: Path, embedder: Embedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(NodeHost, "can_be_killed", True)

    async def go() -> None:
        async with cluster(tmp_path, ("one", "two"), embedder) as (hosts, _, placements):
            users = ("alice", "bob", "carol")
            for user_id in users:
                placements.move(user_id, "one")
                await remember(hosts, user_id, "staging needs the VPN")
            epochs = [placements.of(user_id).epoch for user_id in users]
            await asyncio.gather(*(hosts.sleep(user_id) for user_id in users))
            async with asyncio.timeout(60):
                while len(hosts._pool._leases) == len(users):  # until all hosts except the spare ones have exited
                    await asyncio.sleep(0.01)
            for user_id in users:
                assert await contents(hosts, user_id) == ["staging needs the VPN"]
            assert [placements.of(user_id).node for user_id in users] == ["one", "one", "one"]
            assert [placements.of(user_id).epoch for user_id in users] == epochs

    asyncio.run(go())


def test_a_host_without_a_lease_gives_no_answer(tmp_path: Path, embedder: Embedder) -> None:
    async def go() -> None:
        async with cluster(tmp_path, ("one", "two"), embedder) as (hosts, machines, placements):
            placements.move("alice", "one")
            await remember(hosts, "alice", "staging needs the VPN")
            (host,) = machines.nodes["one"].hosts
            placement = placements.of("alice")
            machines.nodes["one"].pause()
            assert len(await contents(hosts, "alice")) == 1
            assert placements.of("alice").node != "one"
            params = encode_fields(BY_NAME["remember"].call({"text": "written by the former owner"}).params)
            answer = partial(host.memories.call, "alice", "remember", params, 1_000.0, placement=placement)
            assert host.memories.leased(answer) == NOT_DONE
            answer()  # as if the host were frozen between the lease check and the write
            assert await contents(hosts, "alice") == ["staging needs the VPN"]
            async with hosts.kept_asleep("alice"):
                await hosts._move("alice", "two" if hosts.is_away("alice") else "")
            assert await contents(hosts, "alice") == ["staging needs the VPN"]

    asyncio.run(go())


def test_an_encrypted_user_survives_moves_and_losses_until_its_key_is_destroyed(
    broker: Broker, tmp_path: Path, embedder: Embedder
) -> None:
    secret, folders = b"staging needs the VPN", [tmp_path / name for name in ("home", "one", "two", "archive")]

    def plain() -> list[str]:
        """Return the files that contain the users' text; the test's journal is not encrypted."""
        found = [file for folder in folders for file in folder.rglob("*") if file.is_file()]
        assert len(found) > len(folders)
        contents = {str(file): file.read_bytes() for file in found}
        return [name for name, content in contents.items() if secret in content or b"check lamp" in content]

    async def go() -> Settings:
        keys = str(tmp_path / "keys")
        async with (
            cluster(tmp_path, ("one", "two"), embedder, keys_folder=keys) as (hosts, machines, placements),
            dispatched(broker, tmp_path, hosts, 3600.0) as (dispatcher, _),
        ):
            for user_id in ("alice", "bob"):
                placements.move(user_id, "one")
                await remember(hosts, user_id, secret.decode())
            await asyncio.to_thread(publish, broker, "alice", range(10))
            await dispatcher.wait({"alice": 10}, 30.0)
            async with hosts.kept_asleep("alice"):
                await hosts._move("alice", "two")
            expected = await contents(hosts, "alice")
            assert len(expected) == 11
            await asyncio.to_thread(publish, broker, "alice", range(10, 12))  # in no archive
            await dispatcher.wait({"alice": 12}, 30.0)
            expected = await contents(hosts, "alice")
            machines.nodes["two"].pause()
            assert await contents(hosts, "alice") == expected
            async with hosts.kept_asleep("alice"):
                await hosts._move("alice", "one")
            assert await contents(hosts, "alice") == expected
            assert (len(expected), placements.of("alice").node) == (13, "one")
            assert plain() == []
            destroy_user_key(tmp_path / "home", machines.settings, "alice", NOW, is_served=True)
            with pytest.raises(EncryptionKeyMissingError):
                await contents(hosts, "alice")
            machines.nodes["one"].pause()
            with pytest.raises(EncryptionKeyMissingError):  # restored elsewhere
                await contents(hosts, "alice")
            assert placements.of("alice").node != "one"
            assert await contents(hosts, "bob") == [secret.decode()]
            return machines.settings

    settings = asyncio.run(go())
    assert plain() == []
    with pytest.raises(EncryptionKeyMissingError), open_memory(tmp_path / "home", settings, "alice"):
        pass


def test_an_unfinished_erasure_keeps_a_user_at_home(tmp_path: Path, embedder: Embedder) -> None:
    async def go() -> None:
        async with cluster(tmp_path, ("one",), embedder) as (hosts, machines, placements):
            placements.move("alice", "")
            await remember(hosts, "alice", "staging needs the VPN")
            intent = machines.nodes[""].folder / "users" / "alice" / INTENT_FILE
            intent.touch()
            with pytest.raises(UnavailableError, match="erasure"):
                async with hosts.kept_asleep("alice"):
                    await hosts._move("alice", "one")
            intent.unlink()
            assert await contents(hosts, "alice") == ["staging needs the VPN"]
            assert not hosts.is_away("alice")

    asyncio.run(go())


def test_tools_without_a_daemon_reach_users_on_other_nodes(tmp_path: Path, embedder: Embedder) -> None:
    home = tmp_path / "home"

    async def go() -> Settings:
        async with cluster(tmp_path, ("one",), embedder) as (hosts, machines, placements):
            for user_id in ("alice", "bob", "carol"):
                placements.move(user_id, "one")
                await remember(hosts, user_id, "staging needs the VPN")
            return machines.settings

    settings = asyncio.run(go())
    away = [user_id for user_id in ("alice", "bob", "carol") if is_away(user_folder(home, user_id))]
    assert away == ["alice", "bob", "carol"]
    assert [(part.entries, part.findings) for part in verify_folder(home, settings, lambda *_: None)] == [(1, ())] * 3
    with pytest.raises(SettingsError, match=r"archive\.url"):
        list(verify_folder(home, Settings(), lambda *_: None))
    manifest = make_backup(home, tmp_path / "backup", settings, NOW, lambda *_: None)
    assert [part.entries for part in manifest.parts] == [1] * 3
    assert len(list(export_user(home, settings, "carol", lambda *_: None))) == 2
    with open_memory(home, settings, "alice") as memory:
        assert memory.stats().memories == 1
        memory.remember("staging is reset on Mondays")
    restore_user(tmp_path / "backup", home, "bob", settings, NOW, lambda *_: None, replace=True)
    for user_id, expected in (("alice", 2), ("bob", 1)):
        assert not is_away(user_folder(home, user_id))
        assert not list((tmp_path / "archive" / "users" / user_id).rglob("*.*"))
        with open_memory(home, settings, user_id) as memory:
            assert memory.stats().memories == expected


def test_events_are_not_blamed_for_lost_nodes(broker: Broker, tmp_path: Path, embedder: Embedder) -> None:
    async def go() -> None:
        journal = AsyncSubscriber(*broker.endpoints, "memory")
        settings = DaemonSettings(crashes_before_quarantine=1)
        async with (
            cluster(tmp_path, ("one",), embedder, lease_s=0.5) as (hosts, machines, placements),
            dispatching(journal, tmp_path, hosts, settings, 3600.0) as dispatcher,
        ):
            placements.move("alice", "one")
            assert await contents(hosts, "alice") == []  # the host has a lease now
            machines.nodes["one"].pause()
            await asyncio.to_thread(publish, broker, "alice", range(1))
            await dispatcher.wait({"alice": 1}, 60.0)
            assert not await journal.quarantined(0, 10)
            assert len(await contents(hosts, "alice")) == 1

    asyncio.run(go())
