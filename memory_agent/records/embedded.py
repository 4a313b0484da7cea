"""What a model makes of a memory and of a query, and the text of a memory that it reads.

Shapes: p passages of a text, w words kept of it, q words of a query, d dimensions, e those of a word: the first 256,
b = e / 8 bytes of a word.
"""

from __future__ import annotations

import msgspec
import numpy as np
import numpy.typing as npt

from memory_agent.records.memories import MemoryRecord

Embedding = npt.NDArray[np.float32]
WORD_DIMENSIONS = 256
"""Of the vectors of words. All 384 of the default model gain nothing."""


class Embedded(msgspec.Struct, frozen=True, eq=False):
    """What a model makes of one text.

    `vectors` (p, d) float32, of unit length: its passages in order, p >= 1; the first is the vector of the text's
    beginning, which is all of a text that fits the model's window. `spans` (p, 2) int32: where each passage begins and
    ends in the text, in characters. `word_bits` (w, b) uint8: the signs of the vectors of its content
    words, the most telling first; w is 0 with an embedder that makes none. `length`: its tokens before any cut, 0 if
    unknown.
    """

    vectors: npt.NDArray[np.float32]
    spans: npt.NDArray[np.int32]
    word_bits: npt.NDArray[np.uint8]
    length: int = 0

    @property
    def nbytes(self) -> int:
        """The memory that its arrays take."""
        return self.vectors.nbytes + self.spans.nbytes + self.word_bits.nbytes

    def is_sound(self, ndim: int, word_bytes: int | None) -> bool:
        """Whether it is what a model of `ndim` dimensions makes: vectors with a direction, and words of that size.

        Without a size words do not matter.
        """
        has_shape = self.vectors.ndim == 2 and self.vectors.shape == (len(self.spans), ndim) and len(self.spans) > 0
        if not has_shape or word_bytes not in (None, self.word_bits.shape[1]):
            return False
        lengths = np.einsum("pd,pd->p", self.vectors, self.vectors)
        return bool(((lengths > 0) & (lengths < np.inf)).all())


class EmbeddedQuery(msgspec.Struct, frozen=True, eq=False):
    """What a model makes of a query.

    `vector` (d,) float32 of unit length. `words`: its distinct content words in order, folded as by
    `storage.terms.fold`; `word_vectors` (q, e) float16 of unit length: theirs. Both are empty with an embedder that
    makes none. `read`: the share of its letters that are of a script that the model reads (`wordpiece`), 1 if unknown.
    """

    vector: Embedding
    words: tuple[str, ...]
    word_vectors: npt.NDArray[np.float16]
    read: float = 1.0

    @property
    def nbytes(self) -> int:
        """The memory that its arrays take."""
        return self.vector.nbytes + self.word_vectors.nbytes

    def is_sound(self, ndim: int) -> bool:
        """Whether it is what a model of `ndim` dimensions makes: a vector with a direction, and one for each word."""
        square = float(np.dot(self.vector, self.vector)) if self.vector.shape == (ndim,) else 0.0
        has_words = len(self.word_vectors) == len(self.words) and bool(np.isfinite(self.word_vectors).all())
        return 0.0 < square < np.inf and has_words


def word_bytes(ndim: int) -> int:
    """Return the bytes of a word's signs, of a model with `ndim` dimensions."""
    return -(-min(ndim, WORD_DIMENSIONS) // 8)


def of_vector(text: str, vector: Embedding) -> Embedded:
    """Return the `Embedded` of an embedder that makes vectors alone: the (d,) `vector` as one passage, no words."""
    spans = np.array([[0, len(text)]], dtype=np.int32)
    return Embedded(np.asarray(vector, np.float32)[None, :], spans, np.zeros((0, word_bytes(len(vector))), np.uint8))


def first_vector(found: Embedded | None) -> Embedding | None:
    """Return the vector of the first passage."""
    return None if found is None else found.vectors[0]


def query_of_vector(vector: Embedding) -> EmbeddedQuery:
    """Return the `EmbeddedQuery` of an embedder that makes vectors alone: the (d,) `vector`, no words."""
    return EmbeddedQuery(vector, (), np.zeros((0, min(len(vector), WORD_DIMENSIONS)), np.float16))


def embedded_text(record: MemoryRecord) -> str:
    """Return the text that is embedded for a memory: its title, its text and its tags, a line each.

    A title that its text contains is left out. Without title and tags it is exactly the record's text. `span_in_text`
    turns spans of it into spans of that.
    """
    parts = (_added_title(record), record.text, ", ".join(record.tags))
    return "\n".join(part for part in parts if part)


def span_in_text(record: MemoryRecord, begin: int, end: int) -> tuple[int, int]:
    """Return which part of `record.text` lies in characters `begin` to `end` of `embedded_text`; may be empty."""
    title = _added_title(record)
    shift = len(title) + 1 if title else 0
    first, last = (min(max(place - shift, 0), len(record.text)) for place in (begin, end))
    return first, last


def _added_title(record: MemoryRecord) -> str:
    return "" if record.title is None or record.title in record.text else record.title
