"""One user's store and the two indexes derived from it, as one: they are opened, written, mended and closed together.

A batch is durable first and then followed by the indexes, one batch at a time, so that readers meet them in the order
of the store. An index that is missing or in doubt when it is opened, or that a reader finds damaged, is built anew in
the background, while the other side answers and batches go on: it follows their changes from the change log in the end.
What this does not do: know what a memory means, embed, rank.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal, Self

from memory_agent.config import StoreSettings
from memory_agent.errors import MemoryAgentError
from memory_agent.storage import derived
from memory_agent.storage.batch import Batch
from memory_agent.storage.index import VectorIndex
from memory_agent.storage.lexicon import Lexicon
from memory_agent.storage.store import Store
from memory_agent.storage.user_key import UserKey
from relay.disk import Role

Side = Literal["index", "lexicon"]


class Archive:
    """The records of one user, searchable. Any number of threads may read, and write one after another."""

    def __init__(self, store: Store, index: VectorIndex, lexicon: Lexicon) -> None:
        self.store = store
        self.index = index
        self.lexicon = lexicon
        self._writing = threading.RLock()
        self._noting = threading.Lock()
        self._notes: dict[str, bytes] = {}
        self._mending: dict[Side, threading.Thread] = {}
        self._behind: set[Side] = set()  # being mended, and left out by batches and searches

    @classmethod
    def open(cls, folder: Path, settings: StoreSettings, role: Role, key: UserKey | None = None) -> Self:
        """Open or create the archive in `folder`; an index that has to be built from many memories is built meanwhile.

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
            archive._start_mending("index", is_damaged=False)
        if not has_lexicon:
            archive._start_mending("lexicon", is_damaged=False)
        return archive

    @contextmanager
    def batch(self) -> Iterator[Batch]:
        """Give a batch: durable, and followed by the indexes, when the block ends. Raises as `Store.batch` does."""
        with self._writing:
            with self._taking_notes() as notes, self.store.batch() as batch:
                for name, value in notes.items():
                    batch.set_blob(name, value)
                yield batch
            if not self.is_mending("index"):
                derived.apply_to_index(self.store, self.index, batch.changes)
            if not self.is_mending("lexicon"):
                derived.apply_to_lexicon(self.store, self.lexicon, batch.changes)
            if not self._behind:
                with suppress(OSError):  # a cache; what stops the intake on a full disk is the next batch
                    derived.save_if_due(self.store, self.index, self.lexicon)

    def note(self, name: str, value: bytes) -> None:
        """Keep a blob for the next batch, or for `close`: what may be lost with the process costs no flush."""
        with self._noting:
            self._notes[name] = value

    def mend_soon(self, side: Side) -> None:
        """Build anew, in the background, what a search found damaged."""
        self._start_mending(side, is_damaged=True)

    def mend(self, side: Side) -> None:
        """Build an index anew from the store, or wait until that is done. What cannot be mended now is damaged at its
        next use, and says so."""
        self.mend_soon(side)
        self._mending[side].join()

    def is_mending(self, side: Side) -> bool:
        """Say whether this index is being built anew, and answers nothing meanwhile."""
        return side in self._behind

    def purge(self) -> None:
        """Leave nothing of deleted memories in any file: the change log, both indexes, files set aside, free pages.

        Raises `StoreError`, `IndexDamagedError`, `OSError`; whatever was done stays, and all may be done again.
        """
        self._wait_for_mending()
        with self._writing:
            derived.build_anew(self.store, self.index, self.lexicon)
            derived.remove_set_aside(self.store)
            self.store.compact()

    def _start_mending(self, side: Side, *, is_damaged: bool) -> None:
        with self._noting:
            if side not in self._behind:
                self._behind.add(side)
                self._mending[side] = threading.Thread(
                    target=self._mend, args=(side, is_damaged), name=f"{side}-mending"
                )
                self._mending[side].start()

    def _mend(self, side: Side, is_damaged: bool) -> None:
        """Build from a snapshot, beside the batches, and follow what they did meanwhile once they stand still."""
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
        """Remove damaged files that were kept beside their successors: they hold words."""
        derived.remove_set_aside(self.store)

    def compact(self) -> tuple[int, int]:
        """Give back the room of what was deleted, in the store and the lexicon; return the store's size before and
        after. Raises as `Store.compact`."""
        with self._writing:
            sizes = self.store.compact()
            with suppress(MemoryAgentError, OSError):
                self.lexicon.compact()
            return sizes

    def close(self) -> None:
        """Write what waits, save the caches, close. Twice does no harm."""
        self._wait_for_mending()
        with self._writing:
            # Only notes and caches: a store that is fenced, full or failed must close all the same.
            with suppress(MemoryAgentError, OSError):
                if self._notes:
                    with self.batch():
                        pass
                derived.save(self.store, self.index, self.lexicon)
            self.abandon()

    def abandon(self) -> None:
        """Close without writing: another owner works on these files by now."""
        self._wait_for_mending()
        with self._writing:
            self.lexicon.close()
            self.store.close()

    def _wait_for_mending(self) -> None:
        with self._noting:
            threads = tuple(self._mending.values())
        for thread in threads:
            thread.join()

    @contextmanager
    def _taking_notes(self) -> Iterator[dict[str, bytes]]:
        """Hand over the notes that wait; they wait again when the block raises."""
        with self._noting:
            taken, self._notes = self._notes, {}
        try:
            yield taken
        except BaseException:
            with self._noting:
                self._notes = taken | self._notes
            raise
