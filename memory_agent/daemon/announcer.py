"""Publishes the log of changes to shared items as relay events, for followers.

Delivery is at least once: an entry is deleted from the log once the relay has acknowledged its event. Before a removal
is published, the earlier journal events of the item are erased. Publishers wait while the relay scans for these events,
so the announcer pauses after each scan, for a time proportional to the scan's duration.
"""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime

from memory_agent.errors import MemoryAgentError
from memory_agent.records.shared_requests import Caller, PendingChanges, ReadLog, SharedStore
from relay import SHARED_USER, AsyncSubscriber, EventLimits, RelayError, check_events, submit
from relay.access import local_identity
from relay.log import log

_TIMEOUT_S = 10.0
_REST = 20.0  # pause after an erasure, as a multiple of its duration, so that publishers wait 5 % of the time
_CALLER = Caller(user_id=SHARED_USER)


class Announcer:
    """Publishes the log of one store. Must be used from a single event loop."""

    def __init__(self, store: SharedStore, journal: AsyncSubscriber, ingest: str, limits: EventLimits) -> None:
        self._store = store
        self._journal = journal
        self._ingest = ingest
        self._limits = limits
        self._woken = asyncio.Event()
        self._rest_s = 0.0
        self._publishing = asyncio.Lock()

    def wake(self) -> None:
        self._woken.set()

    async def run(self) -> None:
        """Publish until cancelled. After a failure, the next `wake` retries."""
        while True:
            await self._woken.wait()
            self._woken.clear()
            try:
                await self.publish_changes()
            except (MemoryAgentError, RelayError) as error:
                log.warning("changes.not_told", code=error.code)
            rest_s, self._rest_s = self._rest_s, 0.0
            await asyncio.sleep(rest_s)

    async def publish_changes(self) -> None:
        """Raises `MemoryAgentError` and `RelayError`; the next call continues after the last acknowledged entry."""
        async with self._publishing:
            untold = await self._read(0)
            while untold.through:
                await self._publish(untold)
                following = await self._read(untold.through)
                if not untold.has_more:
                    return  # later entries wake the announcer again
                untold = following

    async def _read(self, told: int) -> PendingChanges:
        return await asyncio.to_thread(self._store.ask, _CALLER, ReadLog(after=told), _TIMEOUT_S)

    async def _publish(self, untold: PendingChanges) -> None:
        outdated = untold.outdated
        if outdated is not None:
            began_s = time.monotonic()
            await self._journal.erase(outdated)
            self._rest_s += _REST * (time.monotonic() - began_s)
        checked = check_events(untold.events, self._limits, datetime.now(UTC))
        for one in await submit(self._ingest, checked, identity=local_identity(self._ingest)):
            if one.receipt.code:  # a retry would be refused again
                log.error("change.refused", code=one.receipt.code, field=one.receipt.field)
