"""Test the choice of the text that is embedded for a memory, and the use of embedders without word vectors."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from memory_agent.embedders import (
    Embedder,
    EmbedderInfo,
    LazyEmbedder,
    PendingVector,
    PendingVectors,
    Progress,
    SettledVector,
    comparable,
)
from memory_agent.records.embedded import embedded_text, span_in_text
from memory_agent.records.memories import MemoryRecord
from memory_agent.settings import EmbedderSettings

INFO = EmbedderInfo(model="own", model_sha256="0" * 64, scheme="float32", runtime="own", ndim=8)


def record(text: str, title: str | None = None, tags: tuple[str, ...] = ()) -> MemoryRecord:
    now = datetime(2026, 11, 1, tzinfo=UTC)
    return MemoryRecord(id="1", text=text, source="user_input", kind="episode", timestamp=now, title=title, tags=tags)


def test_title_and_tags_are_embedded_with_the_text() -> None:
    assert embedded_text(record("Fired at dawn.", "Kiln", ("wood", "north"))) == "Kiln\nFired at dawn.\nwood, north"


def test_a_memory_without_title_and_tags_is_embedded_as_its_text() -> None:
    assert embedded_text(record("Fired at dawn.\n")) == "Fired at dawn.\n"


def test_a_title_that_the_text_contains_is_not_embedded_twice() -> None:
    assert embedded_text(record("The Kiln is hot.", "Kiln", ("wood",))) == "The Kiln is hot.\nwood"


_WORDS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)


@given(text=_WORDS.filter(bool), title=st.none() | _WORDS, tags=st.lists(_WORDS.filter(bool), max_size=3))
def test_the_spans_of_the_embedded_text_are_found_in_the_text(text: str, title: str | None, tags: list[str]) -> None:
    memory = record(text, title, tuple(tags))
    whole = embedded_text(memory)
    for begin in range(len(whole) + 1):
        for end in range(begin, len(whole) + 1):
            first, last = span_in_text(memory, begin, end)
            assert 0 <= first <= last <= len(text)
            assert text[first:last] in whole[begin:end]
    assert span_in_text(memory, 0, len(whole)) == (0, len(text))


class Inheriting(Embedder):
    """A custom embedder without word vectors."""

    info = INFO

    def begin_query(self, text: str, timeout_s: float | None = None) -> PendingVector:
        return SettledVector(vector_of(text))

    def begin_texts(self, texts: Sequence[str], progress: Progress | None = None) -> PendingVectors:
        return SettledVector(np.stack([vector_of(text) for text in texts]))

    def count_tokens(self, text: str, timeout_s: float | None = None) -> int:
        return len(text.split())

    def close(self) -> None:
        """Do nothing."""


class Standing:
    """An embedder that does not inherit from the protocol."""

    info = INFO
    begin_query = Inheriting.begin_query
    begin_texts = Inheriting.begin_texts
    count_tokens = Inheriting.count_tokens
    close = Inheriting.close


class Former:
    """An embedder that implements the former protocol."""

    info = INFO
    count_tokens = Inheriting.count_tokens
    close = Inheriting.close

    def embed_query(self, text: str, timeout_s: float | None = None) -> object:
        return vector_of(text)

    def embed_texts(self, texts: Sequence[str], progress: object = None) -> object:
        return np.stack([vector_of(text) for text in texts])


def vector_of(text: str) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    vector = np.random.default_rng(len(text)).standard_normal(8).astype(np.float32)
    return vector / np.linalg.norm(vector)


def test_an_embedder_without_words_gives_one_passage_and_no_words() -> None:
    texts = ["one", "another one"]
    for own in (Inheriting(), Standing(), Former()):
        embedder = LazyEmbedder(own, EmbedderSettings()).get()  # type: ignore[arg-type]
        for pending in (embedder.begin_passages(texts), embedder.begin_passages(texts, timeout_s=1.0)):
            for text, found in zip(texts, pending.result(), strict=True):
                assert np.array_equal(found.vectors, vector_of(text)[None, :])
                assert found.spans.tolist() == [[0, len(text)]]
                assert (len(found.word_bits), found.length) == (0, 0)
        query = embedder.begin_query_words("one").result()
        assert np.array_equal(query.vector, vector_of("one"))
        assert (query.words, query.word_vectors.shape) == ((), (0, 8))
        assert embedder.info.words_stamp == ""


def test_prefixes_are_part_of_the_stamp_where_there_are_any() -> None:
    plain, prefixed = INFO.stamp, f"{INFO.stamp}|12345678"
    assert plain.count("|") == 4
    assert comparable(prefixed, prefixed.replace("float32", "int8"))
    assert not comparable(plain, prefixed)
    assert not comparable(prefixed, prefixed.replace("12345678", "87654321"))
