"""Polls for a condition instead of sleeping for a fixed time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

PAUSE_S = 0.005
LONGEST_PAUSE_S = 0.05


def wait_until(fact: Callable[[], object], timeout_s: float = 120.0) -> None:
    """Poll until `fact` holds, in pauses that grow to `LONGEST_PAUSE_S`; fail after `timeout_s`.

    Many facts are requests to a daemon, and a host that restarts takes seconds.
    """
    started_s = time.monotonic()
    while not fact():
        waited_s = time.monotonic() - started_s
        assert waited_s < timeout_s, "the condition did not become true"
        time.sleep(min(max(PAUSE_S, waited_s / 20), LONGEST_PAUSE_S))


async def until(fact: Callable[[], object], timeout_s: float = 30.0) -> None:
    """Like `wait_until`, without blocking the event loop."""
    async with asyncio.timeout(timeout_s):
        while not fact():
            await asyncio.sleep(PAUSE_S)
