"""Test the PostgreSQL index while its database is unavailable, read-only or silent (see also `test_vector_indexes`)."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
import pytest
from index_world import MODES, NDIM, NOW, SMALL, TEXTS, World, away, entry, opened, position, vector_of
from made_vectors import MadeVectors
from polling import wait_until

from memory_agent.care import erase_user, migrate_folder
from memory_agent.errors import (
    IndexUnavailableError,
    IndexUnusableError,
)
from memory_agent.indexes import (
    Where,
    forget_user,
    users_in_database,
)
from memory_agent.memory import Memory
from memory_agent.records.memories import MemoryRecord, RecallResult
from memory_agent.settings import IndexSettings, Settings
from memory_agent.storage import indexed_vectors
from memory_agent.storage.archive import Archive
from memory_agent.storage.folders import user_folder
from memory_agent.storage.index_follower import engine_of


def test_a_graph_search_with_too_few_hits_is_repeated_without_the_graph(database: str, tmp_path: Path) -> None:
    chosen = IndexSettings(engine="pgvector", url=f"{database}&options=-chnsw.max_scan_tuples%3D1", hnsw_from=1_000)
    vectors = np.random.default_rng(1).normal(size=(2_000, NDIM)).astype(np.float32)
    with opened(chosen, tmp_path / "alice") as index:
        index.begin(position())
        lines = [entry(row, vectors[row], session="rare" if row % 700 == 1 else "a") for row in range(2_000)]
        index.index(lines, position())
        assert index.is_due
        index.compact()
        assert (index.is_due, index.is_approximate) == (False, True)
        near = [index.search(one, 10).rows.tolist() for one in vectors[:50]]
        exact = np.argsort(-(vectors[:50] @ vectors.T) / np.linalg.norm(vectors, axis=1), axis=1)[:, :10]
        assert np.mean([len({*some} & {*best}) for some, best in zip(near, exact.tolist(), strict=True)]) > 9
        rare, most = (Where(among={"session": (name,)}) for name in ("rare", "a"))
        assert sorted(index.search(vectors[5], 10, rare).rows.tolist()) == [1, 701, 1_401]
        assert len(index.search(vectors[5], 500, most).rows) == 500


def test_a_read_only_database_is_rejected_and_the_store_stays_usable(database: str, tmp_path: Path) -> None:
    chosen = IndexSettings(engine="pgvector", url=database)
    world = World(tmp_path, chosen)
    world.put(1, None, [1])
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(f"ALTER DATABASE {connection.info.dbname} SET default_transaction_read_only = on")
        disconnect_others(connection)
    world.put(2, None, [2])  # triggers the first lost-connection error
    follower = world.archive.follower
    assert follower is not None
    wait_until(lambda: isinstance(follower.failure, IndexUnusableError))
    assert "connect to the primary" in str(follower.failure)
    assert world.archive.store.counts().memories == 2
    with psycopg.connect(database, autocommit=True, options="-c default_transaction_read_only=off") as connection:
        connection.execute(f"ALTER DATABASE {connection.info.dbname} RESET default_transaction_read_only")
        disconnect_others(connection)
    wait_until(lambda: not follower.is_behind)
    world.check(2)
    world.close()


def test_an_index_catches_up_after_an_outage_of_its_database(database: str, postgres: str, tmp_path: Path) -> None:
    chosen = IndexSettings(engine="pgvector", url=database)
    world = World(tmp_path, chosen)
    world.put(1, "a", [1])
    follower = world.archive.follower
    assert follower is not None
    with pytest.MonkeyPatch.context() as patch, away(database, postgres):
        patch.setattr(indexed_vectors, "_READ_AT_MOST", 0)
        world.put(2, "a", [2])
        world.put(3, None, [3])
        world.delete(1)
        assert follower.is_behind
        with pytest.raises(IndexUnavailableError, match="is not responding"):
            world.archive.view.vectors.scan(vector_of(1), 1)
        assert world.archive.stats("alice").index == "pgvector, behind"
        with pytest.raises(IndexUnavailableError):
            forget_user(chosen, world.user_id)
    wait_until(lambda: not follower.is_behind)
    world.check(2)
    world.close()


def test_a_migration_resumes_after_an_outage_of_the_database(database: str, postgres: str, tmp_path: Path) -> None:
    folder = user_folder(tmp_path, "alice")
    folder.mkdir(parents=True)
    chosen = Settings(store=SMALL, index=IndexSettings(url=database))
    with closing(Archive.open(folder, SMALL, "library")) as archive, archive.batch() as batch:
        batch.set_stamp("model")
        for number in range(1_200):
            record = MemoryRecord(id=f"m{number}", text="x", source="user_input", kind="finding", timestamp=NOW)
            batch.put(record, vector_of(number))
    done = []
    with ExitStack() as stack:

        def take_away(_: str, count: int, total: int) -> None:
            done.append((count, total))
            if len(done) == 1:
                stack.enter_context(away(database, postgres))

        with pytest.raises(IndexUnavailableError):
            list(migrate_folder(tmp_path, chosen, "pgvector", take_away))
        with closing(Archive.open(folder, SMALL, "library")) as archive:
            assert engine_of(archive.store) == "builtin"
    (moved,) = migrate_folder(tmp_path, chosen, "pgvector", take_away)
    assert (moved.engine, moved.memories, moved.left) == ("pgvector", 1_200, "")
    assert done == [(500, 1_200), (1_000, 1_200), (1_200, 1_200)]
    assert users_in_database(chosen.index) == ["alice"]
    erase_user(tmp_path, chosen, "alice", NOW)
    assert users_in_database(chosen.index) == []


def test_recall_answers_by_words_while_the_index_is_unavailable(database: str, postgres: str, tmp_path: Path) -> None:
    chosen = Settings(index=IndexSettings(engine="pgvector", url=database), store=SMALL)
    with (
        pytest.MonkeyPatch.context() as patch,
        Memory.open(tmp_path / "u", embedder=MadeVectors(), settings=chosen) as memory,
    ):
        patch.setattr(indexed_vectors, "_READ_AT_MOST", 0)
        first = memory.remember("Staging needs the VPN")
        for text in TEXTS:
            memory.remember(text)
        assert memory.recall("staging needs a VPN", min_relevance=0.0).degraded == ()
        with away(database, postgres):
            for mode in MODES:
                found = memory.recall("staging needs a VPN", 5, mode=mode, min_relevance=0.0)
                assert found.memories[0].record.id == first.id
                assert found.degraded == (() if mode == "lexical" else ("index_unavailable",))
            memory.remember("Production needs no VPN")
            assert memory.stats().memories == len(TEXTS) + 2


def test_a_recall_keeps_its_deadline_while_the_database_or_its_connection_is_busy(
    database: str, tmp_path: Path
) -> None:
    chosen = Settings(index=IndexSettings(engine="pgvector", url=database, timeout_s=900.0), store=SMALL)
    with ExitStack() as stack:
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        patch.setattr(indexed_vectors, "_READ_AT_MOST", 0)
        alice, bob = (
            stack.enter_context(Memory.open(tmp_path / name, embedder=MadeVectors(), settings=chosen))
            for name in ("alice", "bob")
        )
        for memory in (alice, bob):
            memory.remember("Staging needs the VPN", id="vpn")
            for text in TEXTS:
                memory.remember(text)
        late, whole = ("vpn", {"index_unavailable", "deadline"}), ("vpn", set[str]())
        with psycopg.connect(database) as other:
            other.execute(f"LOCK TABLE {table_of('alice', other)} IN ACCESS EXCLUSIVE MODE")
            assert in_time(alice) == late
            wait_until(lambda: in_time(bob, deadline_ms=60_000.0) == whole)
            writing = threading.Thread(target=alice.remember, args=("Production needs no VPN",))
            writing.start()  # its transaction holds the process's only connection
            waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
            with psycopg.connect(database, autocommit=True) as watching:
                wait_until(lambda: watching.execute(waiting).fetchone() == (1,))
            assert in_time(bob) == late
        writing.join()
        for memory in (alice, bob):
            wait_until(lambda memory=memory: in_time(memory, deadline_ms=60_000.0) == whole)  # type: ignore[misc]
        with stopped(database):
            assert in_time(bob) == late
        wait_until(lambda: in_time(bob, deadline_ms=60_000.0) == whole)


def in_time(memory: Memory, deadline_ms: float = 1_500.0) -> tuple[str, set[str]]:
    """Return a recall's best memory and why it is degraded; the recall must end long before the index's own timeout."""
    found: list[RecallResult] = []
    asking = threading.Thread(
        target=lambda: found.append(memory.recall("staging needs a VPN", 1, deadline_ms=deadline_ms, min_relevance=0.0))
    )
    asking.start()
    asking.join(90)
    assert found, "the recall did not end"
    return found[0].memories[0].record.id, set[str](found[0].degraded)


def table_of(user_id: str, connection: psycopg.Connection[Any]) -> str:
    query = "SELECT vectors FROM memory_agent.users WHERE user_id = %s"
    found = connection.execute(query, (user_id,)).fetchone()
    assert found is not None
    return f"memory_agent.{found[0]}"


@contextmanager
def stopped(database: str) -> Iterator[None]:
    """While the block runs, stop the server processes of all connections to a database."""
    with psycopg.connect(database) as connection:
        query = "SELECT pid FROM pg_stat_activity WHERE datname = %s AND pid <> pg_backend_pid()"
        pids = [pid for (pid,) in connection.execute(query, (connection.info.dbname,))]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


def disconnect_others(connection: psycopg.Connection[Any]) -> None:
    query = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s AND pid <> pg_backend_pid()"
    connection.execute(query, (connection.info.dbname,))


def test_a_database_that_stops_answering_delays_neither_the_store_nor_closing_for_ever(
    database: str, tmp_path: Path
) -> None:
    chosen = IndexSettings(engine="pgvector", url=database, timeout_s=0.3)
    world = World(tmp_path, chosen)
    world.put(1, None, [1])
    follower = world.archive.follower
    assert follower is not None
    with stopped(database):
        world.put(2, None, [2])
        assert world.archive.store.counts().memories == 2
    wait_until(lambda: not follower.is_behind)
    world.check(2)
    world.close()


def test_closing_does_not_wait_for_a_graph_that_is_being_built(database: str, tmp_path: Path) -> None:
    world = World(tmp_path, IndexSettings(engine="pgvector", url=database, hnsw_from=3))
    world.put(1, None, [1])
    with psycopg.connect(database) as other:
        other.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        other.execute("SELECT count(*) FROM memory_agent.users")  # no graph is completed before this transaction ends
        for number in range(2, 6):
            world.put(number, None, [number])
        is_building = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'CREATE INDEX CONCURRENTLY%'"
        with psycopg.connect(database, autocommit=True) as watching:
            wait_until(lambda: watching.execute(is_building).fetchone() == (1,))
        closing_it = threading.Thread(target=world.archive.close)
        closing_it.start()
        closing_it.join(30)
        is_closed = not closing_it.is_alive()
    closing_it.join()
    assert is_closed
    world.archive = world._open()
    world.check(1)
    world.close()


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://app:pa/secret@localhost:1/x",
        "postgresql://app:p@secret@localhost:1/x",
        "postgresql:/app:secret@localhost:1/x",
        "postgresql://app:p%secret@localhost:1/x",
        "postgresql://app:${TEST_PASSWORD}@localhost:1/x",
    ],
)
def test_no_part_of_a_password_is_in_an_error(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_PASSWORD", "p@/ %secret")
    with pytest.raises((IndexUnusableError, IndexUnavailableError)) as caught:
        users_in_database(IndexSettings(url=url))
    assert "secret" not in str(caught.value)
    assert isinstance(caught.value, IndexUnavailableError) == ("${" in url)  # such a password is part of a valid URL
