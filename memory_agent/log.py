"""Configure logging in an entry point: to standard error, one `noun.past_tense` line per event, fields with units.

Memory text, vectors and tokens are never logged (`tests/end_to_end/test_daemon.py`).
"""

from __future__ import annotations

import sys
from typing import Literal

import structlog

Level = Literal["debug", "info", "warning", "error"]
_LEVELS: dict[Level, int] = {"debug": 10, "info": 20, "warning": 30, "error": 40}


def configure_logging(level: Level = "info") -> None:
    """Log `level` and above: readable on a terminal, elsewhere as one JSON document a line."""
    terminal = sys.stderr.isatty()
    renderer = structlog.dev.ConsoleRenderer() if terminal else structlog.processors.JSONRenderer()
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(_LEVELS[level]),
        logger_factory=structlog.PrintLoggerFactory(file=sys.stderr),
        cache_logger_on_first_use=True,
    )
