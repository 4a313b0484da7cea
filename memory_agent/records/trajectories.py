"""Public data types for runs and learning: runs with their steps, outcomes and the memories they used, and the
learner's state.

They are serialised as MessagePack or JSON with field names: add new fields last with defaults, and never change the
type of a field.
"""

from __future__ import annotations

from datetime import datetime
from typing import Literal, get_args

import msgspec

RunState = Literal["open", "ended", "expired"]
Outcome = Literal["completed", "failed"]
RunEnd = Literal["completed", "failed", "cancelled"]
Reason = Literal["completed", "failed", "approved", "rejected", "rated", "retried", "later_success"]
Attribution = Literal["feedback", "event", "overlap"]
Arm = Literal["baseline", "learned"]
RunRole = Literal["begin", "step", "end", "feedback"]
GateState = Literal["shadow", "trial", "on", "off"]

RUN_STATES: tuple[RunState, ...] = get_args(RunState)
RUN_ENDS: tuple[RunEnd, ...] = get_args(RunEnd)


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """One event of a run. `record_id` identifies the event's memory; it is None if there is no memory or the memory was
    forgotten.
    """

    event_id: str
    event_type: str
    timestamp: datetime
    record_id: str | None = None


class UsedMemory(msgspec.Struct, frozen=True, kw_only=True):
    """A memory that a run used. `credit` is 1 if the memory was named, or 0.5 if its use was inferred or all memories
    shown were named.
    """

    record_id: str
    how: Attribution
    credit: float
    recall_id: str | None = None


class Revision(msgspec.Struct, frozen=True, kw_only=True):
    """A quality (0 to 1) with its reason and the event or trajectory that caused it."""

    quality: float
    reason: Reason
    at: datetime
    cause: str | None = None


class Trajectory(msgspec.Struct, frozen=True, kw_only=True):
    """One run, from its request to its end. `id` is the id of the run, or of a recall that has feedback but no run.

    `quality` is None until the run ends, and is then the quality of the last revision. A cancelled run (`is_cancelled`)
    has neither outcome nor quality, unless it was rated. `conclusions` are the events that ended or rated the run, in
    order.
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
    is_cancelled: bool = False
    conclusions: tuple[Step, ...] = ()


class RunLine(msgspec.Struct, frozen=True, kw_only=True):
    """One line of text from a run's memory. `is_whole`: whether the line contains nearly the whole memory."""

    text: str
    record_id: str
    is_whole: bool = True


class SimilarRun(msgspec.Struct, frozen=True, kw_only=True):
    """A finished run whose request resembles a text.

    `score` (the raw cosine) and `relevance` refer to the request, to the user's message before the request, or to the
    run that this run retried. `steps` contains at most 32 steps, in order: the first steps and the last, with
    `more_steps` steps omitted between them. Steps without text, and steps with a forgotten memory, are not counted.
    `because` is the text of the run's end or rating, and `reason` is the reason for its `quality`. `recalled` are the
    memories that its recalls showed.
    """

    id: str
    request: RunLine
    end: RunEnd
    score: float | None = None
    relevance: float | None = None
    quality: float | None = None
    reason: Reason | None = None
    because: RunLine | None = None
    steps: tuple[RunLine, ...] = ()
    more_steps: int = 0
    session_id: str | None = None
    began_at: datetime | None = None
    ended_at: datetime | None = None
    took_s: float | None = None
    recalled: tuple[str, ...] = ()
    used: tuple[UsedMemory, ...] = ()


class CommonStep(msgspec.Struct, frozen=True, kw_only=True):
    """A step that several runs have in common, in the words of one run. `record_ids`: memories with this wording."""

    text: str
    run_ids: tuple[str, ...]
    record_ids: tuple[str, ...] = ()


class FeedbackReport(msgspec.Struct, frozen=True, kw_only=True):
    """The effect of feedback: the trajectory, the credited memories, and why other memories were not credited."""

    trajectory_id: str
    credited: tuple[str, ...] = ()
    not_credited: dict[str, str] = {}
    quality: float | None = None


class GateEvidence(msgspec.Struct, frozen=True, kw_only=True):
    """The evidence behind the gate's decision.

    `won` and `lost` count comparisons of the learned arm with the baseline. `evidence` and `harm` are the wealth of the
    bets for and against the learned arm. The gate turns the arm on if `evidence` >= `threshold`, and off if `harm` >=
    20.
    """

    state: GateState
    won: int
    lost: int
    tied: int
    evidence: float
    harm: float
    threshold: float


class GateStanding(msgspec.Struct, frozen=True, kw_only=True):
    """The gate's state after a lesson whose run ended at the time `at`. The other fields are as in `GateEvidence` and
    `SonaStatus`.
    """

    at: datetime
    run_id: str
    state: GateState
    won: int
    lost: int
    evidence: float
    threshold: float
    gain: float | None = None
    gain_low: float | None = None
    gain_high: float | None = None


class CreditedMemory(msgspec.Struct, frozen=True, kw_only=True):
    """A memory used by runs that have ended: the number of these `runs`, the memory's total `credit`, and the mean
    `quality` of the runs.

    `lift` is this quality minus the mean quality of all lessons in which a memory was used. `run_ids` are the latest of
    these runs, at most three.
    """

    id: str
    runs: int
    credit: float
    quality: float
    lift: float
    run_ids: tuple[str, ...] = ()


class SonaStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The state of the learner. `served` counts recalls by the arm that ranked them.

    `gain` is the share of decided contests that the learned arm won, minus 1/2, with its 95 % interval. `history` is
    the gate's state after each of at most 100 lessons, oldest first. `most_credited` are the 20 memories with the
    largest sum of credit times quality.
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
    engine: str = ""
    history: tuple[GateStanding, ...] = ()
    most_credited: tuple[CreditedMemory, ...] = ()


class RecalledRun(msgspec.Struct, frozen=True, kw_only=True):
    """A past run that raised a memory's score in the learned ranking: its similarity to the request and its quality."""

    trajectory_id: str
    similarity: float = 0.0
    quality: float | None = None
