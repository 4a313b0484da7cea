"""Read what an event reports about a run: its start, a step, its end, feedback, used memories or related runs. Pure.

The matching row of the signal table determines the event's role. If no row matches, an event that refers to memories or
to a recall is a step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec

from memory_agent.errors import UnhandledEventError
from memory_agent.records.trajectories import RunEnd, RunRole
from memory_agent.signals.payloads import NotTextError, clean, read_name, read_part, roots, with_reports
from memory_agent.signals.reader import id_of, run_id_of, utc
from memory_agent.signals.table import Signal, SignalTable, is_own
from memory_agent.signals.verdicts import Verdict, reason_of, verdict
from relay import Event

_MEMORIES = ("memory_ids", "used_memory_ids", "memory_id", "used_memory_id")
_RECALLS = ("recall_id", "recall_ids")
_PARENTS = ("parent_run_id", "previous_run_id")
_RETRIES = ("retry_of",)
_MOST_NAMES = 200
_NAME_CHARS = 256

Objects = Sequence[Mapping[str, Any]]


class RunSign(msgspec.Struct, frozen=True, kw_only=True):
    """What one event reports about a run. `run_id` is None only for feedback on a recall. `words` is the first part of
    the event's text; if the event begins a run, it is the request. The run continues the runs in `parents` and retries
    those in `retries`.
    """

    role: RunRole
    event_id: str
    event_type: str
    at: datetime
    run_id: str | None
    session_id: str | None = None
    outcome: RunEnd | None = None
    verdict: Verdict | None = None
    words: str = ""
    memory_ids: tuple[str, ...] = ()
    recall_ids: tuple[str, ...] = ()
    parents: tuple[str, ...] = ()
    retries: tuple[str, ...] = ()


def read_run_sign(event: Event, table: SignalTable) -> RunSign | None:
    """Return what `event` reports about a run, or None. Never raises."""
    if not isinstance(event.payload, dict) or is_own(event.event_type):
        return None
    try:
        return _read(event, table, table.match(event.event_type), roots(event.payload))
    except (NotTextError, UnhandledEventError):
        return None


def _read(event: Event, table: SignalTable, signal: Signal | None, objects: Objects) -> RunSign | None:
    objects = with_reports(objects)
    memory_ids, recall_ids = _names(objects, _MEMORIES), _names(objects, _RECALLS)
    role = None if signal is None else "end" if signal.run == "cancel" else signal.run
    role = role or ("step" if memory_ids or recall_ids else None)
    run_id = run_id_of(event, objects) or (read_name(objects, "trajectory_id") if role == "feedback" else None)
    if role is None or (run_id is None and not (role == "feedback" and recall_ids)):
        return None
    stated = _verdict(signal, objects, table)
    return RunSign(
        role=role,
        event_id=event.event_id,
        event_type=event.event_type,
        at=utc(event),
        run_id=run_id,
        session_id=id_of(event, "session_id", objects),
        outcome=_outcome(signal, stated) if role == "end" else None,
        verdict=stated if role == "feedback" or (role == "end" and stated and stated.is_outright) else None,
        words=_words(signal, objects, table),
        memory_ids=memory_ids,
        recall_ids=recall_ids,
        parents=tuple(name for name in _names(objects, _PARENTS) if name != run_id),
        retries=tuple(name for name in _names(objects, _RETRIES) if name != run_id),
    )


def _verdict(signal: Signal | None, objects: Objects, table: SignalTable) -> Verdict | None:
    """Return the verdict from the payload or the feedback type. A numeric rating is used for every event type."""
    stated = None if signal is None else verdict(objects, table.outcomes)
    if signal is None or signal.outcome or (stated is not None and stated.is_outright and stated.reason == "rated"):
        return stated or _verdict_of_type(signal)
    return _verdict_of_type(signal)


def _verdict_of_type(signal: Signal | None) -> Verdict | None:
    if signal is None or signal.run != "feedback" or signal.quality is None:
        return None
    return Verdict(signal.quality, reason_of(signal.quality), True)


def _outcome(signal: Signal | None, stated: Verdict | None) -> RunEnd:
    if signal is not None and signal.run == "cancel":
        return "cancelled"
    if stated is not None and not stated.is_outright:
        return "failed" if stated.quality == 0.0 else "completed"
    return "failed" if signal is not None and signal.quality == 0.0 else "completed"


def _words(signal: Signal | None, objects: Objects, table: SignalTable) -> str:
    """Return the first non-empty part of the text that is not marked `+`, with its label.

    For feedback, only the comment is considered.
    """
    parts = [] if signal is None else [part for part in table.parts[signal] if not part.accompanies]
    parts = parts[:1] if signal is not None and signal.run == "feedback" else [*parts, table.fallback]
    found = ((part.label, read_part(objects, part)) for part in parts)
    return next((f"{label} {words}".lstrip() for label, words in found if words), "")


def _names(objects: Objects, fields: Sequence[str]) -> tuple[str, ...]:
    found: dict[str, None] = {}
    for field in fields:
        for root in objects:
            value = root.get(field)
            for name in value if isinstance(value, list) else (value,):
                if isinstance(name, str) and (cleaned := clean(name, field)[:_NAME_CHARS]):
                    found[cleaned] = None
    return tuple(found)[:_MOST_NAMES]
