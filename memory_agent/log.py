"""Logging of the entry points: one line an event, `noun.past_tense` with fields that carry units, on standard error.

Memory text, vectors and tokens are never passed to a logger; `tests/end_to_end/test_daemon.py` holds that.
"""

from __future__ import annotations

import sys
from typing import Literal

import structlog

Level = Literal["debug", "info", "warning", "error"]
_LEVELS: dict[Level, int] = {"debug": 10, "info": 20, "warning": 30, "error": 40}


def configure_logging(level: Level = "info") -> None:
    """Log `level` and above: readable on a terminal, one JSON document a line elsewhere."""
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
