"""Polls for a condition instead of sleeping for a fixed time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

PAUSE_S = 0.005


def wait_until(fact: Callable[[], object], timeout_s: float = 120.0) -> None:
    """Poll until `fact` holds; fail after `timeout_s`."""
    until_s = time.monotonic() + timeout_s
    while not fact():
        assert time.monotonic() < until_s, "the condition did not become true"
        time.sleep(PAUSE_S)


async def until(fact: Callable[[], object], timeout_s: float = 30.0) -> None:
    """Like `wait_until`, without blocking the event loop."""
    async with asyncio.timeout(timeout_s):
        while not fact():
            await asyncio.sleep(PAUSE_S)
