"""Lists memories across pages."""

from __future__ import annotations

from collections.abc import Iterator

from memory_agent.client import MemoryClient
from memory_agent.records.arguments import MOST_LISTED
from memory_agent.records.memories import MemoryFilter, MemoryRecord, Order


def listed(
    memory: MemoryClient, matching: MemoryFilter, order: Order = "newest", page: int = MOST_LISTED
) -> Iterator[MemoryRecord]:
    """Yield the memories that match a filter, requesting `page` at a time. Raises the errors of the client.

    >>> [record.text for record in listed(memory, MemoryFilter(kinds=("finding",)))]
    ['Staging needs the VPN']
    """
    after = None
    while True:
        found = memory.list(matching, order, page, after)
        yield from found.records
        if (after := found.next_cursor) is None:
            return
