"""Parameters of the requests about runs, feedback and the learner (`protocol` has the others, and the rules).

What writes carries an `event_id` that the client made: a request that comes again, because its answer was lost or its
host died, is recognised by it and done once. A daemon that is too old for a method answers that it knows none such.
"""

from __future__ import annotations

import msgspec

from memory_agent.trajectory import Outcome, RunState


class RunBeginParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Parameters of `run_begin`. Without a `run_id` the run gets one."""

    objective: str
    event_id: str
    run_id: str | None = None
    session_id: str | None = None
    recall_ids: tuple[str, ...] = ()


class RunStepParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Parameters of `run_step`. `memory_ids`: what the step used."""

    run_id: str
    text: str
    event_id: str
    memory_ids: tuple[str, ...] = ()


class RunEndParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Parameters of `run_end`. `memory_ids`: what the run used; `quality` 0..1, none where nobody has judged it."""

    run_id: str
    event_id: str
    outcome: Outcome = "completed"
    summary: str | None = None
    quality: float | None = None
    memory_ids: tuple[str, ...] = ()


class RunIdParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Parameters of `run_get`."""

    run_id: str


class RunListParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Parameters of `run_list`: runs in this state, or all of them; at most `limit`."""

    state: RunState | None = None
    limit: int = 50


class FeedbackParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Parameters of `feedback`: which memories of a recall were used, and how well it ended (0..1)."""

    recall_id: str
    event_id: str
    used: tuple[str, ...] = ()
    quality: float | None = None
    comment: str | None = None


class SonaImportParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Parameters of `sona_import`: what `sona_export` returned."""

    data: bytes


class SessionParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Parameters of `forget_session`."""

    session_id: str
