"""A store's changes, in the form that the columns apply. Plain data; does not import usearch.

All entries for a row in a range of the change log are merged into one change with the current state of the row.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from memory_agent.records.embedded import Embedding
from memory_agent.records.memories import MemoryRecord

Rows = npt.NDArray[np.int64]

Op = Literal["put", "vector", "update", "delete", "reword", "words"]
OPS: tuple[Op, ...] = ("put", "vector", "update", "delete", "reword", "words")  # positions are stored, so only append


class Words(NamedTuple):
    """The sign bits (w, b) of a text's words, and its token count before any truncation (0 if unknown)."""

    bits: npt.NDArray[np.uint8]
    length: int


class StoredWords(NamedTuple):
    """The words of many memories: `rows`, `lengths` and `counts` (m,), and the `bits` (w, b) of all words."""

    rows: Rows
    lengths: npt.NDArray[np.int32]
    counts: npt.NDArray[np.int64]
    bits: npt.NDArray[np.uint8]


class LogEntry(msgspec.Struct, frozen=True):
    """One entry of the change log. `reword` is an update of text or metadata; `words` adds word bits."""

    op: Op
    row: int


class Settled(msgspec.Struct, frozen=True):
    """The effect of a log range on one row: the strongest operation, and whether the vector or the words were set."""

    row: int
    op: Op
    new_vector: bool
    new_words: bool


class Change(msgspec.Struct, frozen=True):
    """The current state of one row that changed in a range of the log.

    `op` is `delete` for a deleted row (`record` is then None), and `put` for a row that is new in this range.
    Otherwise, it is `reword` if the text or metadata changed, `update` if only other fields changed, `vector` if only
    the vectors changed, and `words` if only the word bits changed. `passages` (p, d) are the vectors after the first,
    or None; `words` is None if unknown.
    """

    row: int
    op: Op
    record: MemoryRecord | None
    vector: Embedding | None
    new_vector: bool
    passages: Embedding | None = None
    words: Words | None = None
    new_words: bool = False


class Changes(msgspec.Struct, frozen=True):
    """A range of the change log, from `after` (exclusive) to `through` (inclusive).

    `rows` contains each row at most once, and may be a lazy iterator. `stamp` and `words_stamp` identify the embedders
    as of the end of the range.
    """

    after: int
    through: int
    rows: Iterable[Change]
    stamp: str = ""
    words_stamp: str = ""


def texts_of(record: MemoryRecord) -> tuple[str, ...]:
    """Return the texts whose words are searched: title, text and tags."""
    return (record.title or "", record.text, *record.tags)


def settle(entries: Iterable[LogEntry]) -> list[Settled]:
    """Return the effect of the entries on each row, in order of first appearance."""
    settled: dict[int, Settled] = {}
    for entry in entries:
        known = settled.get(entry.row)
        op = entry.op if known is None else max(known.op, entry.op, key=_STRENGTH.__getitem__)
        new_vector = entry.op in ("put", "vector") or (known is not None and known.new_vector)
        new_words = entry.op in ("put", "vector", "words") or (known is not None and known.new_words)
        settled[entry.row] = Settled(entry.row, op, new_vector, new_words)
    return list(settled.values())


_STRENGTH: dict[Op, int] = {"delete": 0, "words": 1, "vector": 2, "update": 3, "reword": 4, "put": 5}
