"""Clients of a daemon: `MemoryClient` blocks, `AsyncMemoryClient` awaits, `in_ray.ActorMemoryProvider` calls actors.

All have the same methods, which `python -m ops.documents` writes from the table of verbs.
"""

from __future__ import annotations

from memory_agent.client.address import Address, find_daemon
from memory_agent.client.awaiting import AsyncMemoryClient
from memory_agent.client.blocking import MemoryClient

__all__ = ["Address", "AsyncMemoryClient", "MemoryClient", "find_daemon"]
