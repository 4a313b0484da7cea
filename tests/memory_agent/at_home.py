"""The methods of `Hosts` that concern other nodes, implemented for a single machine."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from memory_agent.daemon.hosts import Watcher


class AtHome:
    """All users are on the daemon's own machine."""

    def watch(self, watcher: Watcher) -> None:
        """Do nothing: there are no other nodes to watch."""

    def is_away(self, user_id: str) -> bool:
        return False

    @asynccontextmanager
    async def kept_home(self, user_id: str) -> AsyncIterator[None]:
        yield

    async def erase_archive(self, user_id: str) -> None:
        """There is no archive."""
