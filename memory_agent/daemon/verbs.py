"""What a user's memory can be asked: each method with its parameters and the function that answers it. Pure wiring.

A verb is a few calls of `Memory` and adds nothing to what it means. The third argument of each is what is left of the
caller's patience in milliseconds, which only a recall has a use for: a write is done or it is not.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from msgspec.structs import asdict

from memory_agent.memory import Memory
from memory_agent.protocol import IdsParams, NoParams, RecallParams, RememberParams
from memory_agent.records import MemoryRecord, MemoryStats, RecallResult

Answer = Callable[[Memory, Any, float], object]


def _recall(memory: Memory, params: RecallParams, deadline_ms: float) -> RecallResult:
    return memory.recall(
        params.query,
        params.top_k,
        params.filter,
        params.mode,
        min(deadline_ms, memory.usual_deadline_ms) if params.usual_deadline else deadline_ms,
        profile=params.profile,
        dates=params.dates,
        reference_time=params.local_reference_time,
        context_tokens=params.context_tokens,
        with_embedding=params.with_embedding,
    )


def _remember(memory: Memory, params: RememberParams, _: float) -> MemoryRecord:
    return memory.remember(now=datetime.now(UTC), **asdict(params))


def _get(memory: Memory, params: IdsParams, _: float) -> list[MemoryRecord]:
    return [record for id_ in params.ids if (record := memory.get(id_)) is not None]


def _forget(memory: Memory, params: IdsParams, _: float) -> int:
    return memory.forget(params.ids)


def _stats(memory: Memory, _params: NoParams, _: float) -> MemoryStats:
    return memory.stats()


VERBS: dict[str, tuple[type[Any], Answer]] = {
    "recall": (RecallParams, _recall),
    "remember": (RememberParams, _remember),
    "get": (IdsParams, _get),
    "forget": (IdsParams, _forget),
    "stats": (NoParams, _stats),
}
USER_METHODS = frozenset(VERBS)
