"""The two indexes as far as they answer, and in time: a damaged one is mended in the background, the other answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from memory_agent.errors import DeadlineExceededError, IndexDamagedError
from memory_agent.recall.attempt import Attempt
from memory_agent.storage.archive import Archive, Side

Answer = TypeVar("Answer")


class Sides:
    """The indexes of one archive, asked during one recall."""

    def __init__(self, archive: Archive, attempt: Attempt) -> None:
        self.archive = archive
        self.attempt = attempt

    def ask(self, side: Side, question: Callable[[], Answer], otherwise: Answer) -> Answer:
        """Return the answer of an index; `otherwise` when it is damaged, being built anew, or late, which is noted."""
        if not self.archive.is_rebuilding(side):
            try:
                return question()
            except DeadlineExceededError:
                self.attempt.degrade("deadline")
                return otherwise
            except IndexDamagedError:
                self.archive.rebuild_soon(side)
        self.attempt.degrade("index_rebuilding" if side == "index" else "lexicon_rebuilding")
        return otherwise
