"""Test opening a former cluster's folder without the cluster: users on other nodes are first moved back."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from pathlib import Path

import pytest

from memory_agent.care import make_backup, restore_user
from memory_agent.care.offline import open_memory
from memory_agent.daemon.host import MemoryHost
from memory_agent.embedders import Embedder
from memory_agent.errors import ArchiveDamagedError
from memory_agent.records.memories import MemoryPage
from memory_agent.settings import Settings
from memory_agent.verbs.protocol import decode_reply, encode_fields
from memory_agent.verbs.table import BY_NAME
from tests.memory_agent.daemon.several_nodes import cluster, contents, objects, refusing_archive, remember

LIST = encode_fields(BY_NAME["list"].call({}).params)
NOW = datetime(2026, 2, 16, tzinfo=UTC)


def user_elsewhere(folder: Path, embedder: Embedder) -> Settings:
    """Create a user with one memory on another node."""

    async def go() -> Settings:
        async with cluster(folder, ("one",), embedder) as (hosts, machines, placements):
            placements.move("alice", "one")
            await remember(hosts, "alice", "first")
            return machines.settings

    return asyncio.run(go())


def test_a_user_is_fetched_home_after_a_first_try_failed(tmp_path: Path, embedder: Embedder) -> None:
    settings = user_elsewhere(tmp_path, embedder)
    with refusing_archive(tmp_path, "alice"), pytest.raises(ArchiveDamagedError):
        open_memory(tmp_path / "home", settings, "alice")
    with open_memory(tmp_path / "home", settings, "alice") as memory:
        assert memory.stats().memories == 1


def test_a_daemon_without_the_cluster_fetches_users_home(tmp_path: Path, embedder: Embedder) -> None:
    settings = user_elsewhere(tmp_path, embedder)
    alone = MemoryHost(tmp_path / "home", settings, embedder)
    params = encode_fields(BY_NAME["remember"].call({"text": "second"}).params)
    alone.call("alice", "remember", params, 1_000.0)
    assert len(decode_reply(alone.call("alice", "list", LIST, 1_000.0), MemoryPage).records) == 2
    alone.close()

    async def again() -> list[str]:
        async with cluster(tmp_path, ("one",), embedder) as (hosts, _, _), hosts.kept_home("alice"):
            return await contents(hosts, "alice")

    assert asyncio.run(again()) == ["first", "second"]


def test_restoring_a_user_from_a_backup_keeps_the_archived_memories_aside(tmp_path: Path, embedder: Embedder) -> None:
    settings = user_elsewhere(tmp_path, embedder)
    home = tmp_path / "home"
    make_backup(home, tmp_path / "backup", settings, NOW, lambda *_: None)
    restore_user(tmp_path / "backup", home, "alice", settings, NOW, lambda *_: None, replace=True)
    aside = [path.name for path in home.glob("replaced-*/**/*") if path.is_file()]
    assert "data.mdb" in aside
    assert not objects(tmp_path)
