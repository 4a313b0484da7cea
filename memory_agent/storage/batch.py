"""One atomic write to a store. A batch reads its own writes, and logs each change for the columns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from itertools import takewhile
from secrets import randbits

import msgspec
import numpy as np

from memory_agent.errors import InvalidInputError
from memory_agent.records.embedded import Embedded, Embedding, of_vector
from memory_agent.records.memories import MemoryRecord, microseconds
from memory_agent.records.metadata import numbers_of
from memory_agent.storage import codec, stored_runs
from memory_agent.storage.changes import Changes, LogEntry, Op, Words, texts_of
from memory_agent.storage.snapshot import (
    BLOB_PREFIX,
    CHANGES,
    EVENTS,
    IDS,
    META,
    NEXT,
    OF_A_ROW,
    PASSAGES,
    PENDING,
    RECALL_INDEX,
    RECALLS,
    RECORDS,
    RUN_INDEX,
    RUN_RECALLS,
    RUNS,
    STATE_KEY,
    USAGE,
    VECTORS,
    WORD_BITS,
    Snapshot,
)
from relay.disk import Transaction

Touches = Mapping[int, tuple[int, datetime]]

_LEAST_NEXT_BYTES = 32  # any vector takes more bytes; a shorter value marks a rejected text
_MOST_BARE = 0.1
_MEAN_QUERY = "centering"


class Batch(Snapshot):
    """Changes that become durable together when the `with` block of `Store.batch` ends.

    `changes` is then set for the columns to apply. Invalid input raises `InvalidInputError`. An exception that leaves
    the block rolls back the whole batch.
    """

    def __init__(self, transaction: Transaction, require_room: Callable[[Transaction], None]) -> None:
        super().__init__(transaction)
        self.changes = Changes(self.state.last_change, self.state.last_change, ())
        self._require_room = require_room
        self._has_room = False
        self._takes_words = False
        self._entries: list[LogEntry] = []
        self.taught: list[str | None] = []

    def put(self, record: MemoryRecord, vector: Embedded | Embedding | None) -> int:
        """Add a memory and return its row. Row numbers only increase and are never reused.

        For a known event, adds nothing and returns its row, even if the memory was deleted. Ignores `record.embedding`.
        `vector` is the model's output for the text, or only the vector (d,) of that output, or None to set it later.
        Further passages and words are stored only after `set_words_stamp`.
        """
        if record.event_id is not None and (known := self.row_of_event(record.event_id)) is not None:
            return known
        if self.row_of_id(record.id) is not None:
            raise InvalidInputError("id", f"{record.id} is already stored")
        self._check_room()
        row = self.state.next_row
        value, values = codec.encode_record(row, record), self._encoded(row, record.text, vector)
        self._write(RECORDS, row, value)
        self._transaction.put(IDS, codec.name_key(record.id, "id"), codec.short_row(row), append=True)
        self.state.next_row = row + 1
        if record.event_id is not None:
            self.link_event(record.event_id, row)
        if codec.usage_of(record) != codec.Usage():
            self._write_usage(row, codec.usage_of(record))
        self._write_embedded(row, values)
        self._settle_pending(row)
        self._log("put", row)
        return row

    def put_stored(
        self, record: MemoryRecord, vector: bytes | None, passages: bytes | None = None, words: bytes | None = None
    ) -> int:
        """Like `put`, but add a memory whose values another store has encoded."""
        row = self.put(record, None)
        bodies = {VECTORS: vector, PASSAGES: passages, WORD_BITS: words}
        self._write_embedded(
            row, {name: codec.with_checksum(row, body) for name, body in bodies.items() if body is not None}
        )
        if vector is not None:
            self.state.ndim = len(vector) // 2
        if passages is not None or words is not None:
            self.state.format = codec.FORMAT
        self._settle_pending(row)
        return row

    def allot_row(self) -> int:
        """Return a new row that stays empty, for events without a memory."""
        self._check_room()
        self.state.next_row += 1
        return self.state.next_row - 1

    def link_keys(self, keys: Iterable[bytes], row: int) -> None:
        """Link the events with these keys to `row`, except those already known."""
        for key in keys:
            if self._transaction.get(EVENTS, key) is None:
                self._transaction.put(EVENTS, key, codec.short_row(row))

    def knows_event(self, key: bytes) -> bool:
        return self._transaction.get(EVENTS, key) is not None

    def link_event(self, event_id: str, row: int) -> None:
        """Link an event to the memory in `row`, so that a repeated event is recognised."""
        self._transaction.put(EVENTS, codec.name_key(event_id, "event_id"), codec.short_row(row), append=True)

    def set_vector(self, row: int, vector: Embedded | Embedding | None) -> None:
        """Set or replace the vectors and words of the memory in `row`. None leaves the memory without a vector."""
        record = self._require_row(row)
        self._check_room()
        before = [self._transaction.get(database, codec.row_key(row)) for database in (VECTORS, PASSAGES, WORD_BITS)]
        self._write_embedded(row, self._encoded(row, record.text, vector))
        self._transaction.delete(NEXT, codec.row_key(row))  # the text may be new
        self._settle_pending(row)
        after = [self._transaction.get(database, codec.row_key(row)) for database in (VECTORS, PASSAGES, WORD_BITS)]
        if before[:2] == after[:2]:
            if before != after:
                self._log("words", row)
        else:
            if self.state.next_number > 1:  # a finished run may have begun with this memory or used it
                self.change_lessons()
            self._log("vector", row)

    def update(self, record: MemoryRecord) -> int:
        """Replace the memory that has the record's id, but keep its vector; return its row."""
        row = self.row_of_id(record.id)
        old = None if row is None else self.record(row)
        if row is None or old is None:
            raise InvalidInputError("id", f"{record.id} is not stored")
        if codec.usage_of(record) != codec.usage_of(old):
            self._write_usage(row, codec.usage_of(record))
        value = codec.encode_record(row, record)
        if value != self._transaction.get(RECORDS, codec.row_key(row)):
            self._check_room()
            self._transaction.put(RECORDS, codec.row_key(row), value)
            is_reworded = texts_of(old) != texts_of(record)  # 1 and True are equal in Python, but not in metadata
            is_reworded = is_reworded or numbers_of(old.metadata) != numbers_of(record.metadata)
            self._log("reword" if is_reworded else "update", row)
        return row

    def upsert(self, record: MemoryRecord, vector: Embedded | Embedding | None) -> MemoryRecord:
        """Like `put`, but replace any memory with the same id; return the stored record.

        A replaced memory keeps its event and usage, and its vector if its texts are unchanged. Otherwise it gets
        `vector`, or waits for one.
        """
        row = self.row_of_id(record.id)
        old = None if row is None else self.record(row)
        if row is None or old is None:
            self.put(record, vector)
            return record
        record = _in_place_of(old, record)
        self.update(record)
        is_reworded = texts_of(record) != texts_of(old)
        if is_reworded or (vector is not None and self.vector(row) is None):
            self.set_vector(row, vector)
        return record

    def delete(self, row: int) -> bool:
        """Delete a memory, even if the disk is full; return whether it existed. Its events remain known."""
        record = self.record(row)
        if record is None:
            return False
        for database in OF_A_ROW:
            self._transaction.delete(database, codec.row_key(row))
        self._transaction.delete(IDS, codec.name_key(record.id, "id"))
        self._log("delete", row)
        return True

    def count(self, counter: str, by: int = 1) -> None:
        """Increase a counter, such as `kept` or `dropped.<reason>`."""
        self.state.counters[counter] = self.state.counters.get(counter, 0) + by

    def count_among(self, group: str, name: str, by: int, most: int) -> None:
        """Increase the counter `<group>.<name>`, or `<group>.*` if the group already has `most` names."""
        counter = f"{group}.{name}"
        if (
            counter not in self.state.counters
            and sum(key.startswith(f"{group}.") for key in self.state.counters) >= most
        ):
            counter = f"{group}.*"
        self.count(counter, by)

    def set_blob(self, name: str, value: bytes | None) -> None:
        key = BLOB_PREFIX + codec.name_key(name, "name")
        if value is None:
            self._transaction.delete(META, key)
        else:
            self._transaction.put(META, key, codec.with_checksum(0, value))

    def set_stamp(self, stamp: str) -> None:
        """Set the stamp of the embedder that computed the vectors. If it changes, all vectors and words are dropped."""
        if self.state.stamp not in (None, stamp):
            self._drop_vectors()
        self.state.stamp = stamp

    def set_words_stamp(self, stamp: str) -> None:
        """Set the version of the words, and allow this batch to store them. If it changes, all words are dropped."""
        if self.state.words_stamp != stamp:
            self.set_blob(_MEAN_QUERY, None)
            self._transaction.clear(WORD_BITS)
            self.state.word_bytes, self.state.words_stamp = None, stamp
            self._await_all()
        self._takes_words = True

    def begin_next(self, stamp: str, words_stamp: str) -> None:
        if self.state.next is None or self.state.next.stamp != stamp:
            self.drop_next()
            self.state.next = codec.NextVectors(stamp=stamp, words_stamp=words_stamp)
        for key in self._bare_keys() if self.state.next.rejected else ():
            self._transaction.delete(NEXT, key)
        self.state.next.rejected = 0

    def put_next(self, row: int, found: Embedded | None) -> None:
        """Store a memory's vectors from the next embedder, or None if that embedder rejects the text."""
        self._require_row(row)
        self._check_room()
        of = self.state.next
        if of is None:
            raise InvalidInputError("row", "there is no next embedder")
        values = dict[str, bytes]()
        if found is not None:
            shape = (of.ndim, of.word_bytes)
            values, of.ndim, of.word_bytes = _encode(row, found, *shape, takes_words=bool(of.words_stamp))
        self._write(NEXT, row, codec.with_checksum(row, msgspec.msgpack.encode(values)))

    def adopt_next(self) -> bool:
        """Replace all vectors with those of the next embedder and return True, or return False if any is missing.

        Memories with a rejected text become pending. If more than a tenth of all memories would become pending, the
        current vectors are kept instead, and `state.next.rejected` is set.
        """
        of = self.state.next
        if of is None or self.rows_without_next(1):
            return False
        bare = len(self._bare_keys())
        of.rejected = bare if bare > _MOST_BARE * self._transaction.count(NEXT) else 0
        if of.rejected:
            return False
        self._check_room()
        self._drop_vectors()
        self._transaction.clear(PENDING)
        self.state.stamp, self.state.words_stamp = of.stamp, of.words_stamp or None
        self.state.ndim, self.state.word_bytes = of.ndim, of.word_bytes
        for key, value in self._transaction.scan(NEXT):
            row = codec.row_number(key)
            if self._transaction.get(RECORDS, key) is None:  # deleted by an earlier version
                continue
            body = codec.without_checksum(row, value, NEXT)
            for database, encoded in msgspec.msgpack.decode(body, type=dict[str, bytes]).items():
                self._write(database, row, encoded)
            self._settle_pending(row)
        self.state.format = codec.FORMAT if of.words_stamp else self.state.format
        self.drop_next()
        return True

    def _bare_keys(self) -> list[bytes]:
        """Return the keys of the memories whose text the next embedder rejects."""
        return [key for key, value in self._transaction.scan(NEXT) if len(value) < _LEAST_NEXT_BYTES]

    def drop_next(self) -> None:
        self._transaction.clear(NEXT)
        self.state.next = None

    def forget_changes_through(self, seq: int) -> None:
        """Delete the change log up to and including change `seq`."""
        old = [key for key, _ in self._transaction.scan(CHANGES) if codec.row_number(key) <= seq]
        for key in old:
            self._transaction.delete(CHANGES, key)
        self.state.forgotten_through = min(max(self.state.forgotten_through, seq), self.state.last_change)

    def touch(self, touches: Touches) -> None:
        """Add recalls to the usage of memories, as `row -> (count, last time)`."""
        for row, (times, now) in touches.items():
            if self._transaction.get(RECORDS, codec.row_key(row)) is not None:
                usage = self.usage(row)
                recalled = max(microseconds(now, "now"), usage.last_recalled_us or 0)
                self._write_usage(
                    row, codec.Usage(usage.times_recalled + times, recalled, usage.used, usage.reward_sum)
                )

    def set_utility(self, row: int, used: int, reward_sum: float) -> None:
        old = self.usage(row)
        new = codec.Usage(old.times_recalled, old.last_recalled_us, used, reward_sum)
        if new != old and self._transaction.get(RECORDS, codec.row_key(row)) is not None:
            self._write_usage(row, new)

    def put_trajectory(self, run: stored_runs.StoredTrajectory) -> stored_runs.StoredTrajectory:
        """Store a run and return it; its `number` is assigned when it first ends."""
        key = stored_runs.trajectory_key(run.id)
        old = self.run_of_key(key)
        if run.number is None and old is not None:
            run = msgspec.structs.replace(run, number=old.number)
        if run.number is None and run.ended_us is not None:
            run = msgspec.structs.replace(run, number=self.state.next_number)
            self.state.next_number += 1
        if old == run:
            return run
        self._check_room()
        self._transaction.put(RUNS, key, stored_runs.encode_trajectory(run))
        self._index_run(old, run)
        return run

    def delete_trajectory(self, run_id: str) -> None:
        key = stored_runs.trajectory_key(run_id)
        old = self.run_of_key(key)
        self._transaction.delete(RUNS, key)
        self._index_run(old, None)

    def put_note(self, note: stored_runs.RecallNote) -> None:
        """Store a recall's note. Notes of a run are not pruned."""
        self.delete_note(note.recall_id)
        database = RECALLS if note.run_id is None else RUN_RECALLS
        self._transaction.put(database, stored_runs.recall_key(note.recall_id), stored_runs.encode_note(note))
        for entry, value in stored_runs.note_entries(note).items():
            self._transaction.put(RECALL_INDEX, entry, value)

    def delete_note(self, recall_id: str) -> None:
        old = self.recall_note(recall_id)
        if old is not None:
            self._transaction.delete(RECALLS if old.run_id is None else RUN_RECALLS, stored_runs.recall_key(recall_id))
            for entry in stored_runs.note_entries(old):
                self._transaction.delete(RECALL_INDEX, entry)

    def take_notes(self, notes: Iterable[stored_runs.RecallNote]) -> None:
        """Store new recall notes."""
        for note in notes:
            if self.recall_note(note.recall_id) is None:
                self.put_note(note)
                self.count(f"served.{note.served}")
                if note.items:
                    self.count(stored_runs.SHOWED_ITEMS)

    def prune_notes(self, keep: int, oldest_us: int) -> int:
        """Delete notes without a run that are older than `oldest_us` or not among the newest `keep`; return their
        number.
        """
        excess = max(self.waiting_count - keep, 0)
        notes = (stored_runs.decode_note(key, value) for key, value in self._transaction.scan(RECALLS))
        numbered = takewhile(lambda pair: pair[0] < excess or pair[1].at_us < oldest_us, enumerate(notes))
        doomed = [note.recall_id for _, note in numbered]
        for recall_id in doomed:
            self.delete_note(recall_id)
        return len(doomed)

    @property
    def waiting_count(self) -> int:
        return self._transaction.count(RECALLS)

    def change_lessons(self, run_id: str | None = None) -> None:
        """Record a change to the lessons of a run or, without an id, to the lessons that belong to no run."""
        self.state.lessons_version += 1
        self.state.lessons_mark = randbits(62)  # a restored backup may reach the same version, but has a different mark
        self.taught.append(run_id)

    def finish(self) -> None:
        """Write the state and set `changes`, before the commit."""
        self._transaction.put(META, STATE_KEY, codec.encode_checked(0, self.state))
        after = self.state.last_change - len(self._entries)  # dropping vectors raises `last_change` without an entry
        self.changes = self.changes_of(after, tuple(self.resolve(self._entries)))

    def _index_run(self, old: stored_runs.StoredTrajectory | None, new: stored_runs.StoredTrajectory | None) -> None:
        before = {} if old is None else stored_runs.index_entries(old)
        after = {} if new is None else stored_runs.index_entries(new)
        for entry in before.keys() - after.keys():
            self._transaction.delete(RUN_INDEX, entry)
        for entry, value in sorted(after.items()):
            if before.get(entry) != value:
                self._transaction.put(RUN_INDEX, entry, value)
        if (old.lesson if old is not None else ()) != (new.lesson if new is not None else ()):
            self.change_lessons(run_id=None if (run := new or old) is None else run.id)

    def use_reserve(self) -> None:
        """Let this batch use the space reserved for deletions."""
        self._has_room = True

    def _check_room(self) -> None:
        """Check for room once per batch. Not called for deletions, which must work on a full disk."""
        if not self._has_room:
            self._require_room(self._transaction)
            self._has_room = True

    def _require_row(self, row: int) -> MemoryRecord:
        record = self.record(row)
        if record is None:
            raise InvalidInputError("row", f"{row} has no memory")
        return record

    def _write(self, database: str, row: int, value: bytes) -> None:
        self._transaction.put(database, codec.row_key(row), value, append=True)

    def _write_embedded(self, row: int, values: Mapping[str, bytes]) -> None:
        for database in (VECTORS, PASSAGES, WORD_BITS):
            if database in values:
                self._write(database, row, values[database])
            else:
                self._transaction.delete(database, codec.row_key(row))

    def _encoded(self, row: int, text: str, vector: Embedded | Embedding | None) -> dict[str, bytes]:
        """Return the stored vector, words and passages of a text, by database. Raises `InvalidInputError`."""
        if vector is None:
            return {}
        found = vector if isinstance(vector, Embedded) else of_vector(text, np.asarray(vector))
        shape = (self.state.ndim, self.state.word_bytes)
        values, self.state.ndim, self.state.word_bytes = _encode(row, found, *shape, takes_words=self._takes_words)
        self.state.format = codec.FORMAT if self._takes_words else self.state.format
        return values

    def _settle_pending(self, row: int) -> None:
        wanted = (VECTORS,) if self.state.words_stamp is None else (VECTORS, WORD_BITS)
        if all(self._transaction.get(database, codec.row_key(row)) is not None for database in wanted):
            self._transaction.delete(PENDING, codec.row_key(row))
        else:
            self._write(PENDING, row, b"")

    def _write_usage(self, row: int, usage: codec.Usage) -> None:
        self._transaction.put(USAGE, codec.row_key(row), codec.encode_checked(row, usage))

    def _await_all(self) -> None:
        self._transaction.clear(PENDING)
        keys = ((key, b"") for key, _ in self._transaction.scan_stored(RECORDS))  # row keys are not encrypted
        self._transaction.append_all(PENDING, list(keys))

    def _drop_vectors(self) -> None:
        for database in (VECTORS, PASSAGES, WORD_BITS):
            self._transaction.clear(database)
        self._await_all()
        self.state.ndim = self.state.word_bytes = self.state.words_stamp = None
        # The gap in the log forces a rebuild of the columns, because this change cannot be applied to them row by row.
        self.state.last_change += 1
        self.state.forgotten_through = self.state.last_change
        self._entries.clear()

    def _log(self, op: Op, row: int) -> None:
        entry = LogEntry(op, row)
        self.state.last_change = change = self.state.last_change + 1
        self._entries.append(entry)
        self._write(CHANGES, change, codec.encode_entry(change, entry))


def _encode(
    row: int, found: Embedded, ndim: int | None, word_bytes: int | None, *, takes_words: bool
) -> tuple[dict[str, bytes], int, int | None]:
    """Return a text's values by database, the vectors' dimension, and the number of bytes per word. Raises
    `InvalidInputError`.
    """
    first, *further = (codec.unit_vector(one, ndim) for one in found.vectors)
    values = {VECTORS: codec.encode_vector(row, first)}
    if takes_words:
        width = found.word_bits.shape[1]
        if not width or word_bytes not in (None, width):
            raise InvalidInputError("words", f"have {width} bytes each, expected {word_bytes}")
        values[WORD_BITS] = codec.encode_words(row, Words(found.word_bits, found.length))
        if further:
            values[PASSAGES] = codec.encode_passages(row, found.spans, np.stack(further))
        word_bytes = width
    return values, int(first.size), word_bytes


def is_same(record: MemoryRecord, old: MemoryRecord) -> bool:
    """Whether upserting `record` would change nothing in `old` except `updated_at`."""
    return msgspec.structs.replace(_in_place_of(old, record), updated_at=old.updated_at) == old


def _in_place_of(old: MemoryRecord, record: MemoryRecord) -> MemoryRecord:
    return msgspec.structs.replace(
        record,
        event_id=old.event_id,
        times_recalled=old.times_recalled,
        last_recalled_at=old.last_recalled_at,
        utility=old.utility,
    )
