"""Text to token ids, with the model's own tokenizer file. The only file that imports `tokenizers`.

What it does not do: it never pads (padding costs time and changes int8 results), and it never fails on valid Unicode.
Truncation keeps the first tokens. A huge text is cut before it is read, to `_CHARS_PER_TOKEN` characters
for each token wanted, eight times the mean of English prose, so that a gigabyte of log costs what a page costs.
"""

from __future__ import annotations

import os

import numpy as np
import numpy.typing as npt

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # the lanes are the threads; a pool beside them only fights
from tokenizers import Tokenizer

from memory_agent.embedders import check_text
from memory_agent.errors import ModelError

_CHARS_PER_TOKEN = 32

Ids = npt.NDArray[np.int32]


class WordPiece:
    """The tokenizer of one model. Safe to use from several threads."""

    def __init__(self, definition: bytes, max_tokens: int) -> None:
        """Read a `tokenizer.json`; texts are cut to `max_tokens`, the two special tokens included.

        Raises `ModelError` where the file is no tokenizer that puts one token before and one after a text.
        """
        self._tokenizer = _load(definition)
        self._max_tokens = max_tokens
        specials = self._tokenizer.encode("").ids
        if len(specials) != 2:
            raise ModelError(f"the tokenizer adds {len(specials)} special tokens, 2 are known")
        self._first, self._last = specials

    def encode(self, text: str) -> Ids:
        """Return (1, t) ids, 2 <= t <= max_tokens. Raises `InvalidInputError` for text that is no valid Unicode."""
        ids = self._ids(text[: self._max_tokens * _CHARS_PER_TOKEN])[: self._max_tokens - 2]
        return np.array([[self._first, *ids, self._last]], dtype=np.int32)

    def count(self, text: str) -> int:
        """Return the number of tokens of the whole text, special ones left out; errors as of `encode`."""
        return len(self._ids(text))

    def _ids(self, text: str) -> list[int]:
        check_text("text", text)
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids


def _load(definition: bytes) -> Tokenizer:
    try:
        tokenizer = Tokenizer.from_str(definition.decode())
    except Exception as error:  # the library raises plain ones
        raise ModelError(f"the tokenizer file cannot be read: {type(error).__name__}") from error
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer
