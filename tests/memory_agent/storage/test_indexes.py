"""Test that the vector table (with and without a graph) and the postings return the same results as a brute-force
search.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from math import inf, log, nan
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from samples import unit_vectors

from memory_agent.errors import InvalidInputError
from memory_agent.records.embedded import Embedding
from memory_agent.storage.array_file import read_arrays, write_arrays
from memory_agent.storage.languages import language_of
from memory_agent.storage.postings import Postings, PostingsView
from memory_agent.storage.terms import fold, text_terms, text_words, word_terms
from memory_agent.storage.vector_table import TableView, VectorTable

D = 24
POOL = 48


def pool() -> Embedding:
    """Return (POOL, D) unit vectors, some of which are clustered, equal or opposite, or have one large component."""
    vectors = unit_vectors(POOL, seed=3, ndim=D)
    vectors[1] = vectors[0]
    vectors[2] = -vectors[0]
    vectors[3] = np.eye(D)[5]
    vectors[4:8] = 0.02 * vectors[4:8] + np.eye(D)[:4]
    unit: Embedding = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)
    return unit


POOLED = pool()
NONE = np.zeros(D, dtype=np.float32)
Model = list[Embedding | None]
"""The vector of each slot, or None."""


def stacked(model: Model) -> Embedding:
    rows = [NONE if vector is None else vector for vector in model]
    return np.stack(rows) if rows else np.zeros((0, D), dtype=np.float32)


def exact(model: Model, query: Embedding) -> npt.NDArray[np.float64]:
    cosines = stacked(model).astype(np.float64) @ query.astype(np.float64)
    return np.where([vector is not None for vector in model], cosines, nan) if model else cosines


def assert_answers(view: TableView, model: Model, limit: int = 5) -> None:
    """Compare every answer of a view with brute force over `model`."""
    slots = np.arange(len(model))
    present = np.array([vector is not None for vector in model], dtype=bool)
    assert view.count == present.sum()
    if present.any():
        assert view.ndim == D
        assert np.allclose(view.vectors(slots), stacked(model), atol=2e-5)
    for query in (POOLED[0], POOLED[5], unit_vectors(1, seed=9, ndim=D)[0]):
        cosines, best = view.cosines(query, slots), exact(model, query)
        assert np.array_equal(np.isnan(cosines), ~present)
        assert np.allclose(cosines, best, atol=1e-4, equal_nan=True)
        some = slots[::-3]
        assert np.array_equal(view.cosines(query, some), cosines[some], equal_nan=True)
        scan = view.scan(query, limit)
        assert_within(scan.values, cosines, scan.error)
        unseen = present & np.isnan(scan.values)
        if scan.unseen == -inf:
            assert not unseen.any()
        else:
            assert view.is_approximate
            assert np.sum(cosines[unseen] > scan.unseen) <= 1
            assert np.sum(~unseen & present) >= min(limit, view.count)
        for mask in (np.zeros(len(model), dtype=bool), slots % 2 == 0, slots == len(model) - 1, slots >= 0):
            masked = view.scan(query, limit, mask)
            assert np.array_equal(np.isnan(masked.values), ~(mask & present))
            assert_within(masked.values, cosines, masked.error)
            assert masked.unseen == -inf


def assert_within(values: npt.NDArray[np.float32], cosines: npt.NDArray[np.float64], error: float) -> None:
    seen = ~np.isnan(values)
    assert values.dtype == np.float32
    assert np.all(np.abs(values[seen] - cosines[seen]) <= error)


steps = st.lists(
    st.tuples(
        st.sampled_from(["append", "append", "append", "set", "remove", "keep", "reload"]),
        st.lists(st.integers(0, POOL - 1), max_size=6),
    ),
    max_size=25,
)


class VectorTableContract:
    """Tests of a vector table. A subclass defines how to create a table, either empty or from saved arrays."""

    make: Callable[[], VectorTable]
    remake: Callable[[Any], VectorTable]

    def test_answers_equal_brute_force_and_views_do_not_change(self, tmp_path: Path) -> None:
        path = tmp_path / "arrays"

        @settings(deadline=None)
        @given(steps=steps)
        def holds(steps: list[tuple[str, list[int]]]) -> None:
            index, model = type(self).make(), Model()
            views: list[tuple[TableView, Model]] = []
            for step, numbers in steps:
                if step == "append":
                    added: Model = [None if number % 7 == 6 else POOLED[number] for number in numbers]
                    index.append(stacked(added))
                    model += added
                elif step == "set":
                    wanted = sorted({number % len(model) for number in numbers}) if model else []
                    slots = [slot for slot in wanted if model[slot] is None]
                    vectors = POOLED[[slot % POOL for slot in slots]]
                    if index.set(np.array(slots, dtype=np.int64), vectors):
                        model = [POOLED[i % POOL] if i in slots else vector for i, vector in enumerate(model)]
                elif step == "remove":
                    gone = {number % len(model) for number in numbers} if model else set()
                    index.remove(np.array(sorted(gone), dtype=np.int64))
                    model = [None if i in gone else vector for i, vector in enumerate(model)]
                elif step == "keep":
                    kept = [i for i in range(len(model)) if i not in numbers]
                    index.close()
                    index, model = index.keep(np.array(kept, dtype=np.int64)), [model[i] for i in kept]
                else:
                    index.close()
                    write_arrays(path, {}, index.arrays())
                    index = type(self).remake(read_arrays(path, dict)[1])
                views.append((index.view(), list(model)))
            for view, then in views:
                assert_answers(view, then)
            index.close()

        holds()

    def test_a_slot_that_never_had_a_vector_gets_one_in_place_and_another_does_not(self) -> None:
        index = type(self).make()
        index.append(np.stack([POOLED[0], NONE, POOLED[1], NONE]))
        before = index.view()
        assert index.set(np.array([1]), POOLED[8:9])
        assert not index.set(np.array([0, 3]), POOLED[9:11])
        index.remove(np.array([2]))
        assert not index.set(np.array([2]), POOLED[9:10])
        assert_answers(index.view(), [POOLED[0], POOLED[8], None, None])
        assert_answers(before, [POOLED[0], None, POOLED[1], None])

    def test_slots_may_come_before_the_first_vector(self) -> None:
        index = type(self).make()
        index.append(np.zeros((2, 0), dtype=np.float32))
        index.append(np.zeros((1, D), dtype=np.float32))
        assert index.view().count == 0
        assert np.isnan(index.view().scan(POOLED[0], 5).values).tolist() == [True] * 3
        assert np.isnan(index.view().cosines(POOLED[0], np.array([0, 2]))).all()
        assert index.set(np.array([1]), POOLED[:1])
        index.append(np.zeros((1, 0), dtype=np.float32))
        assert_answers(index.view(), [None, POOLED[0], None, None])

    def test_equal_vectors_have_equal_cosines(self) -> None:
        index = type(self).make()
        index.append(np.stack([POOLED[9], *POOLED[10:40], POOLED[9]]))
        index.append(POOLED[9:10])
        for query in POOLED[:5]:
            cosines = index.view().cosines(query, np.arange(33))
            assert cosines[0] == cosines[31] == cosines[32]

    @pytest.mark.parametrize(
        "vector",
        [np.full(D, nan), np.full(D, inf), np.where(np.arange(D) == 3, -inf, 1), np.ones(D + 1)],
        ids=["nan", "infinite", "one infinite", "other d"],
    )
    def test_a_vector_that_cannot_be_compared_is_refused_and_nothing_changes(self, vector: Embedding) -> None:
        index = type(self).make()
        index.append(np.stack([POOLED[0], NONE]))
        bad = vector.astype(np.float32)
        with pytest.raises(InvalidInputError):
            index.append(np.stack([np.ones_like(bad), bad]))
        with pytest.raises(InvalidInputError):
            index.set(np.array([1]), bad[None])
        with pytest.raises(InvalidInputError):
            index.view().scan(bad, 5)
        with pytest.raises(InvalidInputError):
            index.view().cosines(bad, np.array([0]))
        assert_answers(index.view(), [POOLED[0], None])

    def test_a_zero_query_is_refused(self) -> None:
        index = type(self).make()
        index.append(POOLED[:2])
        with pytest.raises(InvalidInputError):
            index.view().scan(NONE, 5)
        with pytest.raises(InvalidInputError):
            index.set(np.array([0]), NONE[None])

    def test_an_empty_index_answers(self) -> None:
        assert_answers(type(self).make().view(), [])


class TestVectorTable(VectorTableContract):
    make = VectorTable
    remake = VectorTable.from_arrays


class TestVectorTableWithAGraph(VectorTableContract):
    make = partial(VectorTable, exact_search_limit=3)
    remake = partial(VectorTable.from_arrays, exact_search_limit=3)


TEXTS = (
    ("", "", ""),
    ("Races", "fixed the auth race with a mutex", "auth bug"),
    ("", "running runs run, run!", ""),
    ("Café", "the CAFÉ in İstanbul, the cafe\u0301 in Orléans", ""),
    ("", "東京 で 会議 ☀️ 🤖", "会議"),
    ("", "Привет, мир: σίσυφος ΣΊΣΥΦΟΣ", ""),
    ("", "Die Häuser und der Server sind in Köln", "running"),
    ("", "nothing; but\0signs -- and_under_scores 3.14", "run auth"),
    ("Long", "mutex " * 300 + "x" * 5_000, ""),
)
WORDS = (
    "race",
    "running",
    "haus",
    "köln",
    "cafe",
    "café",
    "i̇stanbul",
    "東京",
    "会議",
    "мир",
    "σίσυφος",
    "mutexes",
    "14",
    "absent",
)
WordModel = list[tuple[str, ...] | None]
"""The texts of each slot, or None for a removed slot."""


def counted(model: WordModel) -> list[Counter[str] | None]:
    found: list[Counter[str] | None] = []
    for texts in model:
        words = text_words(" ".join(texts or ()))
        found.append(None if texts is None else Counter(text_terms(words, language_of(words))))
    return found


def terms_of(words: tuple[str, ...]) -> list[list[str]]:
    return word_terms([fold(word) for word in words], ["de"])


def bm25(documents: list[Counter[str] | None], words: tuple[str, ...]) -> list[float]:
    """Return the score of each slot by the definition of BM25."""
    live = [document for document in documents if document is not None]
    mean = sum(document.total() for document in live) / max(len(live), 1)
    scores = [0.0] * len(documents)
    for terms in terms_of(words):
        having = sum(not document.keys().isdisjoint(terms) for document in live)
        weight = max(log((len(live) - having + 0.5) / (having + 0.5)), 0) or 1e-6
        for slot, document in enumerate(documents):
            if document is not None and (count := sum(document[term] for term in terms)):
                scores[slot] += weight * count * 2.2 / (count + 1.2 * (0.25 + 0.75 * document.total() / mean))
    return scores


def assert_words(view: PostingsView, model: WordModel) -> None:
    """Compare every answer of a view with brute force over `model`."""
    documents = counted(model)
    slots = np.arange(len(model))
    for words in (WORDS, WORDS[:1], ("run", "running"), ("absent",), ()):
        scores = view.scores(words)
        assert scores.dtype == np.float64
        assert np.allclose(scores, bm25(documents, words), rtol=1e-5, atol=0)
        has = [
            [document is not None and not document.keys().isdisjoint(terms) for document in documents]
            for terms in terms_of(words)
        ]
        assert view.hits(words, slots).tolist() == has
        assert view.hits(words, slots[::-2]).tolist() == [row[::-2] for row in has]
        assert view.having(words) == {word: sum(row) for word, row in zip(words, has, strict=True)}


word_steps = st.lists(
    st.tuples(
        st.sampled_from(["append", "append", "append", "remove", "keep", "save", "reload"]),
        st.lists(st.integers(0, len(TEXTS) - 1), max_size=6),
    ),
    max_size=25,
)


class TestPostings:
    @settings(deadline=None)
    @given(steps=word_steps)
    def test_answers_equal_brute_force_and_views_do_not_change(
        self, tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, list[int]]]
    ) -> None:
        path = tmp_path_factory.getbasetemp() / f"{type(self).__name__}.arrays"
        index, model = Postings(), WordModel()
        views: list[tuple[PostingsView, WordModel]] = []
        for step, numbers in steps:
            if step == "append":
                index.append([TEXTS[number] for number in numbers])
                model += [TEXTS[number] for number in numbers]
            elif step == "remove":
                gone = {number % len(model) for number in numbers} if model else set()
                index.remove(np.array(sorted(gone), dtype=np.int64))
                model = [None if slot in gone else texts for slot, texts in enumerate(model)]
            elif step == "keep":
                kept = [slot for slot in range(len(model)) if slot not in numbers]
                index, model = index.keep(np.array(kept, dtype=np.int64)), [model[slot] for slot in kept]
            else:
                write_arrays(path, {}, index.arrays())
                if step == "reload":
                    index = Postings.from_arrays(read_arrays(path, dict)[1])
            views.append((index.view(), list(model)))
        for view, then in [*views[-1:], *views]:
            assert_words(view, then)

    def test_words_of_one_stem_count_as_often_as_they_are_given(self) -> None:
        index = Postings()
        index.append([TEXTS[2], TEXTS[1], TEXTS[1]])
        once, twice = (index.view().scores(words) for words in (["run"], ["run", "runs"]))
        assert np.allclose(twice, 2 * once)
        assert once[0] > 0

    def test_texts_of_one_memory_count_together(self) -> None:
        index = Postings()
        index.append([("run", "", "a"), ("", "a run", ""), ("a", "", "run"), ("b", "c", ""), ("b", "c", "")])
        scores = index.view().scores(["run"])
        assert scores[0] == scores[1] == scores[2] > scores[3] == 0

    def test_removing_twice_changes_nothing_more(self) -> None:
        index = Postings()
        index.append(TEXTS)
        for _ in range(2):
            index.remove(np.array([0, 2, 7]))
            assert_words(index.view(), [None if slot in (0, 2, 7) else texts for slot, texts in enumerate(TEXTS)])

    def test_removed_words_are_in_no_saved_file(self, tmp_path: Path) -> None:
        index = Postings()
        index.append([("", "alpha zanzibar", ""), ("", "alpha beta", "")])
        index.remove(np.array([0]))
        for remaining in (index, index.keep(np.array([1])), index.keep(np.array([0, 1]))):
            write_arrays(tmp_path / "words.arrays", {}, remaining.arrays())
            saved = (tmp_path / "words.arrays").read_bytes()
            assert b"zanzibar" not in saved
            assert b"beta" in saved

    def test_an_empty_index_answers(self) -> None:
        index = Postings()
        assert_words(index.view(), [])
        assert_words(Postings.from_arrays(index.arrays()).view(), [])
        index.append([])
        assert_words(index.view(), [])
