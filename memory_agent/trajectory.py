"""What a run is, how it ended and what it used, and what the learner says of itself: plain data, part of the contract.

These types travel as MessagePack or JSON with their field names, so new fields go last and have defaults, and the type
of a field never changes. What this does not do: decide anything (`learning`), learn (`sona`).
"""

from __future__ import annotations

from datetime import datetime
from typing import Literal, get_args

import msgspec

RunState = Literal["open", "ended", "expired"]
Outcome = Literal["completed", "failed"]
Reason = Literal["completed", "failed", "approved", "rejected", "rated", "retried", "later_success"]
Attribution = Literal["feedback", "event", "overlap"]
Arm = Literal["baseline", "learned"]
RunRole = Literal["begin", "step", "end", "feedback"]
GateState = Literal["shadow", "trial", "on", "off"]

RUN_STATES: tuple[RunState, ...] = get_args(RunState)
OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """One event of a run. `record_id` is the memory that it became; None where it became none, or was forgotten."""

    event_id: str
    event_type: str
    timestamp: datetime
    record_id: str | None = None


class UsedMemory(msgspec.Struct, frozen=True, kw_only=True):
    """A memory that a run used. `credit` is 1 where the run says so and .5 where its output overlaps the memory."""

    record_id: str
    how: Attribution
    credit: float
    recall_id: str | None = None


class Revision(msgspec.Struct, frozen=True, kw_only=True):
    """A quality (0..1), why, and the event or trajectory that brought it about."""

    quality: float
    reason: Reason
    at: datetime
    cause: str | None = None


class Trajectory(msgspec.Struct, frozen=True, kw_only=True):
    """One run, from its request to its end. `id` is the run's id, or that of a recall that feedback came for alone.

    `quality` is None until it ended, and that of the revision that counts afterwards; `revisions` are in order.
    """

    id: str
    state: RunState
    objective: str | None = None
    session_id: str | None = None
    began_at: datetime | None = None
    ended_at: datetime | None = None
    outcome: Outcome | None = None
    quality: float | None = None
    revisions: tuple[Revision, ...] = ()
    recall_ids: tuple[str, ...] = ()
    steps: tuple[Step, ...] = ()
    used: tuple[UsedMemory, ...] = ()


class FeedbackReport(msgspec.Struct, frozen=True, kw_only=True):
    """What became of feedback: the trajectory it belongs to, what it credits, and what it cannot credit and why."""

    trajectory_id: str
    credited: tuple[str, ...] = ()
    not_credited: dict[str, str] = {}
    quality: float | None = None


class GateEvidence(msgspec.Struct, frozen=True, kw_only=True):
    """What the gate goes by. `won` and `lost` are the contests of the learned arm; `evidence` and `harm` the wealth of
    the two bets, each against `threshold`."""

    state: GateState
    won: int
    lost: int
    tied: int
    evidence: float
    harm: float
    threshold: float


class SonaStatus(msgspec.Struct, frozen=True, kw_only=True):
    """What the learner says of itself. `mode` is the setting; `served` counts recalls by the arm that ordered them.

    `gain` is the share of decided contests that the learned arm won, less one half, with its 95 % interval; None before
    the first. `consolidated_at` is None before the first consolidation.
    """

    user_id: str
    mode: Literal["auto", "on", "off"]
    gate: GateEvidence
    trajectories: int
    credited: int
    exemplars: int
    memories_with_credit: int
    served: dict[str, int]
    gain: float | None
    gain_low: float | None
    gain_high: float | None
    consolidated_at: datetime | None
    state_bytes: int


class RecalledRun(msgspec.Struct, frozen=True, kw_only=True):
    """A past run that made the learner rank a memory as it did: what was asked then, how it ended, how alike it is."""

    trajectory_id: str
    similarity: float = 0.0
    quality: float | None = None
