"""The process log: one line per event on standard error. Events are named `noun.past_tense`; field names include units.

    from relay.log import log
    log.info("relay.waiting", owner=owner)

Only an entry point configures logging. Otherwise nothing is written, because a library must not write to its caller's
output, and structlog is not imported, because that takes time. Memory text, vectors and tokens are never logged
(`tests/end_to_end/test_daemon.py`).
"""

from __future__ import annotations

import contextlib
import os
import sys
from types import ModuleType
from typing import Any, Literal, TextIO, cast

Level = Literal["debug", "info", "warning", "error"]
LEVELS: dict[Level, int] = {"debug": 10, "info": 20, "warning": 30, "error": 40}


def configure_logging(level: Level = "info") -> None:
    """Log `level` and above, as one JSON document per line.

    On a terminal, lines are formatted for people, and `info` shows only warnings and errors.
    """
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
        logger_factory=structlog.WriteLoggerFactory(cast(TextIO, _StandardError())),  # one write per line, not two
        cache_logger_on_first_use=True,
    )


def _import_structlog(*, with_rich: bool) -> Any:
    """Import structlog, late, because most commands log nothing.

    It imports rich if it can, for a console, which takes 37 ms and 4 MB more (measured).
    """
    if not with_rich and "rich" not in sys.modules:
        sys.modules["rich"] = cast(ModuleType, None)  # importing it fails
        try:
            import structlog
        finally:
            del sys.modules["rich"]
    import structlog

    return structlog


class _StandardError:
    """Standard error that ignores write errors, because a log file on a full disk must not stop a process.

    Unbuffered, because flushing a buffer at exit could fail and change the exit code.
    """

    def write(self, text: str) -> None:
        with contextlib.suppress(OSError):
            os.write(2, text.encode(errors="backslashreplace"))

    def flush(self) -> None:
        pass


class _Log:
    """The methods of a structlog logger: `debug`, `info`, `warning`, `error`, `exception`."""

    _logger: Any = None

    def __getattr__(self, name: str) -> Any:
        structlog = sys.modules.get("structlog")
        if structlog is None or not structlog.is_configured():
            return _nothing
        self._logger = self._logger or structlog.get_logger()
        return getattr(self._logger, name)


def _nothing(*words: Any, **fields: Any) -> None:
    pass


log = _Log()
