"""What a batch changed, in the form in which a derived index can follow it. Plain data, no engine.

A change says what a row is *now*, not how it came there: several changes of one row in one batch, or in a stretch of
the change log, are settled into one. So an index that follows a long stretch late ends where it would have come to by
following each batch.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import msgspec
import numpy as np
import numpy.typing as npt

from memory_agent.records import Embedding, MemoryRecord

Rows = npt.NDArray[np.int64]
IndexScores = npt.NDArray[np.float32]
"""What an index returns: cosines or BM25, higher is better."""

Op = Literal["put", "vector", "update", "delete"]
OPS: tuple[Op, ...] = ("put", "vector", "update", "delete")  # their places are stored; append only


class IndexedText(msgspec.Struct, frozen=True, array_like=True):
    """The words of a memory that the lexicon indexes."""

    title: str
    text: str
    tags: tuple[str, ...]


class LogEntry(msgspec.Struct, frozen=True):
    """One line of the change log. `before`: the words as they were, where this change altered them."""

    op: Op
    row: int
    before: IndexedText | None = None


class Settled(msgspec.Struct, frozen=True):
    """What a stretch of the log did to one row; the fields are those of `Change`."""

    row: int
    is_new: bool
    is_updated: bool
    new_vector: bool
    before: IndexedText | None


class Change(msgspec.Struct, frozen=True):
    """What became of one row.

    `op` is `delete` for a row that is gone (`record` and `vector` are then None), `put` for one that is new in this
    stretch, else `update`, or `vector` when nothing but the vector changed. `new_vector` says whether `vector` was set
    in this stretch. `before` holds the words under which an index that has not followed this stretch knows the row;
    None when they are the same as now, or when it does not know the row.
    """

    row: int
    op: Op
    record: MemoryRecord | None
    vector: Embedding | None
    new_vector: bool
    before: IndexedText | None = None


class Changes(msgspec.Struct, frozen=True):
    """A stretch of the change log: everything after change number `after`, up to and including `through`.

    `rows` holds each row at most once. It may be lazy: go over it once.
    """

    after: int
    through: int
    rows: Iterable[Change]


def indexed_text(record: MemoryRecord) -> IndexedText:
    """Return the words of `record` that are indexed."""
    return IndexedText(record.title or "", record.text, record.tags)


def settle(entries: Iterable[LogEntry]) -> list[Settled]:
    """Return what the entries, in order, did to each row; rows in the order in which they first appear."""
    settled: dict[int, Settled] = {}
    for entry in entries:
        known = settled.get(entry.row)
        settled[entry.row] = _begin(entry) if known is None else _continue(known, entry)
    return list(settled.values())


def _begin(entry: LogEntry) -> Settled:
    return Settled(
        row=entry.row,
        is_new=entry.op == "put",
        is_updated=entry.op == "update",
        new_vector=entry.op in ("put", "vector"),
        before=None if entry.op == "put" else entry.before,
    )


def _continue(known: Settled, entry: LogEntry) -> Settled:
    """The words before the stretch are those before its first change of words; a new row had none."""
    return Settled(
        row=known.row,
        is_new=known.is_new,
        is_updated=known.is_updated or entry.op == "update",
        new_vector=known.new_vector or entry.op == "vector",
        before=None if known.is_new else known.before or entry.before,
    )
