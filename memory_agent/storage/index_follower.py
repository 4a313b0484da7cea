"""Keeps a user's index in another engine up to date with the store, even across crashes and outages of the engine.

After each batch, the missing changes are applied from the change log. If the log does not reach back far enough, or if
the index belongs to another store or model, the index is filled from the records. If the engine fails, batches
continue, and a thread retries. Until the index is complete, recall uses only words.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from itertools import islice
from pathlib import Path

import msgspec
import numpy as np
from ulid import ULID

from memory_agent import errors, indexes
from memory_agent.records.embedded import Embedding
from memory_agent.records.memories import MemoryRecord, microseconds
from memory_agent.settings import StoreSettings
from memory_agent.storage.changes import Change, Rows
from memory_agent.storage.environment import UserKey, open_records
from memory_agent.storage.snapshot import Snapshot
from memory_agent.storage.store import Store
from relay import described
from relay.log import log

ENGINE_BLOB = "index.engine"  # the blob that names the engine of a user's index, if it is not the built-in one

_LEFT_BLOB = "index.left"  # set while a database may contain an unused table for the user

_OPENINGS_BLOB = "index.openings"
_MOST_OPENINGS = 32  # number of former openings kept; an index with an older opening is refilled

_STEP = 500  # memories written at once: 1 MB
_OPENING_S = 1.0  # how long opening a store waits for the index
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 60.0

Report = Callable[[int, int], None]


class _Openings(msgspec.Struct, frozen=True, array_like=True):
    """Identifies each opening of a store that has an index. A store and its copy share only the changes made before the
    copy. Therefore, `former` lists each earlier opening with the number of its last change.
    """

    present: str = ""
    former: tuple[tuple[str, int], ...] = ()

    def include(self, position: indexes.Position) -> bool:
        """Whether every change that an index includes is also in this store."""
        return position.opening == self.present or any(
            position.opening == one and position.applied <= last_change for one, last_change in self.former
        )

    def next(self, last_change: int, others: str) -> _Openings:
        """Return the openings with a new one added: a ULID of the current time that is greater than `present` and
        `others`.
        """
        least = max(self.present, others)
        name = max(str(ULID()), str(ULID.from_int(int(ULID.from_str(least)) + 1)) if least else "")
        former = (*self.former, (self.present, last_change)) if self.present else ()
        return _Openings(name, former[-_MOST_OPENINGS:])


_openings = msgspec.msgpack.Decoder(described(_Openings))


class IndexFollower:
    """An index and the store that it is derived from. Thread-safe."""

    def __init__(self, store: Store, index: indexes.VectorIndex) -> None:
        """Does not use the engine yet. Call `start`."""
        self.index = index
        self.is_behind = True
        self.failure: errors.MemoryAgentError | None = None
        self._store = store
        self._writing = threading.Lock()
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None
        self._openings: _Openings | None = None  # None until the engine has answered for the first time
        self._closing = threading.Event()
        self._tried = threading.Event()  # set when the index has been brought up to date or has failed

    @property
    def is_approximate(self) -> bool:
        return self.index.is_approximate

    def start(self) -> None:
        """Bring the index up to date in a thread, and wait briefly for it to finish."""
        self._try_again()
        self._tried.wait(_OPENING_S)

    def follow(self) -> None:
        """Apply missing changes, or leave them to the thread if the engine fails or the index is large."""
        if self.is_behind:
            return
        try:
            self._bring_up(fills=self._store.counts().memories <= _STEP)
        except errors.MemoryAgentError as error:
            self._fail(error)
        if self.is_behind or self.index.is_due:
            self._try_again()

    def fill(self, report: Report | None = None) -> None:
        """Fill the index from the records or resume an interrupted fill, and compact it. Raises the engine's errors."""
        self._bring_up(report)
        self.index.compact()

    def refill(self) -> None:
        """Refill the index from the records. Raises the engine's errors."""
        self.is_behind = True
        with self._writing:
            self._begin_opening()
            with self._store.snapshot() as snapshot:
                self.index.begin(msgspec.structs.replace(position_of(snapshot), filled=0))
        self._bring_up()

    def nearest(
        self, query: Embedding, limit: int, where: indexes.Where = indexes.EVERYTHING, timeout_s: float | None = None
    ) -> indexes.Hits:
        """Return the nearest passages. Raises `IndexUnusableError` and `IndexUnavailableError` (also on timeout)."""
        if self.is_behind:
            reason = "it is being filled" if self.failure is None else str(self.failure)
            raise errors.IndexUnavailableError(self.index.name, reason)
        try:
            return self.index.search(query, limit, where, timeout_s)
        except TimeoutError as error:  # not a failure of the engine: other searches may wait longer
            raise errors.IndexUnavailableError(self.index.name, "it did not answer in time") from error
        except errors.MemoryAgentError as error:
            if not isinstance(error, errors.InvalidInputError):
                self._fail(error)
                self._try_again()
            raise

    def vectors(self, rows: Rows) -> Embedding:
        """Return the stored vectors (m, d) of the first passages, or zeros for a row without a vector."""
        with self._store.snapshot() as snapshot:
            return snapshot.vectors(rows)

    def further(self, rows: Rows) -> list[Embedding]:
        if not len(rows):
            return []
        with self._store.snapshot() as snapshot:
            found = [snapshot.passages(row) for row in rows.tolist()]
            none = snapshot.vectors([])
        return [none if one is None else one[1] for one in found]

    def purge(self) -> None:
        """Remove the bytes of deleted entries. Raises the engine's errors, even while the index is behind."""
        self._bring_up()
        self.index.compact()

    def close(self) -> None:
        """Stop the thread, and release the engine. Idempotent."""
        self._closing.set()
        self.index.interrupt()
        with self._starting:
            thread = self._thread
        if thread is not None:
            thread.join()
        with suppress(errors.MemoryAgentError):
            self.index.close()

    def _bring_up(self, report: Report | None = None, *, fills: bool = True) -> None:
        with self._writing:
            while not self._closing.is_set():
                try:
                    is_complete = self._apply()
                except errors.IndexDamagedError:
                    self.index.clear()
                    is_complete = False
                if not (is_complete or fills):
                    self.is_behind = True
                    return
                if not is_complete:
                    self._fill(report)
                    continue
                self.is_behind, self.failure = False, None
                self._tried.set()
                position = self.index.position  # a batch that read `is_behind` as true left its changes to this thread
                if position is not None and position.applied >= self._store.state.last_change:
                    return

    def _begin_opening(self) -> _Openings:
        if self._openings is None:
            stored, position = self._store.blob(_OPENINGS_BLOB), self.index.position
            known = _Openings() if stored is None else _openings.decode(stored)
            openings = known.next(self._store.state.last_change, "" if position is None else position.opening)
            with self._store.batch() as batch:
                batch.set_blob(_OPENINGS_BLOB, msgspec.msgpack.encode(openings))
            self._openings = openings
        return self._openings

    def _apply(self) -> bool:
        """Apply the missing changes; return False if the index must be filled instead."""
        openings, position = self._begin_opening(), self.index.position
        with self._store.snapshot() as snapshot:
            target = position_of(snapshot)
            if position is None or position.filled is not None or not position.is_of(target):
                return False
            changes = snapshot.changes_after(position.applied) if openings.include(position) else None
            if changes is None:
                return False
            if position.opening != openings.present:
                position = msgspec.structs.replace(position, opening=openings.present)
                self.index.index([], position)
            rows = iter(changes.rows)
            while part := list(islice(rows, _STEP)):
                self.index.delete([change.row for change in part if change.record is None or change.vector is None])
                self.index.index(list(_entries(part)), position)
        if target.applied > position.applied:
            self.index.index([], target)
        return True

    def _fill(self, report: Report | None) -> None:
        """Copy all records, or continue a copy after a crash. Then apply the changes since the copy began."""
        openings, position = self._begin_opening(), self.index.position
        with self._store.snapshot() as snapshot:
            target, total = msgspec.structs.replace(position_of(snapshot), filled=0), snapshot.counts().memories
            can_continue = position is not None and position.filled is not None and position.is_of(target)
            can_continue = can_continue and position is not None and openings.include(position)
            if position is None or not can_continue or snapshot.changes_after(position.applied) is None:
                position = target
                self.index.begin(position)
            position = msgspec.structs.replace(position, opening=openings.present)
        done = self.index.count()
        while not self._closing.is_set():
            with self._store.snapshot() as snapshot:
                part = list(islice(snapshot.contents(position.filled or 0).rows, _STEP))
            filled = part[-1].row if part else None
            position = msgspec.structs.replace(position, filled=filled)
            self.index.index(list(_entries(part)), position)
            if filled is None:
                return
            done += len(part)
            if report is not None:
                report(min(done, total), total)

    def _fail(self, error: errors.MemoryAgentError) -> None:
        if not self.is_behind or self.failure is None:
            log.warning("index.failed", engine=self.index.name, error=type(error).__name__)
        self.is_behind, self.failure = True, error
        self._tried.set()

    def _try_again(self) -> None:
        with self._starting:
            if not self._closing.is_set() and (self._thread is None or not self._thread.is_alive()):
                self._thread = threading.Thread(target=self._keep_trying, name="index-follow")
                self._thread.start()

    def _keep_trying(self) -> None:
        pause_s = _FIRST_PAUSE_S
        while self.is_behind and not self._closing.is_set():
            try:
                self._bring_up()
            except errors.MemoryAgentError as error:
                self._fail(error)
                self._closing.wait(pause_s)
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        if self.index.is_due and not self._closing.is_set():
            try:
                self.index.compact()
            except errors.MemoryAgentError as error:  # searches still work, and the next batch tries again
                log.warning("index.not_compacted", engine=self.index.name, error=type(error).__name__)


def position_of(snapshot: Snapshot) -> indexes.Position:
    """Return the position that an index has once it includes all changes to a store."""
    state, stored = snapshot.state, snapshot.blob(_OPENINGS_BLOB)
    return indexes.Position(
        lineage=state.lineage,
        stamp=state.stamp or "",
        ndim=state.ndim or 0,
        applied=state.last_change,
        opening="" if stored is None else _openings.decode(stored).present,
    )


def _entries(changes: list[Change]) -> Iterator[indexes.Entry]:
    for change in changes:
        if change.record is not None and change.vector is not None:
            yield _entry(change.row, change.record, change.vector, change.passages)


def _entry(row: int, record: MemoryRecord, vector: Embedding, further: Embedding | None) -> indexes.Entry:
    names = (record.kind, record.source, record.session_id, record.run_id, record.channel_id, record.agent_id)
    vectors = vector[None] if further is None else np.concatenate([vector[None], further])
    return indexes.Entry(row, vectors, names, microseconds(record.timestamp, "timestamp"))


def open_follower(store: Store, of: indexes.IndexOf) -> IndexFollower | None:
    """Open the index named in a store, or the index named in the settings if the store has no memories. Returns None
    for the built-in index.
    """
    of, engine = with_key(of, store.key), engine_of(store)
    if engine == "builtin" and of.settings.engine != engine and not store.counts().memories:
        engine = of.settings.engine
        indexes.open_index(engine, of).close()  # raises if the settings contradict each other
        name_engine(store, engine)
    return None if engine == "builtin" else IndexFollower(store, indexes.open_index(engine, of))


def engine_of(store: Store) -> str:
    with store.snapshot() as snapshot:
        return engine_named(snapshot)


def engine_in(folder: Path, settings: StoreSettings, key: UserKey | None) -> str:
    """Return the engine of a user's index, even while the owner is running. Raises as `open_records`."""
    with closing(open_records(folder, settings, key)) as environment, environment.read() as transaction:
        return engine_named(Snapshot(transaction))


def engine_named(snapshot: Snapshot) -> str:
    named = snapshot.blob(ENGINE_BLOB)
    return "builtin" if named is None else named.decode()


def with_key(of: indexes.IndexOf, key: UserKey | None) -> indexes.IndexOf:
    """Return `of` with the file key if the store is encrypted. Raises `EncryptionKeyMissingError`."""
    return of._replace(secret=None if key is None else key.cipher("index").file_key)


def name_engine(store: Store, engine: str) -> None:
    """Record the engine of a store's index. Durable on return."""
    with store.batch() as batch:
        former = batch.blob(ENGINE_BLOB)
        batch.set_blob(ENGINE_BLOB, None if engine == "builtin" else engine.encode())
        if indexes.SHARED in (engine, (former or b"").decode()):
            batch.set_blob(_LEFT_BLOB, None if engine == indexes.SHARED else b"1")


def note_left(store: Store, engine: str) -> None:
    """Record that an unused index is going to be filled. Durable on return."""
    if engine == indexes.SHARED and engine_of(store) != engine:
        with store.batch() as batch:
            batch.set_blob(_LEFT_BLOB, b"1")


def remove_left(store: Store, of: indexes.IndexOf) -> None:
    """Remove what a migration left in a database. Raises `IndexUnavailableError` and `IndexUnusableError`."""
    if store.blob(_LEFT_BLOB) is None:
        return
    if not of.settings.url:
        reason = "it may contain vectors of an interrupted migration, and index.url is empty"
        raise errors.IndexUnusableError(indexes.SHARED, reason, "set index.url, and keep it set until they are removed")
    indexes.forget_user(of.settings, of.user_id)
    with store.batch() as batch:
        batch.set_blob(_LEFT_BLOB, None)
