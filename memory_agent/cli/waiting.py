"""Waits until published events are recallable, and shows how far it is."""

from __future__ import annotations

import time
from collections.abc import Mapping

from memory_agent.cli.progress import Report
from memory_agent.client import MemoryClient
from memory_agent.errors import DeadlineExceededError

_SLICE_S = 1.0


def wait_until_recallable(
    client: MemoryClient, through: Mapping[str, int], events: int, timeout_s: float, report: Report
) -> None:
    """Return when all events of each user up to a journal number are recallable or in quarantine.

    Raises `DeadlineExceededError` after `timeout_s`, `UnavailableError` when the daemon went away.
    """
    deadline_s = time.monotonic() + timeout_s
    report("recallable", 0, events)
    while True:
        remaining_s = deadline_s - time.monotonic()
        try:
            client.wait(through, max(0.01, min(_SLICE_S, remaining_s)))
        except DeadlineExceededError:
            if remaining_s <= _SLICE_S:
                raise DeadlineExceededError(f"not all events are recallable after {timeout_s:g} s") from None
            report("recallable", max(0, events - client.status().dispatched.get("lag", 0)), events)
        else:
            report("recallable", events, events)
            return
