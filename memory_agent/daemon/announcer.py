"""Tells followers what became of shared items: publishes the store's publish log as events of the relay.

At least once: an entry leaves the log when the relay has acknowledged its event, whose id recognises a repeat. The
journal's former events of an item go before it is said that the item went. For that the relay looks through all events
of shared items, while publishers wait. So the announcer rests in proportion, and what goes meanwhile goes together.
"""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime

from memory_agent.errors import MemoryAgentError
from memory_agent.records.shared_requests import Caller, ReadLog, SharedStore, Untold
from relay import SHARED_USER, AsyncSubscriber, EventLimits, RelayError, check_events, submit
from relay.access import local_identity
from relay.log import log

_TIMEOUT_S = 10.0
_REST = 20.0  # pause after an erasure, in durations of it: publishers wait 5 % of the time
_CALLER = Caller(user_id=SHARED_USER)


class Announcer:
    """Publishes the log of one store. Lives in one event loop."""

    def __init__(self, store: SharedStore, journal: AsyncSubscriber, ingest: str, limits: EventLimits) -> None:
        """`store` and `journal` stay the caller's to close. `ingest` is where the relay listens on this data folder."""
        self._store = store
        self._journal = journal
        self._ingest = ingest
        self._limits = limits
        self._woken = asyncio.Event()
        self._rest_s = 0.0
        self._telling = asyncio.Lock()

    def wake(self) -> None:
        """Look at the log soon. Does not wait."""
        self._woken.set()

    async def run(self) -> None:
        """Work until cancelled. What could not be published is tried again at the next `wake`."""
        while True:
            await self._woken.wait()
            self._woken.clear()
            try:
                await self.tell()
            except (MemoryAgentError, RelayError) as error:
                log.warning("changes.not_told", code=error.code)
            rest_s, self._rest_s = self._rest_s, 0.0
            await asyncio.sleep(rest_s)

    async def tell(self) -> None:
        """Tell all that is in the log by now.

        Raises `MemoryAgentError`, `RelayError`; the next call goes on from there.
        """
        async with self._telling:
            untold = await self._read(0)
            while untold.through:
                await self._publish(untold)
                following = await self._read(untold.through)
                if not untold.has_more:
                    return  # what came meanwhile wakes for itself
                untold = following

    async def _read(self, told: int) -> Untold:
        untold: Untold = await asyncio.to_thread(self._store.ask, _CALLER, ReadLog(told=told), _TIMEOUT_S)
        return untold

    async def _publish(self, untold: Untold) -> None:
        outdated = untold.outdated
        if outdated is not None:
            began_s = time.monotonic()
            await self._journal.erase(outdated)
            self._rest_s += _REST * (time.monotonic() - began_s)
        checked = check_events(untold.events, self._limits, datetime.now(UTC))
        for one in await submit(self._ingest, checked, identity=local_identity(self._ingest)):
            if one.receipt.code:  # it would be refused for ever
                log.error("change.refused", code=one.receipt.code, field=one.receipt.field)
