"""One recall under way: how much of its time is left, and what it had to do without.

The reasons are words that callers may rely on; each stands in `RecallResult.degraded` at most once.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Literal, TypeVar, get_args

from memory_agent.errors import DeadlineExceededError, IndexDamagedError
from memory_agent.storage.archive import Archive, Side

Reason = Literal[
    "no_model",  # no embedding model: lexical only
    "embedder_timeout",  # the embedder did not answer in time: lexical only
    "model_changed",  # the stored vectors come from another model: lexical only until they are made anew
    "vectors_pending",  # some memories have no vector yet, and are found by words only
    "index_rebuilding",  # the vectors' index was missing or damaged and is being built anew: lexical only
    "lexicon_rebuilding",  # the lexicon was, and is: by vectors only, and nothing under a filter
    "deadline",  # time was up: fewer sides, or nothing
    "waking",  # of a daemon: the user was asleep, and time was up before it was awake
]
REASONS: tuple[Reason, ...] = get_args(Reason)


class Deadline:
    """The clock of one recall (monotonic), started now, and its reasons."""

    def __init__(self, deadline_ms: float) -> None:
        self._started_s = time.monotonic()
        self.limit_s = deadline_ms / 1000
        self.degraded: list[Reason] = []

    @property
    def elapsed_s(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._started_s

    @property
    def ends_at_s(self) -> float:
        """When the deadline is (monotonic)."""
        return self._started_s + self.limit_s

    @property
    def remaining_s(self) -> float:
        """Seconds until the deadline; negative after it."""
        return self.limit_s - self.elapsed_s

    def expired(self) -> bool:
        """Say whether time is up, and note that it was missed."""
        if self.remaining_s > 0:
            return False
        self.degrade("deadline")
        return True

    def degrade(self, reason: Reason) -> None:
        """Note what could not take part."""
        if reason not in self.degraded:
            self.degraded.append(reason)


Answer = TypeVar("Answer")


class Indexes:
    """The indexes of one archive, asked during one recall."""

    def __init__(self, archive: Archive, deadline: Deadline) -> None:
        self.archive = archive
        self.deadline = deadline

    def ask(self, side: Side, question: Callable[[], Answer], otherwise: Answer) -> Answer:
        """Return the answer of an index; `otherwise` when it is damaged, being built anew, or late, which is noted."""
        if not self.archive.is_rebuilding(side):
            try:
                return question()
            except DeadlineExceededError:
                self.deadline.degrade("deadline")
                return otherwise
            except IndexDamagedError:
                self.archive.rebuild_soon(side)
        self.deadline.degrade("index_rebuilding" if side == "index" else "lexicon_rebuilding")
        return otherwise
