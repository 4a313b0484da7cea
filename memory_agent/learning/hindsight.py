"""What is made of ended runs when nobody waits for it: what they used, what they are about, and the learner anew.

In this order: what a run used counts in patterns and lessons, and a pattern that grows may be a memory that the learner
knows. Called on upkeep and, without the patterns, before a memory closes. What this does not do: learn as events come
in (`teacher`).
"""

from __future__ import annotations

import threading
from contextlib import suppress
from datetime import datetime

from memory_agent.errors import MemoryAgentError, StoreFullError
from memory_agent.learning.bookkeeping import Bookkeeping
from memory_agent.learning.inference import Inference
from memory_agent.learning.pattern_keeping import Embed, PatternKeeping
from memory_agent.learning.teacher import Teacher
from memory_agent.storage.archive import Archive


class Hindsight:
    """Looks back at the runs of one user. Threads may share it."""

    def __init__(self, archive: Archive, bookkeeping: Bookkeeping, teacher: Teacher, embed: Embed) -> None:
        settings = teacher.settings
        self._teacher = teacher
        self._inference = Inference(archive, bookkeeping)
        self._patterns = PatternKeeping(archive, bookkeeping, embed, are_wanted=settings.patterns)
        self._is_on = settings.mode != "off"
        self._looking = threading.Lock()

    def consolidate(self, now: datetime) -> bool:
        """Look back at what ended since the last time; return whether there was anything. Durable on return.

        On a full disk what would be written waits.
        """
        if not self._is_on:
            return False
        with self._looking:
            is_changed = False
            with suppress(StoreFullError):
                is_changed = self._inference.examine() > 0
                is_changed = self._patterns.keep() or is_changed
            return self._teacher.consolidate(now) or is_changed

    def close(self) -> None:
        """Find out what the latest runs used, and save what was learnt. What cannot be saved is found out again."""
        with self._looking, suppress(MemoryAgentError, OSError):
            if self._is_on and self._inference.examine():
                self._teacher.follow()
        self._teacher.close()
