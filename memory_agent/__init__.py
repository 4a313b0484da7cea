"""Episodic memory for agents: stores their events, and recalls similar past situations with their outcomes.

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

_NAMES = {
    "client": ("AsyncMemoryClient", "MemoryClient"),
    "client.in_ray": ("ActorMemoryProvider", "join_ray"),
    "errors": ("MemoryAgentError",),
    "memory": ("Memory",),
    "provider": ("MemoryProvider",),
    "recall.context": ("context_block",),
    "records.memories": (
        "Exclusion",
        "IngestReport",
        "MemoryFilter",
        "MemoryRecord",
        "MemoryStats",
        "RecallResult",
        "RetrievedMemory",
    ),
    "records.trajectories": ("FeedbackReport", "SonaStatus", "Trajectory"),
    "rerankers": ("Reranker", "Selection", "Snippet"),
    "settings": (
        "EmbedderSettings",
        "IngestSettings",
        "JudgeSettings",
        "LearningSettings",
        "RecallSettings",
        "RetentionSettings",
        "Settings",
        "StoreSettings",
        "load_settings",
    ),
    "tracing": ("trace_clients",),
}
"""The public names of each module."""

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
    """Initialise the C++ locale in the system's libstdc++ before an extension module loads another copy of libstdc++.

    Otherwise importing ONNX Runtime after usearch crashes with SIGSEGV (usearch 2.26.6, onnxruntime 1.31.1; decision
    0011).
    """
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):  # without libstdc++ there is nothing to do
            ctypes.CDLL("libstdc++.so.6")["_ZNSt6locale7classicEv"]()  # std::locale::classic()


_load_cxx_locale()  # before any module of this package loads an engine


def __getattr__(name: str) -> Any:
    for module, names in _NAMES.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
