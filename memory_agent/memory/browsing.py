"""The methods of `Memory` that read memories without a query: by id, by time, by session, and as a map."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from memory_agent.memory.listing import list_page, list_sessions
from memory_agent.memory.memory_map import Maps
from memory_agent.records.arguments import check_ids
from memory_agent.records.memories import MemoryFilter, MemoryMap, MemoryPage, MemoryRecord, Order, SessionPage
from memory_agent.storage.archive import Archive, OpenCalls


class Browsing:
    """Reads the memories of one user. Every method raises `StoreError` if the store has failed or is closed."""

    def __init__(self, archive: Archive, call: OpenCalls) -> None:
        self._archive = archive
        self._call = call
        self._maps = Maps(archive)

    def get(self, ids: Sequence[str], *, with_embedding: bool = False) -> list[MemoryRecord]:
        """Return the memories with these ids, in the same order, omitting unknown ids. Raises `InvalidInputError`.

        >>> record = memory.remember("Staging needs the VPN")
        >>> [found.text for found in memory.get([record.id, "unknown"])]
        ['Staging needs the VPN']
        """
        wanted = check_ids("ids", ids)
        with self._call():
            rows = [self._archive.store.row_of_id(one) for one in wanted if one]
            found = self._archive.store.records([row for row in rows if row is not None], with_embedding)
            return [record for record in found if record is not None]

    def sessions(
        self,
        filter: MemoryFilter | Mapping[str, Any] | None = None,
        limit: int = 50,
        after: str | None = None,
    ) -> SessionPage:
        """Return a page of the sessions that contain memories matching a filter, newest first.

        A session's times and counts cover only the matching memories. `limit` (1 to 1,000) and `after` work as in
        `list`. A session that receives memories between two pages may be missed. Raises `InvalidInputError`.

        >>> request = memory.remember("Fix the race", "episode", session_id="s-17", channel_id="app")
        >>> fix = memory.remember("A mutex fixed it", source="worker_result", session_id="s-17")
        >>> page = memory.sessions({"in_channel": "app"})
        >>> [(one.session_id, one.title, one.memories, one.channel_id) for one in page.sessions], page.total
        ([('s-17', 'Fix the race', 2, 'app')], 1)
        """
        with self._call():
            return list_sessions(self._archive, filter, limit, after)

    def map(self, limit: int = 5_000) -> MemoryMap:
        """Return positions in a plane for at most `limit` memories (1 to 10,000); similar memories are near each other.

        If there are more memories, the positions are those of a fixed pseudorandom sample. Memories without a vector
        have no position. Once more than 1 % of the memories have changed, the positions are recomputed so that they
        stay close to the former ones. Until then, new memories are not included. Raises `InvalidInputError`.

        >>> records = [memory.remember(text) for text in ("Fix the race", "Fix the lock", "Lunch is at noon")]
        >>> found = memory.map()
        >>> found.titles, len(found.x), max(map(abs, found.x + found.y)), found.total
        (('Fix the race', 'Fix the lock', 'Lunch is at noon'), 3, 1.0, 3)
        """
        with self._call():
            return self._maps.map(limit)

    def list(
        self,
        filter: MemoryFilter | Mapping[str, Any] | None = None,
        order: Order = "newest",
        limit: int = 50,
        after: str | None = None,
    ) -> MemoryPage:
        """Return a page of the memories that match a filter, ordered by `timestamp` or by last update.

        `after` is the `next_cursor` of the previous page, in the same order. A page has at most `limit` memories (1 to
        1,000), fewer if they are large. Storing or forgetting memories between two pages does not cause other memories
        to be repeated or missed. If a memory is replaced between two pages, its position may change, and the pages may
        miss or repeat it. Listing again by `updated`, newest first, returns it. Raises `InvalidInputError`, for example
        if the filter has `min_score`.

        >>> steps = [memory.remember(f"Step {number}", metadata={"step": number}) for number in range(3)]
        >>> page = memory.list(order="oldest", limit=2)
        >>> [record.text for record in page.records], page.total
        (['Step 0', 'Step 1'], 3)
        >>> third = memory.list({"metadata": {"step": 2}}, order="oldest", after=page.next_cursor)
        >>> [record.text for record in third.records]
        ['Step 2']
        """
        with self._call():
            return list_page(self._archive, filter, order, limit, after)
