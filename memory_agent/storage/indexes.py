"""The seams for other engines: what recall needs of a vector index and of a word index.

Both number the memories by slot, from 0 in order of arrival, and know nothing else of them. A slot is never reused;
`keep` renumbers. One thread changes an index; `view` returns what any thread may search while the changes go on.
`tests/memory_agent/storage/test_index_contracts.py` holds every engine to this.

n = number of slots, k and m = number of slots given, d = dimensions, w = number of words.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol, Self

import numpy as np
import numpy.typing as npt

from memory_agent.records.embedded import Embedding
from relay.crypto import Cipher

Slots = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
Scores = npt.NDArray[np.float64]
Arrays = Mapping[str, npt.NDArray[Any] | Sequence[npt.NDArray[Any]]]
"""The content of an index as named arrays, to be saved; a sequence is one array in parts, along its first axis."""
LoadedArrays = Mapping[str, npt.NDArray[Any]]
"""The same, as read from a file; writable, and possibly mapped."""
GraphWriter = Callable[[Path, Cipher | None], None]
"""Writes a file. Raises `OSError`; the old file is then kept, and is still valid."""


class Cosines(NamedTuple):
    """Approximate cosines of all memories with a query.

    `values` (n,) are off by at most `error`; NaN for a slot without a vector, and for one that was not looked at,
    whose cosine is at most `unseen` (minus infinity where all were looked at), but for what an approximate scan misses.
    """

    values: npt.NDArray[np.float32]
    error: float
    unseen: float


class VectorView(Protocol):
    """The vectors at one moment. Thread-safe."""

    @property
    def ndim(self) -> int:
        """d, 0 before the first vector."""
        ...

    @property
    def count(self) -> int:
        """Number of slots that have a vector."""
        ...

    @property
    def is_approximate(self) -> bool:
        """Whether `scan` without a mask follows a graph, and may miss a vector."""
        ...

    def scan(self, query: Embedding, limit: int, mask: Mask | None = None) -> Cosines:
        """Return approximate cosines with `query` (d,), of unit length; at least those of the best `limit`.

        With a `mask` (n,) all its slots are looked at, and no others.
        """
        ...

    def cosines(self, query: Embedding, slots: Slots) -> Scores:
        """Return the exact cosines (m,) with `query`, NaN where a slot has no vector.

        A slot's cosine does not depend on the other slots given.
        """
        ...

    def vectors(self, slots: Slots) -> Embedding:
        """Return the vectors (m, d) of unit length, zeros where a slot has none."""
        ...


class VectorIndex(Protocol):
    """Vectors by slot."""

    def append(self, vectors: Embedding) -> None:
        """Add slots with `vectors` (k, d), zeros where a memory has none yet.

        Raises `InvalidInputError` for vectors that are not finite or of another d; nothing is added then.
        """
        ...

    def set(self, slots: Slots, vectors: Embedding) -> bool:
        """Give `slots` (k,) a vector; return False and change nothing where this needs a slot that never had one.

        Raises `InvalidInputError` as `append` does, and for zeros.
        """
        ...

    def remove(self, slots: Slots) -> None:
        """Drop the vectors of `slots`; the slots stay."""
        ...

    def keep(self, slots: Slots) -> Self:
        """Return a new index of `slots` alone, ascending, numbered from 0."""
        ...

    def view(self) -> VectorView:
        """Return the vectors as of now."""
        ...

    def arrays(self) -> Arrays:
        """Return the content, to be saved."""
        ...

    def graph_writer(self) -> GraphWriter:
        """Return what writes all that `arrays` leaves out as of now, such as a graph; without any, removes the file."""
        ...

    def load_graph(self, path: Path, cipher: Cipher | None = None) -> None:
        """Load what a `graph_writer` wrote after the `arrays` of the same moment.

        What is missing, damaged or of other vectors is built in the background.
        """
        ...

    def close(self) -> None:
        """Stop work in the background; views go on answering. Idempotent."""
        ...


class WordView(Protocol):
    """The words at one moment. Thread-safe.

    `lengths` (n,) are the words of each slot, negative for a dead one, `total` those of all live ones.
    """

    lengths: npt.NDArray[np.int32]
    total: int

    def scores(self, words: Sequence[str]) -> Scores:
        """Return BM25 (n,), 0 where a memory shares none of `words` (`terms.query_words`)."""
        ...

    def hits(self, words: Sequence[str], slots: Slots) -> Mask:
        """Return (w, m): which of `slots` has which of `words`, in any inflection."""
        ...

    def having(self, words: Sequence[str]) -> dict[str, int]:
        """Return how many memories have each of `words`, in any inflection."""
        ...

    def among(self, mask: Mask) -> Self:
        """Return the words of the live slots in `mask` (n,) as if there were no others."""
        ...


class WordIndex(Protocol):
    """Words by slot."""

    def append(self, texts: Sequence[Sequence[str]]) -> None:
        """Add slots, each with its texts (title, text, tags)."""
        ...

    def remove(self, slots: Slots) -> None:
        """Drop the words of `slots`; the slots stay."""
        ...

    def keep(self, slots: Slots) -> Self:
        """Return a new index of `slots` alone, ascending, numbered from 0, without the words of others."""
        ...

    def view(self) -> WordView:
        """Return the words as of now."""
        ...

    def arrays(self) -> Arrays:
        """Return the content, to be saved."""
        ...


def section(arrays: LoadedArrays, part: str) -> LoadedArrays:
    """Return the arrays of one part of an index, whose names begin with its own."""
    return {name.removeprefix(f"{part}."): array for name, array in arrays.items() if name.startswith(f"{part}.")}
