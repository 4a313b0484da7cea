"""Defines the vectors of a text and of a query, and the text that is embedded for a memory.

Shapes: p passages of a text, w words stored for it, q words of a query, d dimensions of a passage, e dimensions of a
word (the first 256 of d), b = e / 8 bytes per word.
"""

from __future__ import annotations

import msgspec
import numpy as np
import numpy.typing as npt

from memory_agent.records.memories import MemoryRecord

Embedding = npt.NDArray[np.float32]
WORD_DIMENSIONS = 256
"""Dimensions of word vectors. Using all 384 dimensions of the default model does not improve results."""


class Embedded(msgspec.Struct, frozen=True, eq=False):
    """The vectors of one text.

    `vectors` (p, d) float32, of unit length: one for each passage in order, p >= 1. `spans` (p, 2) int32: the start and
    end offsets of each passage. `word_bits` (w, b) uint8: the signs of the vectors of content words, most informative
    first. `length`: the number of tokens in the text before truncation, or 0 if unknown.
    """

    vectors: npt.NDArray[np.float32]
    spans: npt.NDArray[np.int32]
    word_bits: npt.NDArray[np.uint8]
    length: int = 0

    @property
    def nbytes(self) -> int:
        return self.vectors.nbytes + self.spans.nbytes + self.word_bits.nbytes

    def is_sound(self, ndim: int, word_bytes: int | None) -> bool:
        """Whether the arrays have the shapes of a model with `ndim` dimensions, and all vectors are finite and not
        zero.
        """
        has_shape = self.vectors.ndim == 2 and self.vectors.shape == (len(self.spans), ndim) and len(self.spans) > 0
        if not has_shape or word_bytes not in (None, self.word_bits.shape[1]):
            return False
        lengths = np.einsum("pd,pd->p", self.vectors, self.vectors)
        return bool(((lengths > 0) & (lengths < np.inf)).all())


class EmbeddedQuery(msgspec.Struct, frozen=True, eq=False):
    """The vectors of a query.

    `vector` (d,) float32 of unit length. `words`: the query's distinct content words in order, folded by
    `storage.terms.fold`. `word_vectors` (q, e) float16 of unit length: the vectors of these words. `read`: the share of
    letters in scripts that the model supports (`wordpiece`), 1 if unknown.
    """

    vector: Embedding
    words: tuple[str, ...]
    word_vectors: npt.NDArray[np.float16]
    read: float = 1.0

    @property
    def nbytes(self) -> int:
        return self.vector.nbytes + self.word_vectors.nbytes

    def is_sound(self, ndim: int) -> bool:
        """Whether the vector has `ndim` dimensions and is finite and nonzero, and each word has a finite vector."""
        square = float(np.dot(self.vector, self.vector)) if self.vector.shape == (ndim,) else 0.0
        has_words = len(self.word_vectors) == len(self.words) and bool(np.isfinite(self.word_vectors).all())
        return 0.0 < square < np.inf and has_words


def word_bytes(ndim: int) -> int:
    """Return the size in bytes of a word vector's signs, for a model with `ndim` dimensions."""
    return -(-min(ndim, WORD_DIMENSIONS) // 8)


def of_vector(text: str, vector: Embedding) -> Embedded:
    """Return an `Embedded` with one passage, `vector` (d,), and no words."""
    spans = np.array([[0, len(text)]], dtype=np.int32)
    return Embedded(np.asarray(vector, np.float32)[None, :], spans, np.zeros((0, word_bytes(len(vector))), np.uint8))


def query_of_vector(vector: Embedding) -> EmbeddedQuery:
    """Return an `EmbeddedQuery` with the (d,) `vector` and no words."""
    return EmbeddedQuery(vector, (), np.zeros((0, min(len(vector), WORD_DIMENSIONS)), np.float16))


def embedded_text(record: MemoryRecord) -> str:
    """Return the text that is embedded for a memory: title, text and tags, on separate lines.

    A title that the text contains is omitted. `span_in_text` converts spans of this text into spans of the record's
    text.
    """
    parts = (_added_title(record), record.text, ", ".join(record.tags))
    return "\n".join(part for part in parts if part)


def span_in_text(record: MemoryRecord, begin: int, end: int) -> tuple[int, int]:
    """Return the (possibly empty) span of `record.text` within characters `begin` to `end` of `embedded_text`."""
    title = _added_title(record)
    shift = len(title) + 1 if title else 0
    first, last = (min(max(place - shift, 0), len(record.text)) for place in (begin, end))
    return first, last


def _added_title(record: MemoryRecord) -> str:
    return "" if record.title is None or record.title in record.text else record.title
