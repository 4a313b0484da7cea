"""Converts text to token ids with the model's tokenizer file. This is the only file that imports `tokenizers`.

Ids are never padded, because padding takes time and changes int8 results. To bound the cost of huge texts, the first
passage is limited to `CHARS_PER_TOKEN` characters per token, which is eight times the mean for English prose. The limit
for all passages together is 16 times as high.

Shapes: t tokens.
"""

from __future__ import annotations

import os
import unicodedata
from collections import Counter
from collections.abc import Iterable
from functools import cached_property, lru_cache

import numpy as np
import numpy.typing as npt

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # the library's own threads would compete with the lanes
from tokenizers import Encoding, Tokenizer

from memory_agent.errors import ModelError
from memory_agent.records.arguments import check_text

CHARS_PER_TOKEN = 32
_LEAST_PIECES = 600
"""Minimum number of pieces of a covered script. BERT's English vocabulary has 27,762 Latin pieces, 488 Han pieces, and
at most 94 of any other script."""

Ids = npt.NDArray[np.int32]


class Tokens:
    """The tokens of a text, without special tokens. Spans and word starts are computed lazily.

    `first` limits the number of tokens in the first passage. It is less than the number that fits in a passage only if
    the tokens are very long.
    """

    def __init__(self, encoding: Encoding, start: Encoding, room: int) -> None:
        """`encoding` encodes the whole text; `start` encodes its first characters, for the first passage."""
        self._encoding = encoding
        self.first = len(start)
        self.ids: Ids = np.array(encoding.ids, dtype=np.int32)
        if start is not encoding:
            self.ids[: min(self.first, room)] = start.ids[:room]

    @cached_property
    def spans(self) -> Ids:
        """The (t, 2) character positions of the tokens in the text."""
        return np.array(self._encoding.offsets, dtype=np.int32).reshape(len(self.ids), 2)

    @cached_property
    def begins_word(self) -> npt.NDArray[np.bool_]:
        """A (t,) array that is true for each token that starts a word."""
        words = np.array(self._encoding.word_ids, dtype=np.float32)
        begins: npt.NDArray[np.bool_] = np.diff(words, prepend=-1) != 0
        return begins


class WordPiece:
    """The tokenizer of one model. Thread-safe."""

    def __init__(self, definition: bytes, max_tokens: int, most_passages: int = 1) -> None:
        """Load a `tokenizer.json`; passages have at most `max_tokens` tokens, including the two special ones.

        Raises `ModelError` if the file does not define a tokenizer that adds one special token before and one after
        each text.
        """
        self._tokenizer = _load(definition)
        self._room = max_tokens - 2
        self._first_chars = max_tokens * CHARS_PER_TOKEN
        self._most_chars = self._first_chars * most_passages
        specials = self._tokenizer.encode("").ids
        if len(specials) != 2:
            raise ModelError(f"the tokenizer adds {len(specials)} special tokens, expected 2")
        self._before, self._after = specials
        self._scripts = _scripts_of(self._tokenizer.get_vocab())
        unknown = getattr(self._tokenizer.model, "unk_token", None)
        self._unknown = None if unknown is None else self._tokenizer.token_to_id(unknown)

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
            found = max(start, found, key=len)  # cutting a run of letters at the boundary can add tokens
        return Tokens(found, start, self._room)

    def share_read(self, text: str, tokens: Tokens, count: int) -> float:
        """Of the letters in the first `count` tokens, return the share that the vocabulary covers; 1 if there are no
        letters.

        Letters of a script with few pieces in the vocabulary are not covered. The same holds for each character of an
        unknown token, such as an emoji. The vectors of such texts resemble each other regardless of meaning. Digits and
        punctuation are ignored.
        """
        is_unknown = tokens.ids[:count] == self._unknown
        if text.isascii() and "LATIN" in self._scripts and not is_unknown.any():
            return 1.0
        read = letters = 0
        for (begin, end), unknown in zip(tokens.spans[:count].tolist(), is_unknown.tolist(), strict=True):
            said = text[begin:end]
            if unknown:
                letters += len(said)
            else:
                scripts = [_script_of(char) for char in said if char.isalpha()]
                letters += len(scripts)
                read += sum(script in self._scripts for script in scripts)
        return read / letters if letters else 1.0

    def count(self, text: str) -> int:
        """Return the number of tokens of the whole text, without special tokens. Raises the same errors as `encode`."""
        return len(self._ids(text))

    def _ids(self, text: str) -> list[int]:
        check_text("text", text)
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids


def _scripts_of(vocabulary: Iterable[str]) -> frozenset[str]:
    """Return the scripts in which the vocabulary has many pieces."""
    letters = (next(filter(str.isalpha, piece), "") for piece in vocabulary)
    counts = Counter(_script_of(letter) for letter in letters if letter)
    return frozenset(script for script, pieces in counts.items() if pieces >= _LEAST_PIECES)


@lru_cache(maxsize=1 << 14)
def _script_of(letter: str) -> str:
    """Return the script of a letter: the first word of its Unicode name."""
    return unicodedata.name(letter, "").partition(" ")[0].partition("-")[0]


def _load(definition: bytes) -> Tokenizer:
    try:
        tokenizer = Tokenizer.from_str(definition.decode())
    except Exception as error:  # the library raises bare `Exception`s
        raise ModelError(f"the tokenizer file cannot be read: {type(error).__name__}") from error
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer
