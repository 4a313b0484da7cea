"""Clients of a daemon: `MemoryClient` (blocking), `AsyncMemoryClient` (asyncio), `in_ray.ActorMemoryProvider` (Ray).

Their methods are those of `memory_agent.provider`, which `python -m ops.documents` generates from the table of verbs.
Read `blocking` first. `in_ray` is not exported, because it imports Ray.
"""

from __future__ import annotations

from memory_agent.client.address import Address, find_daemon
from memory_agent.client.awaiting import AsyncMemoryClient
from memory_agent.client.blocking import MemoryClient
from memory_agent.client.following import AsyncBlocks, Blocks, Following

__all__ = ["Address", "AsyncBlocks", "AsyncMemoryClient", "Blocks", "Following", "MemoryClient", "find_daemon"]
