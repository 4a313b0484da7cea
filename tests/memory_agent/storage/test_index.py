from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hammering import hammered
from samples import NDIM, exact_ranking, unit_vectors

from memory_agent.errors import IndexDamagedError, InvalidInputError
from memory_agent.records import Embedding
from memory_agent.storage.changes import Change, Changes, Rows
from memory_agent.storage.nearest import quantize
from memory_agent.storage.vector_index import INT8_ERROR, VectorIndex

K = 10


class Source:
    """The vectors of a store, in memory."""

    def __init__(self, ndim: int = NDIM) -> None:
        self.ndim = ndim
        self.vectors: dict[int, Embedding] = {}
        self.change = 0

    def read(self, rows: Rows) -> Embedding:
        absent = np.zeros(self.ndim, dtype=np.float32)
        return np.stack([self.vectors.get(int(row), absent) for row in rows]) if len(rows) else absent[None][:0]

    def put(self, vectors: dict[int, Embedding]) -> Changes:
        self.vectors |= vectors
        return self._changes([Change(row, "vector", None, vector, True) for row, vector in vectors.items()])

    def delete(self, rows: list[int]) -> Changes:
        for row in rows:
            self.vectors.pop(row, None)
        return self._changes([Change(row, "delete", None, None, False) for row in rows])

    def _changes(self, rows: list[Change]) -> Changes:
        self.change += 1
        return Changes(self.change - 1, self.change, rows)

    def all(self) -> Iterator[tuple[Rows, Embedding]]:
        rows = np.array(list(self.vectors), dtype=np.int64)
        for start in range(0, len(rows), 100):
            yield rows[start : start + 100], self.read(rows[start : start + 100])


def filled(source: Source, count: int, limit: int, seed: int = 1) -> VectorIndex:
    index = VectorIndex(source.read, exact_search_limit=limit)
    index.apply(source.put(dict(enumerate(unit_vectors(count, seed, source.ndim), start=1))))
    return index


def recall(index: VectorIndex, source: Source, queries: Embedding) -> float:
    hits = sum(
        len(set(index.search(query, K)[0].tolist()) & set(exact_ranking(source.vectors, query)[:K]))
        for query in queries
    )
    return hits / (K * len(queries))


@pytest.mark.parametrize("limit", [10_000, 100], ids=["flat", "graph"])
def test_scores_are_exact_cosines_best_first(limit: int) -> None:
    source = Source()
    index = filled(source, 500, limit)
    assert index.is_approximate == (limit < 500)
    for query in unit_vectors(20, seed=2):
        rows, scores = index.search(query * 7, K)
        assert len(rows) == K
        assert np.allclose(scores, source.read(rows) @ query, atol=1e-6)
        assert (np.diff(scores) <= 0).all()
        assert rows.dtype == np.int64
        assert scores.dtype == np.float32


@pytest.mark.parametrize(("limit", "least"), [(10_000, 1.0), (100, 0.98)], ids=["flat", "graph"])
def test_search_equals_exact_search_in_float32(limit: int, least: float) -> None:
    source = Source(ndim=384)
    index = filled(source, 3_000, limit)
    queries = unit_vectors(100, seed=9, ndim=384)  # as far from every vector as new text is
    assert recall(index, source, queries) >= least
    close = np.stack([source.vectors[row] for row in range(1, 101)])
    assert recall(index, source, close) >= least


@pytest.mark.parametrize("limit", [10_000, 100], ids=["flat", "graph"])
def test_recall_holds_while_rows_come_and_go(limit: int) -> None:
    source = Source(ndim=64)
    index = filled(source, 1_500, limit)
    fresh = unit_vectors(3_000, seed=4, ndim=64)
    for turn in range(15):
        index.apply(source.delete(list(range(1 + 100 * turn, 101 + 100 * turn))))
        index.apply(source.put({10_000 + 100 * turn + i: fresh[100 * turn + i] for i in range(100)}))
    assert len(index) == len(source.vectors) == 1_500
    assert recall(index, source, unit_vectors(50, seed=5, ndim=64)) >= 0.98


def test_a_table_that_grows_past_the_limit_becomes_a_graph_and_comes_back(tmp_path: Path) -> None:
    source = Source()
    index = filled(source, 1_000, limit=1_000)
    assert not index.is_approximate
    index.apply(source.put({5_000: unit_vectors(1, seed=8)[0]}))
    assert index.is_approximate
    assert len(index) == 1_001
    index.apply(source.delete(list(range(1, 600))))
    assert not index.is_approximate  # worn, and below the limit again
    assert sorted(index.search(unit_vectors(1, seed=3)[0], 1_000)[0].tolist()) == sorted(source.vectors)


@pytest.mark.parametrize("limit", [10_000, 100], ids=["flat", "graph"])
def test_deleted_rows_are_not_found_and_replaced_ones_are(limit: int) -> None:
    source = Source()
    index = filled(source, 300, limit)
    query = source.vectors[7]
    index.apply(source.delete([7]))
    assert 7 not in index.search(query, 300)[0]
    index.apply(source.put({7: query, 8: -source.vectors[8]}))
    rows, scores = index.search(query, 1)
    assert rows.tolist() == [7]
    assert scores[0] == pytest.approx(1.0, abs=1e-6)
    assert np.allclose(index.score_rows(source.vectors[8], np.array([8])), 1.0, atol=1e-6)
    assert len(index) == 300


@pytest.mark.parametrize("limit", [10_000, 100], ids=["flat", "graph"])
@pytest.mark.parametrize("share", [0.002, 0.3, 0.9])
def test_a_search_within_chosen_rows_is_exact(limit: int, share: float) -> None:
    source = Source(ndim=64)
    index = filled(source, 2_000, limit)
    rng = np.random.default_rng(6)
    chosen = np.flatnonzero(rng.random(2_000) < share) + 1
    for query in unit_vectors(10, seed=7, ndim=64):
        rows, scores = index.search_within(query, chosen, K)
        expected = exact_ranking({int(row): source.vectors[int(row)] for row in chosen}, query)[:K]
        assert rows.tolist() == expected
        assert np.allclose(scores, source.read(rows) @ query, atol=1e-6)


@pytest.mark.parametrize("limit", [10_000, 100], ids=["flat", "graph"])
@pytest.mark.parametrize("share", [0.002, 0.3, 0.9])
@pytest.mark.parametrize("expected", [0.001, 0.5, 1.0])
def test_a_filtered_search_is_exact_regardless_of_the_estimate(limit: int, share: float, expected: float) -> None:
    source = Source(ndim=64)
    index = filled(source, 2_000, limit)
    chosen = np.flatnonzero(np.random.default_rng(6).random(2_000) < share) + 1
    asked: list[int] = []

    def keep(rows: Rows) -> Rows:
        asked.extend(rows.tolist())
        return np.intersect1d(rows, chosen)

    for query in unit_vectors(5, seed=7, ndim=64):
        asked.clear()
        found = index.search_passing(query, K, keep, share=expected)
        assert found is not None
        assert len(asked) == len(set(asked))
        right = exact_ranking({int(row): source.vectors[int(row)] for row in chosen}, query)[:K]
        assert found[0].tolist() == right
        listed = index.search_within(query, chosen, K)
        assert found[0].tolist() == listed[0].tolist()
        assert found[1].tolist() == listed[1].tolist()  # to the last bit


def test_a_filtered_search_stops_at_its_budget() -> None:
    source = Source()
    index = filled(source, 2_000, limit=100)
    query = unit_vectors(1, seed=7)[0]
    assert index.search_passing(query, K, lambda rows: rows[:0], budget_us=0.0) is None
    assert index.search_passing(query, K, lambda rows: rows[:0], share=0.5, budget_us=600.0) is None
    nothing = index.search_passing(query, K, lambda rows: rows[:0])
    assert nothing is not None
    assert nothing[0].tolist() == []


@pytest.mark.parametrize("limit", [10_000, 100], ids=["flat", "graph"])
def test_among_vectors_that_rounding_cannot_tell_apart_the_nearest_are_found(limit: int) -> None:
    source = Source(ndim=64)
    rng = np.random.default_rng(3)
    crowd = unit_vectors(1, seed=1, ndim=64) + 1e-3 * rng.normal(size=(1_500, 64)).astype(np.float32)
    index = VectorIndex(source.read, exact_search_limit=limit)
    index.apply(source.put(dict(enumerate(crowd / np.linalg.norm(crowd, axis=1, keepdims=True), start=1))))
    query = unit_vectors(1, seed=2, ndim=64)[0]
    chosen = np.arange(1, 1_501, 2)
    right = exact_ranking({int(row): source.vectors[int(row)] for row in chosen}, query)[:K]
    for share in (0.1, 0.5, 1.0):
        found = index.search_passing(query, K, lambda rows: rows[rows % 2 == 1], share=share)
        assert found is not None
        assert np.allclose(found[1], source.read(np.array(right)) @ query, atol=1e-6)


def test_of_equal_vectors_the_later_row_comes_first_however_they_are_found() -> None:
    source = Source(ndim=48)
    index = filled(source, 300, limit=1_000)
    twin = source.vectors[5]
    index.apply(source.put(dict.fromkeys(range(1000, 1100), twin)))
    rows, scores = index.search(twin, 50)
    assert rows.tolist() == [*range(1_099, 1_049, -1)]
    assert len(set(scores.tolist())) == 1
    assert index.search_within(twin, np.arange(990, 1_100), 50)[0].tolist() == list(range(1_099, 1_049, -1))


@pytest.mark.parametrize("peaky", [False, True])
def test_scaled_to_int8_a_cosine_keeps_within_the_error_that_is_reckoned_with(peaky: bool) -> None:
    rng = np.random.default_rng(1)
    drawn = rng.standard_cauchy(size=(3_000, 96)) if peaky else rng.normal(size=(3_000, 96))
    vectors = (drawn / np.linalg.norm(drawn, axis=1, keepdims=True)).astype(np.float32)
    scaled = quantize(vectors).astype(np.float64)
    scaled /= np.linalg.norm(scaled, axis=1, keepdims=True)
    assert np.abs(scaled @ scaled[:50].T - vectors @ vectors[:50].T).max() < INT8_ERROR


def test_a_search_within_rows_far_away_still_returns_all_of_them() -> None:
    source = Source(ndim=2)
    angles = np.linspace(0, np.pi, 2_000)
    index = VectorIndex(source.read)
    index.apply(source.put({i + 1: np.array([np.cos(a), np.sin(a)], dtype=np.float32) for i, a in enumerate(angles)}))
    farthest = np.arange(1_401, 2_001)
    rows, _ = index.search_within(np.array([1.0, 0.0], dtype=np.float32), farthest, 600)
    assert rows.tolist() == farthest.tolist()


def test_rows_without_a_vector_have_no_score() -> None:
    source = Source()
    index = filled(source, 50, limit=100)
    scores = index.score_rows(source.vectors[1], np.array([1, 999, 2]))
    assert np.isnan(scores).tolist() == [False, True, False]
    assert index.search_within(source.vectors[1], np.array([999, 1]), 5)[0].tolist() == [1]


def test_an_empty_index_answers_with_nothing() -> None:
    index = VectorIndex(Source().read)
    query = unit_vectors(1, seed=1)[0]
    rows, scores = index.search(query, 5)
    assert rows.shape == scores.shape == (0,)
    assert index.search_within(query, np.array([1]), 5)[0].shape == (0,)
    assert np.isnan(index.score_rows(query, np.array([1, 2]))).all()
    assert len(index) == 0


def test_one_row_has_the_shape_of_many() -> None:
    source = Source()
    index = filled(source, 1, limit=10)
    rows, scores = index.search(source.vectors[1], 5)
    assert (rows.tolist(), scores.shape) == ([1], (1,))


@pytest.mark.parametrize("value", [np.nan, np.inf, 0.0])
def test_a_poisonous_query_is_refused(value: float) -> None:
    source = Source()
    index = filled(source, 10, limit=100)
    with pytest.raises(InvalidInputError):
        index.search(np.full(NDIM, value, dtype=np.float32), 5)
    with pytest.raises(InvalidInputError):
        index.search(np.ones(NDIM - 1, dtype=np.float32), 5)


def test_a_stretch_that_was_followed_does_no_harm_and_a_gap_is_an_error() -> None:
    source = Source()
    index = filled(source, 10, limit=100)
    again = source.put({11: unit_vectors(1, seed=3)[0]})
    index.apply(again)
    index.apply(again)
    assert len(index) == 11
    source.put({12: unit_vectors(1, seed=4)[0]})
    with pytest.raises(IndexDamagedError):
        index.apply(source.put({13: unit_vectors(1, seed=5)[0]}))


def saved(tmp_path: Path, source: Source) -> tuple[VectorIndex, Path]:
    index = filled(source, 400, limit=100)
    index.stamp, index.lineage = "model", "store"
    path = tmp_path / "index"
    index.save(path)
    return index, path


def test_a_saved_graph_comes_back_as_it_was(tmp_path: Path) -> None:
    source = Source()
    index, path = saved(tmp_path, source)
    loaded = VectorIndex(source.read, exact_search_limit=100)
    loaded.load(path)
    assert (loaded.applied, loaded.stamp, loaded.lineage, loaded.ndim) == (1, "model", "store", NDIM)
    for query in unit_vectors(10, seed=2):
        assert loaded.search(query, K)[0].tolist() == index.search(query, K)[0].tolist()
    loaded.apply(source.delete([1]))
    assert len(loaded) == 399


def test_a_saved_graph_below_a_raised_limit_becomes_a_table_only_when_worn(tmp_path: Path) -> None:
    source = Source()
    _, path = saved(tmp_path, source)
    loaded = VectorIndex(source.read, exact_search_limit=10_000)
    loaded.load(path)
    assert recall(loaded, source, unit_vectors(10, seed=2)) == 1.0


def test_a_flat_table_is_not_saved_and_an_old_file_is_removed(tmp_path: Path) -> None:
    source = Source()
    _, path = saved(tmp_path, source)
    filled(Source(), 10, limit=100).save(path)
    assert list(tmp_path.iterdir()) == []


def test_no_damaged_file_reaches_usearch(tmp_path: Path) -> None:
    source = Source()
    _, path = saved(tmp_path, source)
    whole = path.read_bytes()
    rng = np.random.default_rng(3)
    damaged = [
        whole[:0],
        whole[:10],
        whole[:-1],
        whole[: len(whole) // 2],
        whole + b"\x00",
        whole[:-4096] + bytes(4096),
    ]
    for bit in rng.integers(0, 8 * len(whole), size=200).tolist() + list(range(0, 8 * 200, 11)):
        flipped = bytearray(whole)
        flipped[bit // 8] ^= 1 << bit % 8
        damaged.append(bytes(flipped))
    assert whole not in damaged
    for content in damaged:
        path.write_bytes(content)
        with pytest.raises(IndexDamagedError):
            VectorIndex(source.read, exact_search_limit=100).load(path)


def test_a_missing_file_is_damage(tmp_path: Path) -> None:
    with pytest.raises(IndexDamagedError):
        VectorIndex(Source().read).load(tmp_path / "none")


def test_threads_search_while_changes_are_applied() -> None:
    source = Source()
    index = filled(source, 300, limit=350)
    query = unit_vectors(1, seed=2)[0]

    def search() -> None:
        rows, scores = index.search(query, K)
        assert len(rows) == K
        assert np.isfinite(scores).all()

    with hammered(search):
        for number, vector in enumerate(unit_vectors(200, seed=3)):  # passes the limit on the way
            index.apply(source.put({1_000 + number: vector}))
    assert index.is_approximate
