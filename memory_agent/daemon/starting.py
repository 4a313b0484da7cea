"""What somebody at a terminal sees while the daemon starts, which takes 12 to 25 seconds; a file is told nothing."""

from __future__ import annotations

import time
from typing import TextIO


class Starting:
    """A line for each part, on a stream, with how long that before it took; nothing where no terminal is."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream if stream.isatty() else None
        self._began_s = time.monotonic()

    def part(self, what: str) -> None:
        """Tell which part is started now."""
        self._write(f"starting {what}")

    def ready(self) -> None:
        """Tell that all of it runs, and how to end it."""
        self._write("ready; Ctrl-C ends it")

    def _write(self, line: str) -> None:
        if self._stream is not None:
            self._stream.write(f"{time.monotonic() - self._began_s:5.1f} s  {line}\n")
            self._stream.flush()
