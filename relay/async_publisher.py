"""The publisher inside an event loop: the same thread and the same promises, without blocking the loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self

from relay.access import Identity
from relay.config import EventLimits, PublisherSettings
from relay.errors import RelayError
from relay.event import Event
from relay.publisher import Publisher
from relay.reports import FlushReport, Progress


class AsyncPublisher:
    """One ordered stream of events to one relay, for one event loop. Arguments and errors as of `Publisher`."""

    def __init__(
        self,
        ingest: str,
        *,
        settings: PublisherSettings | None = None,
        limits: EventLimits | None = None,
        spool: Path | None = None,
        producer_id: str = "",
        on_progress: Callable[[Progress], None] | None = None,
        identity: Identity | None = None,
    ) -> None:
        """Connect to `ingest`. `on_progress` is called in another thread."""
        self._publisher = Publisher(
            ingest,
            settings=settings,
            limits=limits,
            spool=spool,
            producer_id=producer_id,
            on_progress=on_progress,
            identity=identity,
        )
        self._order = asyncio.Lock()

    async def publish(self, event: Event | Mapping[str, Any], timeout_s: float | None = None) -> str:
        """Take an event and return its `event_id`; in the order in which this was called."""
        async with self._order:
            event_id = self._publisher.try_publish(event)
            if event_id is None:
                event_id = await asyncio.to_thread(self._publisher.publish, event, timeout_s)
            return event_id

    async def flush(self, timeout_s: float = 30.0) -> FlushReport:
        """Wait until everything taken so far is acknowledged or rejected."""
        return await asyncio.to_thread(self._publisher.flush, timeout_s)

    @property
    def acked_through(self) -> dict[str, int]:
        """The highest journal number acknowledged, by user."""
        return self._publisher.acked_through

    async def close(self) -> None:
        """Flush, put what has no ack into the spool, and stop."""
        await asyncio.to_thread(self._publisher.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: object, *_: object) -> None:
        try:
            await self.close()
        except RelayError:
            if kind is None:
                raise
