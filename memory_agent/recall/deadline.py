"""The deadline of one recall, what the recall had to do without, and its guarded access to the two indexes.

The reasons are part of the interface; each appears in `RecallResult.degraded` at most once.
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
    "model_changed",  # the stored vectors come from another model: lexical only until they are rebuilt
    "vectors_pending",  # some memories have no vector yet: found by words only
    "index_rebuilding",  # the vector index was missing or damaged and is being rebuilt: lexical only
    "lexicon_rebuilding",  # the same for the lexicon: by vectors only, nothing under a filter
    "deadline",  # time ran out: fewer parts took part, or none
    "waking",  # daemon only: time ran out before the sleeping user was awake
]
REASONS: tuple[Reason, ...] = get_args(Reason)


class Deadline:
    """The monotonic deadline of one recall, starting now, and its reasons for degradation."""

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
        """The end of the deadline, on the monotonic clock."""
        return self._started_s + self.limit_s

    @property
    def remaining_s(self) -> float:
        """Seconds until the deadline; negative after it."""
        return self.limit_s - self.elapsed_s

    def expired(self) -> bool:
        """Return whether the deadline has passed, and if so note it as a reason."""
        if self.remaining_s > 0:
            return False
        self.degrade("deadline")
        return True

    def degrade(self, reason: Reason) -> None:
        """Note a part that could not take part; idempotent."""
        if reason not in self.degraded:
            self.degraded.append(reason)


Answer = TypeVar("Answer")


class Indexes:
    """The indexes of one archive, as one recall may use them."""

    def __init__(self, archive: Archive, deadline: Deadline) -> None:
        self.archive = archive
        self.deadline = deadline

    def ask(self, side: Side, question: Callable[[], Answer], otherwise: Answer) -> Answer:
        """Return the answer of an index, or `otherwise`, with a reason noted, when it is late, damaged or rebuilding.

        A damaged index is rebuilt in the background.
        """
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
