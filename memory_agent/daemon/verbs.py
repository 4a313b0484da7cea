"""What a user's memory can be asked: each method with its parameters and the function that answers it. Pure wiring.

A verb is a few calls of `Memory` and adds nothing to what it means. The third argument of each is what is left of the
caller's patience in milliseconds, which only a recall has a use for: a write is done or it is not.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from msgspec.structs import asdict

from memory_agent.erasure.intent_log import Intent
from memory_agent.erasure.receipt import ErasureReceipt
from memory_agent.memory import Memory
from memory_agent.protocol import EraseParams, IdsParams, NoParams, RecallParams, RememberParams
from memory_agent.records import Compacted, MemoryRecord, MemoryStats, RecallResult
from memory_agent.run_params import (
    FeedbackParams,
    RunBeginParams,
    RunEndParams,
    RunIdParams,
    RunListParams,
    RunStepParams,
    SessionParams,
    SonaImportParams,
)
from memory_agent.trajectory import FeedbackReport, SonaStatus, Trajectory

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
        by_run=params.by_run,
    )


def _remember(memory: Memory, params: RememberParams, _: float) -> MemoryRecord:
    return memory.remember(now=datetime.now(UTC), **asdict(params))


def _get(memory: Memory, params: IdsParams, _: float) -> list[MemoryRecord]:
    return [record for id_ in params.ids if (record := memory.get(id_)) is not None]


def _forget(memory: Memory, params: IdsParams, _: float) -> int:
    return memory.forget(params.ids)


def _stats(memory: Memory, _params: NoParams, _: float) -> MemoryStats:
    return memory.stats()


def _forget_session(memory: Memory, params: SessionParams, _: float) -> int:
    return memory.forget_session(params.session_id)


def _run_begin(memory: Memory, params: RunBeginParams, _: float) -> Trajectory:
    return memory.runs.begin(**asdict(params))


def _run_step(memory: Memory, params: RunStepParams, _: float) -> Trajectory:
    return memory.runs.step(**asdict(params))


def _run_end(memory: Memory, params: RunEndParams, _: float) -> Trajectory:
    return memory.runs.end(**asdict(params))


def _run_get(memory: Memory, params: RunIdParams, _: float) -> Trajectory | None:
    return memory.runs.get(params.run_id)


def _run_list(memory: Memory, params: RunListParams, _: float) -> list[Trajectory]:
    return memory.runs.list(params.state, params.limit)


def _feedback(memory: Memory, params: FeedbackParams, _: float) -> FeedbackReport:
    return memory.feedback(**asdict(params))


def _sona_status(memory: Memory, _params: NoParams, _: float) -> SonaStatus:
    return memory.sona.status()


def _sona_reset(memory: Memory, _params: NoParams, _: float) -> int:
    return memory.sona.reset()


def _sona_export(memory: Memory, _params: NoParams, _: float) -> bytes:
    return memory.sona.export()


def _sona_import(memory: Memory, params: SonaImportParams, _: float) -> int:
    return memory.sona.load(params.data)


def _rebuild(memory: Memory, _params: NoParams, _: float) -> int:
    return memory.care.rebuild()


def _compact(memory: Memory, _params: NoParams, _: float) -> Compacted:
    return memory.care.compact()


def _erase_begin(memory: Memory, params: EraseParams, _: float) -> Intent:
    intent = memory.erasure.plan(params.selection, datetime.now(UTC))
    return intent if params.dry_run else memory.erasure.begin(intent)


def _erase_finish(memory: Memory, params: Intent, _: float) -> ErasureReceipt:
    return memory.erasure.carry_out(params, datetime.now(UTC))


def _age(memory: Memory, _params: NoParams, _: float) -> int:
    return memory.erasure.age(datetime.now(UTC), AGED_AT_ONCE)


AGED_AT_ONCE = 20_000
"""Memories: their ids and those of their events are a few megabytes in one request to the journal."""

VERBS: dict[str, tuple[type[Any], Answer]] = {
    "recall": (RecallParams, _recall),
    "remember": (RememberParams, _remember),
    "get": (IdsParams, _get),
    "forget": (IdsParams, _forget),
    "erase_begin": (EraseParams, _erase_begin),
    "erase_finish": (Intent, _erase_finish),
    "age": (NoParams, _age),
    "forget_session": (SessionParams, _forget_session),
    "stats": (NoParams, _stats),
    "run_begin": (RunBeginParams, _run_begin),
    "run_step": (RunStepParams, _run_step),
    "run_end": (RunEndParams, _run_end),
    "run_get": (RunIdParams, _run_get),
    "run_list": (RunListParams, _run_list),
    "feedback": (FeedbackParams, _feedback),
    "sona_status": (NoParams, _sona_status),
    "sona_reset": (NoParams, _sona_reset),
    "sona_export": (NoParams, _sona_export),
    "sona_import": (SonaImportParams, _sona_import),
    "rebuild": (NoParams, _rebuild),
    "compact": (NoParams, _compact),
}
INNER_METHODS = frozenset({"erase_begin", "erase_finish", "age"})
"""Steps of an erasure that only the daemon asks for: alone they would lose what the journal still holds."""
USER_METHODS = frozenset(VERBS) - INNER_METHODS
