"""Saved columns are used if current, updated if outdated, and rebuilt if anything is wrong."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path

import msgspec
import numpy as np
import pytest
from brute_force import assert_holds, assert_passages, assert_searches, assert_words
from samples import NDIM, SMALL, embedded, memory, unit_vectors

from memory_agent.errors import IndexDamagedError, StoreError
from memory_agent.records.embedded import Embedding
from memory_agent.records.memories import MemoryFilter
from memory_agent.storage import derived
from memory_agent.storage.archive import Archive
from memory_agent.storage.changes import StoredWords
from memory_agent.storage.columns import Columns
from memory_agent.storage.derived import COLUMNS_FILE, GRAPH_FILE
from memory_agent.storage.environment import UserKey
from memory_agent.storage.store import Store
from memory_agent.storage.vector_table import TableView, VectorTable

GRAPH = msgspec.structs.replace(SMALL, exact_search_limit=50)
COUNT = 120


@pytest.fixture
def archives(key: UserKey | None) -> Iterator[Callable[[Path], Archive]]:
    """Yield a function that opens archives with the same key, and close them at the end."""
    opened: list[Archive] = []

    def opening(folder: Path) -> Archive:
        opened.append(Archive.open(folder, GRAPH, "library", key))
        return opened[-1]

    yield opening
    for archive in opened:
        archive.close()


def add(archive: Archive, count: int, seed: int = 1, word: str = "race") -> None:
    """Add memories; every third memory has several passages, and every fourth memory has no words."""
    for start in range(0, count, 10):
        with archive.batch() as batch:
            batch.set_stamp("model")
            batch.set_words_stamp("words")
            for number in range(start, min(count, start + 10)):
                found = embedded(1_000 * seed + number, 1 + 2 * (number % 3 == 0), 5 * (number % 4))
                batch.put(memory(f"{word} number{number}"), found)


def assert_right(archive: Archive) -> None:
    """Check that the view equals the store."""
    with archive.store.snapshot() as snapshot:
        memories = dict(snapshot.scan())
        vectors: dict[int, Embedding] = {}
        for row in memories:
            vector, passages = snapshot.vector(row), snapshot.passages(row)
            if vector is not None:
                vectors[row] = vector if passages is None else np.vstack([vector, passages[1]])
        words = {row: one for row in memories if (one := snapshot.words(row)) is not None}
    assert archive.view.applied == archive.store.state.last_change
    assert not archive.is_rebuilding
    assert_holds(archive.view, memories, vectors)
    assert_words(archive.view, words)
    query, *others = unit_vectors(3, seed=99)
    assert_searches(archive.view, memories, vectors, query, ["race", "number3", "absent"])
    for other in others:
        assert_passages(archive.view, vectors, other)


def was_loaded(archive: Archive) -> bool:
    """Whether the columns were loaded from their file."""
    return archive._has_file


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory, key: UserKey | None) -> Path:
    """A store with saved columns and a saved graph, to copy."""
    folder = tmp_path_factory.mktemp("filled") / "user"
    with closing(Archive.open(folder, GRAPH, "library", key)) as archive:
        add(archive, COUNT)
    return folder


@pytest.fixture
def closed(tmp_path: Path, filled: Path) -> Path:
    """A store with saved columns and a saved graph."""
    return shutil.copytree(filled, tmp_path / "user")


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


def test_saved_files_are_used_and_give_correct_answers(closed: Path, archives: Callable[[Path], Archive]) -> None:
    assert (closed / GRAPH_FILE).exists()
    archive = archives(closed)
    assert was_loaded(archive)
    assert_right(archive)
    add(archive, 5, seed=2, word="later")
    assert_right(archive)


@pytest.mark.parametrize("damage", [flip, truncate, zero_tail, scramble, empty, Path.unlink])
@pytest.mark.parametrize("name", [COLUMNS_FILE, GRAPH_FILE])
def test_a_damaged_file_is_rebuilt_and_answers_correctly(
    closed: Path,
    archives: Callable[[Path], Archive],
    name: str,
    damage: Callable[[Path], object],
    capfd: pytest.CaptureFixture[str],
) -> None:
    damage(closed / name)
    archive = archives(closed)
    assert was_loaded(archive) == (name == GRAPH_FILE)
    assert_right(archive)
    assert capfd.readouterr().err == ""
    add(archive, 5, seed=2, word="later")
    assert_right(archive)
    archive.close()
    again = archives(closed)
    assert was_loaded(again)
    assert_right(again)


def test_only_what_scans_read_whole_is_copied_from_a_plain_file(tmp_path: Path) -> None:
    archive = Archive.open(tmp_path / "plain", SMALL, "library")
    add(archive, COUNT)
    archive.close()
    for settings, is_copied in ((SMALL, True), (GRAPH, False)):
        _, columns = derived.read_columns(tmp_path / "plain", settings, None)
        first = columns.vectors.view()._first
        assert isinstance(first, TableView)
        (chunk,) = first._planes.chunks
        assert chunk.coarse.flags.owndata == is_copied
        assert not chunk.fine.flags.owndata
        columns.close()


def test_a_file_of_another_version_is_rebuilt(
    closed: Path, archives: Callable[[Path], Archive], monkeypatch: pytest.MonkeyPatch, key: UserKey | None
) -> None:
    monkeypatch.setattr(derived, "_VERSION", "another stemmer")
    with pytest.raises(IndexDamagedError, match="another stemmer"):
        derived.read_columns(closed, GRAPH, derived.columns_cipher(key))
    archive = archives(closed)
    assert not was_loaded(archive)
    assert_right(archive)


def test_changes_that_are_saved_leave_the_change_log(closed: Path, archives: Callable[[Path], Archive]) -> None:
    archive = archives(closed)
    assert archive.store.log_length == 0
    add(archive, 4, seed=2)
    assert archive.store.log_length == 4
    archive._save()
    assert archive.store.log_length == 0


def test_a_few_changes_are_not_saved_at_close_and_many_are(closed: Path, archives: Callable[[Path], Archive]) -> None:
    saved = (closed / COLUMNS_FILE).read_bytes()
    archive = archives(closed)
    add(archive, 5, seed=2)
    archive.close()
    assert (closed / COLUMNS_FILE).read_bytes() == saved
    archive = archives(closed)
    assert_right(archive)
    add(archive, 200, seed=3)
    archive.close()
    assert (closed / COLUMNS_FILE).read_bytes() != saved


def test_the_columns_are_saved_when_the_change_log_is_long(
    closed: Path, archives: Callable[[Path], Archive], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("memory_agent.storage.archive._SAVED_AT_LEAST_EVERY", 30)
    archive = archives(closed)
    add(archive, 29, seed=2)
    assert archive.store.log_length == 29
    add(archive, 1, seed=3)
    archive._wait()
    assert archive.store.log_length == 0
    archive.abandon()
    again = archives(closed)
    assert was_loaded(again)
    assert_right(again)


def test_a_save_overtaken_by_a_newer_one_restores_nothing_erased(
    closed: Path, archives: Callable[[Path], Archive], key: UserKey | None
) -> None:
    archive = archives(closed)
    with archive.batch() as batch:
        row = batch.put(memory("secretword race"), None)
    late = derived.capture(archive.store, archive._columns)
    with archive.batch() as batch:
        batch.delete(row)
    archive.purge()
    archive._save_beside(late)
    assert b"secret" not in content(closed)
    archive.close()
    again = archives(closed)
    assert was_loaded(again)
    assert_right(again)


def test_batches_go_on_while_the_columns_are_saved(
    closed: Path, archives: Callable[[Path], Archive], monkeypatch: pytest.MonkeyPatch
) -> None:
    reached, go_on = threading.Event(), threading.Event()
    write = derived.write

    def held(store: Store, saving: derived.Saving) -> None:
        reached.set()
        assert go_on.wait(60)
        write(store, saving)

    monkeypatch.setattr(derived, "write", held)
    monkeypatch.setattr("memory_agent.storage.archive._SAVED_AT_LEAST_EVERY", 20)
    archive = archives(closed)
    add(archive, 20, seed=2)
    assert reached.wait(60)
    add(archive, 10, seed=3, word="later")
    with archive.batch() as batch:
        batch.delete(3)
        batch.set_vector(4, unit_vectors(1, seed=9)[0])
    go_on.set()
    archive._wait()
    assert archive.store.log_length == 12
    assert_right(archive)
    archive.abandon()
    again = archives(closed)
    assert was_loaded(again)
    assert_right(again)


def test_a_store_that_is_closed_while_a_save_begins_closes(
    closed: Path, archives: Callable[[Path], Archive], monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = archives(closed)
    capture, wait, waited = derived.capture, archive._wait, threading.Event()
    closing = threading.Thread(target=archive.close, daemon=True)

    def waiting() -> None:
        wait()
        waited.set()

    def slow(store: Store, columns: Columns) -> derived.Saving:
        saving = capture(store, columns)
        if not archive._is_closing:
            closing.start()
            assert waited.wait(60)
        return saving

    monkeypatch.setattr(archive, "_wait", waiting)
    monkeypatch.setattr(derived, "capture", slow)
    monkeypatch.setattr("memory_agent.storage.archive._SAVED_AT_LEAST_EVERY", 20)
    with suppress(StoreError):  # raised for batches submitted after closing has begun
        add(archive, 20, seed=2)
    closing.join(30)
    assert not closing.is_alive()


def test_changes_made_without_the_columns_are_caught_up_from_the_log(
    closed: Path, archives: Callable[[Path], Archive], key: UserKey | None
) -> None:
    with Store.open(closed, GRAPH, key=key) as store:
        rows = [row for row, _ in store.scan()]
        with store.batch() as batch:
            for row in rows[:10]:
                batch.delete(row)
            record = batch.record(rows[20])
            assert record is not None
            batch.update(msgspec.structs.replace(record, text="changed completely", tags=("new",)))
            batch.set_vector(rows[21], unit_vectors(1, seed=5)[0])
            batch.put(memory("brand new"), unit_vectors(1, seed=6)[0])
    archive = archives(closed)
    assert was_loaded(archive)
    assert_right(archive)
    mask = archive.view.mask(MemoryFilter(tags=("new",)))
    assert mask is not None
    assert archive.view.rows[mask].tolist() == [rows[20]]


def test_columns_older_than_the_change_log_are_rebuilt(
    closed: Path, archives: Callable[[Path], Archive], key: UserKey | None
) -> None:
    with Store.open(closed, GRAPH, key=key) as store:
        for number in range(3):
            with store.batch() as batch:
                batch.put(memory(f"unseen number{number}"), unit_vectors(1, seed=number)[0])
        store.forget_changes_through(store.state.last_change)
    archive = archives(closed)
    assert not was_loaded(archive)
    assert_right(archive)


def test_the_files_of_another_store_are_not_used(
    closed: Path, tmp_path: Path, archives: Callable[[Path], Archive]
) -> None:
    other = archives(tmp_path / "other")
    add(other, COUNT, seed=7, word="other")
    other.close()
    for name in (COLUMNS_FILE, GRAPH_FILE):
        (tmp_path / "other" / name).replace(closed / name)
    archive = archives(closed)
    assert not was_loaded(archive)
    assert_right(archive)


def test_another_embedder_empties_the_vectors_and_keeps_the_words(
    closed: Path, archives: Callable[[Path], Archive]
) -> None:
    archive = archives(closed)
    with archive.batch() as batch:
        batch.set_stamp("another model")
    assert (archive.view.vectors.count, archive.view.live) == (0, COUNT)
    with archive.batch() as batch:
        for row, vector in zip(batch.pending_rows(COUNT), unit_vectors(COUNT, seed=8, ndim=NDIM // 2), strict=True):
            batch.set_vector(row, vector)
    assert (archive.view.vectors.count, archive.view.vectors.ndim) == (COUNT, NDIM // 2)
    archive.close()
    again = archives(closed)
    assert again.view.vectors.ndim == NDIM // 2
    assert again.view.applied == again.store.state.last_change


def test_saved_vectors_of_another_embedder_are_not_used(
    closed: Path, archives: Callable[[Path], Archive], key: UserKey | None
) -> None:
    with Store.open(closed, GRAPH, key=key) as store, store.batch() as batch:
        batch.set_stamp("another model")
    archive = archives(closed)
    assert (archive.view.vectors.count, archive.view.live) == (0, COUNT)


def test_an_empty_store_has_a_view_that_answers(tmp_path: Path, archives: Callable[[Path], Archive]) -> None:
    view = archives(tmp_path).view
    assert view.vectors.scan(np.ones(NDIM, dtype=np.float32), 5).values.tolist() == []
    assert view.words.scores(["race"]).tolist() == []
    assert view.time_span() == (None, None)
    archives(tmp_path / "other").close()
    assert not (tmp_path / "other" / COLUMNS_FILE).exists()


def test_files_of_former_versions_and_unfinished_ones_are_removed(
    closed: Path, archives: Callable[[Path], Archive]
) -> None:
    names = ("index.usearch", "lexicon.sqlite", "lexicon.sqlite-wal", "lexicon.sqlite.seal", "lexicon.sqlite.damaged")
    for name in (*names, f"{COLUMNS_FILE}.new"):
        (closed / name).write_bytes(b"words of memories")
    archives(closed)
    assert {path.name for path in closed.iterdir() if path.is_file()} >= {COLUMNS_FILE, GRAPH_FILE}
    assert not [path for path in closed.iterdir() if path.is_file() and b"words of" in path.read_bytes()]


def test_a_purge_leaves_nothing_of_the_deleted_in_any_file(
    closed: Path, archives: Callable[[Path], Archive], key: UserKey | None
) -> None:
    archive = archives(closed)
    found = embedded(77, passages=3, words=8)
    fields = {"session_id": "secretsession", "run_id": "secretrun", "tags": ("secrettag",)}
    with archive.batch() as batch:
        batch.set_words_stamp("words")
        rows = [batch.put(memory(f"secretword{number} race", **fields), found) for number in range(30)]
    archive._save()
    traces = [planes(vector.astype(np.float16).astype(np.float32)) for vector in found.vectors]
    traces += [vector.astype("<f2").tobytes() for vector in found.vectors]
    traces += [found.word_bits.tobytes(), found.spans.astype("<i4").tobytes()]
    assert [trace in content(closed) for trace in traces] == [key is None] * len(traces)
    with archive.batch() as batch:
        for row in rows:
            batch.delete(row)
    archive.purge()
    assert b"secret" not in content(closed)
    assert not any(trace in content(closed) for trace in traces)
    assert_right(archive)


def planes(vector: Embedding) -> bytes:
    """Return the bytes of a vector in the columns' file."""
    table = VectorTable()
    table.append(vector[None])
    return table.view().coarse(np.array([0])).tobytes()


def content(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file())


def test_many_words_are_loaded_in_the_background_beside_batches(
    closed: Path, archives: Callable[[Path], Archive], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("memory_agent.storage.archive._WORDS_AT_ONCE", 10)
    monkeypatch.setattr("memory_agent.storage.archive._WORDS_STEP", 7)
    archive = archives(closed)
    add(archive, 10, seed=5, word="meanwhile")
    with archive.batch() as batch:
        batch.delete(3)
        batch.set_vector(4, embedded(3, passages=4))
    archive._wait()
    assert_right(archive)
    archive.close()
    with Store.open(closed, GRAPH, key=archive.store.key) as store, store.batch() as batch:
        batch.set_words_stamp("other words")
        batch.set_vector(7, embedded(4))
    again = archives(closed)
    again._wait()
    assert_right(again)
    assert again.view.word_bits.count == 1


def test_a_batch_waits_for_one_step_of_loading_words(
    closed: Path, archives: Callable[[Path], Archive], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("memory_agent.storage.archive._WORDS_AT_ONCE", 10)
    monkeypatch.setattr("memory_agent.storage.archive._WORDS_STEP", 7)
    is_loading, is_waiting = threading.Event(), threading.Event()
    order: list[str] = []
    take_words = Columns.take_words

    def noted(columns: Columns, words: StoredWords) -> None:
        order.append("words")
        is_loading.set()
        assert is_waiting.wait(60)
        take_words(columns, words)

    class Queue:
        lock = threading.Lock()

        def __enter__(self) -> None:
            self.lock.acquire()
            is_waiting.set()

        def __exit__(self, *_: object) -> None:
            self.lock.release()

    monkeypatch.setattr(Columns, "take_words", noted)
    archive = archives(closed)
    assert is_loading.wait(60)
    monkeypatch.setattr(archive, "_queue", Queue())
    with archive.batch() as batch:
        order.append("batch")
        batch.put(memory("meanwhile"), None)
    archive._wait()
    assert order[:3] == ["words", "batch", "words"]
    assert len(order) > 5
    assert_right(archive)
