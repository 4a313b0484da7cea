"""The changes of a store, in the form that derived indexes follow. Plain data, no engine.

A change holds the current state of a row: several changes of one row, in a batch or in a range of the change log, are
settled into one. So an index that follows a long range late ends in the same state as one that followed each batch.
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
    """The text of a memory that the lexicon indexes."""

    title: str
    text: str
    tags: tuple[str, ...]


class LogEntry(msgspec.Struct, frozen=True):
    """One entry of the change log. `before`: the former text, if this change altered it."""

    op: Op
    row: int
    before: IndexedText | None = None


class Settled(msgspec.Struct, frozen=True):
    """The effect of a range of the log on one row; the fields are those of `Change`."""

    row: int
    is_new: bool
    is_updated: bool
    new_vector: bool
    before: IndexedText | None


class Change(msgspec.Struct, frozen=True):
    """The current state of one row that changed in a range of the log.

    `op` is `delete` for a deleted row (`record` and `vector` are then None), `put` for one that is new in this range,
    else `update`, or `vector` when only the vector changed. `new_vector`: `vector` was set in this range. `before`: the
    text under which an index that has not followed this range holds the row; None when it is unchanged, or new.
    """

    row: int
    op: Op
    record: MemoryRecord | None
    vector: Embedding | None
    new_vector: bool
    before: IndexedText | None = None


class Changes(msgspec.Struct, frozen=True):
    """A range of the change log: from `after` (exclusive) through `through` (inclusive).

    `rows` holds each row at most once. It may be lazy: iterate it once.
    """

    after: int
    through: int
    rows: Iterable[Change]


def indexed_text(record: MemoryRecord) -> IndexedText:
    """Return the text of `record` that is indexed."""
    return IndexedText(record.title or "", record.text, record.tags)


def settle(entries: Iterable[LogEntry]) -> list[Settled]:
    """Return the effect of the entries on each row; rows in the order in which they first appear."""
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
    """The text before the range is that before its first change of the text; a new row had none."""
    return Settled(
        row=known.row,
        is_new=known.is_new,
        is_updated=known.is_updated or entry.op == "update",
        new_vector=known.new_vector or entry.op == "vector",
        before=None if known.is_new else known.before or entry.before,
    )
