"""Events of hooks on disk until a daemon has them: a file for each hook, sent by the next one.

A file is written before its events are sent, and deleted when they are acknowledged. Hooks run side by side, and any of
them may be killed: at worst a file is sent twice, and the relay recognises its events. Like the spool of a publisher
the files are not encrypted, so in an encrypted data folder nothing waits, and what finds no daemon is lost.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

MOST_FILES = 2_000
"""Files that wait, at most. Beyond, new events are lost, since the first of a session explain the others."""
MOST_AT_ONCE = 200
_BATCH_BYTES = 1 << 20
_SUFFIX, _UNFINISHED = ".jsonl", ".tmp"
_LONGEST_WRITE_S = 60
"""An unfinished file that is older was left by a hook that was killed: none lives as long."""


class Batch(NamedTuple):
    """Events to send together, a JSON object each, and their files. `is_last`: no others wait."""

    events: tuple[bytes, ...]
    files: tuple[Path, ...] = ()
    is_last: bool = True

    def forget(self) -> None:
        """Delete the files."""
        for file in self.files:
            file.unlink(missing_ok=True)


class Waiting:
    """The files in one folder. From the first `batch` to `close` no other hook sends what earlier ones left."""

    def __init__(self, folder: Path, receiver: str = "") -> None:
        """`receiver` names a daemon or key other than the data folder's; events for it wait in a folder of its own."""
        self._folder = folder / receiver
        self._lock: int | None = None

    def keep(self, events: Sequence[bytes]) -> Batch:
        """Write events into a file of their own, and return both. Raises `OSError` where there is no room."""
        for folder in (self._folder.parent, self._folder):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if len(os.listdir(self._folder)) >= MOST_FILES:
            raise OSError(f"{MOST_FILES} files wait in {self._folder}")
        file = self._folder / f"{time.time_ns():020d}-{os.getpid()}{_SUFFIX}"
        unfinished = file.with_suffix(_UNFINISHED)
        with open(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as written:
            written.writelines(event + b"\n" for event in events)
        unfinished.rename(file)
        return Batch(tuple(events), (file,))

    def batch(self, own: Batch, most: int = MOST_AT_ONCE) -> Batch:
        """Return the events of at most `most` files that earlier hooks left, oldest first, then `own` if there is room.

        Returns `own` alone while another hook sends what they left.
        """
        if not self._may_send_all():
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
        """Let other hooks send what waits. Idempotent."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _may_send_all(self) -> bool:
        if self._lock is None:
            try:
                self._lock = os.open(self._folder, os.O_RDONLY)
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self._clear()
            except OSError:  # another hook has it, or there is no folder
                self.close()
                return False
        return True

    def _clear(self) -> None:
        for file in self._folder.glob(f"*{_UNFINISHED}"):
            if time.time() - file.stat().st_mtime > _LONGEST_WRITE_S:
                file.unlink()
