"""What a person has done to a memory's files while it is in use: built anew, made small. As `Memory.care`."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

from memory_agent.records import Compacted
from memory_agent.storage.archive import Archive

Call = Callable[[], AbstractContextManager[None]]


class CareFace:
    """The files of one user's memory. Every method raises `StoreError`: the store failed, or is closed."""

    def __init__(self, archive: Archive, call: Call) -> None:
        """`call` keeps the files open for one call."""
        self._archive = archive
        self._call = call

    def rebuild(self) -> int:
        """Build the vector index and the lexicon anew from the records; return how many memories those are.

        Recall answers meanwhile, by the other side, and says so; what comes in meanwhile is in both afterwards.
        """
        with self._call():
            self._archive.rebuild("index")
            self._archive.rebuild("lexicon")
            self._archive.remove_set_aside()
            return self._archive.store.count

    def compact(self) -> Compacted:
        """Give back the room of what was deleted, and its bytes. Recalls go on; what is to be written waits.

        Raises `DeadlineExceededError` when reads do not pause for a moment, `StoreFullError` without room for a copy.
        """
        with self._call():
            before, after = self._archive.compact()
            return Compacted(bytes_before=before, bytes_after=after)
