"""The methods that only a daemon answers, with their signatures and documentation.

Those that a user's memory answers are declared by `Memory`. `ops/documents/clients.py` reads both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from memory_agent.erasure.receipt import ErasureReceipt
from memory_agent.protocol import DaemonStatus, HostAddress, QuarantinedEvent, RetryReport


class DaemonMethods(Protocol):
    """What every client of a daemon has besides the methods of `Memory`."""

    def status(self) -> DaemonStatus:
        """Return the state of the daemon."""
        ...

    def address(self) -> HostAddress:
        """Wake the user and return the Ray actor that hosts it."""
        ...

    def wait(self, through: Mapping[str, int], timeout_s: float) -> None:
        """Return when every user's events up to a journal number are recallable or in quarantine.

        `through` maps users to journal numbers. Raises `DeadlineExceededError`.
        """
        ...

    def quarantined(self, after: int = 0, limit: int = 100) -> list[QuarantinedEvent]:
        """Return events that could not be handled, oldest first: at most `limit`, with ids above `after`."""
        ...

    def retry_quarantined(self, ids: Sequence[int] = ()) -> RetryReport:
        """Try quarantined events again; all of them without `ids`. Raises `InvalidInputError` for unknown ids."""
        ...

    def drop_quarantined(self, ids: Sequence[int] = ()) -> int:
        """Delete quarantined events; all of them without `ids`. Return how many. Raises `InvalidInputError`."""
        ...

    def erase_user(self, *, dry_run: bool = False) -> ErasureReceipt:
        """Erase the user: memories, events, runs, learner and folder.

        Requests wait meanwhile and then meet an empty memory, to which events published meanwhile belong.
        """
        ...
