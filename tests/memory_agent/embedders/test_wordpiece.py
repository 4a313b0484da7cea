"""Converting text to ids truncates, does not pad, and raises no error for any text."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memory_agent.embedders.weights import TOKENIZER, Model
from memory_agent.embedders.wordpiece import WordPiece
from memory_agent.errors import InvalidInputError, ModelError

CLS, SEP = 101, 102


@pytest.fixture(scope="module")
def definition(official: Model) -> bytes:
    assert official.folder is not None
    return (official.folder / TOKENIZER).read_bytes()


@pytest.fixture(scope="module")
def wordpiece(definition: bytes) -> WordPiece:
    return WordPiece(definition, 256)


def test_a_text_is_framed_by_the_special_tokens(wordpiece: WordPiece) -> None:
    assert wordpiece.encode("hello world").tolist() == [[CLS, 7592, 2088, SEP]]


def test_a_long_text_keeps_its_first_tokens_within_the_limit(wordpiece: WordPiece) -> None:
    ids = wordpiece.encode("one two three " * 300)[0]
    assert len(ids) == 256
    assert (ids[0], ids[-1]) == (CLS, SEP)
    assert ids[1:4].tolist() == wordpiece.encode("one two three")[0][1:4].tolist()


def test_a_short_text_is_not_padded_even_if_the_file_says_so(wordpiece: WordPiece) -> None:
    assert wordpiece.encode("a").shape == (1, 3)


def test_a_huge_text_has_the_ids_of_its_beginning(wordpiece: WordPiece) -> None:
    start = "the quick brown fox jumps over the lazy dog " * 300
    assert wordpiece.encode(start + "x" * 5_000_000).tolist() == wordpiece.encode(start).tolist()


def test_tokens_are_counted_beyond_the_limit(wordpiece: WordPiece) -> None:
    assert wordpiece.count("word " * 2_000) == 2_000


@settings(max_examples=60, deadline=None)
@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=300))
def test_any_unicode_text_has_ids_within_the_limit(wordpiece: WordPiece, text: str) -> None:
    ids = wordpiece.encode(text)[0]
    assert 2 <= len(ids) <= 256
    assert len(ids) == min(256, wordpiece.count(text) + 2)


@given(st.text(max_size=20), st.characters(categories=["Cs"]), st.text(max_size=20))
@settings(max_examples=20, deadline=None)
def test_any_text_with_a_surrogate_is_refused(wordpiece: WordPiece, before: str, broken: str, after: str) -> None:
    with pytest.raises(InvalidInputError):
        wordpiece.encode(before + broken + after)


@pytest.mark.parametrize("content", [b"", b"{}", b"\xff\xfe", b'{"version":"1.0"}'])
def test_a_file_that_is_not_a_tokenizer_is_refused(content: bytes) -> None:
    with pytest.raises(ModelError, match="tokenizer"):
        WordPiece(content, 256)
