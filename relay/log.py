"""The process log: one line per event on standard error. Events are named `noun.past_tense`; field names include units.

    from relay.log import log
    log.info("relay.waiting", owner=owner)

Only an entry point configures logging; otherwise nothing is written, and structlog is not imported. Memory text,
vectors and tokens are never logged.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, TextIO, cast

Level = Literal["debug", "info", "warning", "error"]
LEVELS: dict[Level, int] = {"debug": 10, "info": 20, "warning": 30, "error": 40}


_MOST_BYTES = 8 << 20
_FORMER = 3


def configure_logging(level: Level = "info", file: Path | None = None) -> None:
    """Log `level` and above, as one JSON document per line.

    On a terminal, lines are formatted for people, and `info` shows only warnings and errors. If standard error is
    `file`, the file is rotated: at 8 MiB it is renamed to FILE.1, FILE.1 to FILE.2, and so on up to FILE.3. Child
    processes that inherited standard error continue to write to the renamed file.
    """
    _stderr.file = file if file is not None and _is_standard_error(file) else None
    terminal = sys.stderr.isatty()
    structlog = _import_structlog(with_rich=terminal)
    level = "warning" if terminal and level == "info" else level
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.dev.ConsoleRenderer() if terminal else structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS[level]),
        logger_factory=structlog.WriteLoggerFactory(cast(TextIO, _stderr)),  # one write per line, not two
        cache_logger_on_first_use=True,
    )


def _import_structlog(*, with_rich: bool) -> Any:
    """Import structlog, which imports rich if it is installed (37 ms and 4 MB more)."""
    if not with_rich and "rich" not in sys.modules:
        sys.modules["rich"] = cast(ModuleType, None)  # importing it fails
        try:
            import structlog
        finally:
            del sys.modules["rich"]
    import structlog

    return structlog


class _StandardError:
    """Standard error that ignores write errors, because a full disk must not stop a process. Unbuffered."""

    def __init__(self) -> None:
        self.file: Path | None = None  # the file to which standard error is written, replaced when full; or None
        self._guard = threading.Lock()

    def write(self, text: str) -> None:
        with contextlib.suppress(OSError):
            os.write(2, text.encode(errors="backslashreplace"))
            self.rotate()

    def flush(self) -> None:
        pass

    def rotate(self) -> None:
        """Replace the file if it is full. Other threads may write at the same time. Raises `OSError`."""
        if self.file is None or os.fstat(2).st_size < _MOST_BYTES:
            return
        with self._guard:
            if os.fstat(2).st_size >= _MOST_BYTES:
                self._replace(self.file)

    def _replace(self, file: Path) -> None:
        """Open a new file, rename the full file and its predecessors, and continue in the new file."""
        started = file.with_name(f"{file.name}.new")
        new = os.open(started, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)
        try:
            names = [file, *(file.with_name(f"{file.name}.{number}") for number in range(1, _FORMER + 1))]
            for former, name in zip(reversed(names[:-1]), reversed(names[1:]), strict=True):
                with contextlib.suppress(FileNotFoundError):
                    former.replace(name)
            started.replace(file)
            os.dup2(new, 2)
        finally:
            os.close(new)


_stderr = _StandardError()


def _is_standard_error(file: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(2), file.stat())
    except OSError:
        return False


def rotate_log() -> None:
    """Replace the log file if it is full. Log lines do this automatically, but other output does not."""
    with contextlib.suppress(OSError):
        _stderr.rotate()


class _Log:
    _logger: Any = None

    def __getattr__(self, name: str) -> Any:
        structlog = sys.modules.get("structlog")
        if structlog is None or not structlog.is_configured():
            return lambda *words, **fields: None
        self._logger = self._logger or structlog.get_logger()
        return getattr(self._logger, name)


log = _Log()
