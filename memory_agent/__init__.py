"""Episodic memory for agents: stores their events, and recalls similar situations and how they ended.

    from memory_agent import Memory, MemoryFilter
    with Memory.open("data/alice") as memory:
        memory.ingest(events)
        result = memory.recall("fix the bug in the auth module", top_k=5)

Names are imported on first use, so a client of the daemon does not load the engines.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from memory_agent.client import AsyncMemoryClient, MemoryClient
    from memory_agent.client.in_ray import ActorMemoryProvider, join_ray
    from memory_agent.errors import MemoryAgentError
    from memory_agent.memory import Memory
    from memory_agent.provider import MemoryProvider
    from memory_agent.recall.context import context_block
    from memory_agent.records.memories import (
        Exclusion,
        IngestReport,
        MemoryFilter,
        MemoryRecord,
        MemoryStats,
        RecallResult,
        RetrievedMemory,
    )
    from memory_agent.records.trajectories import FeedbackReport, SonaStatus, Trajectory
    from memory_agent.rerankers import Reranker, Selection, Snippet
    from memory_agent.settings import (
        EmbedderSettings,
        IngestSettings,
        JudgeSettings,
        LearningSettings,
        RecallSettings,
        RetentionSettings,
        Settings,
        StoreSettings,
        load_settings,
    )
    from memory_agent.tracing import trace_clients

_HOMES = {
    "ActorMemoryProvider": "client.in_ray",
    "AsyncMemoryClient": "client",
    "EmbedderSettings": "settings",
    "Exclusion": "records.memories",
    "FeedbackReport": "records.trajectories",
    "IngestReport": "records.memories",
    "IngestSettings": "settings",
    "JudgeSettings": "settings",
    "LearningSettings": "settings",
    "Memory": "memory",
    "MemoryAgentError": "errors",
    "MemoryClient": "client",
    "MemoryFilter": "records.memories",
    "MemoryProvider": "provider",
    "MemoryRecord": "records.memories",
    "MemoryStats": "records.memories",
    "RecallResult": "records.memories",
    "RecallSettings": "settings",
    "Reranker": "rerankers",
    "RetentionSettings": "settings",
    "RetrievedMemory": "records.memories",
    "Selection": "rerankers",
    "Settings": "settings",
    "Snippet": "rerankers",
    "SonaStatus": "records.trajectories",
    "StoreSettings": "settings",
    "Trajectory": "records.trajectories",
    "context_block": "recall.context",
    "join_ray": "client.in_ray",
    "load_settings": "settings",
    "trace_clients": "tracing",
}

__all__ = [
    "ActorMemoryProvider",
    "AsyncMemoryClient",
    "EmbedderSettings",
    "Exclusion",
    "FeedbackReport",
    "IngestReport",
    "IngestSettings",
    "JudgeSettings",
    "LearningSettings",
    "Memory",
    "MemoryAgentError",
    "MemoryClient",
    "MemoryFilter",
    "MemoryProvider",
    "MemoryRecord",
    "MemoryStats",
    "RecallResult",
    "RecallSettings",
    "Reranker",
    "RetentionSettings",
    "RetrievedMemory",
    "Selection",
    "Settings",
    "Snippet",
    "SonaStatus",
    "StoreSettings",
    "Trajectory",
    "context_block",
    "join_ray",
    "load_settings",
    "trace_clients",
]


def _load_cxx_locale() -> None:
    """Create the C++ locale of the system's libstdc++ before an extension module loads another copy of it.

    Otherwise importing ONNX Runtime after usearch crashes with SIGSEGV (usearch 2.26.6, onnxruntime 1.31.1; decision
    0011). Likely cause: usearch bundles a C++ library whose locale ids are unique process-wide (STB_GNU_UNIQUE), and
    ONNX Runtime, which uses the system's libstdc++, treats them as its own. Rejected: importing ONNX Runtime first,
    which takes 35 MB in a process that only searches.
    """
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):  # without libstdc++ there is nothing to do
            ctypes.CDLL("libstdc++.so.6")["_ZNSt6locale7classicEv"]()  # std::locale::classic()


_load_cxx_locale()  # before any module of this package loads an engine


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
