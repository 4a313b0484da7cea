"""The interface of a journal's copy on another disk, such as the object store of `memory_agent.archiving`.

A relay with a copy acknowledges events only once the copy contains them. The copy receives changes as stored, so it
needs no keys. It always contains all transactions up to some point.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from relay.disk import StoredChange


class JournalCopy(Protocol):
    """Writes the copy of one journal. Thread-safe."""

    def note(self, changes: list[StoredChange] | None) -> None:
        """Receive the changes of a transaction (`relay.disk.OnCommit`). Does no I/O."""

    def begin(self, folder: Path, copy: Callable[[Path], None]) -> None:
        """Prepare to copy the journal in `folder`, without connecting. `copy` copies the journal's file into an empty
        folder.
        """

    def flush(self) -> None:
        """Copy everything committed before the call. Durable on return. The first call copies the whole journal.

        Raises `CopyUnavailableError`, after which the caller should retry, and `JournalSupersededError`.
        """

    def renew(self) -> None:
        """Replace the copy with a new copy of the whole journal, without deleted data. Raises as `flush`."""
