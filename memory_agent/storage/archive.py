"""Opens, writes, rebuilds and closes one user's store together with the columns derived from it.

Batches are applied to the columns one at a time, after they are durable. Columns that cannot apply a batch are rebuilt,
in the background if the store is large. Meanwhile, searches use the partial view.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Self

import numpy as np

from memory_agent.errors import MemoryAgentError, StoreError
from memory_agent.indexes import IndexOf
from memory_agent.records.memories import MemoryFilter, MemoryStats
from memory_agent.settings import StoreSettings
from memory_agent.storage import derived
from memory_agent.storage.batch import Batch
from memory_agent.storage.changes import Changes
from memory_agent.storage.columns import Columns
from memory_agent.storage.environment import UserKey
from memory_agent.storage.index_follower import IndexFollower, engine_of, open_follower, remove_left
from memory_agent.storage.snapshot import Counts, Snapshot
from memory_agent.storage.store import Store
from memory_agent.storage.view import View
from relay.disk import OnCommit, Role
from relay.locks import ReadWriteLock

_FAILURES = (MemoryAgentError, OSError, MemoryError)
_SAVED_AT_LEAST_EVERY = 10_000  # number of changes; the next open applies half as many in 0.3 s
_SAVED_SHARE = 1 / 8  # share of the memories, if this is a larger number; a save writes 150 MB per 100,000 memories
_WORDS_AT_ONCE = 20_000  # memories whose words are loaded before opening returns: 60 ms (100,000 take 0.3 s)
_WORDS_STEP = 2_000  # memories whose words are loaded while batches wait: 8 ms
_UNSAVED_AT_CLOSE = 200  # number of changes; applying them at the next open takes 50 ms, as does saving 10,000 memories


class Archive:
    """One user's records, and the columns that searches use. Thread-safe."""

    def __init__(
        self,
        store: Store,
        settings: StoreSettings,
        columns: Columns,
        follower: IndexFollower | None = None,
        index: IndexOf | None = None,
    ) -> None:
        self.store = store
        self._index = index
        self.follower = follower  # the index of the vectors in another engine, or None for the built-in index
        self._settings = settings
        self._columns = columns
        self._saved = columns.applied  # the last change that the saved file includes
        self._has_file = columns.applied > 0  # whether the next open can continue from the file
        self._saving = threading.Lock()  # guards the files; acquired after `_writing`
        self._save_thread: threading.Thread | None = None
        self._writing = threading.RLock()
        self._queue = threading.Lock()  # held while waiting for `_writing`; see `_writing_in_turn`
        self._starting = threading.Lock()
        self._rebuild_thread: threading.Thread | None = None
        self._words_thread: threading.Thread | None = None
        self._is_behind = False  # while this is set, the columns are updated by a rebuild and not by batches
        self._is_closing = False
        self._failure: BaseException | None = None

    @classmethod
    def open(
        cls,
        folder: Path,
        settings: StoreSettings,
        role: Role,
        key: UserKey | None = None,
        on_commit: OnCommit | None = None,
        index: IndexOf | None = None,
    ) -> Self:
        """Open or create the archive in `folder`. Raises the errors of `Store.open` and `open_index`."""
        store = Store.open(folder, settings, role, key, on_commit)
        with ExitStack() as undo:
            undo.callback(store.close)
            with suppress(OSError):
                derived.remove_obsolete(folder)
            follower = None if index is None else open_follower(store, index)
            if index is not None:
                derived.remove_indexes(folder, engine_of(store))  # an interrupted migration may have left them
                with suppress(MemoryAgentError):  # the next purge repeats this and reports the error
                    remove_left(store, index)
            archive = cls(store, settings, derived.load_columns(store, settings, follower), follower, index)
            undo.callback(lambda: archive._columns.close())
            with store.snapshot() as snapshot:
                is_short = derived.is_short(snapshot, archive._columns)
                if is_short:
                    archive._bring_up(snapshot, from_records=False)
            if follower is not None:
                undo.callback(follower.close)
                follower.start()
            undo.pop_all()
        if not is_short:
            archive._start_rebuild(from_records=False)
        elif store.counts().words <= _WORDS_AT_ONCE:
            archive._load_words()
        else:
            archive._words_thread = threading.Thread(target=archive._load_words, name="words-load")
            archive._words_thread.start()
        return archive

    @property
    def view(self) -> View:
        """All memories as of the last batch; while `is_rebuilding`, possibly only some of them."""
        return self._columns.view

    @property
    def is_rebuilding(self) -> bool:
        """Whether `view` is incomplete, because a rebuild is running or has failed."""
        return self._is_behind

    def settled_view(self) -> View:
        """Wait for any rebuild, and return the view. Raises the error of a failed rebuild."""
        self._wait_for_rebuild()
        if self._failure is not None:
            raise self._failure.with_traceback(None)  # the traceback would grow with each call
        return self.view

    def stats(self, user_id: str, filter: MemoryFilter | None = None) -> MemoryStats:
        """Wait for any rebuild, and return the statistics of the memories that pass the filter."""
        store, view = self.store, self.settled_view()
        counters, counts = store.counters, store.counts()
        if filter is not None:
            view = view.among(filter, store.excluded_rows(filter))
            counts = self._counts_in(view, counts)
        oldest, newest = view.time_span()
        return MemoryStats(
            user_id=user_id,
            memories=counts.memories,
            by_kind=view.count_by("kind"),
            by_source=view.count_by("source"),
            without_vector=counts.memories - counts.vectors,
            events_kept=counters.get("kept", 0),
            events_duplicate=counters.get("duplicates", 0),
            events_dropped=_below("dropped.", counters),
            cursor=store.state.cursor,
            oldest=oldest,
            newest=newest,
            model=store.state.stamp,
            index=_described(view, self.follower),
            disk_bytes=store.disk_bytes,
            masked=_below("masked.", counters),
            expired=_below("expired.", counters),
            dropped_types=_below("dropped_type.", counters),
            waiting=counts.waiting,
            schema_version=store.state.format,
            created_at=store.state.created_at,
            rebuilt_at=self._columns.built_at,
            ndim=store.state.ndim,
            judge=_cost(_below("judge.", counters)),
        )

    def _counts_in(self, view: View, counts: Counts) -> Counts:
        with self.store.snapshot() as snapshot:
            waiting = view.slots(snapshot.waiting_rows(counts.memories))
        waiting = waiting[waiting >= 0]
        slots, vectors = np.flatnonzero(view.alive), view.vectors
        any_direction = np.eye(1, vectors.ndim, dtype=np.float32)[0]
        with_vector = np.isfinite(vectors.cosines(any_direction, slots)).sum() if vectors.count else 0
        return Counts(len(slots), int(with_vector), 0, 0, int(view.alive[waiting].sum()))

    @contextmanager
    def batch(self) -> Iterator[Batch]:
        """Yield a batch; it is committed and applied to the columns when the block ends. Raises as `Store.batch`."""
        with self._writing_in_turn():
            with self.store.batch() as batch:
                yield batch
            if not self._is_behind:
                self._apply(batch.changes)
            if self.follower is not None:
                self.follower.follow()

    def rebuild(self) -> None:
        """Rebuild the columns from the records and save them. On `StoreDamagedError`, the old columns remain."""
        self._wait_for_rebuild()
        self._start_rebuild(from_records=True)
        self.settled_view()
        with self._writing, suppress(OSError):
            self._save()
        if self.follower is not None:
            self.follower.refill()

    def purge(self) -> None:
        """Remove every trace of deleted memories from all files. Idempotent. Raises `StoreError` and `OSError`."""
        with self._writing_columns():
            self._columns.compact()
            self._save()
            derived.remove_obsolete(self.store.folder)
            derived.remove_set_aside(self.store.folder)
            self.store.compact()
        self._purge_index()

    def compact(self) -> tuple[int, int]:
        """Free the space of deleted memories in the store and the columns; return the store's size before and after."""
        with self._writing:
            if not self._is_behind:
                self._columns.compact()
            sizes = self.store.compact()
        self._purge_index()
        return sizes

    def _purge_index(self) -> None:
        """Purge the index in another engine. Call it without holding the write lock, because it may take minutes."""
        if self.follower is not None:
            self.follower.purge()
        if self._index is not None:
            remove_left(self.store, self._index)

    def close(self) -> None:
        """Wait for any rebuild, save the columns and close. Idempotent."""
        self._is_closing = True
        self._wait()
        with self._writing:
            # The columns are only a cache: a store that is fenced, full or failed must still close.
            with suppress(MemoryAgentError, OSError):
                is_due = self._columns.applied - self._saved > _UNSAVED_AT_CLOSE or not self._has_file
                if is_due and self._columns.applied and not self._is_behind:
                    self._save()
            self.abandon()

    def abandon(self) -> None:
        """Close without writing, because another owner has taken over the files."""
        self._is_closing = True
        self._wait()
        with self._writing:
            self._columns.close()
            if self.follower is not None:
                self.follower.close()
            self.store.close()

    def _apply(self, changes: Changes) -> None:
        """Apply a committed batch. Columns that cannot apply the batch are rebuilt; the batch succeeds either way."""
        try:
            self._columns.apply(changes)
        except _FAILURES:
            self._recover()
            return
        except BaseException:
            self._start_rebuild(from_records=True)
            raise
        if self.store.log_length >= max(_SAVED_AT_LEAST_EVERY, int(_SAVED_SHARE * self.view.live)):
            with suppress(*_FAILURES):
                self._start_save()

    def _recover(self) -> None:
        """Rebuild columns that contain only part of a batch, in the background unless the store is small."""
        with self.store.snapshot() as snapshot:
            if snapshot.counts().memories <= derived.AT_ONCE:
                with suppress(*_FAILURES):
                    self._bring_up(snapshot, from_records=True)
                    return
        self._start_rebuild(from_records=True)

    def _save(self) -> None:
        """Save the columns while writes are paused. On an `OSError`, the old files and the whole change log remain."""
        self._write(derived.capture(self.store, self._columns), is_newest=True)
        self._forget_changes()

    def _start_save(self) -> None:
        if self._is_closing or (self._save_thread is not None and self._save_thread.is_alive()):
            return
        saving = derived.capture(self.store, self._columns)
        with self._starting:
            # Nothing joins this thread during `close`, because `close` holds the lock that the thread needs.
            if not self._is_closing:
                self._save_thread = threading.Thread(target=self._save_beside, args=(saving,), name="columns-save")
                self._save_thread.start()

    def _save_beside(self, saving: derived.Saving) -> None:
        with suppress(MemoryAgentError, OSError):  # the file is a cache; on a full disk, the next batch stops intake
            self._write(saving)
            with self._writing:
                self._forget_changes()

    def _write(self, saving: derived.Saving, *, is_newest: bool = False) -> None:
        """Write the files unless newer ones exist: older content could bring back erased memories."""
        with self._saving:
            if is_newest or saving.header.applied > self._saved:
                derived.write(self.store, saving)
                self._saved, self._has_file = saving.header.applied, True

    def _forget_changes(self) -> None:
        if self._saved > self.store.state.last_change - self.store.log_length:
            self.store.forget_changes_through(self._saved)

    @contextmanager
    def _writing_in_turn(self) -> Iterator[None]:
        """Hold the write lock, which this thread must not already hold. Batches and the loading of words take turns.

        Without the queue, the thread that released the lock would often reacquire it first.
        """
        try:
            with self._queue:
                self._writing.acquire()
            yield
        finally:
            try:  # noqa: SIM105 - a `KeyboardInterrupt` in `suppress` would leave it locked
                self._writing.release()
            except RuntimeError:  # the wait for the lock was interrupted
                pass

    @contextmanager
    def _writing_columns(self) -> Iterator[None]:
        """Wait until the columns are complete, and hold the write lock. Raises the errors of `settled_view`."""
        is_done = False
        while not is_done:
            self.settled_view()
            with self._writing:
                if not self._is_behind:
                    yield
                    is_done = True

    def _start_rebuild(self, *, from_records: bool) -> None:
        """Start a rebuild unless one is running; during `close`, leave it until the store is next opened."""
        with self._starting:
            if self._is_behind and self._failure is None:
                return
            self._is_behind, self._failure = True, None
            if not self._is_closing:
                self._rebuild_thread = threading.Thread(
                    target=self._rebuild, args=(from_records,), name="columns-rebuild"
                )
                self._rebuild_thread.start()

    def _rebuild(self, from_records: bool) -> None:
        """Rebuild from a snapshot while batches continue, then apply their changes with writing paused."""
        try:
            while self._is_behind:
                with self.store.snapshot() as snapshot:
                    self._bring_up(snapshot, from_records=from_records)
                from_records = False
                with self._writing, self.store.snapshot() as snapshot:
                    self._is_behind = not derived.follow(snapshot, self._columns)
            self._load_words()
        except BaseException as error:
            self._failure = error
            if not isinstance(error, _FAILURES):
                raise

    def _bring_up(self, snapshot: Snapshot, *, from_records: bool) -> None:
        """Update the columns from the change log if it reaches back far enough; otherwise, rebuild them."""
        if from_records or not derived.follow(snapshot, self._columns):
            former, built = self._columns, derived.empty_columns(self._settings, self.follower)
            if not former.view.live:
                self._columns = built  # so that searches find each memory as soon as the rebuild has read it
            try:
                built.apply(snapshot.contents())
            except BaseException:
                built.close()
                raise
            self._columns, self._has_file = built, False
            former.close()

    def _load_words(self) -> None:
        """Load the words from the store, because the columns' file does not contain them. Batches continue."""
        after = 0
        while not self._is_closing:
            with self._writing_in_turn(), self.store.snapshot() as snapshot:
                if self._is_behind or self.view.word_bits.count >= snapshot.counts().words:
                    return  # a rebuild loads the words as its last step
                words = snapshot.scan_words(after, _WORDS_STEP)
                if not len(words.rows):
                    return
                self._columns.take_words(words)
                after = int(words.rows[-1])

    def _wait_for_rebuild(self) -> None:
        with self._starting:
            thread = self._rebuild_thread
        if thread is not None:
            thread.join()

    def _wait(self) -> None:
        self._wait_for_rebuild()
        with self._starting:
            threads = self._save_thread, self._words_thread
        for thread in threads:
            if thread is not None:
                thread.join()


InUse = Callable[[], AbstractContextManager[None]]


class OpenCalls:
    """Tracks the calls to one open memory. Closing waits for running calls and rejects later ones. Calls may nest."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._calls = ReadWriteLock()
        self._shut = threading.Lock()  # held for writing after `shut`

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """Keep the files open for one call. Raises `StoreError`, without waiting, after `shut`."""
        self._require_open()
        with self._calls.shared():
            self._require_open()
            yield

    def shut(self) -> bool:
        """Reject new calls and wait for running ones; return whether this was the first call to `shut`."""
        if not self._shut.acquire(blocking=False):
            return False
        with self._calls.exclusive():
            return True

    def _require_open(self) -> None:
        if self._shut.locked():
            raise StoreError(f"{self._name} is closed")


def _cost(judge: dict[str, int]) -> dict[str, float]:
    billionths = judge.pop("billionths_usd", 0)
    return {**judge, "cost_usd": billionths / 1e9} if judge else {}


def _described(view: View, follower: IndexFollower | None) -> str:
    kind = "approximate" if view.vectors.is_approximate else "exact"
    if follower is None:
        return kind
    return f"{follower.index.name}, {'behind' if follower.is_behind else kind}"


def _below(prefix: str, counters: Mapping[str, int]) -> dict[str, int]:
    found = ((counter, number) for counter, number in sorted(counters.items()) if counter.startswith(prefix))
    return {counter.removeprefix(prefix): number for counter, number in found}
