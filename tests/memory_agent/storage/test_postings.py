"""Postings reproduce the ranking of FTS5, and readers need no locks."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hammering import hammered
from hypothesis import given, settings
from hypothesis import strategies as st

from memory_agent.errors import IndexDamagedError
from memory_agent.storage.column import Arrays
from memory_agent.storage.postings import Postings, PostingsView
from memory_agent.storage.terms import query_words

LOCOMO = Path(__file__).parents[4] / "shared" / "data" / "locomo_dev.json"
FTS5 = "USING fts5 (title, text, tags, tokenize='porter unicode61 remove_diacritics 2')"

said = st.sampled_from(
    [
        *("run", "running", "Runs", "relational", "flies", "agreed", "the", "THE", "x"),
        *("Ärger", "arger", "e\u0301te\u0301", "été", "naïve", "İstanbul", "straße", "Œuvre", "ﬁne"),
        *("ΣΊΣΥΦΟΣ", "σίσυφος", "Привет", "ПРИВЕТ", "й", "日本", "서울", "مرحبا", "שלום"),
        *("☀️", "❤", "don't", "x_y", "3.14", "a\0b", "\u0301", "-", "½", "²", "\u200b", "x" * 70),
    ]
)
texts = st.lists(said, max_size=12).map(" ".join)
memories = st.tuples(texts, texts, texts)
queries = st.lists(said, min_size=1, max_size=6).map(" ".join)
Memories = Sequence[tuple[str, str, str] | None]


def fts5_scores(model: Memories, words: Sequence[str]) -> npt.NDArray[np.float64]:
    """Return each slot's BM25 score from FTS5, or 0 if it contains none of `words`. None in `model` stands for a
    removed slot.
    """
    scores = np.zeros(len(model))
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.execute(f"CREATE VIRTUAL TABLE words {FTS5}")
        for slot, memory in enumerate(model):
            if memory is not None:
                connection.execute("INSERT INTO words (rowid, title, text, tags) VALUES (?, ?, ?, ?)", (slot, *memory))
        expression = " OR ".join(f'"{word}"' for word in words)
        for slot, score in connection.execute(
            "SELECT rowid, -bm25(words) FROM words WHERE words MATCH ?", (expression,)
        ):
            scores[slot] = score
    return scores


def reloaded(postings: Postings) -> Postings:
    return Postings.from_arrays(postings.arrays())


@settings(deadline=None)
@given(parts=st.lists(st.tuples(memories, st.booleans()), max_size=12), query=queries, reload=st.booleans())
def test_scores_are_those_of_fts5(parts: list[tuple[tuple[str, str, str], bool]], query: str, reload: bool) -> None:
    postings = Postings()
    for memory, _ in parts:
        postings.append([memory])
    postings.remove(np.array([slot for slot, (_, is_removed) in enumerate(parts) if is_removed], dtype=np.int64))
    model = [None if is_removed else memory for memory, is_removed in parts]
    words = query_words(query)
    kept = [slot for slot, memory in enumerate(model) if memory is not None]
    expected = fts5_scores(model, words) if words else np.zeros(len(model))
    assert np.allclose(postings.view().scores(words), expected, rtol=1e-4, atol=0)
    compact = postings.keep(np.array(kept, dtype=np.int64))
    if reload:
        postings, compact = reloaded(postings), reloaded(compact)
    assert np.allclose(postings.view().scores(words), expected, rtol=1e-4, atol=0)
    assert np.allclose(compact.view().scores(words), expected[kept], rtol=1e-4, atol=0)


@settings(deadline=None)
@given(parts=st.lists(st.tuples(memories, st.booleans(), st.booleans()), max_size=12), query=queries)
def test_a_view_of_some_memories_does_not_count_the_others(
    parts: list[tuple[tuple[str, str, str], bool, bool]], query: str
) -> None:
    postings, words = Postings(), query_words(query)
    postings.append([memory for memory, _, _ in parts])
    postings.remove(np.array([slot for slot, part in enumerate(parts) if part[1]], dtype=np.int64))
    mask = np.array([part[2] for part in parts], dtype=np.bool_)
    slots = np.array([slot for slot, part in enumerate(parts) if part[2] and not part[1]], dtype=np.int64)
    among, alone = postings.view().among(mask), postings.keep(slots).view()
    expected = np.zeros(len(parts))
    expected[slots] = alone.scores(words)
    assert among.scores(words).tolist() == expected.tolist()
    assert (among.having(words), among.total) == (alone.having(words), alone.total)
    everywhere = np.arange(len(parts))
    assert not among.hits(words, everywhere)[:, ~np.isin(everywhere, slots)].any()


@pytest.mark.parametrize(
    "text",
    [
        "mutex " * 16_666,
        "mutex locks " * 8_333,
        "x" * 100_000,
        "東" * 100_000,
        "e\u0301" * 50_000,
        "🤖 " * 50_000,
        "mutex\0" * 16_666,
        "".join(f"w{number} " for number in range(15_000)),
    ],
    ids=["one word", "two words", "a run", "ideographs", "marks", "emoji", "NUL", "all distinct"],
)
def test_a_text_of_100_000_characters_is_scored_as_by_fts5(text: str) -> None:
    model = [("", text, ""), ("", "mutex and lock", ""), ("", "w7 w9", ""), ("", "nothing", ""), ("", "at all", "")]
    postings = Postings()
    postings.append(model)
    if "🤖" not in text and "東" not in text:  # SQLite treats these emoji as letters, and a run of Han as one word
        words = ["mutexes", "lock", "w7"]
        assert np.allclose(postings.view().scores(words), fts5_scores(model, words), rtol=1e-4, atol=0)
    assert np.array_equal(reloaded(postings).view().scores(["mutex"]), postings.view().scores(["mutex"]))


def test_lone_surrogates_separate_words() -> None:
    postings = Postings()
    postings.append([("\ud800", "lock\udfffmutex \ud83d", ""), ("", "other", ""), ("", "words", "")])
    found = reloaded(postings).view()
    assert found.hits(["lock", "mutex", "other"], np.arange(3)).tolist() == [
        [True, False, False],
        [True, False, False],
        [False, True, False],
    ]


@pytest.mark.skipif(not LOCOMO.exists(), reason="requires shared/data/locomo_dev.json")
def test_real_dialogues_are_ranked_as_by_fts5() -> None:
    dialogue = json.loads(LOCOMO.read_text(encoding="utf-8"))[0]
    turns = [turn for part in dialogue["conversation"].values() if isinstance(part, list) for turn in part]
    model = [(turn["speaker"], turn["text"], "") for turn in turns]
    postings = Postings()
    for start in range(0, len(model), 64):
        postings.append(model[start : start + 64])
    view = postings.view()
    for question in dialogue["qa"][::4]:
        words = query_words(question["question"])
        expected = fts5_scores(model, words)
        assert np.allclose(view.scores(words), expected, rtol=1e-4, atol=0), words
        assert {word for word, number in view.having(words).items() if number} == {
            word for word in words if fts5_scores(model, [word]).any()
        }


def test_readers_see_one_moment_while_the_writer_appends_removes_and_merges() -> None:
    postings = Postings()
    filler = [" ".join(f"t{number * 61 % 9973}" for number in range(start, start + 40)) for start in range(64)]

    def publish() -> tuple[PostingsView, int, int]:
        return postings.view(), live, count

    live = count = 0
    current = publish()
    first: dict[int, tuple[PostingsView, npt.NDArray[np.float64]]] = {}

    def read() -> None:
        view, live, count = current
        assert view.having(["common", "early"]) == {"common": live, "early": min(live, 64)}
        scores = view.scores(["common"])
        assert len(scores) == count
        assert np.count_nonzero(scores) == live
        assert np.count_nonzero(view.hits(["commons"], np.arange(count))) == live
        for kept, then in list(first.values()):
            assert np.array_equal(kept.scores(["common", "t61"]), then)

    bases = set()
    with hammered(read, threads=2):
        for batch in range(90):  # each word has 3,700 postings
            name = "early" if not batch else "late"
            postings.append([(name, f"common {text} u{batch} v{number}", "") for number, text in enumerate(filler)])
            count, live = count + 64, live + 64
            if batch % 5 == 4:
                postings.remove(np.arange(count - 3, count))
                live -= 3
            current = publish()
            bases.add(id(postings._base))
            if batch % 30 == 0:
                first[batch] = current[0], current[0].scores(["common", "t61"])
    assert len(bases) > 3, "it must merge while readers read"


damages: dict[str, Callable[[dict[str, npt.NDArray[np.int64]]], object]] = {
    "missing": lambda arrays: arrays.pop("slots"),
    "fewer words": lambda arrays: arrays.update(vocabulary=arrays["vocabulary"][:-6]),
    "no UTF-8": lambda arrays: arrays.update(vocabulary=arrays["vocabulary"] | 0x80),
    "fewer counts": lambda arrays: arrays.update(counts=arrays["counts"][:-1]),
    "fewer slots": lambda arrays: arrays.update(lengths=arrays["lengths"][:-1]),
    "other type": lambda arrays: arrays.update(slots=arrays["slots"].astype(np.int64)),
    "unordered": lambda arrays: arrays.update(offsets=arrays["offsets"][::-1].copy()),
}


@pytest.mark.parametrize("damage", damages)
def test_arrays_that_do_not_fit_are_refused(damage: str) -> None:
    postings = Postings()
    postings.append([("", "one two", ""), ("", "two three", "")])
    arrays = dict(postings.arrays())
    damages[damage](arrays)
    damaged: Arrays = arrays
    with pytest.raises(IndexDamagedError):
        Postings.from_arrays(damaged)
