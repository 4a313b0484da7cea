"""The databases of a store, and a consistent snapshot of them.

Shapes: n = rows, d = dimensions of a vector, p = passages of a text.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from memory_agent.errors import StoreDamagedError
from memory_agent.records.embedded import Embedding
from memory_agent.records.memories import MemoryRecord, microseconds
from memory_agent.storage import codec, stored_runs
from memory_agent.storage.changes import Change, Changes, LogEntry, Rows, Settled, StoredWords, Words, settle
from relay import described
from relay.crypto import NAMES, OURS, PLACES, ROWS, ROWS_OF_NAMES
from relay.disk import Transaction

RECORDS, VECTORS, USAGE, PENDING = "records", "vectors", "usage", "pending"
PASSAGES, WORD_BITS = "passages", "word_bits"  # passages of long texts, and words if known
NEXT = "next_vectors"  # vectors, passages and words of another embedder, until all are computed
IDS, EVENTS, CHANGES, META = "ids", "events", "changes", "meta"
RUNS, RUN_INDEX = "runs", "run_index"
# Recalls without a run, which are pruned; recalls with a run; and an index of both.
RECALLS, RUN_RECALLS, RECALL_INDEX = "recalls", "run_recalls", "recall_index"
_RUN_DATABASES = (RUNS, RUN_INDEX, RECALLS, RUN_RECALLS, RECALL_INDEX)
OF_A_ROW = (RECORDS, VECTORS, PASSAGES, WORD_BITS, USAGE, PENDING, NEXT)
DATABASES = (*OF_A_ROW, IDS, EVENTS, CHANGES, META, *_RUN_DATABASES)
FORMS = (
    dict.fromkeys((*OF_A_ROW, CHANGES), ROWS)
    | {META: OURS}
    | dict.fromkeys((IDS, EVENTS), ROWS_OF_NAMES)
    | dict.fromkeys((RUNS, RECALLS, RUN_RECALLS), NAMES)
    | dict.fromkeys((RUN_INDEX, RECALL_INDEX), PLACES)
)
"""The encryption form of each database in an encrypted store."""

STATE_KEY = b"state"
BLOB_PREFIX = b"blob:"
_LONGEST_ROW = 8  # bytes

_states = msgspec.msgpack.Decoder(described(codec.StoreState))
_usages = msgspec.msgpack.Decoder(described(codec.Usage))


class Counts(NamedTuple):
    memories: int
    vectors: int
    words: int
    pending: int
    waiting: int  # pending memories or, during a change of model, memories without new vectors


class Snapshot:
    """One user's store at the start of a transaction. Every read may raise `StoreDamagedError`."""

    def __init__(self, transaction: Transaction) -> None:
        self._transaction = transaction
        self.state = _read_state(transaction)
        self.kept: dict[str, bytes] = {}  # a cache for blobs that never change

    def record(self, row: int, with_embedding: bool = False) -> MemoryRecord | None:
        value = self._transaction.get(RECORDS, codec.row_key(row))
        if value is None:
            return None
        return codec.decode_record(row, value, self.usage(row), self.vector(row) if with_embedding else None)

    def usage(self, row: int) -> codec.Usage:
        value = self._transaction.get(USAGE, codec.row_key(row))
        return (
            codec.Usage()
            if value is None
            else codec.decode(_usages, row, codec.without_checksum(row, value, "usage"), "usage")
        )

    def vector(self, row: int) -> Embedding | None:
        """Return the vector, (d,) float32 of unit length, or None if the row has no vector."""
        value = self._transaction.get(VECTORS, codec.row_key(row))
        return None if value is None else codec.vectors_of([codec.vector_body(row, value, self._ndim)], self._ndim)[0]

    def vectors(self, rows: Sequence[int] | Rows) -> Embedding:
        """Return the vectors, (n, d) float32 of unit length, or all zeros for a row without a vector."""
        absent = bytes(codec.vector_bytes(self._ndim))
        bodies = []
        for row in np.asarray(rows, dtype=np.int64).tolist():
            value = self._transaction.get(VECTORS, codec.row_key(row))
            bodies.append(absent if value is None else codec.vector_body(row, value, self._ndim))
        return codec.vectors_of(bodies, self._ndim)

    def passages(self, row: int) -> tuple[npt.NDArray[np.int32], Embedding] | None:
        """Return the character spans (p, 2) of a text's passages, and the vectors (p - 1, d) of all but the first, or
        None.
        """
        value = self._transaction.get(PASSAGES, codec.row_key(row))
        return None if value is None else codec.passages_of(codec.passages_body(row, value, self._ndim), self._ndim)

    def words(self, row: int) -> Words | None:
        value = self._transaction.get(WORD_BITS, codec.row_key(row))
        return (
            None if value is None else codec.words_of(codec.words_body(row, value, self._word_bytes), self._word_bytes)
        )

    def scan_words(self, after: int, limit: int) -> StoredWords:
        """Return the words of the first `limit` rows that follow row `after` and have known words."""
        pairs = list(islice(self._transaction.scan(WORD_BITS, codec.row_key(after + 1)), limit))
        rows = [codec.row_number(key) for key, _ in pairs]
        width = self._word_bytes
        bodies = [codec.words_body(row, value, width) for row, (_, value) in zip(rows, pairs, strict=True)]
        return codec.words_of_rows(rows, bodies, width)

    def row_of_id(self, record_id: str) -> int | None:
        return self._row(IDS, codec.name_key(record_id, "id"))

    def events_of(self, rows: Container[int]) -> list[str]:
        """Return the ids of all events linked to these rows, except long ids, which are stored as digests."""
        return [
            key.decode()
            for key, value in self._transaction.scan(EVENTS)
            if not key.startswith(b"\xff") and codec.row_number(value) in rows
        ]

    def row_of_event(self, event_id: str) -> int | None:
        """Return the row linked to this event, even if its memory was deleted."""
        return self._row(EVENTS, codec.name_key(event_id, "event_id"))

    def scan(self, after: int = 0) -> Iterator[tuple[int, MemoryRecord]]:
        """Yield all memories with a row greater than `after`, oldest first."""
        for key, value in self._transaction.scan(RECORDS, codec.row_key(after + 1)):
            row = codec.row_number(key)
            yield row, codec.decode_record(row, value, self.usage(row))

    def scan_vectors(self, chunk: int = 1_000) -> Iterator[tuple[Rows, Embedding]]:
        """Yield all vectors in row order, as pairs of rows (n,) and vectors (n, d) with n at most `chunk`."""
        pairs = self._transaction.scan(VECTORS)
        while part := list(islice(pairs, chunk)):
            rows = [codec.row_number(key) for key, _ in part]
            bodies = [codec.vector_body(row, value, self._ndim) for row, (_, value) in zip(rows, part, strict=True)]
            yield np.array(rows, dtype=np.int64), codec.vectors_of(bodies, self._ndim)

    def pending_rows(self, limit: int, after: int = 0) -> list[int]:
        """Return the first `limit` rows above `after` that still need a vector or words."""
        return [
            codec.row_number(key) for key, _ in islice(self._transaction.scan(PENDING, codec.row_key(after + 1)), limit)
        ]

    def counts(self) -> Counts:
        names = (RECORDS, VECTORS, WORD_BITS, PENDING, NEXT)
        memories, vectors, words, pending, replaced = map(self._transaction.count, names)
        coming = self.state.next
        # Until the next embedder is adopted, at least one memory is waiting.
        waiting = pending if coming is None else max(1, memories - replaced + coming.rejected)
        return Counts(memories, vectors, words, pending, waiting)

    def waiting_rows(self, limit: int) -> list[int]:
        """Return the first `limit` rows that are waiting to be embedded (`Counts.waiting`)."""
        return self.pending_rows(limit) if self.state.next is None else self.rows_without_next(limit)

    def rows_without_next(self, limit: int, after: int = 0) -> list[int]:
        """Return the first `limit` rows above `after` that lack a vector of the next embedder."""
        keys = (key for key, _ in self._transaction.scan_stored(RECORDS, codec.row_key(after + 1)))
        return [
            codec.row_number(key) for key in islice((k for k in keys if self._transaction.get(NEXT, k) is None), limit)
        ]

    def blob(self, name: str) -> bytes | None:
        value = self._transaction.get(META, BLOB_PREFIX + codec.name_key(name, "name"))
        return None if value is None else codec.without_checksum(0, value, f"blob {name}")

    def blobs(self, prefix: str, limit: int | None = None) -> list[str]:
        """Return the first `limit` blob names with this prefix, in sorted order; names longer than 128 bytes are
        omitted.
        """
        start = BLOB_PREFIX + codec.name_key(prefix, "prefix")
        found = self._transaction.stored_keys(META, start, start[:-1] + bytes([start[-1] + 1]))
        return [key.removeprefix(BLOB_PREFIX).decode() for key in islice(found, limit)]

    def trajectory(self, run_id: str) -> stored_runs.StoredTrajectory | None:
        known = self.run_of_key(stored_runs.trajectory_key(run_id))
        return None if known is None or known.is_forgotten else known

    def runs_named(self, name: str) -> Iterator[stored_runs.StoredTrajectory]:
        """Yield the runs that started under this id, latest first, including forgotten runs."""
        first = self.run_of_key(stored_runs.trajectory_key(name))
        began_us = None if first is None else first.last_us
        while (
            began_us is not None
            and (run := self.run_of_key(stored_runs.trajectory_key(stored_runs.again_id(name, began_us)))) is not None
        ):
            yield run
            began_us = None if run.again is None else run.again.before_us
        if first is not None:
            yield first

    def run_at(self, name: str, at_us: int) -> str:
        """Return the id of the run that `name` referred to at `at_us`."""
        run = self._run_named(name, at_us)
        return name if run is None else run.id

    def run_of(self, record: MemoryRecord) -> stored_runs.StoredTrajectory | None:
        if record.run_id is None:
            return None
        run = self._run_named(record.run_id, microseconds(record.timestamp, "timestamp"))
        return None if run is None or run.is_forgotten else run

    def _run_named(self, name: str, at_us: int) -> stored_runs.StoredTrajectory | None:
        return next((run for run in self.runs_named(name) if run.since_us <= at_us), None)

    def run_of_key(self, key: bytes) -> stored_runs.StoredTrajectory | None:
        value = self._transaction.get(RUNS, key)
        return None if value is None else stored_runs.decode_trajectory(key, value)

    def trajectories(self) -> Iterator[stored_runs.StoredTrajectory]:
        """Yield the finished runs in the order in which they first ended (`number`)."""
        return self._runs_of(self.run_keys(stored_runs.NUMBERED))

    def newest_trajectories(self) -> Iterator[stored_runs.StoredTrajectory]:
        """Yield all runs by start time, newest first."""
        return self._runs_of(self.run_keys(stored_runs.LISTED, is_newest_first=True))

    def open_trajectories(self, before_us: int | None = None) -> Iterator[stored_runs.StoredTrajectory]:
        """Yield the open runs ordered by latest event, oldest first. Runs with an event at or after `before_us`
        are omitted.
        """
        return self._runs_of(self.run_keys(stored_runs.OPEN, until_us=before_us))

    def run_keys(
        self, kind: bytes, since_us: int | None = None, until_us: int | None = None, *, is_newest_first: bool = False
    ) -> Iterator[bytes]:
        """Yield the keys of runs in the index `kind`, from `since_us` (inclusive) to `until_us` (exclusive)."""
        start = kind if since_us is None else codec.index_place(kind, since_us)
        end = codec.index_end(kind) if until_us is None else codec.index_place(kind, until_us)
        for key, _ in self._transaction.scan(RUN_INDEX, start, end, reverse=is_newest_first):
            yield codec.indexed_key(key)

    def uses(self, row: int) -> list[stored_runs.Use]:
        """Return the runs that used the memory in `row`, ordered by key."""
        found = self._transaction.scan(
            RUN_INDEX, codec.index_place(stored_runs.USING, row), codec.index_place(stored_runs.USING, row + 1)
        )
        return [stored_runs.decode_use(key, value) for key, value in found]

    def recall_note(self, recall_id: str) -> stored_runs.RecallNote | None:
        key = stored_runs.recall_key(recall_id)
        for database in (RUN_RECALLS, RECALLS):
            value = self._transaction.get(database, key)
            if value is not None:
                return stored_runs.decode_note(key, value)
        return None

    def asked_notes(self) -> Iterator[stored_runs.RecallNote]:
        """Yield the recalls that are not yet listed by their run."""
        return self._notes_between(stored_runs.ASKED, codec.index_end(stored_runs.ASKED))

    def notes_between(self, since_us: int, until_us: int) -> Iterator[stored_runs.RecallNote]:
        """Yield the recalls from `since_us` to `until_us`, both inclusive."""
        return self._notes_between(
            codec.index_place(stored_runs.RECALLED, since_us), codec.index_place(stored_runs.RECALLED, until_us + 1)
        )

    def recall_notes(self) -> Iterator[stored_runs.RecallNote]:
        return self._notes_between(stored_runs.RECALLED, codec.index_end(stored_runs.RECALLED))

    def changes_after(self, seq: int) -> Changes | None:
        """Return the merged changes after `seq`, with lazy `rows`, or None if the log starts later."""
        state = self.state
        if not state.forgotten_through <= seq <= state.last_change:
            return None
        entries = (
            codec.decode_entry(codec.row_number(k), v)
            for k, v in self._transaction.scan(CHANGES, codec.row_key(seq + 1))
        )
        return self.changes_of(seq, self.resolve(entries))

    def contents(self, after_row: int = 0) -> Changes:
        """Return all memories after row `after_row`, as changes that add them. Lazy, like `changes_after`."""
        rows = (self._change(Settled(row, "put", True, True), record) for row, record in self.scan(after_row))
        return self.changes_of(0, rows)

    def changes_of(self, after: int, rows: Iterable[Change]) -> Changes:
        state = self.state
        return Changes(after, state.last_change, rows, state.stamp or "", state.words_stamp or "")

    def resolve(self, entries: Iterable[LogEntry]) -> Iterator[Change]:
        """Merge log entries by row, and add the current state of each row."""
        return (self._resolve(settled) for settled in settle(entries))

    def _notes_between(self, start: bytes, end: bytes) -> Iterator[stored_runs.RecallNote]:
        for key, _ in self._transaction.scan(RECALL_INDEX, start, end):
            value = self._transaction.get(RUN_RECALLS, codec.indexed_key(key)) or self._transaction.get(
                RECALLS, codec.indexed_key(key)
            )
            if value is None:
                raise StoreDamagedError("the recall index names a recall that does not exist")
            yield stored_runs.decode_note(codec.indexed_key(key), value)

    def _runs_of(self, keys: Iterable[bytes]) -> Iterator[stored_runs.StoredTrajectory]:
        for key in keys:
            run = self.run_of_key(key)
            if run is None:
                raise StoreDamagedError("the run index names a run that does not exist")
            yield run

    @property
    def _ndim(self) -> int:
        return self.state.ndim or 0

    @property
    def _word_bytes(self) -> int:
        return self.state.word_bytes or 0

    def _row(self, database: str, key: bytes) -> int | None:
        value = self._transaction.get(database, key)
        if value is not None and len(value) > _LONGEST_ROW:
            raise StoreDamagedError(f"{database}: an entry is not a row number")
        return None if value is None else codec.row_number(value)

    def _resolve(self, settled: Settled) -> Change:
        record = self.record(settled.row)
        return Change(settled.row, "delete", None, None, False) if record is None else self._change(settled, record)

    def _change(self, settled: Settled, record: MemoryRecord) -> Change:
        row = settled.row
        passages = self.passages(row)
        return Change(
            row,
            settled.op,
            record,
            self.vector(row),
            settled.new_vector,
            None if passages is None else passages[1],
            self.words(row),
            settled.new_words,
        )


def _read_state(transaction: Transaction) -> codec.StoreState:
    value = transaction.get(META, STATE_KEY)
    if value is None:
        return codec.StoreState()
    return codec.decode(_states, 0, codec.without_checksum(0, value, "state"), "state")
