"""The words of one user's memories and the columns that filters need: a cache of the store's records, in SQLite.

FTS5 ranks by BM25 over stems; plain columns answer every field of a `MemoryFilter` exactly. The index is contentless
(a third of the size): removing a memory's words needs those words, so changes carry the text as it was, and passages
are marked in the records that the caller passes.

Nothing is fsynced while the file is in use; WAL keeps it consistent when the process dies. Closing writes a
clean-shutdown mark with the file's checksum. A file without a mark from before the last reboot is not trusted. Every
SQLite failure, and every change that does not fit, becomes `IndexDamagedError`; `derived` then rebuilds the file.

Rejected: filters on arrays in memory (40 bytes per memory and set of columns, all read at each open).

w = number of words, n = number of rows.
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
from memory_agent.storage import filter_sql
from memory_agent.storage.changes import Changes, IndexScores, Rows, indexed_text
from memory_agent.storage.codec import time_of
from memory_agent.storage.lexicon_schema import (
    SCHEMA,
    SCHEMA_VERSION,
    TOKENIZER,
    applied_in,
    follow,
    insert,
    insert_words,
    put_state,
)
from memory_agent.storage.sqlite_file import (
    Connection,
    boot_id,
    connect,
    connect_in_memory,
    copy_in_memory,
    engine_version,
    is_cleanly_closed,
    remove,
    set_aside,
    take_clean_mark,
    translating,
    write_clean_mark,
)
from memory_agent.storage.terms import match_expression, query_words

_BUILD_CHUNK = 1_000  # memories per transaction while building
_STEPS = 10_000  # SQLite steps between two deadline checks: 1 ms or less, without measurable cost
_PASSAGE_TOKENS = 24
_MARK = "**"

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
    """Memories with the same fingerprint: their number, first and last time in microseconds, and newest rows."""

    number: int
    first_us: int
    last_us: int
    rows: list[int]


class LexiconContents(NamedTuple):
    """What a lexicon file holds as of change `applied`: the fingerprint of each row, and the rows that have words."""

    applied: int
    lineage: str
    fingerprints: dict[int, int]
    worded: frozenset[int]


def read_contents(path: Path, secret: bytes | None = None) -> LexiconContents:
    """Read a lexicon file without changing it, for comparison with the records.

    A file in use, or left by a process that died, has no clean-shutdown mark and is read as it is. Raises
    `IndexDamagedError` when the file is missing, inconsistent or differs from its mark.
    """
    if not path.exists():
        raise IndexDamagedError(f"{path.name} is missing")
    if is_cleanly_closed(path) is False:
        raise IndexDamagedError(f"{path.name} changed since it was closed")
    with translating(path), closing(copy_in_memory(path, secret)) as copy:
        if copy.execute("PRAGMA quick_check(1)").fetchone() != ("ok",):
            raise IndexDamagedError(f"{path.name} is not consistent")
        copy.execute("INSERT INTO words (words) VALUES ('integrity-check')")
        state = dict(copy.execute("SELECT name, value FROM state"))
        return LexiconContents(
            applied=applied_in(state),
            lineage=state.get("lineage", ""),
            fingerprints=dict(copy.execute("SELECT row, fingerprint FROM memories")),
            worded=frozenset(row for (row,) in copy.execute("SELECT id FROM words_docsize")),
        )


class Lexicon:
    """The lexicon of one store. Thread-safe: searches do not wait while changes are applied."""

    def __init__(self, path: Path, secret: bytes | None = None) -> None:
        """Name the file without opening it; see `open` and `fresh`."""
        self.path = path
        self._secret = secret
        # A file of another identity is not usable: another SQLite may split words differently.
        self._identity = f"{SCHEMA_VERSION} {engine_version(secret)}"
        self._reading = threading.Lock()
        self._writing = threading.RLock()
        self._patience = threading.local()
        self._reader: Connection | None = None
        self._writer: Connection | None = None
        self._left_by: str | None = None  # boot id of the process that last used the file
        self.applied = 0
        self.lineage = ""

    @classmethod
    def open(cls, path: Path, secret: bytes | None = None) -> Self:
        """Open an existing lexicon. A `secret` of 32 bytes decrypts the file.

        Raises `IndexDamagedError` when the file is missing, untrusted or encrypted with another secret.
        """
        if not path.exists():
            raise IndexDamagedError(f"{path.name} is missing")
        was_closed = take_clean_mark(path)
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
        """Create an empty lexicon to be built; an existing file is set aside, as by `reset`."""
        lexicon = cls(path, secret)
        lexicon.reset()
        return lexicon

    def reset(self) -> None:
        """Rename the file to `….damaged` and start an empty one. Reads raise `IndexDamagedError` until `rebuild`."""
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
    ) -> tuple[Rows, IndexScores]:
        """Return at most `limit` rows that share a word with the query and pass the filter, best first, and their BM25.

        Any text is a valid query; it is taken as words only. Scores are above 0; of equal scores the later row comes
        first. With `rows` (n,), only these are searched; their scores are the same as without.
        """
        words = query_words(query_text)
        if not words or limit < 1 or (rows is not None and not len(rows)):
            return _rows(()), np.empty(0, dtype=np.float32)
        where, values = filter_sql.condition(filter)
        among, bounds = ("", []) if rows is None else filter_sql.among("words.rowid", rows)
        # CROSS JOIN fixes the order: words first. The other way round, FTS5 restarts for each row. The columns cost a
        # fifth of the search, so they are joined only under a filter.
        columns = "" if filter is None else "CROSS JOIN memories ON memories.row = words.rowid"
        found = self._read(
            f"SELECT words.rowid, -bm25(words) AS score FROM words {columns} "
            f"WHERE words MATCH ? {among} AND {where} ORDER BY score DESC, words.rowid DESC LIMIT ?",
            [match_expression(words), *bounds, *values, limit],
        )
        return _rows(found), np.array([score for _, score in found], dtype=np.float32)

    def word_hits(self, query_text: str, rows: Rows) -> npt.NDArray[np.bool_]:
        """Return (w, n): which of `rows` (n,) has which of the query's words.

        Costs a quarter of a search. Words are read one at a time, so that other readers wait for one at most: .1 ms,
        7 ms for a word that all of 100,000 memories have. Rejected: `fts5vocab`, which reads the same lists to count.
        """
        words = query_words(query_text)
        found = np.zeros((len(words), rows.size), dtype=np.bool_)
        if not rows.size:
            return found
        position = {row: place for place, row in enumerate(rows.tolist())}
        among, bounds = filter_sql.among("words.rowid", rows)
        sql = f"SELECT rowid FROM words WHERE words MATCH ? {among}"
        for number, word in enumerate(words):
            with_word = self._read(sql, [match_expression([word]), *bounds])
            found[number, [position[row] for (row,) in with_word]] = True
        return found

    def having(self, words: Iterable[str]) -> dict[str, int]:
        """Return how many memories have each of `words` (letters and digits only), in any inflection."""
        sql = "SELECT count(*) FROM words WHERE words MATCH ?"
        return {word: int(self._read(sql, [match_expression([word])])[0][0]) for word in words}

    def matching_rows(self, filter: MemoryFilter) -> Rows:
        """Return exactly the rows that pass the filter, ascending. `min_score` is left to the caller."""
        return filter_sql.matching_rows(self._read, filter)

    def passing(self, rows: Rows, filter: MemoryFilter) -> Rows:
        """Return exactly those of `rows` that pass the filter, ascending; 1 to 2 microseconds per row."""
        return filter_sql.passing(self._read, rows, filter)

    def estimate_matching(self, filter: MemoryFilter, total: int) -> tuple[int, int | None]:
        """Estimate how many of `total` memories pass the filter, and how many rows an index leaves to read.

        The second is counted and is an upper bound of what passes, or None where no index narrows; then the first comes
        from a fixed sample. Used to choose a search plan; never decides what is found.
        """
        return filter_sql.estimate_matching(self._read, filter, total)

    def count_matching(self, filter: MemoryFilter | None = None) -> int:
        """Return how many memories pass the filter, all without one."""
        where, values = filter_sql.condition(filter)
        return int(self._read(f"SELECT count(*) FROM memories WHERE {where}", values)[0][0])

    def around(self, rows: Iterable[int], reach: int) -> list[tuple[int, ...]]:
        """Return for each row itself with at most `reach` neighbours before and after it in its session, by time."""
        centres = list(rows)
        around: dict[int, list[int]] = {row: [row] for row in centres}
        for centre, row in self._read(_BEFORE, [json.dumps(centres), reach]):
            around[centre].insert(0, row)
        for centre, row in self._read(_AFTER, [json.dumps(centres), reach]):
            around[centre].append(row)
        return [tuple(around[row]) for row in centres]

    def times(self, rows: Rows) -> dict[int, int]:
        """Return the time of each row, in microseconds since 1970; unknown rows are left out."""
        sql = "SELECT row, timestamp FROM json_each(?) CROSS JOIN memories ON row = json_each.value"
        return dict(self._read(sql, [json.dumps(rows.tolist())]))

    def fingerprints(self, rows: Rows) -> dict[int, int]:
        """Return the fingerprint of each row (`lexicon_schema.record_fingerprint`); unknown rows are left out."""
        sql = "SELECT row, fingerprint FROM json_each(?) CROSS JOIN memories ON row = json_each.value"
        return dict(self._read(sql, [json.dumps(rows.tolist())]))

    def saying(
        self, fingerprints: Iterable[int], filter: MemoryFilter | None = None, newest: int = 9
    ) -> dict[int, Saying]:
        """Return, by fingerprint, the memories that have it and pass the filter; without such a memory no entry.

        `newest` bounds the rows that are listed, not the count.
        """
        where, values = filter_sql.condition(filter)
        found = self._read(_SAYING.format(where=where), [json.dumps(list(fingerprints)), *values, newest])
        said: dict[int, Saying] = {}
        for fingerprint, row, number, first, last in found:
            known = said.setdefault(fingerprint, Saying(number, first, last, []))
            known.rows.append(row)
        return said

    def count_by(self, column: str) -> dict[str, int]:
        """Return the number of memories of each `kind` or `source`. Raises `InvalidInputError` for other columns."""
        if column not in ("kind", "source"):
            raise InvalidInputError("column", f"{column!r} is neither kind nor source")
        return dict(
            self._read(
                f"SELECT name, count(*) FROM memories JOIN names ON id = {column} GROUP BY name ORDER BY name", []
            )
        )

    def time_span(self) -> tuple[datetime | None, datetime | None]:
        """Return the times of the oldest and the newest memory, None without memories."""
        oldest, newest = self._read("SELECT min(timestamp), max(timestamp) FROM memories", [])[0]
        return (None, None) if oldest is None else (time_of(oldest), time_of(newest))

    @contextmanager
    def until(self, end_s: float) -> Iterator[None]:
        """Give this thread's reads a deadline at `end_s` (monotonic); a late one raises `DeadlineExceededError`.

        So does a read that still waits for another thread's. A word search over 100,000 memories (.5 s at most) ends
        within 1.5 ms of the deadline, 8 ms at most. Short reads may still be answered after it.
        """
        self._patience.end_s = end_s
        try:
            yield
        finally:
            self._patience.end_s = inf

    def passages(self, query_text: str, records: Mapping[int, MemoryRecord]) -> dict[int, tuple[str, ...]]:
        """Return each row's best passage for the query, words **marked**; an empty tuple where no word is shared.

        The lexicon holds no text, so the given records are indexed in memory, with the same tokenizer.
        """
        words = query_words(query_text)
        if not words or not records:
            return dict.fromkeys(records, ())
        with translating(self.path), closing(connect_in_memory()) as connection:
            connection.execute(f"CREATE VIRTUAL TABLE words USING fts5 (title, text, tags, {TOKENIZER})")
            connection.execute("BEGIN")  # one transaction: half the time
            for row, record in records.items():
                insert_words(connection, row, indexed_text(record))
            found = dict(
                connection.execute(
                    "SELECT rowid, snippet(words, -1, ?, ?, '…', ?) FROM words WHERE words MATCH ?",
                    (_MARK, _MARK, _PASSAGE_TOKENS, match_expression(words)),
                )
            )
        return {row: (found[row],) if row in found else () for row in records}

    def apply(self, changes: Changes) -> None:
        """Apply a stretch of the change log, in one transaction; idempotent.

        Raises `IndexDamagedError` when it does not continue what was applied.
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
        """Rebuild from all records of a store as of change `through`, in a new file that replaces the old one.

        Searches continue on the old file meanwhile.
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
                remove(path)  # its clean-shutdown mark
                self._connect()

    def compact(self) -> None:
        """Merge the FTS5 segments, so that removed words leave the file too."""
        with self._writing, self._transaction() as connection:
            connection.execute("INSERT INTO words (words) VALUES ('optimize')")

    def close(self) -> None:
        """Close, with a clean-shutdown mark unless the file is damaged. Idempotent."""
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
            with suppress(OSError):  # without a mark the next open checks the file more closely
                write_clean_mark(self.path)

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
        """Check a file that a process left without closing it."""
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
            raise DeadlineExceededError("other reads were still running")
        try:
            yield
        finally:
            self._reading.release()

    @contextmanager
    def _transaction(self) -> Iterator[Connection]:
        """Yield the writing connection in a transaction, rolled back when the block raises."""
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
