"""Polls for documents whose modification times or sizes have changed since they were last indexed. This also works on
network file systems.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from memory_agent.notes.storing import documents

Stamp = tuple[int, int, int]
"""A file's modification time in nanoseconds, its size and its inode."""


class DocumentWatch:
    """A document, or the documents of a folder, and the state in which each was last indexed."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._disk: int | None = None
        self._indexed: dict[Path, Stamp] = {}
        self._seen: dict[Path, Stamp] | None = None

    def look(self) -> dict[Path, Stamp | None]:
        """Return the documents to index, each with its stamp, or with None if the document is gone.

        A changed document is returned after two consecutive calls find it in the same state. The first call returns all
        documents. Returns nothing while the root is missing, or while it is empty because its disk is not mounted.
        """
        try:
            disk = self._root.stat().st_dev
        except OSError:
            return {}
        found = {path: stamp for path in documents(self._root) if (stamp := _stamp(path)) is not None}
        if self._indexed and not found and disk != self._disk:
            return {}
        self._disk = disk
        before = found if self._seen is None else self._seen
        self._seen = found
        return {
            path: found.get(path)
            for path in sorted(found.keys() | self._indexed.keys())
            if found.get(path) != self._indexed.get(path) and found.get(path) == before.get(path)
        }

    def settle(self, changed: Mapping[Path, Stamp | None]) -> None:
        """Record that these documents, which `look` returned, have been indexed."""
        for path, stamp in changed.items():
            if stamp is None:
                del self._indexed[path]
            else:
                self._indexed[path] = stamp


def _stamp(path: Path) -> Stamp | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
