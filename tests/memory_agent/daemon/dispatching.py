"""Runs a dispatcher on a real relay, with memories that record which events they receive."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import cast

from memory_agent.daemon.dispatcher import Dispatcher
from memory_agent.daemon.hosts import Hosts
from memory_agent.records.memories import IngestReport
from memory_agent.settings import DaemonSettings
from memory_agent.storage.owners import Owners
from memory_agent.verbs.protocol import IngestBatch
from relay import AsyncSubscriber
from tests.memory_agent.at_home import AtHome


class Memories(AtHome):
    """The memories of all users. A batch with an event whose number is in `stuck` never ends."""

    def __init__(self, stuck: frozenset[int] = frozenset()) -> None:
        self.taken: list[tuple[str, int]] = []
        self._stuck = stuck

    async def ingest(self, user_id: str, batch: IngestBatch) -> IngestReport:
        seqs = [seq for seq, _ in batch.events]
        if self._stuck & set(seqs):
            await asyncio.Event().wait()
        self.taken += [(user_id, seq) for seq in seqs]
        return IngestReport(kept=len(seqs))


@asynccontextmanager
async def dispatching(
    journal: AsyncSubscriber,
    folder: Path,
    memories: Memories | Hosts,
    settings: DaemonSettings,
    archive_interval_s: float = 5.0,
) -> AsyncIterator[Dispatcher]:
    """Run a dispatcher that reads `journal`; close both at the end."""
    owners = Owners(folder / "owners")
    dispatcher = Dispatcher(journal, cast(Hosts, memories), owners, settings, archive_interval_s=archive_interval_s)
    task = asyncio.create_task(dispatcher.run())
    try:
        yield dispatcher
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        await journal.close()
        owners.close()
