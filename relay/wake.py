"""Wakes a thread that polls sockets, from any other thread."""

from __future__ import annotations

import contextlib
import os


class Wake:
    """Wakes a thread that polls sockets; `ring` may be called from any thread and from a signal handler."""

    def __init__(self) -> None:
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(self._write, False)

    def ring(self) -> None:
        with contextlib.suppress(OSError):  # full: it will wake anyhow; closed: nobody listens any more
            os.write(self._write, b"\0")

    def clear(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while os.read(self._read, 4096):
                pass

    def fileno(self) -> int:
        return self._read

    def close(self) -> None:
        for descriptor in (self._read, self._write):
            os.close(descriptor)
        self._read = self._write = -1  # a number that is used again must not be written to
