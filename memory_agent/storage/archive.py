"""One user's store and the two indexes derived from it, as one: they are opened, written, mended and closed together.

A batch is durable first and then followed by the indexes, one batch at a time, so that readers meet them in the order
of the store. An index that a reader finds damaged is built anew in the background, while the other side answers.
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
from memory_agent.storage.fence import Role
from memory_agent.storage.index import VectorIndex
from memory_agent.storage.lexicon import Lexicon
from memory_agent.storage.store import Store

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

    @classmethod
    def open(cls, folder: Path, settings: StoreSettings, role: Role) -> Self:
        """Open or create the archive in `folder`, its indexes up to date. Raises as `Store.open` does."""
        store = Store.open(folder, settings, role)
        try:
            index = derived.open_index(store, settings)
            return cls(store, index, derived.open_lexicon(store))
        except BaseException:
            store.close()
            raise

    @contextmanager
    def batch(self) -> Iterator[Batch]:
        """Give a batch: durable, and followed by the indexes, when the block ends. Raises as `Store.batch` does."""
        with self._writing:
            with self._taking_notes() as notes, self.store.batch() as batch:
                for name, value in notes.items():
                    batch.set_blob(name, value)
                yield batch
            derived.apply(self.store, self.index, self.lexicon, batch.changes)
            with suppress(OSError):  # a cache; what stops the intake on a full disk is the next batch
                derived.save_if_due(self.store, self.index, self.lexicon)

    def note(self, name: str, value: bytes) -> None:
        """Keep a blob for the next batch, or for `close`: what may be lost with the process costs no flush."""
        with self._noting:
            self._notes[name] = value

    def mend_soon(self, side: Side) -> None:
        """Build anew, in the background, what a search found damaged."""
        with self._noting:
            if not self.is_mending(side):
                self._mending[side] = threading.Thread(target=self.mend, args=(side,), name=f"{side}-mending")
                self._mending[side].start()

    def mend(self, side: Side) -> None:
        """Build an index anew from the store. What cannot be mended now is damaged at its next use, and says so."""
        with self._writing, suppress(MemoryAgentError, OSError):
            if side == "index":
                self.index.clear()
                derived.catch_up_index(self.store, self.index)
            else:
                derived.repair_lexicon(self.store, self.lexicon)

    def is_mending(self, side: Side) -> bool:
        """Say whether this index is being built anew, and answers nothing meanwhile."""
        return side in self._mending and self._mending[side].is_alive()

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
