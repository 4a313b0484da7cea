from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest
from samples import NDIM, SMALL, exact_ranking, memory, unit_vectors

from memory_agent.records import MemoryFilter
from memory_agent.storage import derived
from memory_agent.storage.lexicon import Lexicon
from memory_agent.storage.store import Store
from memory_agent.storage.user_key import UserKey
from memory_agent.storage.vector_index import VectorIndex

GRAPH = msgspec.structs.replace(SMALL, exact_search_limit=50)
COUNT = 120


_keys: list[UserKey | None] = []


@pytest.fixture(autouse=True)
def with_key(key: UserKey | None):  # type: ignore[no-untyped-def]
    _keys.append(key)
    yield
    _keys.pop()


def opened(folder: Path) -> tuple[Store, VectorIndex, Lexicon]:
    store = Store.open(folder, GRAPH, key=_keys[-1])
    return store, derived.open_index(store, GRAPH), derived.open_lexicon(store)


def add(store: Store, index: VectorIndex, lexicon: Lexicon, count: int, seed: int = 1, word: str = "race") -> None:
    for number, vector in enumerate(unit_vectors(count, seed)):
        with store.batch() as batch:
            batch.set_stamp("model")
            batch.put(memory(f"{word} number{number}"), vector)
        derived.apply(store, index, lexicon, batch.changes)


def close(store: Store, index: VectorIndex, lexicon: Lexicon) -> None:
    derived.save(store, index, lexicon)
    lexicon.close()
    store.close()


def assert_right(store: Store, index: VectorIndex, lexicon: Lexicon) -> None:
    """Check that both indexes equal the store."""
    memories = dict(store.scan())
    rows = np.array(sorted(memories), dtype=np.int64)
    held = dict(zip(rows.tolist(), store.vectors(rows), strict=True))
    assert len(index) == len(lexicon) == len(memories)
    assert index.applied == lexicon.applied == store.last_change
    for query in unit_vectors(3, seed=99):
        assert index.search_within(query, rows, 10)[0].tolist() == exact_ranking(held, query)[:10]
        assert len(set(index.search(query, 10)[0].tolist()) & set(exact_ranking(held, query)[:10])) >= 9
    assert lexicon.matching_rows(MemoryFilter()).tolist() == rows.tolist()
    for row, record in list(memories.items())[:20]:
        word = record.text.split()[1]
        expected = [other for other, one in memories.items() if word in one.text.split()]
        assert sorted(lexicon.search(word, 1_000)[0].tolist()) == expected
        assert row in expected


@pytest.fixture
def closed(tmp_path: Path) -> Path:
    """A store with a saved graph, a cleanly closed lexicon, and a few changes after the save."""
    store, index, lexicon = opened(tmp_path / "user")
    add(store, index, lexicon, COUNT)
    close(store, index, lexicon)
    return tmp_path / "user"


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 16
    path.write_bytes(content)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-5_000])


def zero_tail(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-5_000] + bytes(5_000))


def scramble(path: Path) -> None:
    path.write_bytes(np.random.default_rng(1).bytes(50_000))


def empty(path: Path) -> None:
    path.write_bytes(b"")


def test_saved_files_are_used_and_right(closed: Path) -> None:
    assert (closed / "index.usearch").exists()
    store, index, lexicon = opened(closed)
    assert_right(store, index, lexicon)
    assert not (closed / "lexicon.sqlite.damaged").exists()
    close(store, index, lexicon)


@pytest.mark.parametrize("damage", [flip, truncate, zero_tail, scramble, empty, Path.unlink])
@pytest.mark.parametrize("name", ["index.usearch", "lexicon.sqlite"])
def test_a_damaged_file_is_rebuilt_and_answers_correctly(
    closed: Path, name: str, damage: Callable[[Path], object], capfd: pytest.CaptureFixture[str]
) -> None:
    damage(closed / name)
    store, index, lexicon = opened(closed)
    assert_right(store, index, lexicon)
    assert capfd.readouterr().err == ""
    add(store, index, lexicon, 5, seed=2, word="later")
    assert_right(store, index, lexicon)
    close(store, index, lexicon)


@pytest.mark.parametrize("damage", [truncate, zero_tail, scramble, empty])
def test_a_lexicon_damaged_by_a_process_that_died_is_rebuilt(
    closed: Path, damage: Callable[[Path], object], capfd: pytest.CaptureFixture[str]
) -> None:
    (closed / "lexicon.sqlite.seal").unlink()
    damage(closed / "lexicon.sqlite")
    store, index, lexicon = opened(closed)
    assert_right(store, index, lexicon)
    assert (closed / "lexicon.sqlite.damaged").exists()
    assert capfd.readouterr().err == ""
    close(store, index, lexicon)


def test_a_lexicon_damaged_while_in_use_is_repaired(closed: Path) -> None:
    store, index, lexicon = opened(closed)
    scramble(closed / "lexicon.sqlite")
    derived.repair_lexicon(store, lexicon)
    assert_right(store, index, lexicon)
    close(store, index, lexicon)


def test_a_batch_after_damage_in_use_repairs_by_itself(closed: Path) -> None:
    store, index, lexicon = opened(closed)
    assert lexicon._writer is not None
    lexicon._writer.execute("DROP TABLE words")
    add(store, index, lexicon, 3, seed=2, word="later")
    assert_right(store, index, lexicon)
    close(store, index, lexicon)


def test_changes_that_both_indexes_applied_leave_the_change_log(closed: Path) -> None:
    store, index, lexicon = opened(closed)
    assert store.log_length == 0
    add(store, index, lexicon, 4, seed=2)
    assert store.log_length == 4
    derived.save_if_due(store, index, lexicon)
    assert store.log_length == 4
    derived.save(store, index, lexicon)
    assert store.log_length == 0
    close(store, index, lexicon)


def test_changes_made_without_the_indexes_are_caught_up_from_the_log(closed: Path) -> None:
    with Store.open(closed, GRAPH, key=_keys[-1]) as store:
        rows = [row for row, _ in store.scan()]
        with store.batch() as batch:
            for row in rows[:10]:
                batch.delete(row)
            record = batch.record(rows[20])
            assert record is not None
            batch.update(msgspec.structs.replace(record, text="changed completely", tags=("new",)))
            batch.set_vector(rows[21], unit_vectors(1, seed=5)[0])
            batch.put(memory("brand new"), unit_vectors(1, seed=6)[0])
    store, index, lexicon = opened(closed)
    assert_right(store, index, lexicon)
    assert lexicon.matching_rows(MemoryFilter(tags=("new",))).tolist() == [rows[20]]
    close(store, index, lexicon)


def test_indexes_older_than_the_change_log_are_rebuilt(closed: Path) -> None:
    with Store.open(closed, GRAPH, key=_keys[-1]) as store:
        for number in range(3):
            with store.batch() as batch:
                batch.put(memory(f"unseen number{number}"), unit_vectors(1, seed=number)[0])
        store.forget_changes_through(store.last_change)
    store, index, lexicon = opened(closed)
    assert_right(store, index, lexicon)
    close(store, index, lexicon)


def test_the_files_of_another_store_are_not_used(closed: Path, tmp_path: Path) -> None:
    store, index, lexicon = opened(tmp_path / "other")
    add(store, index, lexicon, COUNT, seed=7, word="other")
    close(store, index, lexicon)
    for name in ("index.usearch", "lexicon.sqlite", "lexicon.sqlite.seal"):
        (tmp_path / "other" / name).replace(closed / name)
    store, index, lexicon = opened(closed)
    assert_right(store, index, lexicon)
    close(store, index, lexicon)


def test_another_embedder_empties_the_vector_side_and_keeps_the_words(closed: Path) -> None:
    store, index, lexicon = opened(closed)
    with store.batch() as batch:
        batch.set_stamp("another model")
    derived.apply(store, index, lexicon, batch.changes)
    assert len(index) == 0
    assert len(lexicon) == COUNT
    with store.batch() as batch:
        for row, vector in zip(store.pending_rows(COUNT), unit_vectors(COUNT, seed=8, ndim=NDIM // 2), strict=True):
            batch.set_vector(row, vector)
    derived.apply(store, index, lexicon, batch.changes)
    assert index.ndim == NDIM // 2
    assert len(index) == COUNT
    close(store, index, lexicon)
    store, index, lexicon = opened(closed)
    assert len(index.search(unit_vectors(1, seed=1, ndim=NDIM // 2)[0], 10)[0]) == 10
    close(store, index, lexicon)


def test_an_old_graph_of_another_embedder_is_not_used(closed: Path) -> None:
    with Store.open(closed, GRAPH, key=_keys[-1]) as store, store.batch() as batch:
        batch.set_stamp("another model")
    store, index, lexicon = opened(closed)
    assert len(index) == 0
    assert len(lexicon) == COUNT
    close(store, index, lexicon)


def test_an_empty_store_has_indexes_that_answer(tmp_path: Path) -> None:
    store, index, lexicon = opened(tmp_path)
    assert index.search(np.ones(NDIM, dtype=np.float32), 5)[0].tolist() == []
    assert lexicon.search("race", 5)[0].tolist() == []
    close(store, index, lexicon)
