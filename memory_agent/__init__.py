"""An episodic memory for agents: listens to their events, recalls what resembles the new input and how it ended.

    from memory_agent import Memory, MemoryFilter
    with Memory.open("data/alice") as memory:
        memory.ingest(events)
        result = memory.recall("fix the bug in the auth module", top_k=5)

Names are loaded when they are used: a client of the daemon needs none of the engines.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from memory_agent.cxx_locale import settle_cxx_locale

if TYPE_CHECKING:
    from memory_agent.client import AsyncMemoryClient, MemoryClient
    from memory_agent.client.in_ray import ActorMemoryProvider, join_ray
    from memory_agent.errors import MemoryAgentError
    from memory_agent.memory import Memory
    from memory_agent.provider import MemoryProvider
    from memory_agent.recall.context import context_block
    from memory_agent.records import (
        IngestReport,
        MemoryFilter,
        MemoryRecord,
        MemoryStats,
        RecallResult,
        RetrievedMemory,
    )
    from memory_agent.trajectory import FeedbackReport, SonaStatus, Trajectory

_HOMES = {
    "ActorMemoryProvider": "client.in_ray",
    "AsyncMemoryClient": "client",
    "FeedbackReport": "trajectory",
    "IngestReport": "records",
    "Memory": "memory",
    "MemoryAgentError": "errors",
    "MemoryClient": "client",
    "MemoryFilter": "records",
    "MemoryProvider": "provider",
    "MemoryRecord": "records",
    "MemoryStats": "records",
    "RecallResult": "records",
    "RetrievedMemory": "records",
    "SonaStatus": "trajectory",
    "Trajectory": "trajectory",
    "context_block": "recall.context",
    "join_ray": "client.in_ray",
}

__all__ = [
    "ActorMemoryProvider",
    "AsyncMemoryClient",
    "FeedbackReport",
    "IngestReport",
    "Memory",
    "MemoryAgentError",
    "MemoryClient",
    "MemoryFilter",
    "MemoryProvider",
    "MemoryRecord",
    "MemoryStats",
    "RecallResult",
    "RetrievedMemory",
    "SonaStatus",
    "Trajectory",
    "context_block",
    "join_ray",
]


settle_cxx_locale()  # before any module of this package loads an engine


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
