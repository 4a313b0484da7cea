"""What `storage.indexes` asks of every engine, held against brute force."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from math import log
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from memory_agent.storage.indexes import WordIndex, WordView
from memory_agent.storage.postings import Postings
from memory_agent.storage.terms import fold, stems, text_words

TEXTS = (
    ("", "", ""),
    ("Races", "fixed the auth race with a mutex", "auth bug"),
    ("", "running runs run, run!", ""),
    ("Café", "the CAFÉ in İstanbul, the cafe\u0301 in Orléans", ""),
    ("", "東京 で 会議 ☀️ 🤖", "会議"),
    ("", "Привет, мир: σίσυφος ΣΊΣΥΦΟΣ", ""),
    ("", "nothing; but\0signs -- and_under_scores 3.14", "run auth"),
    ("Long", "mutex " * 300 + "x" * 5_000, ""),
)
WORDS = ("race", "running", "cafe", "café", "i̇stanbul", "東京", "会議", "мир", "σίσυφος", "mutexes", "14", "absent")
WordModel = list[tuple[str, ...] | None]
"""The texts of each slot, None for one that was removed."""


def counted(model: WordModel) -> list[Counter[str] | None]:
    return [None if texts is None else Counter(stems(text_words(" ".join(texts)))) for texts in model]


def bm25(documents: list[Counter[str] | None], words: tuple[str, ...]) -> list[float]:
    """Return the score of each slot by the definition, one document at a time."""
    live = [document for document in documents if document is not None]
    mean = sum(document.total() for document in live) / max(len(live), 1)
    scores = [0.0] * len(documents)
    for stem in stems([fold(word) for word in words]):
        having = sum(stem in document for document in live)
        weight = max(log((len(live) - having + 0.5) / (having + 0.5)), 0) or 1e-6
        for slot, document in enumerate(documents):
            if document is not None and (count := document[stem]):
                scores[slot] += weight * count * 2.2 / (count + 1.2 * (0.25 + 0.75 * document.total() / mean))
    return scores


def assert_words(view: WordView, model: WordModel) -> None:
    """Compare every answer of a view with brute force over `model`."""
    documents = counted(model)
    slots = np.arange(len(model))
    for words in (WORDS, WORDS[:1], ("run", "running"), ("absent",), ()):
        scores = view.scores(words)
        assert scores.dtype == np.float64
        assert np.allclose(scores, bm25(documents, words), rtol=1e-5, atol=0)
        has = [
            [document is not None and stem in document for document in documents]
            for stem in stems([fold(word) for word in words])
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


class WordIndexContract:
    """What every `WordIndex` does. A subclass says how one is made, and how one is made of saved arrays."""

    make: Callable[[], WordIndex]
    remake: Callable[[Any], WordIndex]

    @settings(deadline=None)
    @given(steps=word_steps)
    def test_answers_equal_brute_force_and_views_do_not_change(self, steps: list[tuple[str, list[int]]]) -> None:
        index, model = type(self).make(), WordModel()
        views: list[tuple[WordView, WordModel]] = []
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
                arrays = {name: values.copy() for name, values in index.arrays().items()}
                for values in arrays.values():
                    values.flags.writeable = False
                if step == "reload":
                    index = type(self).remake(arrays)
            views.append((index.view(), list(model)))
        for view, then in [*views[-1:], *views]:
            assert_words(view, then)

    def test_words_of_one_stem_count_as_often_as_they_are_given(self) -> None:
        index = type(self).make()
        index.append([TEXTS[2], TEXTS[1], TEXTS[1]])
        once, twice = (index.view().scores(words) for words in (["run"], ["run", "runs"]))
        assert np.allclose(twice, 2 * once)
        assert once[0] > 0

    def test_texts_of_one_memory_count_together(self) -> None:
        index = type(self).make()
        index.append([("run", "", "a"), ("", "a run", ""), ("a", "", "run"), ("b", "c", ""), ("b", "c", "")])
        scores = index.view().scores(["run"])
        assert scores[0] == scores[1] == scores[2] > scores[3] == 0

    def test_removing_twice_changes_nothing_more(self) -> None:
        index = type(self).make()
        index.append(TEXTS)
        for _ in range(2):
            index.remove(np.array([0, 2, 7]))
            assert_words(index.view(), [None if slot in (0, 2, 7) else texts for slot, texts in enumerate(TEXTS)])

    def test_removed_words_are_in_no_saved_array(self) -> None:
        index = type(self).make()
        index.append([("", "alpha zanzibar", ""), ("", "alpha beta", "")])
        index.remove(np.array([0]))
        for remaining in (index, index.keep(np.array([1])), index.keep(np.array([0, 1]))):
            saved = b"".join(values.tobytes() for values in remaining.arrays().values())
            assert b"zanzibar" not in saved
            assert b"beta" in saved

    def test_an_empty_index_answers(self) -> None:
        index = type(self).make()
        assert_words(index.view(), [])
        assert_words(type(self).remake(index.arrays()).view(), [])
        index.append([])
        assert_words(index.view(), [])


class TestPostings(WordIndexContract):
    make = Postings
    remake = Postings.from_arrays
