"""Stores hook events on disk until a daemon acknowledges them: each hook writes a file, which the next hook sends.

A file is deleted when its events are acknowledged. Hooks run concurrently and may be killed. At worst, a file is sent
twice; the relay then recognises the duplicate events. The files are not encrypted, so an encrypted data folder has no
such files. Its events are lost if no daemon is running.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

MOST_FILES = 2_000
"""Maximum number of files. When it is reached, new events are dropped, because a session's first events explain its
later events."""
MOST_AT_ONCE = 200
_BATCH_BYTES = 1 << 20
_SUFFIX, _UNFINISHED = ".jsonl", ".tmp"
_LONGEST_WRITE_S = 60
"""No hook runs this long, so an unfinished file older than this was left by a killed hook."""


class Batch(NamedTuple):
    """Events to send together, each a JSON object, and their files. `is_last`: whether no further files exist."""

    events: tuple[bytes, ...]
    files: tuple[Path, ...] = ()
    is_last: bool = True

    def forget(self) -> None:
        for file in self.files:
            file.unlink(missing_ok=True)


class Waiting:
    """The files in one folder. From the first `batch` to `close`, no other hook sends earlier files."""

    def __init__(self, folder: Path, receiver: str = "") -> None:
        """`receiver` identifies a daemon or key other than the data folder's; its events have a separate folder."""
        self._folder = folder / receiver
        self._lock: int | None = None

    def keep(self, events: Sequence[bytes]) -> Batch:
        """Write events to a new file; return them as a batch. Raises `OSError` if there is no room."""
        for folder in (self._folder.parent, self._folder):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if len(os.listdir(self._folder)) >= MOST_FILES:
            raise OSError(f"{self._folder} already contains {MOST_FILES} files")
        file = self._folder / f"{time.time_ns():020d}-{os.getpid()}{_SUFFIX}"
        unfinished = file.with_suffix(_UNFINISHED)
        with open(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as written:
            written.writelines(event + b"\n" for event in events)
        unfinished.rename(file)
        return Batch(tuple(events), (file,))

    def batch(self, own: Batch, most: int = MOST_AT_ONCE) -> Batch:
        """Return the events of at most `most` earlier files, oldest first, then `own` if there is room.

        While another hook is sending the earlier files, returns the events of `own` that are neither sent nor erased.
        """
        may_send_all = self._may_send_all()
        own = _left_of(own)
        if not may_send_all:
            return own
        earlier: list[Path] = []
        events: list[bytes] = []
        size = 0
        for file in sorted(self._folder.glob(f"*{_SUFFIX}")):
            if file in own.files:
                continue
            try:
                data = file.read_bytes()
            except FileNotFoundError:
                continue
            if earlier and (size + len(data) > _BATCH_BYTES or len(earlier) == most):
                return Batch(tuple(events), tuple(earlier), is_last=False)
            earlier.append(file)
            events += data.splitlines()
            size += len(data)
        if earlier and len(earlier) == most:
            return Batch(tuple(events), tuple(earlier), is_last=False)
        return Batch((*events, *own.events), (*earlier, *own.files))

    def close(self) -> None:
        """Allow other hooks to send the files. Idempotent."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _may_send_all(self) -> bool:
        if self._lock is None:
            try:
                self._lock = os.open(self._folder, os.O_RDONLY)
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self._clear()
            except OSError:  # another hook holds the lock, or there is no folder
                self.close()
                return False
        return True

    def _clear(self) -> None:
        for file in self._folder.glob(f"*{_UNFINISHED}"):
            if time.time() - file.stat().st_mtime > _LONGEST_WRITE_S:
                file.unlink()


def _left_of(own: Batch) -> Batch:
    if not own.files:
        return own
    lines: list[bytes] = []
    for file in own.files:
        with suppress(FileNotFoundError):
            lines += file.read_bytes().splitlines()
    return own._replace(events=tuple(lines))
