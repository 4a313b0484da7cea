"""Runs and feedback through the daemon: what `Memory.runs` and `Memory.feedback` are embedded, blocking and awaiting.

Each write carries an id of its own, or the one that the caller names: a caller that was told nothing in time asks again
with the same `event_id`, and it is done once.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import Protocol, TypeVar

from ulid import ULID

from memory_agent.calls import Call, listed
from memory_agent.run_params import (
    FeedbackParams,
    RunBeginParams,
    RunEndParams,
    RunIdParams,
    RunListParams,
    RunStepParams,
)
from memory_agent.trajectory import FeedbackReport, Outcome, RunState, Trajectory

T = TypeVar("T")
Trajectories = list[Trajectory]


class Send(Protocol):
    """Sends a call and returns its result, or raises what the daemon raised."""

    def __call__(self, call: Call[T], /) -> T: ...


class SendAsync(Protocol):
    """As `Send`, awaited."""

    def __call__(self, call: Call[T], /) -> Awaitable[T]: ...


class ClientRuns:
    """The runs of one user. Every method raises what `MemoryClient.recall` raises, and `InvalidInputError`."""

    def __init__(self, send: Send) -> None:
        """Ask through `send`."""
        self._send = send

    def begin(
        self,
        objective: str,
        run_id: str | None = None,
        session_id: str | None = None,
        recall_ids: Sequence[str] = (),
        *,
        event_id: str | None = None,
    ) -> Trajectory:
        """Begin a run, with the recalls whose memories it was planned with. Durable on return."""
        return self._send(_begin(objective, run_id, session_id, recall_ids, event_id))

    def step(
        self, run_id: str, text: str, memory_ids: Sequence[str] = (), *, event_id: str | None = None
    ) -> Trajectory:
        """Tell what the run did, and which memories that step used. Durable on return."""
        return self._send(_step(run_id, text, memory_ids, event_id))

    def end(
        self,
        run_id: str,
        outcome: Outcome = "completed",
        summary: str | None = None,
        quality: float | None = None,
        memory_ids: Sequence[str] = (),
        *,
        event_id: str | None = None,
    ) -> Trajectory:
        """Tell how the run ended, and which memories it used. Durable on return."""
        return self._send(_end(run_id, outcome, summary, quality, memory_ids, event_id))

    def get(self, run_id: str) -> Trajectory | None:
        """Return the run, or None."""
        return self._send(_get(run_id))

    def list(self, state: RunState | None = None, limit: int = 50) -> Trajectories:
        """Return at most `limit` runs, newest first."""
        return self._send(_list(state, limit))


class AsyncClientRuns:
    """As `ClientRuns`, inside an event loop."""

    def __init__(self, send: SendAsync) -> None:
        """Ask through `send`."""
        self._send = send

    async def begin(
        self,
        objective: str,
        run_id: str | None = None,
        session_id: str | None = None,
        recall_ids: Sequence[str] = (),
        *,
        event_id: str | None = None,
    ) -> Trajectory:
        """As `ClientRuns.begin`."""
        return await self._send(_begin(objective, run_id, session_id, recall_ids, event_id))

    async def step(
        self, run_id: str, text: str, memory_ids: Sequence[str] = (), *, event_id: str | None = None
    ) -> Trajectory:
        """As `ClientRuns.step`."""
        return await self._send(_step(run_id, text, memory_ids, event_id))

    async def end(
        self,
        run_id: str,
        outcome: Outcome = "completed",
        summary: str | None = None,
        quality: float | None = None,
        memory_ids: Sequence[str] = (),
        *,
        event_id: str | None = None,
    ) -> Trajectory:
        """As `ClientRuns.end`."""
        return await self._send(_end(run_id, outcome, summary, quality, memory_ids, event_id))

    async def get(self, run_id: str) -> Trajectory | None:
        """As `ClientRuns.get`."""
        return await self._send(_get(run_id))

    async def list(self, state: RunState | None = None, limit: int = 50) -> Trajectories:
        """As `ClientRuns.list`."""
        return await self._send(_list(state, limit))


def feedback_call(
    recall_id: str, used: Sequence[str], quality: float | None, comment: str | None, event_id: str | None
) -> Call[FeedbackReport]:
    """Return the request of `feedback`."""
    params = FeedbackParams(
        recall_id=recall_id, used=listed("used", used), quality=quality, comment=comment, event_id=_id(event_id)
    )
    return Call("feedback", params, FeedbackReport)


def _begin(
    objective: str, run_id: str | None, session_id: str | None, recall_ids: Sequence[str], event_id: str | None
) -> Call[Trajectory]:
    params = RunBeginParams(
        objective=objective,
        run_id=run_id,
        session_id=session_id,
        recall_ids=listed("recall_ids", recall_ids),
        event_id=_id(event_id),
    )
    return Call("run_begin", params, Trajectory)


def _step(run_id: str, text: str, memory_ids: Sequence[str], event_id: str | None) -> Call[Trajectory]:
    params = RunStepParams(
        run_id=run_id, text=text, memory_ids=listed("memory_ids", memory_ids), event_id=_id(event_id)
    )
    return Call("run_step", params, Trajectory)


def _end(
    run_id: str,
    outcome: Outcome,
    summary: str | None,
    quality: float | None,
    memory_ids: Sequence[str],
    event_id: str | None,
) -> Call[Trajectory]:
    params = RunEndParams(
        run_id=run_id,
        outcome=outcome,
        summary=summary,
        quality=quality,
        memory_ids=listed("memory_ids", memory_ids),
        event_id=_id(event_id),
    )
    return Call("run_end", params, Trajectory)


def _get(run_id: str) -> Call[Trajectory | None]:
    return Call("run_get", RunIdParams(run_id=run_id), Trajectory | None)  # type: ignore[arg-type]  # a union


def _list(state: RunState | None, limit: int) -> Call[Trajectories]:
    return Call("run_list", RunListParams(state=state, limit=limit), Trajectories)


def _id(event_id: str | None) -> str:
    return str(ULID()) if event_id is None else event_id
