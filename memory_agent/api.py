"""The one protocol behind which every way to a memory stands: embedded, over ZeroMQ, or inside Ray."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from memory_agent.records import MemoryFilter, Mode, RecallResult


@runtime_checkable
class MemoryProvider(Protocol):
    """Answers recalls for one user. `Memory`, `MemoryClient` and `ActorMemoryProvider` satisfy it."""

    def recall(
        self,
        query: str,
        top_k: int = 5,
        filter: MemoryFilter | None = None,
        mode: Mode | None = None,
        deadline_ms: float | None = None,
    ) -> RecallResult:
        """Return at most `top_k` memories, best first; `mode` is the settings' (hybrid) unless given.

        Raises `InvalidInputError` for an unusable argument. A part that is missing or late is named in `degraded`
        and is no error.
        """
        ...
