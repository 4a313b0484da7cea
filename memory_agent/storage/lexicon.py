"""The words of one user's memories, and the columns that filters ask for: a cache of the store's records, in SQLite.

FTS5 ranks by BM25 over stems; plain columns answer every field of a `MemoryFilter`, exactly. The index holds no text
(contentless, a third of the size): to take a memory's words out again it must be told them, so changes carry the words
as they were, and passages are marked in the records that the caller passes.

It is never fsynced while in use. WAL keeps it whole when the process dies. When it is closed, a checksum of the file is
put beside it; a file without one, from before the machine restarted, is not believed. Whatever SQLite says against the
file, or against a stretch of changes that does not fit, becomes `IndexDamagedError`; `derived` builds it anew then.

Rejected: filters on arrays in memory (40 bytes per memory and per column set, all read at each open).
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from datetime import datetime
from itertools import islice
from math import inf
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from memory_agent.errors import DeadlineExceededError, IndexDamagedError, InvalidInputError, StoreFullError
from memory_agent.records import MemoryFilter, MemoryRecord
from memory_agent.storage import filtered_rows, word_rows
from memory_agent.storage.changes import Changes, Rows, Scores
from memory_agent.storage.codec import time_of
from memory_agent.storage.conditions import condition
from memory_agent.storage.database import (
    Connection,
    connect,
    connect_in_memory,
    engine_version,
    remove,
    set_aside,
    translating,
)
from memory_agent.storage.lexicon_rows import SCHEMA, SCHEMA_VERSION, applied_in, follow, insert, put_state
from memory_agent.storage.passages import mark_passages
from memory_agent.storage.seal import boot_id, break_seal, put_seal
from memory_agent.storage.terms import match_expression, query_words

_BUILD_CHUNK = 1_000  # memories per transaction while building
_STEPS = 10_000  # of SQLite between two looks at the clock: 1 ms or less, and no cost that can be measured

_BESIDE = (
    "SELECT centre.row, beside.row FROM json_each(?) CROSS JOIN memories AS centre ON centre.row = json_each.value "
    "CROSS JOIN memories AS beside ON beside.row IN (SELECT row FROM memories AS other "
    "WHERE other.session = centre.session AND (other.timestamp, other.row) {side} (centre.timestamp, centre.row) "
    "ORDER BY other.timestamp {order}, other.row {order} LIMIT ?) "
    "ORDER BY centre.row, beside.timestamp {order}, beside.row {order}"
)
_BEFORE, _AFTER = _BESIDE.format(side="<", order="DESC"), _BESIDE.format(side=">", order="ASC")

_SAYING = (
    "SELECT fingerprint, row, number, first, last FROM (SELECT fingerprint, row, timestamp, "
    "count(*) OVER same AS number, min(timestamp) OVER same AS first, max(timestamp) OVER same AS last, "
    "row_number() OVER (PARTITION BY fingerprint ORDER BY timestamp DESC, row DESC) AS place "
    "FROM json_each(?) CROSS JOIN memories ON fingerprint = json_each.value WHERE {where} "
    "WINDOW same AS (PARTITION BY fingerprint)) WHERE place <= ? ORDER BY fingerprint, place"
)


class Saying(NamedTuple):
    """Memories that say the same: how many, the first and last time in microseconds, and the newest rows of them."""

    number: int
    first_us: int
    last_us: int
    rows: list[int]


class Lexicon:
    """The lexicon of one store. Threads may share it: a search does not wait while changes are applied."""

    def __init__(self, path: Path, secret: bytes | None = None) -> None:
        """Connect to the file, which must be whole; see `open` and `fresh`."""
        self.path = path
        self._secret = secret
        # What must be the same for the file to be usable: another SQLite may split words in another way.
        self._identity = f"{SCHEMA_VERSION} {engine_version(secret)}"
        self._reading = threading.Lock()
        self._writing = threading.RLock()
        self._patience = threading.local()
        self._reader: Connection | None = None
        self._writer: Connection | None = None
        self._left_by: str | None = None  # the run of the machine in which it was last in use
        self.applied = 0
        self.lineage = ""

    @classmethod
    def open(cls, path: Path, secret: bytes | None = None) -> Self:
        """Open the lexicon. With a `secret` of 32 bytes the file is encrypted with it.

        Raises `IndexDamagedError` when it is missing, or cannot be believed: also when it is encrypted otherwise.
        """
        if not path.exists():
            raise IndexDamagedError(f"{path.name} is missing")
        was_closed = break_seal(path)
        lexicon = cls(path, secret)
        try:
            lexicon._connect()
            if not was_closed:
                lexicon._check()
        except BaseException:
            lexicon._disconnect()
            raise
        return lexicon

    @classmethod
    def fresh(cls, path: Path, secret: bytes | None = None) -> Self:
        """Create a lexicon that has still to be built; what was there is set aside, as `reset` does."""
        lexicon = cls(path, secret)
        lexicon.reset()
        return lexicon

    def reset(self) -> None:
        """Set the file aside, adding `.damaged` to its name, and start an empty one. Reads raise until `rebuild`."""
        with self._writing, self._reading:
            self._disconnect()
            set_aside(self.path)
            with translating(self.path), closing(connect(self.path, self._secret)) as connection:
                connection.executescript(SCHEMA)
                put_state(connection, "schema", self._identity)
            self._connect()

    def __len__(self) -> int:
        return self.count_matching(None)

    def search(
        self, query_text: str, limit: int, filter: MemoryFilter | None = None, rows: Rows | None = None
    ) -> tuple[Rows, Scores]:
        """Return at most `limit` rows that share a word with the query and pass the filter, best first, and their BM25.

        Any text is a query, and is taken as words only. A score is above 0; of equal ones the later row comes first.
        With `rows` (n,), only these are scored, which leaves their scores as they are.
        """
        words = query_words(query_text)
        if not words or limit < 1 or (rows is not None and not len(rows)):
            return _rows(()), np.empty(0, dtype=np.float32)
        where, values = condition(filter)
        among, bounds = ("", []) if rows is None else filtered_rows.among("words.rowid", rows)
        # CROSS JOIN fixes the order: the words first. The other way FTS5 would start anew for each row. The columns
        # cost a fifth of the search, so they are left out where nothing asks for them.
        columns = "" if filter is None else "CROSS JOIN memories ON memories.row = words.rowid"
        found = self._read(
            f"SELECT words.rowid, -bm25(words) AS score FROM words {columns} "
            f"WHERE words MATCH ? {among} AND {where} ORDER BY score DESC, words.rowid DESC LIMIT ?",
            [match_expression(words), *bounds, *values, limit],
        )
        return _rows(found), np.array([score for _, score in found], dtype=np.float32)

    def hits(self, query_text: str, rows: Rows) -> npt.NDArray[np.bool_]:
        """Return (w, n): which of `rows` (n,) has which of the query's words; a quarter of what a search costs."""
        return word_rows.hits(self._read, query_words(query_text), rows)

    def having(self, words: Iterable[str]) -> dict[str, int]:
        """Return how many memories have each of `words`, letters and digits only, however inflected."""
        return word_rows.having(self._read, words)

    def matching_rows(self, filter: MemoryFilter) -> Rows:
        """Return exactly the rows that pass the filter, ascending. `min_score` is the caller's to apply."""
        return filtered_rows.matching_rows(self._read, filter)

    def passing(self, rows: Rows, filter: MemoryFilter) -> Rows:
        """Return exactly those of `rows` that pass the filter, ascending: 1 to 2 microseconds for each."""
        return filtered_rows.passing(self._read, rows, filter)

    def estimate_matching(self, filter: MemoryFilter, total: int) -> tuple[int, int | None]:
        """Return about how many of `total` memories pass the filter, and how many rows an index leaves to look at.

        The latter, None where no index narrows, is never exceeded by what passes; the former is from a sample, the same
        one each time. For choosing a way only: neither decides what is found.
        """
        return filtered_rows.estimate_matching(self._read, filter, total)

    def count_matching(self, filter: MemoryFilter | None = None) -> int:
        """Return how many memories pass the filter; without one, how many there are."""
        where, values = condition(filter)
        return int(self._read(f"SELECT count(*) FROM memories WHERE {where}", values)[0][0])

    def around(self, rows: Iterable[int], reach: int) -> list[tuple[int, ...]]:
        """Return for each of `rows` itself and at most `reach` before and after it in its session, in order of time."""
        centres = list(rows)
        around: dict[int, list[int]] = {row: [row] for row in centres}
        for centre, row in self._read(_BEFORE, [json.dumps(centres), reach]):
            around[centre].insert(0, row)
        for centre, row in self._read(_AFTER, [json.dumps(centres), reach]):
            around[centre].append(row)
        return [tuple(around[row]) for row in centres]

    def times(self, rows: Rows) -> dict[int, int]:
        """Return when each of `rows` happened, microseconds since 1970; rows that are not held are left out."""
        sql = "SELECT row, timestamp FROM json_each(?) CROSS JOIN memories ON row = json_each.value"
        return dict(self._read(sql, [json.dumps(rows.tolist())]))

    def fingerprints(self, rows: Rows) -> dict[int, int]:
        """Return the fingerprint of each row (`lexicon_rows.record_fingerprint`); rows not held are left out."""
        sql = "SELECT row, fingerprint FROM json_each(?) CROSS JOIN memories ON row = json_each.value"
        return dict(self._read(sql, [json.dumps(rows.tolist())]))

    def saying(
        self, fingerprints: Iterable[int], filter: MemoryFilter | None = None, newest: int = 9
    ) -> dict[int, Saying]:
        """Return by fingerprint what is known of the memories that say so and pass the filter; absent where none does.

        `newest` bounds the rows that are named, not the count.
        """
        where, values = condition(filter)
        found = self._read(_SAYING.format(where=where), [json.dumps(list(fingerprints)), *values, newest])
        said: dict[int, Saying] = {}
        for fingerprint, row, number, first, last in found:
            known = said.setdefault(fingerprint, Saying(number, first, last, []))
            known.rows.append(row)
        return said

    def count_by(self, column: str) -> dict[str, int]:
        """Return how many memories there are of each `kind` or each `source`."""
        if column not in ("kind", "source"):
            raise InvalidInputError("column", f"{column!r} is neither kind nor source")
        return dict(
            self._read(
                f"SELECT name, count(*) FROM memories JOIN names ON id = {column} GROUP BY name ORDER BY name", []
            )
        )

    def time_span(self) -> tuple[datetime | None, datetime | None]:
        """Return when the oldest and the newest memory happened; None when there are none."""
        oldest, newest = self._read("SELECT min(timestamp), max(timestamp) FROM memories", [])[0]
        return (None, None) if oldest is None else (time_of(oldest), time_of(newest))

    @contextmanager
    def until(self, end_s: float) -> Iterator[None]:
        """Have this thread's reads end at `end_s` (monotonic): one that is not through raises `DeadlineExceededError`.

        So does one that still waits for another thread's. A word search of 100,000 memories, .5 s at the most, is over
        1.5 ms later, 8 at the most. Short reads, of what was found already, are answered later as well.
        """
        self._patience.end_s = end_s
        try:
            yield
        finally:
            self._patience.end_s = inf

    def passages(self, query_text: str, records: Mapping[int, MemoryRecord]) -> dict[int, tuple[str, ...]]:
        """Return for each row its best passage for the query, words **marked**; nothing where no word is shared."""
        with translating(self.path), closing(connect_in_memory()) as connection:
            return mark_passages(connection, query_text, records)

    def apply(self, changes: Changes) -> None:
        """Follow a stretch of the change log, in one transaction.

        Raises `IndexDamagedError` when it does not fit what is held: changes between are missing, or partly followed.
        """
        with self._writing:
            if changes.through <= self.applied:
                return
            if changes.after != self.applied:
                raise IndexDamagedError(f"changes follow {changes.after}, the lexicon is at {self.applied}")
            with self._transaction() as connection:
                for change in changes.rows:
                    follow(connection, change)
                put_state(connection, "applied", str(changes.through))
            self.applied = changes.through

    def rebuild(self, records: Iterable[tuple[int, MemoryRecord]], *, through: int, lineage: str) -> None:
        """Start again from all records of a store as of change `through`, in a new file that replaces the old one.

        Searches of a lexicon that works go on meanwhile.
        """
        with self._writing:
            path = self.path.with_name(self.path.name + ".new")
            remove(path)
            with Lexicon.fresh(path, self._secret) as built:
                built._fill(records, through, lineage)
            with self._reading:
                self._disconnect()
                remove(self.path)
                path.replace(self.path)
                remove(path)  # its seal
                self._connect()

    def compact(self) -> None:
        """Merge what FTS5 keeps in parts, so that words that were taken out leave the file as well."""
        with self._writing, self._transaction() as connection:
            connection.execute("INSERT INTO words (words) VALUES ('optimize')")

    def close(self) -> None:
        """Close and seal. Twice does no harm; a damaged file is left without seal, and so not believed at `open`."""
        with self._writing, self._reading:
            if self._writer is None:
                return
            try:
                with translating(self.path):
                    self._writer.execute("DELETE FROM state WHERE name = 'boot'")
                    self._writer.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            except (IndexDamagedError, StoreFullError):
                self._disconnect()
                return
            self._disconnect()
            with suppress(OSError):  # without it the file is looked at more closely, and no more
                put_seal(self.path)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _connect(self) -> None:
        with translating(self.path):
            self._writer, self._reader = connect(self.path, self._secret), connect(self.path, self._secret)
            state = dict(self._writer.execute("SELECT name, value FROM state"))
            if state.get("schema") != self._identity:
                raise IndexDamagedError(f"{self.path.name} is of another version")
            self.applied, self.lineage = applied_in(state), state.get("lineage", "")
            self._left_by = state.get("boot")
            put_state(self._writer, "boot", boot_id() or "")

    def _check(self) -> None:
        """Look closely at a file that was left by a process that died."""
        if not self._left_by or self._left_by != boot_id():
            raise IndexDamagedError(f"{self.path.name} was in use when the machine stopped")
        assert self._writer is not None
        with translating(self.path):
            if self._writer.execute("PRAGMA quick_check(1)").fetchone() != ("ok",):
                raise IndexDamagedError(f"{self.path.name} is not consistent")
            self._writer.execute("INSERT INTO words (words) VALUES ('integrity-check')")

    def _disconnect(self) -> None:
        for connection in (self._reader, self._writer):
            if connection is not None:
                connection.close()
        self._reader = self._writer = None

    def _read(self, sql: str, values: list[object]) -> list[tuple[Any, ...]]:
        end_s: float = getattr(self._patience, "end_s", inf)
        with self._reading_before(end_s), translating(self.path):
            if self._reader is None or not self.lineage:
                raise IndexDamagedError(f"{self.path.name} is closed, or not built yet")
            is_over = None if end_s == inf else lambda: time.monotonic() >= end_s
            self._reader.set_progress_handler(is_over, _STEPS)
            return self._reader.execute(sql, values).fetchall()

    @contextmanager
    def _reading_before(self, end_s: float) -> Iterator[None]:
        patience_s = -1.0 if end_s == inf else max(0.0, end_s - time.monotonic())
        if not self._reading.acquire(timeout=patience_s):
            raise DeadlineExceededError("others were still reading")
        try:
            yield
        finally:
            self._reading.release()

    @contextmanager
    def _transaction(self) -> Iterator[Connection]:
        """Give the writer in a transaction, which is undone when the block raises."""
        if self._writer is None:
            raise IndexDamagedError(f"{self.path.name} is closed")
        with translating(self.path):
            self._writer.execute("BEGIN IMMEDIATE")
            try:
                yield self._writer
                self._writer.execute("COMMIT")
            except BaseException:
                if self._writer.in_transaction:
                    self._writer.execute("ROLLBACK")
                raise

    def _fill(self, records: Iterable[tuple[int, MemoryRecord]], through: int, lineage: str) -> None:
        remaining = iter(records)
        while part := list(islice(remaining, _BUILD_CHUNK)):
            with self._transaction() as connection:
                for row, record in part:
                    insert(connection, row, record)
        with self._transaction() as connection:
            put_state(connection, "applied", str(through))
            put_state(connection, "lineage", lineage)


def _rows(found: Iterable[tuple[Any, ...]]) -> Rows:
    return np.array([line[0] for line in found], dtype=np.int64)
