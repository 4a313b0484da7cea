"""Test `doctor`, `encrypt`, `verify` and `restore` with users whose vectors are in PostgreSQL."""

from __future__ import annotations

import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
from click.testing import CliRunner, Result
from index_world import SMALL, TEXTS, World, away, entry, opened, position, vector_of
from made_vectors import MadeVectors
from polling import wait_until

from memory_agent.care import migrate_folder, migration, verify_folder
from memory_agent.cli.doctor import check_index
from memory_agent.cli.group import cli
from memory_agent.errors import IndexUnusableError
from memory_agent.indexes import IndexOf, open_index, users_in_database
from memory_agent.layout import Layout
from memory_agent.memory import Memory
from memory_agent.settings import IndexSettings, Settings
from memory_agent.storage import indexed_vectors
from memory_agent.storage.folders import user_folder
from memory_agent.storage.index_follower import IndexFollower


def command(data_dir: Path, database: str, *words: str) -> Result:
    options = ("--data-dir", str(data_dir), "--set", f"index.url={database}")
    return CliRunner().invoke(cli, [*words, *options])


def in_pgvector(data_dir: Path, database: str) -> Memory:
    """Open the memory of alice, whose vectors are in PostgreSQL."""
    chosen = Settings(index=IndexSettings(engine="pgvector", url=database), store=SMALL)
    return Memory.open(user_folder(data_dir, "alice"), embedder=MadeVectors(), settings=chosen, user_id="alice")


def test_doctor_names_users_of_a_database_that_the_settings_do_not(database: str, tmp_path: Path) -> None:
    in_pgvector(tmp_path, database).close()
    assert check_index(Settings(index=IndexSettings(url=database)), Layout(tmp_path)).state == "ok"
    found = check_index(Settings(), Layout(tmp_path))
    assert found.state == "failed"
    assert found.detail == "index.url is empty, but pgvector has the vectors of alice"
    assert "memory-agent migrate --to builtin" in found.advice


def test_encrypt_refuses_vectors_that_would_stay_unencrypted(database: str, tmp_path: Path) -> None:
    data_dir, keys = tmp_path / "data", f"encryption.keys_folder={tmp_path / 'keys'}"
    with in_pgvector(data_dir, database) as memory:
        memory.remember("Staging needs the VPN")
    shutil.copytree(data_dir, tmp_path / "copy")
    refused = command(data_dir, database, "encrypt", "--set", keys)
    assert refused.exit_code != 0
    assert "the vectors of alice would stay unencrypted in pgvector" in refused.output
    moved = command(data_dir, database, "migrate", "--to", "builtin", "--set", keys, "--set", "encryption.keys_folder=")
    assert moved.exit_code == 0, moved.output
    assert command(data_dir, database, "encrypt", "--set", keys).exit_code == 0
    allowed = command(tmp_path / "copy", database, "encrypt", "--set", keys, "--set", "index.allow_plain=true")
    assert (allowed.exit_code, "the vectors of alice stay unencrypted" in allowed.output) == (0, True), allowed.output


@pytest.mark.parametrize("engine", ["pgvector", "sqlite-vec"])
def test_verify_counts_the_memories_in_an_index(engine: Any, database: str, tmp_path: Path) -> None:
    chosen = IndexSettings(engine=engine, url=database)
    of = IndexOf(chosen, "alice", user_folder(tmp_path, "alice"))
    with Memory.open(of.folder, embedder=MadeVectors(), settings=Settings(index=chosen, store=SMALL)) as memory:
        for text in TEXTS[:3]:
            memory.remember(text)

    def findings() -> list[tuple[str, str]]:
        (part,) = verify_folder(tmp_path, Settings(index=chosen, store=SMALL), lambda *_: None)
        return [(finding.place, finding.fault) for finding in part.findings]

    assert findings() == []
    with closing(open_index(engine, of)) as index:
        assert index.position is not None
        index.index([], index.position)
        index.delete([2])
    (found,) = findings()
    assert found == (f"index in {engine}", "contains vectors of 2 memories instead of 3; run memory-agent rebuild")
    assert command(tmp_path, database, "rebuild").exit_code == 0
    assert findings() == []
    if engine == "pgvector":
        unreachable = IndexSettings(engine=engine, url="postgresql://localhost:1/x")
        (part,) = verify_folder(tmp_path, Settings(index=unreachable, store=SMALL), lambda *_: None)
        assert "was not compared" in part.findings[0].fault


def test_a_restored_store_does_not_trust_an_index_that_is_ahead_of_it(
    database: str, postgres: str, tmp_path: Path
) -> None:
    world = World(tmp_path, IndexSettings(engine="pgvector", url=database))
    for number in range(3):
        world.put(number, "a", [number])
    world.archive.close()
    backup = dict(world.known)
    shutil.copytree(world.folder / "records", tmp_path / "backup")
    world.archive = world._open()
    world.delete(1)
    for number in range(3, 6):
        world.put(number, None, [number])
    ahead = world.archive.store.state.last_change
    world.archive.close()
    shutil.rmtree(world.folder)
    shutil.copytree(tmp_path / "backup", world.folder / "records")
    world.known = backup
    with away(database, postgres):
        world.archive = world._open()
        for number in range(10, 20):
            world.put(number, "a", [number])
        assert world.archive.store.state.last_change > ahead  # as if the index contained all changes
    wait_until(lambda: not followed(world).is_behind)
    assert followed(world).index.count() == len(world.known)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(indexed_vectors, "_READ_AT_MOST", 0)
        world.check(1)
    world.reopen()
    assert not followed(world).is_behind
    world.close()


def test_a_host_without_the_lease_cannot_change_the_index_of_its_successor(database: str, tmp_path: Path) -> None:
    former = World(tmp_path / "former", IndexSettings(engine="pgvector", url=database))
    for number in range(3):
        former.put(number, "a", [number])
    present = World(tmp_path / "present", former.chosen)  # on another machine, with the archived records
    present.archive.close()
    shutil.rmtree(present.folder)
    shutil.copytree(former.folder / "records", present.folder / "records")
    present.user_id, present.known = former.user_id, dict(former.known)
    former.put(3, "a", [3])  # was not archived
    present.archive = present._open()
    present.put(4, "a", [4])
    present.delete(1)
    former.put(5, "a", [5])
    former.delete(0)
    wait_until(lambda: isinstance(followed(former).failure, IndexUnusableError))
    former.archive.close()
    assert followed(present).index.count() == len(present.known) == 3
    present.reopen()
    assert followed(present).index.count() == 3
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(indexed_vectors, "_READ_AT_MOST", 0)
        present.check(4)
    present.close()


def followed(world: World) -> IndexFollower:
    assert world.archive.follower is not None
    return world.archive.follower


def test_an_interrupted_migration_leaves_no_vectors_that_are_erased_later(
    database: str, postgres: str, tmp_path: Path
) -> None:
    url, folder = IndexSettings(url=database), user_folder(tmp_path, "alice")

    def builtin() -> Memory:
        return Memory.open(folder, embedder=MadeVectors(), settings=Settings(index=url, store=SMALL), user_id="alice")

    with builtin() as memory:
        secret = memory.remember("Staging needs the VPN")
        for text in TEXTS:
            memory.remember(text)
    for is_away in (False, True):
        moving = migrate_folder(tmp_path, Settings(index=url, store=SMALL), "pgvector", lambda *_: None)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(migration, "verified", interrupted)
            with pytest.raises(KeyboardInterrupt):
                next(moving)
        assert users_in_database(url) == ["alice"]
        if not is_away:
            builtin().close()
        else:
            with away(database, postgres):
                memory = builtin()
                receipt = memory.erasure.erase([secret.id])
                assert (receipt.memories, receipt.complete) == (1, False)
            memory.erasure.resume()
            memory.close()
        assert users_in_database(url) == []


def interrupted(*_: object) -> None:
    raise KeyboardInterrupt


def test_an_index_that_a_migration_could_not_remove_is_removed_later(
    database: str, postgres: str, tmp_path: Path
) -> None:
    in_pgvector(tmp_path, database).close()
    url = IndexSettings(url=database)
    with away(database, postgres):
        (moved,) = migrate_folder(tmp_path, Settings(index=url, store=SMALL), "builtin", lambda *_: None)
    assert "may remain" in moved.left
    assert users_in_database(url) == ["alice"]
    Memory.open(user_folder(tmp_path, "alice"), settings=Settings(index=url, store=SMALL), user_id="alice").close()
    assert users_in_database(url) == []


def test_events_are_stored_while_a_purge_builds_a_graph(
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path, IndexSettings(engine="pgvector", url=database, hnsw_from=3))
    world.put(1, None, [1])
    monkeypatch.setattr(followed(world), "_try_again", lambda: None)  # only the purge builds the graph
    with psycopg.connect(database) as other:
        other.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        other.execute("SELECT count(*) FROM memory_agent.users")  # PostgreSQL cannot complete a graph until this ends
        for number in range(2, 6):
            world.put(number, None, [number])
        purging = threading.Thread(target=world.archive.purge)
        purging.start()
        is_building = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'CREATE INDEX CONCURRENTLY%'"
        with psycopg.connect(database, autocommit=True) as watching:
            wait_until(lambda: watching.execute(is_building).fetchone() == (1,))
        writing = threading.Thread(target=world.put, args=(6, None, [6]))
        writing.start()
        writing.join(30)
        is_stored = not writing.is_alive()
    purging.join()
    writing.join()
    assert is_stored
    world.check(6)
    world.close()


def test_two_compactions_at_once_both_succeed(database: str, tmp_path: Path) -> None:
    with opened(IndexSettings(engine="pgvector", url=database, hnsw_from=3), tmp_path / "alice") as index:
        index.begin(position())
        index.index([entry(row, vector_of(row)) for row in range(9)], position())
        with ThreadPoolExecutor() as threads:
            assert list(threads.map(lambda _: index.compact(), range(4))) == [None] * 4
        assert (index.is_due, index.count()) == (False, 9)
