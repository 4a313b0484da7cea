"""Passages, spans and word bits that the real model computes for one text and for many texts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memory_agent.embedders import Embedder, passages
from memory_agent.embedders.minilm import MiniLM
from memory_agent.embedders.passages import (
    MOST_PASSAGES,
    MOST_QUERY_WORDS,
    MOST_TEXT_WORDS,
    OVERLAP,
    query_words_of,
    text_words_of,
)
from memory_agent.records.embedded import Embedded
from memory_agent.storage.terms import LONGEST_WORD, fold, pieces, text_words

FACT = "The kiln in the north workshop is fired with olive wood."
FILLER = "The committee discussed the schedule of the next quarter and the colour of the new chairs at some length. "
LONG = FILLER * 100 + FACT + " " + FILLER * 20  # the fact comes after 1,900 words
SEVERAL = FILLER * 25 + FACT  # several passages
TEXTS = [
    "hello",
    FACT,
    SEVERAL,
    "",
    "   \n\t",
    "?!… --- ...",
    "What was it that you had then?",
    "🙂👍🏽 🏳️‍🌈",
    "我喜欢吃苹果。 Ну что ж, поедем! สวัสดีครับ مرحبا",
    "Ünïcödé e\u0301te\u0301 naïveté",
    "x" * 9_000,
    " " * 9_000 + "hello world",
    "snake_case_name camelCase 3.14 a-b",
]


def made_of(model: MiniLM, text: str) -> Embedded:
    reading = model.begin_text(text)
    while (found := reading.step()) is None:
        pass
    return found


def same(one: Embedded, other: Embedded) -> bool:
    arrays = ((one.vectors, other.vectors), (one.spans, other.spans), (one.word_bits, other.word_bits))
    return one.length == other.length and all(a.dtype == b.dtype and np.array_equal(a, b) for a, b in arrays)


@pytest.fixture(params=["laned", "remote"])
def embedder(request: pytest.FixtureRequest) -> Embedder:
    embedder: Embedder = request.getfixturevalue(request.param)
    return embedder


@pytest.mark.parametrize("kind", ["int8", "float32"])
def test_the_first_passage_has_the_vector_of_the_text_and_a_query_too(
    kind: str, request: pytest.FixtureRequest
) -> None:
    model: MiniLM = request.getfixturevalue(f"{kind}_model")
    for text in TEXTS:
        assert np.array_equal(made_of(model, text).vectors[0], model.embed(text)), text[:20]
        assert np.array_equal(model.embed_query(text).vector, model.embed(text)), text[:20]


def test_alone_in_bulk_and_awaited_a_text_has_the_same_bits(embedder: Embedder, int8_model: MiniLM) -> None:
    expected = [made_of(int8_model, text) for text in TEXTS]
    for found in (
        embedder.embed_passages(TEXTS),
        embedder.begin_passages(TEXTS, timeout_s=60.0).result(),
        [embedder.embed_passages([text])[0] for text in TEXTS],
    ):
        assert [same(*pair) for pair in zip(found, expected, strict=True)] == [True] * len(TEXTS)
    assert np.array_equal(embedder.embed_texts(TEXTS), np.array([one.vectors[0] for one in expected]))
    assert embedder.embed_passages([]) == []


def test_a_query_has_the_vectors_of_its_words(embedder: Embedder, int8_model: MiniLM) -> None:
    for text in TEXTS:
        found, expected = embedder.embed_query_words(text), int8_model.embed_query(text)
        assert np.array_equal(found.vector, expected.vector)
        assert found.words == expected.words
        assert found.word_vectors.dtype == np.float16
        assert np.array_equal(found.word_vectors, expected.word_vectors)
        assert found.word_vectors.shape == (len(found.words), 256)
        np.testing.assert_allclose(np.linalg.norm(found.word_vectors.astype(np.float32), axis=1), 1.0, atol=1e-3)


def test_the_words_of_a_query_are_folded_distinct_and_without_stop_words(int8_model: MiniLM) -> None:
    words = int8_model.embed_query("Where is the KILN that Élodie bought? The kiln, I mean").words
    assert words == ("kiln", "elodie", "bought", "mean")
    assert int8_model.embed_query("What was it?").words == ("what", "was", "it")
    assert int8_model.embed_query("?!").words == int8_model.embed_query("").words == ()
    assert len(int8_model.embed_query(" ".join(f"w{number}" for number in range(90))).words) == MOST_QUERY_WORDS


def test_the_bits_of_a_word_are_the_signs_of_its_vector(float32_model: MiniLM) -> None:
    """A memory and a query with the same words have the same word vectors, so the signs agree."""
    text = "kiln olive workshop"
    found, query = made_of(float32_model, text), float32_model.embed_query(text)
    bits = np.unpackbits(found.word_bits, axis=1).astype(bool)[[1, 2, 0]]  # the longest stem comes first
    assert bits.shape == (3, 256)
    assert (np.count_nonzero(query.word_vectors, axis=1) >= 252).all()  # a few components are always 0
    assert (((query.word_vectors > 0) == bits) | (query.word_vectors == 0)).all()


def test_words_with_one_stem_count_as_one_and_frequent_or_long_ones_are_kept(int8_model: MiniLM) -> None:
    assert len(made_of(int8_model, "The kiln, two kilns, KILN!").word_bits) == 2  # "kiln" and "two"
    rare = " ".join(f"ab{number:03}" for number in range(100))
    text = f"{rare} xyz xyz xyz xyz extraordinarily"  # ln 2 * 5, ln 5 * 3, ln 2 * 12
    assert len(made_of(int8_model, text).word_bits) == MOST_TEXT_WORDS
    names = text_words_of(text, int8_model.read(text)[0], 10_000).names
    assert names[:3] == ("extraordinarili", "xyz", "ab000")


def test_a_word_is_nearest_to_itself_in_another_text(int8_model: MiniLM) -> None:
    query = int8_model.embed_query("Which wood fires the kiln?")
    signs = np.unpackbits(made_of(int8_model, "kiln wood workshop north").word_bits, axis=1).astype(np.float32) * 2 - 1
    words = ["workshop", "north", "kiln", "wood"]
    best = (query.word_vectors.astype(np.float32) @ signs.T).argmax(axis=1)
    nearest = dict(zip(query.words, (words[place] for place in best), strict=True))
    assert (nearest["wood"], nearest["kiln"]) == ("wood", "kiln")


def test_a_fact_behind_two_thousand_words_is_found_by_its_passage(int8_model: MiniLM) -> None:
    assert len(LONG[: LONG.index(FACT)].split()) >= 1_900
    found, query = made_of(int8_model, LONG), int8_model.embed_query("What is the kiln fired with?").vector
    cosines = found.vectors @ query
    begin, end = found.spans[cosines.argmax()]
    assert FACT in LONG[begin:end]
    assert cosines.max() > cosines[0] + 0.1


def test_passages_overlap_and_cover_the_text_up_to_the_last_one(int8_model: MiniLM) -> None:
    text = "".join(f"word{number} " for number in range(3_000))
    found = made_of(int8_model, text)
    assert len(found.vectors) == len(found.spans) == MOST_PASSAGES
    assert found.length == int8_model.count_tokens(text)
    spans = found.spans.tolist()
    assert spans[0][0] == 0
    for (_, end), (begin, _) in pairwise(spans):
        shared = int8_model.count_tokens(text[begin:end])
        assert OVERLAP - 4 <= shared <= 2 * OVERLAP
    for begin, end in spans:
        assert text[begin:end].startswith("word")
        assert text[begin:end].split()[-1] in text.split()


def test_a_text_of_a_hundred_thousand_characters_is_read_to_the_last_passage(int8_model: MiniLM) -> None:
    text = (FILLER * 1_000)[:100_000]
    found = made_of(int8_model, text)
    assert found.vectors.shape == (MOST_PASSAGES, 384)
    assert found.length == int8_model.count_tokens(text)
    assert 0 < len(found.word_bits) <= MOST_TEXT_WORDS


def test_text_after_the_last_passage_is_not_split_into_words(
    int8_model: MiniLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    monkeypatch.setattr(passages, "pieces", lambda text: pieces(read.append(text) or text))
    text = FILLER * 10_000
    tokens, cuts = int8_model.read(text)
    end = int(tokens.spans[cuts[-1, 1] - 1, 1])
    assert text_words_of(text, tokens, int(cuts[-1, 1])).names
    assert end <= max(map(len, read)) <= end + LONGEST_WORD + 1


@given(
    said=st.lists(
        st.sampled_from(["kiln", "x" * LONGEST_WORD, "y" * 65, "naïve", "cafe\u0301", "🙂", "3.14"]), max_size=30
    )
)
@settings(deadline=None)
def test_the_words_of_the_first_tokens_are_those_that_end_there(int8_model: MiniLM, said: list[str]) -> None:
    text = " ".join(f"{word}{place}" for place, word in enumerate(said))
    tokens, _ = int8_model.read(text)
    every = query_words_of(text, tokens, len(tokens.ids))
    for count in range(len(tokens.ids)):
        words = query_words_of(text, tokens, count)
        ends = every.ends[every.ends <= count]
        assert words.ends.tolist() == ends.tolist()
        assert [words.names[place] for place in words.places] == [
            every.names[place] for place in every.places[: len(ends)]
        ]


@pytest.mark.parametrize(("text", "words"), [("", 0), ("?!… ...", 0), ("\u200b", 0), ("was it", 2), ("a" * 65, 0)])
def test_texts_without_content_words(int8_model: MiniLM, text: str, words: int) -> None:
    found = made_of(int8_model, text)
    assert found.word_bits.shape == (words, 32)
    assert found.spans.tolist() == [[0, len(text)]]


_ANY_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=80)


@settings(max_examples=40, deadline=None)
@given(parts=st.lists(_ANY_TEXT, max_size=6), repeats=st.sampled_from([1, 1, 15]))
def test_any_text_has_spans_in_order_and_at_most_the_words_it_says(
    int8_model: MiniLM, parts: list[str], repeats: int
) -> None:
    text = " ".join(parts * repeats)
    found = made_of(int8_model, text)
    begins, ends = found.spans.T
    assert (np.diff(begins) >= 0).all()
    assert (np.diff(ends) >= 0).all()
    assert begins[0] == 0
    assert (begins <= ends).all()
    assert (ends <= len(text)).all()
    assert ends[-1] == len(text) or len(found.vectors) == MOST_PASSAGES
    assert np.isfinite(found.vectors).all()
    assert len(found.word_bits) <= min(MOST_TEXT_WORDS, len(set(text_words(text))))
    query = int8_model.embed_query(text)
    assert set(query.words) <= set(fold(text).replace("_", " ").split()) | set(text_words(text))
    assert np.isfinite(query.word_vectors).all()


def test_a_prefix_changes_vectors_but_neither_words_nor_spans(
    int8_model: MiniLM, prefixed: Callable[[str, str], MiniLM]
) -> None:
    model = prefixed("query: ", "passage: ")
    assert model.info.stamp != int8_model.info.stamp
    for text in (FACT, SEVERAL):
        plain, found = made_of(int8_model, text), made_of(model, text)
        assert np.array_equal(found.vectors[0], int8_model.embed(f"passage: {text}"))
        assert found.spans[0, 0] == 0
        assert found.length == plain.length
        assert len(found.word_bits) == len(plain.word_bits)
    query = model.embed_query(FACT)
    assert np.array_equal(query.vector, int8_model.embed(f"query: {FACT}"))
    assert query.words == int8_model.embed_query(FACT).words


def progress_of(embedder: Embedder, texts: Sequence[str]) -> list[int]:
    steps: list[int] = []
    embedder.embed_passages(texts, lambda done, _: steps.append(done))
    return steps


def test_progress_counts_texts_whatever_their_length(embedder: Embedder) -> None:
    steps = progress_of(embedder, [SEVERAL, "short", "shorter"])
    assert steps == sorted(steps)
    assert steps[-1] == 3
