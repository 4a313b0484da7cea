"""Converts text to token ids with the model's tokenizer file. The only file that imports `tokenizers`.

Never pads (padding costs time and changes int8 results); truncation keeps the first tokens. Long texts are first cut to
`_CHARS_PER_TOKEN` characters per token, eight times the mean of English prose, which bounds the cost of huge texts.
"""

from __future__ import annotations

import os

import numpy as np
import numpy.typing as npt

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # a second pool would compete with the lanes
from tokenizers import Tokenizer

from memory_agent.embedders import check_text
from memory_agent.errors import ModelError

_CHARS_PER_TOKEN = 32

Ids = npt.NDArray[np.int32]


class WordPiece:
    """The tokenizer of one model. Thread-safe."""

    def __init__(self, definition: bytes, max_tokens: int) -> None:
        """Load a `tokenizer.json`; texts are truncated to `max_tokens`, including the two special tokens.

        Raises `ModelError` for a file that is not a tokenizer with one special token before and one after a text.
        """
        self._tokenizer = _load(definition)
        self._max_tokens = max_tokens
        specials = self._tokenizer.encode("").ids
        if len(specials) != 2:
            raise ModelError(f"the tokenizer adds {len(specials)} special tokens, 2 are known")
        self._first, self._last = specials

    def encode(self, text: str) -> Ids:
        """Return (1, t) ids, 2 <= t <= max_tokens. Raises `InvalidInputError` for invalid Unicode."""
        ids = self._ids(text[: self._max_tokens * _CHARS_PER_TOKEN])[: self._max_tokens - 2]
        return np.array([[self._first, *ids, self._last]], dtype=np.int32)

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
