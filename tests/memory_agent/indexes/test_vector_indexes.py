"""One contract for all indexes of vectors: the built-in one, sqlite-vec, pgvector and LanceDB.

The model is a dictionary; the index is used as recall uses it, through the store and its columns.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
import numpy as np
import psycopg
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from made_vectors import MadeVectors
from polling import wait_until
from sqlcipher3 import dbapi2 as sqlite

from memory_agent.care import erase_user, migrate_folder
from memory_agent.cli.doctor import check_index
from memory_agent.errors import (
    IndexDamagedError,
    IndexUnavailableError,
    IndexUnusableError,
    InvalidInputError,
    SettingsError,
)
from memory_agent.indexes import (
    COLUMNS,
    Entry,
    IndexOf,
    Position,
    VectorIndex,
    Where,
    forget_user,
    open_index,
    users_in_database,
)
from memory_agent.layout import Layout
from memory_agent.memory import Memory
from memory_agent.records.embedded import Embedded, Embedding
from memory_agent.records.memories import MemoryFilter, MemoryRecord, Mode
from memory_agent.settings import IndexSettings, Settings, StoreSettings, load_settings
from memory_agent.storage import indexed_vectors
from memory_agent.storage.archive import Archive
from memory_agent.storage.folders import user_folder
from memory_agent.storage.index_follower import engine_of

NDIM = 8
SMALL = StoreSettings(map_size_bytes=64 << 20, reserve_bytes=64 << 10)
ENGINES = ("sqlite-vec", "pgvector", "lancedb")
PARTS = {"sqlite-vec": "sqlite_vec", "pgvector": "psycopg", "lancedb": "lancedb"}
SESSIONS = (None, "a", "it's b")
MODES: tuple[Mode, ...] = ("hybrid", "vector", "lexical")
ANGLE = 0.02  # error of a cosine of int8 vectors

_numbers = count(1)


NOW = datetime(2026, 2, 16, 10, tzinfo=UTC)


def embedded_of(seeds: list[int]) -> Embedded:
    """The output of a model for a text of as many passages as seeds."""
    vectors = np.stack([vector_of(seed) for seed in seeds])
    spans = np.stack([np.arange(len(seeds)), 1 + np.arange(len(seeds))], axis=1).astype(np.int32)
    return Embedded(vectors=vectors, spans=spans, word_bits=np.zeros((1, 2), dtype=np.uint8), length=5)


def vector_of(seed: int) -> Embedding:
    vector = np.random.default_rng(seed).normal(size=NDIM)
    return (vector / np.linalg.norm(vector)).astype(np.float32)


@pytest.fixture(params=("builtin", *ENGINES))
def engine(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    if name in PARTS and importlib.util.find_spec(PARTS[name]) is None:
        pytest.skip(f"{name} is not installed: pip install 'memory-agent[{name}]'")
    return name


@pytest.fixture
def chosen(engine: str, request: pytest.FixtureRequest) -> IndexSettings:
    """The settings of one engine."""
    url = request.getfixturevalue("database") if engine == "pgvector" else ""
    return IndexSettings(engine=engine, url=url)  # type: ignore[arg-type]


outside = pytest.mark.parametrize("engine", ENGINES, indirect=True)


@contextmanager
def opened(
    chosen: IndexSettings, folder: Path, user_id: str = "alice", secret: bytes | None = None
) -> Iterator[VectorIndex]:
    folder.mkdir(exist_ok=True)
    index = open_index(chosen.engine, IndexOf(chosen, user_id, folder, secret))
    try:
        yield index
    finally:
        index.close()


def entry(row: int, *vectors: Embedding, session: str | None = None) -> Entry:
    names = {"kind": "finding", "source": "user_input", "session": session}
    return Entry(row, np.stack(vectors), tuple(names.get(column) for column in COLUMNS), 1_000 * row)


def position(**fields: Any) -> Position:
    return Position(**({"lineage": "store", "stamp": "model", "ndim": NDIM, "applied": 1} | fields))


class World:
    """A store with an index, and what it should contain: for each id the session and the seeds of the vectors."""

    def __init__(self, folder: Path, chosen: IndexSettings) -> None:
        self.user_id = f"user-{next(_numbers)}"
        self.folder = folder / self.user_id
        self.chosen = chosen
        self.known: dict[str, tuple[str | None, list[int]]] = {}
        self.archive = self._open()

    def _open(self) -> Archive:
        of = IndexOf(self.chosen, self.user_id, self.folder)
        archive = Archive.open(self.folder, SMALL, "library", index=of)
        archive.settled_view()
        return archive

    def put(self, number: int, session: str | None, seeds: list[int], *, unseen: bool = False) -> None:
        """Add or replace a memory; `unseen`: as if the process had died between the store's commit and the index's."""
        self.known[f"m{number}"] = session, seeds
        record = MemoryRecord(
            id=f"m{number}", text=f"text {number} {seeds}", source="user_input", kind="finding",
            timestamp=NOW, session_id=session,
        )  # fmt: skip
        with self.archive.store.batch() if unseen else self.archive.batch() as batch:
            batch.set_stamp("model")
            batch.set_words_stamp("words")
            record = batch.upsert(record, None)
            row = batch.row_of_id(record.id)
            assert row is not None
            batch.set_vector(row, embedded_of(seeds))
        if unseen:
            self.reopen()

    def delete(self, number: int) -> None:
        self.known.pop(f"m{number}", None)
        with self.archive.batch() as batch:
            row = batch.row_of_id(f"m{number}")
            if row is not None:
                batch.delete(row)

    def reopen(self) -> None:
        self.archive.close()
        self.archive = self._open()

    def compact(self) -> None:
        self.archive.purge()

    def check(self, seed: int) -> None:
        """Compare the answers for one query, with and without a filter."""
        view, query = self.archive.view, vector_of(seed)
        expected = {
            name: max(float(vector_of(one) @ query) for one in seeds) for name, (_, seeds) in self.known.items()
        }
        for session in SESSIONS[1:]:
            inside = {name for name, (of, _) in self.known.items() if of == session}
            mask = view.mask(MemoryFilter(session_id=session))
            found = self.found(
                view.vectors.scan(query, view.count or 1, mask, Where(among={"session": (session or "",)}))
            )
            assert found.keys() == inside
            if self.archive.follower is not None:
                assert self.archive.follower.index.count("session", session or "") == len(inside)
        for limit in (1, 3, 20):
            found = self.found(view.vectors.scan(query, limit))
            best = sorted(expected, key=lambda name: -expected[name])[:limit]
            assert len(found) >= len(best)
            least = min((expected[name] for name in best), default=0.0)
            assert all(expected[name] <= least + ANGLE for name in best if name not in found)
            for name, cosine in found.items():
                assert cosine == pytest.approx(expected[name], abs=ANGLE)

    def found(self, cosines: Any) -> dict[str, float]:
        view = self.archive.view
        slots = np.flatnonzero(~np.isnan(cosines.values))
        records = self.archive.store.records(view.rows[slots].tolist())
        return {
            one.id: float(cosines.values[slot]) for one, slot in zip(records, slots, strict=True) if one is not None
        }

    def close(self) -> None:
        self.archive.close()
        forget_user(self.chosen, self.user_id)
        shutil.rmtree(self.folder)


numbers, seeds = st.integers(0, 5), st.lists(st.integers(0, 30), min_size=1, max_size=3)
steps = st.one_of(
    st.tuples(st.just("put"), numbers, st.sampled_from(SESSIONS), seeds),
    st.tuples(st.just("unseen"), numbers, st.sampled_from(SESSIONS), seeds),
    st.tuples(st.just("delete"), numbers),
    st.tuples(st.sampled_from(("reopen", "compact"))),
)


@settings(max_examples=5, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(steps, min_size=3, max_size=9), seed=st.integers(0, 30))
@example(steps=[("put", 1, "a", [1]), ("unseen", 1, "it's b", [2, 3]), ("delete", 1), ("compact",)], seed=2)
def test_an_index_answers_as_a_dictionary_would(
    steps: list[tuple[Any, ...]], seed: int, chosen: IndexSettings, tmp_path: Path
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(indexed_vectors, "_READ_AT_MOST", 0)  # ask the index even for few vectors
        world = World(tmp_path, chosen)
        try:
            for name, *rest in steps:
                match name:
                    case "put" | "unseen":
                        world.put(*rest, unseen=name == "unseen")
                    case "delete":
                        world.delete(*rest)
                    case "reopen":
                        world.reopen()
                    case "compact":
                        world.compact()
                world.check(seed)
        finally:
            world.close()


@outside
def test_a_filter_that_leaves_three_of_many_is_exact(chosen: IndexSettings, tmp_path: Path) -> None:
    vectors = np.random.default_rng(1).normal(size=(1_000, 100, NDIM)).astype(np.float32)
    with opened(chosen, tmp_path / "alice") as index:
        index.begin(position())
        index.index(
            [Entry(row, vectors[row], entry(row, vectors[row][0]).names, 1_000 * row) for row in range(1_000)],
            position(),
        )
        index.index([entry(row, vector_of(row), session="rare") for row in (2_007, 2_107, 2_207)], position())
        hits = index.search(vectors[5][1], 10, Where(among={"session": ("rare",)}))
        assert sorted(hits.rows.tolist()) == [2_007, 2_107, 2_207]
        assert (index.count("session", "rare"), index.count()) == (3, 1_003)
        assert index.search(vectors[9][70], 1).rows.tolist() == [9]
        later = Where(among={"session": ("rare", "none")}, since_us=2_007_001, until_us=2_207_000)
        assert index.search(vectors[5][1], 10, later).rows.tolist() == [2_107]


@outside
def test_vectors_of_another_width_are_refused_and_change_nothing(chosen: IndexSettings, tmp_path: Path) -> None:
    with opened(chosen, tmp_path / "alice") as index:
        index.begin(position())
        index.index([entry(1, vector_of(1))], position())
        with pytest.raises(InvalidInputError, match="9 dimensions, expected 8"):
            index.index([entry(2, vector_of(2)), entry(1, np.ones(9, dtype=np.float32))], position(applied=2))
        with pytest.raises(InvalidInputError, match="9 dimensions"):
            index.search(np.ones(9, dtype=np.float32), 1)
        with pytest.raises(InvalidInputError, match="not finite"):
            index.index([entry(2, np.full(NDIM, np.nan, dtype=np.float32))], position())
        assert (index.count(), index.search(vector_of(1), 5).rows.tolist()) == (1, [1])
        assert index.position == position()


def test_another_model_empties_the_index_and_fills_it_again(chosen: IndexSettings, tmp_path: Path) -> None:
    world = World(tmp_path, chosen)
    for number in range(3):
        world.put(number, None, [number])
    with world.archive.batch() as batch:
        batch.set_stamp("other")
    assert world.archive.view.vectors.count == 0
    with world.archive.batch() as batch:
        batch.set_vector(1, np.ones(5, dtype=np.float32))
    found = world.found(world.archive.view.vectors.scan(np.ones(5, dtype=np.float32), 3))
    assert found == {"m0": pytest.approx(1.0, abs=1e-3)}
    if world.archive.follower is not None:
        assert world.archive.follower.index.count() == 1
    world.close()


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


@outside
def test_users_see_only_their_own_vectors(chosen: IndexSettings, tmp_path: Path) -> None:
    with opened(chosen, tmp_path / "alice", "alice") as hers, opened(chosen, tmp_path / "bob", "bob") as his:
        for index, row in ((hers, 1), (his, 2)):
            index.begin(position())
            index.index([entry(row, vector_of(1))], position())
        assert (hers.search(vector_of(1), 5).rows.tolist(), his.search(vector_of(1), 5).rows.tolist()) == ([1], [2])
        if chosen.engine == "pgvector":
            assert users_in_database(chosen) == ["alice", "bob"]
        hers.clear()
        assert (hers.position, hers.count(), his.count()) == (None, 0, 1)
        if chosen.engine == "pgvector":
            assert users_in_database(chosen) == ["bob"]


@outside
def test_tables_of_another_version_are_refused(chosen: IndexSettings, tmp_path: Path) -> None:
    folder = tmp_path / "alice"
    with opened(chosen, folder) as index:
        index.begin(position())
    make_newer(chosen, folder)
    with (
        opened(chosen, folder) as index,
        pytest.raises(IndexUnusableError, match="version 9, and this program needs 1"),
    ):
        index.count()


def make_newer(chosen: IndexSettings, folder: Path) -> None:
    """Change the version of an index's tables."""
    match chosen.engine:
        case "pgvector":
            with psycopg.connect(chosen.url, autocommit=True) as connection:
                connection.execute("UPDATE memory_agent.users SET version = 9")
        case "sqlite-vec":
            connection = sqlite.connect(str(folder / "index.sqlite"))
            connection.execute("PRAGMA user_version = 9")
            connection.close()
        case "lancedb":
            newer = msgspec.msgpack.encode({"version": 9, "position": position()})
            (folder / "index.lance" / "position").write_bytes(newer)


def test_a_read_only_database_is_rejected_and_the_store_stays_usable(database: str, tmp_path: Path) -> None:
    chosen = IndexSettings(engine="pgvector", url=database)
    world = World(tmp_path, chosen)
    world.put(1, None, [1])
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(f"ALTER DATABASE {connection.info.dbname} SET default_transaction_read_only = on")
        disconnect_others(connection)
    world.put(2, None, [2])  # the first error of a lost connection
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
        with pytest.raises(IndexUnavailableError, match="does not answer"):
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


TEXTS = [
    f"{subject} {verb} the {thing} of {place}"
    for subject in ("Ann", "the deploy", "a test")
    for verb in ("broke", "fixed", "measured")
    for thing in ("cache", "parser", "queue")
    for place in ("staging", "production")
]
QUERIES = ("which deploy fixed the parser?", "what did Ann measure")


@outside
def test_recall_answers_as_with_the_built_in_index(chosen: IndexSettings, tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(indexed_vectors, "_READ_AT_MOST", 0)
        answers = [list(answered(tmp_path / name, one)) for name, one in (("a", IndexSettings()), ("b", chosen))]
    assert answers[0] == answers[1]


def answered(folder: Path, chosen: IndexSettings) -> Iterator[Any]:
    """Yield what a memory with this index answers, before and after memories are erased."""
    with Memory.open(
        folder, embedder=MadeVectors(), settings=Settings(index=chosen, store=SMALL), user_id="u"
    ) as memory:
        for number, text in enumerate(TEXTS):
            memory.remember(text, id=f"m{number}", session_id=f"s{number % 3}", tags=[f"t{number % 4}"], timestamp=NOW)
        for _ in range(2):
            for query in QUERIES:
                for mode in MODES:
                    for filter in ({}, {"session_id": "s1"}, {"tags": ["t2"]}, {"min_score": 0.3}):
                        found = memory.recall(query, 5, filter, mode, min_relevance=0.0)
                        assert found.degraded == ()
                        yield query, mode, filter, [(one.record.id, round(one.sona_score, 3)) for one in found.memories]
            assert memory.erasure.erase(filter={"tags": ["t2"]}).complete
        assert memory.stats().index == ("exact" if chosen.engine == "builtin" else f"{chosen.engine}, exact")


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


def test_settings_that_contradict_each_other_are_refused(tmp_path: Path) -> None:
    secret = bytes(32)
    with pytest.raises(SettingsError, match=r"index.url: is empty, but the vectors of alice are in pgvector"):
        open_index("pgvector", IndexOf(IndexSettings(engine="pgvector"), "alice", tmp_path))
    for engine in ("pgvector", "lancedb"):
        with pytest.raises(SettingsError, match=r"would store vectors unencrypted.* set index.allow_plain"):
            open_index(engine, IndexOf(IndexSettings(url="postgresql:///x"), "alice", tmp_path, secret))
    with pytest.raises(SettingsError, match="names the environment variable NOT_SET"):
        forget_user(IndexSettings(url="postgresql://app:${NOT_SET}@db/app"), "alice")


def test_an_encrypted_file_cannot_be_read_without_its_key(tmp_path: Path) -> None:
    chosen = IndexSettings(engine="sqlite-vec")
    with opened(chosen, tmp_path / "alice", secret=b"k" * 32) as index:
        index.begin(position())
        index.index([entry(1, vector_of(1), session="secret session")], position())
    content = b"".join(file.read_bytes() for file in (tmp_path / "alice").iterdir())
    assert b"secret session" not in content
    assert b"SQLite format" not in content
    for secret in (None, b"x" * 32):
        with opened(chosen, tmp_path / "alice", secret=secret) as index, pytest.raises(IndexDamagedError):
            index.count()


def test_a_damaged_file_is_replaced_and_filled_again(tmp_path: Path) -> None:
    world = World(tmp_path, IndexSettings(engine="sqlite-vec"))
    world.put(1, "a", [1])
    world.archive.close()
    (world.folder / "index.sqlite").write_bytes(b"not a database" * 1_000)
    world.archive = world._open()
    world.check(1)
    world.close()


def test_the_examples_of_the_reference_work(database: str, tmp_path: Path) -> None:
    page = (Path(__file__).parents[3] / "ops" / "REFERENCE.md").read_text(encoding="utf-8")
    section = page.partition("## Vectors in another index")[2].partition("\n## ")[0]
    examples = re.findall(r"```toml\n(.*?)```", section, re.DOTALL)
    assert len(examples) == len(ENGINES)
    for text, engine in zip(examples, ENGINES, strict=True):
        file = tmp_path / f"{engine}.toml"
        file.write_text(text)
        overrides = {"index.url": database} if engine == "pgvector" else {}
        chosen = load_settings(file, {}, overrides)
        assert chosen.index.engine == engine
        if importlib.util.find_spec(PARTS[engine]) is not None:
            with Memory.open(tmp_path / engine, embedder=MadeVectors(), settings=chosen) as memory:
                memory.remember("Staging needs the VPN")
                assert memory.recall("staging VPN", min_relevance=0.0).memories
                assert memory.stats().index == f"{engine}, exact"


def test_doctor_reports_database_users_without_a_store(database: str, tmp_path: Path) -> None:
    chosen = Settings(index=IndexSettings(engine="pgvector", url=database))
    layout = Layout(tmp_path)
    assert check_index(chosen, layout).state == "ok"
    with opened(chosen.index, tmp_path / "x", "bob") as index:
        index.begin(position())
    found = check_index(chosen, layout)
    assert (found.state, found.detail.rpartition(": ")[2]) == ("warning", "bob")
    assert "forget --user ID --user-all" in found.advice


def test_no_engine_is_imported_until_it_is_used(tmp_path: Path) -> None:
    program = """
import sys
from memory_agent import Memory
import memory_agent.cli.group, memory_agent.care, memory_agent.daemon.process
with Memory.open(sys.argv[1]) as memory:
    memory.remember("Staging needs the VPN")
    memory.recall("VPN")
print(sorted({"psycopg", "sqlite_vec", "sqlcipher3", "lancedb", "pyarrow"} & sys.modules.keys()))
sys.modules.update(dict.fromkeys(("psycopg", "sqlcipher3", "sqlite_vec", "lancedb")))  # as if not installed
from memory_agent.indexes import IndexOf, open_index
from memory_agent.settings import IndexSettings
for engine in ("sqlite-vec", "pgvector", "lancedb"):
    try:
        open_index(engine, IndexOf(IndexSettings(url="postgresql:///x"), "alice", None))
    except Exception as error:
        print(type(error).__name__, str(error).rpartition("; ")[2])
"""
    command = [sys.executable, "-c", program, str(tmp_path / "alice")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        "[]",
        *(f"IndexUnusableError pip install 'memory-agent[{engine}]'" for engine in ENGINES),
    ]


@contextmanager
def away(database: str, postgres: str) -> Iterator[None]:
    """Close all connections to a database, and refuse new ones, inside the block."""
    name = urlsplit(database).path[1:]
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS false")
        connection.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", (name,))
        try:
            yield
        finally:
            connection.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS true")


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
    with psycopg.connect(database) as connection:
        query = "SELECT pid FROM pg_stat_activity WHERE datname = %s AND pid <> pg_backend_pid()"
        stopped = [pid for (pid,) in connection.execute(query, (connection.info.dbname,))]
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    try:
        world.put(2, None, [2])
        assert world.archive.store.counts().memories == 2
    finally:
        for pid in stopped:
            os.kill(pid, signal.SIGCONT)
    wait_until(lambda: not follower.is_behind)
    world.check(2)
    world.close()


def test_a_full_disk_does_not_empty_the_index(tmp_path: Path) -> None:
    with opened(IndexSettings(engine="sqlite-vec"), tmp_path / "alice") as index:
        index.begin(position())
        index.index([entry(1, vector_of(1))], position())
        index._connection.execute("PRAGMA max_page_count = 1")  # type: ignore[attr-defined]
        with pytest.raises(IndexUnavailableError, match="full"):
            index.index([entry(row, *map(vector_of, range(64))) for row in range(2, 90)], position())
        assert index.count() == 1


def test_closing_does_not_wait_for_a_graph_that_is_being_built(database: str, tmp_path: Path) -> None:
    world = World(tmp_path, IndexSettings(engine="pgvector", url=database, hnsw_from=3))
    world.put(1, None, [1])
    with psycopg.connect(database) as other:
        other.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        other.execute("SELECT count(*) FROM memory_agent.users")  # PostgreSQL finishes no graph before this ends
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
