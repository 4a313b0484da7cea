"""The deadline of one recall, and what the recall had to do without.

The reasons are part of the interface; each appears in `RecallResult.degraded` at most once.
"""

from __future__ import annotations

import time
from typing import Literal, get_args

Reason = Literal[
    "no_model",  # no embedding model: lexical only
    "embedder_timeout",  # the embedder did not answer in time: lexical only
    "model_changed",  # the stored vectors come from another model: lexical only until they are rebuilt
    "script_unknown",  # the model does not read the script of the query: lexical only
    "vectors_pending",  # some memories have no vector yet: found by words only
    "word_vectors_pending",  # some memories have no word vectors yet: ranked without them
    "index_rebuilding",  # the columns were missing or damaged and are being rebuilt: part of the memories is searched
    "global_unavailable",  # what users share was asked for, and its store is away or late: own memories only
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
