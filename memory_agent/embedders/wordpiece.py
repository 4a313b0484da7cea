"""Converts text to token ids with the model's tokenizer file. The only file that imports `tokenizers`.

Never pads: padding costs time and changes int8 results. The first passage of a text is read from at most
`CHARS_PER_TOKEN` characters per token, eight times the mean of English prose, and all of it from 16 times as many,
which bounds the cost of huge texts.

Shapes: t tokens.
"""

from __future__ import annotations

import os
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # a second pool would compete with the lanes
from tokenizers import Tokenizer

from memory_agent.embedders import check_text
from memory_agent.errors import ModelError

CHARS_PER_TOKEN = 32

Ids = npt.NDArray[np.int32]


class Tokens(NamedTuple):
    """The tokens of a text, without special ones.

    `begins` and `ends` (t,) are their characters in the text, `begins_word` (t,) whether a word begins with them.
    `first` is how many the first passage may have: fewer than its room only if these take very many characters.
    """

    ids: Ids
    begins: Ids
    ends: Ids
    begins_word: npt.NDArray[np.bool_]
    first: int


class WordPiece:
    """The tokenizer of one model. Thread-safe."""

    def __init__(self, definition: bytes, max_tokens: int, most_passages: int = 1) -> None:
        """Load a `tokenizer.json`; passages have at most `max_tokens`, including the two special tokens.

        Raises `ModelError` for a file that is not a tokenizer with one special token before and one after a text.
        """
        self._tokenizer = _load(definition)
        self._room = max_tokens - 2
        self._first_chars = max_tokens * CHARS_PER_TOKEN
        self._most_chars = self._first_chars * most_passages
        specials = self._tokenizer.encode("").ids
        if len(specials) != 2:
            raise ModelError(f"the tokenizer adds {len(specials)} special tokens, 2 are known")
        self._before, self._after = specials

    def encode(self, text: str) -> Ids:
        """Return (1, t) ids, 2 <= t <= max_tokens. Raises `InvalidInputError` for invalid Unicode."""
        return self.framed(np.array(self._ids(text[: self._first_chars])[: self._room], dtype=np.int32))

    def framed(self, ids: Ids) -> Ids:
        """Return (1, t + 2) ids: (t,) ids between the special tokens."""
        return np.concatenate(([self._before], ids, [self._after]), dtype=np.int32)[None, :]

    def read(self, text: str) -> Tokens:
        """Return all tokens of `text`. Raises `InvalidInputError` for invalid Unicode."""
        check_text("text", text)
        found = start = self._tokenizer.encode(text[: self._most_chars], add_special_tokens=False)
        if len(text) > self._first_chars:
            start = self._tokenizer.encode(text[: self._first_chars], add_special_tokens=False)
            found = max(start, found, key=len)  # a run of letters over the boundary has more tokens when it is cut
        ids = np.array(found.ids, dtype=np.int32)
        offsets = np.array(found.offsets, dtype=np.int32).reshape(len(ids), 2)
        words = np.array(found.word_ids, dtype=np.float32)
        first = len(start)
        ids[: min(first, self._room)] = start.ids[: self._room]
        return Tokens(ids, offsets[:, 0], offsets[:, 1], np.diff(words, prepend=-1) != 0, first)

    def count(self, text: str) -> int:
        """Return the number of tokens of the whole text, without special tokens; same errors as `encode`."""
        return len(self._ids(text))

    def _ids(self, text: str) -> list[int]:
        check_text("text", text)
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids


def _load(definition: bytes) -> Tokenizer:
    try:
        tokenizer = Tokenizer.from_str(definition.decode())
    except Exception as error:  # the library raises plain exceptions
        raise ModelError(f"the tokenizer file cannot be read: {type(error).__name__}") from error
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer
