"""One contract for all vector indexes: the built-in index, sqlite-vec, pgvector and LanceDB.

The reference is a dictionary. The tests use the index as recall does, through the store and its columns.
"""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import psycopg
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from index_world import (
    MODES,
    NDIM,
    NOW,
    QUERIES,
    SESSIONS,
    SMALL,
    TEXTS,
    World,
    embedded_of,
    entry,
    opened,
    position,
    vector_of,
)
from made_vectors import MadeVectors
from polling import wait_until
from sqlcipher3 import dbapi2 as sqlite

from memory_agent.cli.doctor import check_index
from memory_agent.errors import (
    IndexDamagedError,
    IndexUnavailableError,
    IndexUnusableError,
    InvalidInputError,
    SettingsError,
)
from memory_agent.indexes import (
    Entry,
    IndexOf,
    Where,
    forget_user,
    open_index,
    users_in_database,
)
from memory_agent.layout import Layout
from memory_agent.memory import Memory
from memory_agent.settings import IndexSettings, Settings, load_settings
from memory_agent.storage import index_follower, indexed_vectors

ENGINES = ("sqlite-vec", "pgvector", "lancedb")

PARTS = {"sqlite-vec": "sqlite_vec", "pgvector": "psycopg", "lancedb": "lancedb"}

outside = pytest.mark.parametrize("engine", ENGINES, indirect=True)

numbers, seeds = st.integers(0, 5), st.lists(st.integers(0, 30), min_size=1, max_size=3)

steps = st.one_of(
    st.tuples(st.just("put"), numbers, st.sampled_from(SESSIONS), seeds),
    st.tuples(st.just("unseen"), numbers, st.sampled_from(SESSIONS), seeds),
    st.tuples(st.just("delete"), numbers),
    st.tuples(st.sampled_from(("reopen", "compact"))),
)


@pytest.fixture(params=("builtin", *ENGINES))
def engine(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    if name in PARTS and importlib.util.find_spec(PARTS[name]) is None:
        pytest.skip(f"{name} is not installed: pip install '.[{name}]'")
    return name


@pytest.fixture
def chosen(engine: str, request: pytest.FixtureRequest) -> IndexSettings:
    """The settings of one engine."""
    url = request.getfixturevalue("database") if engine == "pgvector" else ""
    return IndexSettings(engine=engine, url=url)  # type: ignore[arg-type]


@settings(max_examples=5, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(steps, min_size=3, max_size=9), seed=st.integers(0, 30))
@example(steps=[("put", 1, "a", [1]), ("unseen", 1, "it's b", [2, 3]), ("delete", 1), ("compact",)], seed=2)
def test_an_index_answers_as_a_dictionary_would(
    steps: list[tuple[Any, ...]], seed: int, chosen: IndexSettings, tmp_path: Path
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(indexed_vectors, "_READ_AT_MOST", 0)  # query the index even if there are few vectors
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
def test_a_search_of_many_is_exact_with_a_filter_that_leaves_three_and_ends_in_time(
    chosen: IndexSettings, tmp_path: Path
) -> None:
    vectors = np.random.default_rng(1).normal(size=(500, 100, NDIM)).astype(np.float32)
    with opened(chosen, tmp_path / "alice") as index:
        index.begin(position())
        index.index(
            [Entry(row, vectors[row], entry(row, vectors[row][0]).names, 1_000 * row) for row in range(500)],
            position(),
        )
        index.index([entry(row, vector_of(row), session="rare") for row in (2_007, 2_107, 2_207)], position())
        hits = index.search(vectors[5][1], 10, Where(among={"session": ("rare",)}))
        assert sorted(hits.rows.tolist()) == [2_007, 2_107, 2_207]
        assert (index.count("session", "rare"), index.count()) == (3, 503)
        with pytest.raises(TimeoutError):
            index.search(vectors[9][70], 1, timeout_s=0.0)
        assert index.search(vectors[9][70], 1, timeout_s=60.0).rows.tolist() == [9]
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


@pytest.fixture(scope="module")
def built_in(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """The answers of a memory with the built-in index."""
    return list(answered(tmp_path_factory.mktemp("built-in") / "a", IndexSettings()))


@outside
def test_recall_answers_as_with_the_built_in_index(chosen: IndexSettings, tmp_path: Path, built_in: list[Any]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(indexed_vectors, "_READ_AT_MOST", 0)
        assert list(answered(tmp_path / "a", chosen)) == built_in


def answered(folder: Path, chosen: IndexSettings) -> Iterator[Any]:
    """Yield the answers of a memory with this index, before and after memories are erased."""
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
            found_map = memory.map()
            yield found_map.ids, found_map.x, found_map.y
            assert memory.erasure.erase(filter={"tags": ["t2"]}).complete
        assert memory.stats().index == ("exact" if chosen.engine == "builtin" else f"{chosen.engine}, exact")


def test_an_erased_memory_leaves_no_byte_in_the_files_of_an_index(tmp_path: Path) -> None:
    name = b"zanzibarsession"

    def files() -> set[str]:
        return {file.name for file in tmp_path.rglob("*") if file.is_file() and name in file.read_bytes()}

    settings = Settings(index=IndexSettings(engine="sqlite-vec"), store=SMALL)
    with Memory.open(tmp_path / "alice", embedder=MadeVectors(), settings=settings, user_id="u") as memory:
        secret = memory.remember(TEXTS[0], session_id=name.decode())
        memory.remember(TEXTS[1])
        wait_until(lambda: "index.sqlite-wal" in files())
        assert memory.erasure.erase([secret.id]).complete
        assert files() == set()
    assert files() == set()


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
        "IndexUnusableError pip install sqlite-vec sqlcipher3",
        "IndexUnusableError pip install 'psycopg[binary]'",
        "IndexUnusableError pip install lancedb pyarrow",
    ]


def test_a_full_disk_does_not_empty_the_index(tmp_path: Path) -> None:
    with opened(IndexSettings(engine="sqlite-vec"), tmp_path / "alice") as index:
        index.begin(position())
        index.index([entry(1, vector_of(1))], position())
        index._connection.execute("PRAGMA max_page_count = 1")  # type: ignore[attr-defined]
        with pytest.raises(IndexUnavailableError, match="full"):
            index.index([entry(row, *map(vector_of, range(64))) for row in range(2, 90)], position())
        assert index.count() == 1


def test_a_change_of_model_does_not_fill_the_index_within_a_batch(tmp_path: Path) -> None:
    world = World(tmp_path, IndexSettings(engine="sqlite-vec"))
    world.put(1, None, [1])
    follower = world.archive.follower
    assert follower is not None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(index_follower, "_STEP", 0)  # as if there were many memories
        patch.setattr(follower, "_try_again", lambda: None)
        with world.archive.batch() as batch:
            batch.set_stamp("other")
            batch.set_vector(1, embedded_of([2]))
        assert follower.is_behind
        assert follower.index.count() == 1
        before = follower.index.position
        assert before is not None
        assert (before.lineage, before.stamp) == (world.archive.store.state.lineage, "model")
    follower.start()
    wait_until(lambda: not follower.is_behind)
    stored = follower.index.position
    assert stored is not None
    assert stored.stamp == "other"
    world.close()
