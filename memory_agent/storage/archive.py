"""One user's store with the two indexes derived from it: opened, written, rebuilt and closed together.

A batch is durable first and then applied to the indexes, one batch at a time, so that readers see the order of the
store. An index that is missing or untrusted at open, or found damaged by a reader, is rebuilt in the background: the
other side answers, batches continue, and the rebuilt index catches up from the change log.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal, Self

from memory_agent.errors import MemoryAgentError
from memory_agent.settings import StoreSettings
from memory_agent.storage import derived
from memory_agent.storage.batch import Batch
from memory_agent.storage.lexicon import Lexicon
from memory_agent.storage.store import Store
from memory_agent.storage.user_key import UserKey
from memory_agent.storage.vector_index import VectorIndex
from relay.disk import Role

Side = Literal["index", "lexicon"]


class Archive:
    """The records of one user, searchable. Thread-safe; writes are serialized."""

    def __init__(self, store: Store, index: VectorIndex, lexicon: Lexicon) -> None:
        self.store = store
        self.index = index
        self.lexicon = lexicon
        self._writing = threading.RLock()
        self._noting = threading.Lock()
        self._notes: dict[str, bytes] = {}
        self._rebuilds: dict[Side, threading.Thread] = {}
        self._behind: set[Side] = set()  # being rebuilt; skipped by batches and searches

    @classmethod
    def open(cls, folder: Path, settings: StoreSettings, role: Role, key: UserKey | None = None) -> Self:
        """Open or create the archive in `folder`; an index that takes long to rebuild is rebuilt in the background.

        Raises as `Store.open` does.
        """
        store = Store.open(folder, settings, role, key)
        try:
            index, has_index = derived.begin_index(store, settings)
            lexicon, has_lexicon = derived.begin_lexicon(store)
        except BaseException:
            store.close()
            raise
        archive = cls(store, index, lexicon)
        if not has_index:
            archive._start_rebuild("index", is_damaged=False)
        if not has_lexicon:
            archive._start_rebuild("lexicon", is_damaged=False)
        return archive

    @contextmanager
    def batch(self) -> Iterator[Batch]:
        """Yield a batch, durable and applied to the indexes when the block ends. Raises as `Store.batch` does."""
        with self._writing:
            with self._taking_notes() as notes, self.store.batch() as batch:
                for name, value in notes.items():
                    batch.set_blob(name, value)
                yield batch
            if not self.is_rebuilding("index"):
                derived.apply_to_index(self.store, self.index, batch.changes)
            if not self.is_rebuilding("lexicon"):
                derived.apply_to_lexicon(self.store, self.lexicon, batch.changes)
            if not self._behind:
                with suppress(OSError):  # a cache; on a full disk the next batch stops the intake
                    derived.save_if_due(self.store, self.index, self.lexicon)

    def note(self, name: str, value: bytes) -> None:
        """Keep a blob for the next batch or `close`. Not durable until then, and costs no flush."""
        with self._noting:
            self._notes[name] = value

    def rebuild_soon(self, side: Side) -> None:
        """Rebuild an index that a search found damaged, in the background."""
        self._start_rebuild(side, is_damaged=True)

    def rebuild(self, side: Side) -> None:
        """Rebuild an index from the store and wait for it. A failed rebuild shows as damage at the next use."""
        self.rebuild_soon(side)
        self._rebuilds[side].join()

    def is_rebuilding(self, side: Side) -> bool:
        """Return whether this index is being rebuilt and cannot answer."""
        return side in self._behind

    def purge(self) -> None:
        """Remove every trace of deleted memories: from the change log, both indexes, files set aside and free pages.

        Idempotent. Raises `StoreError`, `IndexDamagedError`, `OSError`; completed parts stay done.
        """
        self._wait_for_rebuilds()
        with self._writing:
            derived.rebuild(self.store, self.index, self.lexicon)
            derived.remove_set_aside(self.store)
            self.store.compact()

    def _start_rebuild(self, side: Side, *, is_damaged: bool) -> None:
        with self._noting:
            if side not in self._behind:
                self._behind.add(side)
                self._rebuilds[side] = threading.Thread(
                    target=self._rebuild, args=(side, is_damaged), name=f"{side}-rebuild"
                )
                self._rebuilds[side].start()

    def _rebuild(self, side: Side, is_damaged: bool) -> None:
        """Rebuild from a snapshot while batches continue, then apply their changes with writing paused."""
        try:
            with suppress(MemoryAgentError, OSError):
                if is_damaged and side == "index":
                    self.index.clear()
                elif is_damaged:
                    self.lexicon.reset()
                self._catch_up(side)
        finally:
            with self._writing:
                with suppress(MemoryAgentError, OSError):
                    self._catch_up(side)
                self._behind.discard(side)

    def _catch_up(self, side: Side) -> None:
        if side == "index":
            derived.catch_up_index(self.store, self.index)
        else:
            derived.catch_up_lexicon(self.store, self.lexicon)

    def remove_set_aside(self) -> None:
        """Remove damaged files that were set aside: they hold words of memories."""
        derived.remove_set_aside(self.store)

    def compact(self) -> tuple[int, int]:
        """Free the room of deleted memories in store and lexicon; return the store's bytes before and after.

        Raises as `Store.compact` does.
        """
        with self._writing:
            sizes = self.store.compact()
            with suppress(MemoryAgentError, OSError):
                self.lexicon.compact()
            return sizes

    def close(self) -> None:
        """Write kept blobs, save the caches and close. Idempotent."""
        self._wait_for_rebuilds()
        with self._writing:
            # Blobs and caches only: a store that is fenced, full or failed must still close.
            with suppress(MemoryAgentError, OSError):
                if self._notes:
                    with self.batch():
                        pass
                derived.save(self.store, self.index, self.lexicon)
            self.abandon()

    def abandon(self) -> None:
        """Close without writing, since another owner has the files by now."""
        self._wait_for_rebuilds()
        with self._writing:
            self.lexicon.close()
            self.store.close()

    def _wait_for_rebuilds(self) -> None:
        with self._noting:
            threads = tuple(self._rebuilds.values())
        for thread in threads:
            thread.join()

    @contextmanager
    def _taking_notes(self) -> Iterator[dict[str, bytes]]:
        """Yield the kept blobs; keep them again when the block raises."""
        with self._noting:
            taken, self._notes = self._notes, {}
        try:
            yield taken
        except BaseException:
            with self._noting:
                self._notes = taken | self._notes
            raise
