"""Converts text to token ids with the model's tokenizer file. The only file that imports `tokenizers`.

Never pads: padding costs time and changes int8 results. The first passage of a text is read from at most
`CHARS_PER_TOKEN` characters per token, eight times the mean of English prose, and all of it from 16 times as many,
which bounds the cost of huge texts.

Shapes: t tokens.
"""

from __future__ import annotations

import os
from functools import cached_property

import numpy as np
import numpy.typing as npt

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # a second pool would compete with the lanes
from tokenizers import Encoding, Tokenizer

from memory_agent.embedders import check_text
from memory_agent.errors import ModelError

CHARS_PER_TOKEN = 32

Ids = npt.NDArray[np.int32]


class Tokens:
    """The tokens of a text, without special ones; what only long texts need is computed when it is asked for.

    `first` is how many the first passage may have: fewer than its room only if these take very many characters.
    """

    def __init__(self, encoding: Encoding, start: Encoding, room: int) -> None:
        """Take the tokens of a text, and those of its first characters, which are the first passage's."""
        self._encoding = encoding
        self.first = len(start)
        self.ids: Ids = np.array(encoding.ids, dtype=np.int32)
        if start is not encoding:
            self.ids[: min(self.first, room)] = start.ids[:room]

    @cached_property
    def spans(self) -> Ids:
        """The (t, 2) characters of the tokens in the text."""
        return np.array(self._encoding.offsets, dtype=np.int32).reshape(len(self.ids), 2)

    @cached_property
    def begins_word(self) -> npt.NDArray[np.bool_]:
        """Whether a word begins with each token: (t,)."""
        words = np.array(self._encoding.word_ids, dtype=np.float32)
        begins: npt.NDArray[np.bool_] = np.diff(words, prepend=-1) != 0
        return begins


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
        return Tokens(found, start, self._room)

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
