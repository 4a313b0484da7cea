"""The protocol for an index of one user's vectors. Every engine implements it.

An index contains *entries*: the vectors of a memory's passages, with the names and the time that filters use. It also
stores its *position*, the last change of the store that it includes. After a crash between the commit of the store and
that of the index, the next opening applies the missing changes. Changes are idempotent.

d = dimensions, p = passages of a memory, k = number of hits.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import NamedTuple, Protocol

import msgspec
import numpy as np
import numpy.typing as npt

from memory_agent.errors import IndexUnusableError, InvalidInputError
from memory_agent.records.embedded import Embedding
from memory_agent.settings import IndexSettings

COLUMNS = ("kind", "source", "session", "run", "channel", "agent")  # the columns of an entry, for filters and counts

SCHEMA_VERSION = 1  # version of every engine's tables; other versions are rejected, because their filters may differ


class Entry(NamedTuple):
    """One memory: its row, the vectors (p, d) of its passages, its names in the order of `COLUMNS`, and its time."""

    row: int
    vectors: Embedding
    names: tuple[str | None, ...]
    time_us: int


class Position(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a store that an index reflects."""

    lineage: str
    stamp: str
    ndim: int
    applied: int  # the last change that the index includes or, during filling, the change at which filling began
    filled: int | None = None  # the last row that was copied, while the index is being filled
    opening: str = ""  # the opening of the store that last changed the index; names of later openings sort later

    def is_of(self, other: Position) -> bool:
        """Whether both have the same store, model and vector width."""
        return (self.lineage, self.stamp, self.ndim) == (other.lineage, other.stamp, other.ndim)


class Where(msgspec.Struct, frozen=True, kw_only=True):
    """A filter: the value of each column in `among` is one of the given names, and `since_us` <= time < `until_us`."""

    among: Mapping[str, tuple[str, ...]] = {}
    since_us: int | None = None
    until_us: int | None = None

    @classmethod
    def of_scope(cls, scope: str | None, id: str) -> Where:
        """Return the filter that `VectorIndex.count` applies. Raises `InvalidInputError` for an unknown scope."""
        if scope is not None and scope not in COLUMNS:
            raise InvalidInputError("scope", f"must be one of {', '.join(COLUMNS)}")
        return EVERYTHING if scope is None else cls(among={scope: (id,)})

    def condition(self, mark: str) -> tuple[str, list[str | int]]:
        """Return the filter as an SQL condition, with the placeholder `mark` for each value, and as a list of the
        values.
        """
        bounds = [(operator, us) for operator, us in ((">=", self.since_us), ("<", self.until_us)) if us is not None]
        parts = [
            f"{column} IN ({', '.join([mark] * len(names))})" if names else "FALSE"
            for column, names in self.among.items()
        ]
        parts += [f"time_us {operator} {mark}" for operator, _ in bounds]
        return " AND ".join(parts) or "TRUE", [*chain(*self.among.values()), *(us for _, us in bounds)]


EVERYTHING = Where()


class Hits(NamedTuple):
    """The rows (k,) of the nearest passages and their approximate cosines (k,), best first. A row may be repeated."""

    rows: npt.NDArray[np.int64]
    cosines: npt.NDArray[np.float32]

    @classmethod
    def of(cls, found: Iterable[tuple[int, float]] = ()) -> Hits:
        """Build hits from (row, cosine distance) pairs."""
        pairs = list(found)
        distances = np.array([distance for _, distance in pairs], dtype=np.float32)
        return cls(np.array([row for row, _ in pairs], dtype=np.int64), 1 - distances)


class IndexOf(NamedTuple):
    """The settings of one user's index, the folder of its files, and a 32-byte key if the user's store is encrypted."""

    settings: IndexSettings
    user_id: str
    folder: Path
    secret: bytes | None = None


class VectorIndex(Protocol):
    """One user's vectors in one engine. Thread-safe: the implementation serialises calls.

    Every method raises `IndexUnavailableError` if the engine does not answer, and `IndexUnusableError` for a different
    schema version, a read-only database or a missing permission. A damaged file, or a file with a different key, raises
    `IndexDamagedError`; `clear` then empties the index.
    """

    name: str
    is_approximate: bool  # whether a search may miss some of the nearest passages

    @property
    def position(self) -> Position | None:
        """The stored position, or None for an empty index."""
        ...

    @property
    def is_due(self) -> bool:
        """Whether `compact` would make searches faster."""
        ...

    def begin(self, position: Position) -> None:
        """Remove all entries of the user, and set the position. Durable on return."""
        ...

    def index(self, entries: Sequence[Entry], position: Position) -> None:
        """Add entries, or replace those with the same rows, and set the position. Durable on return.

        Raises `IndexUnusableError` if a later opening has changed an index that several machines share. `begin` does
        the same. `delete` raises this error if that opening is later than the one in the most recently set position.
        Raises `InvalidInputError`, and changes nothing, for vectors whose width differs from that set by `begin`.
        """
        ...

    def delete(self, rows: Sequence[int]) -> None:
        """Remove the entries of these rows; rows without an entry are skipped. Durable on return."""
        ...

    def search(self, vector: Embedding, limit: int, where: Where = EVERYTHING, timeout_s: float | None = None) -> Hits:
        """Return the `limit` passages nearest to `vector` (d,) among those that pass the filter; fewer if not enough
        pass.

        Raises `InvalidInputError` for a vector of a different width. With `timeout_s`, raises `TimeoutError` if the
        search takes longer, and `IndexUnavailableError` if it would first have to connect to a database.
        """
        ...

    def count(self, scope: str | None = None, id: str = "") -> int:
        """Return the number of memories: all, or those that have `id` in the column `scope` (one of `COLUMNS`)."""
        ...

    def compact(self) -> None:
        """Remove the bytes of deleted entries and, for an engine that uses a graph, build the graph. May take
        minutes."""
        ...

    def interrupt(self) -> None:
        """Abort the `compact` in progress and all later ones; they raise `IndexUnavailableError`."""
        ...

    def clear(self) -> None:
        """Remove everything that the engine stores for the user, including the position. Idempotent."""
        ...

    def close(self) -> None:
        """Release files and connections. Idempotent."""
        ...


def check_width(vector: Embedding, ndim: int) -> None:
    """Raise `InvalidInputError` unless the last axis of `vector` has `ndim` finite components."""
    if vector.shape[-1] != ndim:
        raise InvalidInputError("vector", f"has {vector.shape[-1]} dimensions, expected {ndim}")
    if not np.isfinite(vector).all():
        raise InvalidInputError("vector", "is not finite")


def check_version(name: str, found: object) -> None:
    """Raise `IndexUnusableError` unless `found` is the schema version of this program."""
    if found != SCHEMA_VERSION:
        reason = f"its tables have version {found}, and this program needs {SCHEMA_VERSION}"
        raise IndexUnusableError(name, reason, "upgrade the older of the two, or remove the tables and fill them again")
