"""Wakes streams whose users have new entries in the journal.

Each event of any user rings the relay's doorbell, which names nobody. So one task reads on for all streams, with the
data folder's own token, and wakes those concerned; each then reads what its own key may read. Forty idle streams that
all woke took half a core at 100 events/s (decision 0028).
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import NamedTuple

from relay import AsyncSubscriber, Endpoints, RelayError

_AT_ONCE = 200
_MOST_BYTES = 1 << 20
_PACE_S = 0.02
_IDLE_S = 1.0
_PAUSE_S = 0.2


class _Wanted(NamedTuple):
    """An entry of this user, or of anybody, beyond number `after`."""

    user_id: str | None
    after: int


class JournalWatch:
    """Watches the journal of one relay while anybody waits. Lives in one event loop."""

    def __init__(self, relay: Endpoints) -> None:
        """Watch nothing before `run`."""
        self._relay = relay
        self._seq = 0
        self._waiting: dict[asyncio.Future[None], _Wanted] = {}
        self._called = asyncio.Event()

    async def run(self) -> None:
        """Work until cancelled, also while the relay is unavailable."""
        async with AsyncSubscriber(*self._relay) as journal:
            while True:
                if not self._waiting:
                    self._called.clear()
                    await self._called.wait()
                try:
                    await self._look(journal)
                except RelayError:  # each stream finds out by itself, and says so
                    await asyncio.sleep(_PAUSE_S)

    async def wait(self, user_id: str | None, after: int, timeout_s: float) -> None:
        """Wait until the user (None: anybody) may have an entry after number `after`, at most `timeout_s`.

        `after` is the journal's last number as of the caller's last read.
        """
        self._called.set()
        if after < self._seq:  # what lies between was seen while nobody waited for this user
            await asyncio.sleep(_PACE_S)
            return
        if not self._waiting:
            self._seq = after
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[woken] = _Wanted(user_id, after)
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await woken
        finally:
            del self._waiting[woken]

    async def _look(self, journal: AsyncSubscriber) -> None:
        """Read on once and wake whom it concerns; at the end of the journal, wait for more."""
        begin = self._seq
        batch = await journal.fetch(begin, _AT_ONCE, max_bytes=_MOST_BYTES)
        self._seq = batch.entries[-1].seq if batch.entries else batch.last_seq
        newest = {entry.user_id: entry.seq for entry in batch.entries}
        is_other = batch.last_seq < begin  # a journal restored from a backup
        for woken, wanted in self._waiting.items():
            seq = self._seq if wanted.user_id is None else newest.get(wanted.user_id, 0)
            if not woken.done() and (is_other or seq > wanted.after):
                woken.set_result(None)
        if batch.entries:
            await asyncio.sleep(_PACE_S)  # a doorbell rings for each event: read several at once
        else:
            await journal.wait(_IDLE_S)
