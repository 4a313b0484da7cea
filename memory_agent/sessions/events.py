"""Convert session entries to events with their original times, and with ids that make a second import a no-op.

Imports publish events of the types `history.*`, and hooks publish `session.*`. These events trigger no recall, because
imported messages are in the past and hooks perform their own recalls.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import PurePath
from typing import Any, Literal

from memory_agent.records.prompt_block import without_blocks
from memory_agent.sessions.entries import Entry, Session

Family = Literal["history", "session"]
"""The prefix of the event types: `history` for past sessions, `session` for a running session."""
_TYPES = {
    "user": "user_msg",
    "assistant": "assistant_msg",
    "command": "command.completed",
    "step": "step",
    "assignment": "assignment",
    "begin": "run.started",
    "completed": "run.completed",
    "failed": "run.failed",
    "cancelled": "run.cancelled",
}
_FIELDS = {
    "begin": "objective",
    "assignment": "objective",
    "completed": "summary",
    "failed": "error",
    "cancelled": "reason",
    "command": "output",
}
_CLIENT: dict[Family, str] = {"history": "imported_from", "session": "client"}
_ENDS = frozenset({"completed", "failed", "cancelled"})
_MOST_CHARS = 40_000  # characters of at most 4 bytes each, in an event of 256 KiB
_LONGEST_ID = 200
_ORDER = timedelta(microseconds=1)


def event_of(
    entry: Entry,
    session: Session,
    user_id: str | None,
    number: int,
    fallback: datetime,
    family: Family = "history",
) -> dict[str, Any] | None:
    """Return the event for an entry, or None if the entry contains only recalled memories.

    `number` is the entry's number in the session. An entry without a time gets the time `fallback` plus `number`
    microseconds.
    """
    text = without_blocks(entry.text).strip()[:_MOST_CHARS]
    if not text and not entry.command:
        return None
    event: dict[str, Any] = {
        "event_id": _short(f"{session.client}:{entry.id}:{entry.what}"),
        "event_type": f"{family}.{_TYPES[entry.what]}",
        "timestamp": _time(entry, fallback + number * _ORDER).isoformat(),
        "user_id": user_id,
        "session_id": _short(session.id) or None,
        "actor_id": session.client,
        "payload": _payload(entry, session, text, family),
    }
    if session.folder:
        event["channel_id"] = channel_of(session.folder)
    if entry.agent:
        event["agent_id"] = _short(entry.agent)
    return {name: value for name, value in event.items() if value is not None}


def _payload(entry: Entry, session: Session, text: str, family: Family) -> dict[str, Any]:
    payload: dict[str, Any] = {_FIELDS.get(entry.what, "text"): text, _CLIENT[family]: session.client}
    if entry.command:
        payload["command"] = entry.command
    if entry.exit_code is not None:
        payload["exit_code"] = entry.exit_code
    if entry.run is not None:
        payload["run_id"] = _short(entry.run)
    if entry.quality is not None and entry.what in _ENDS:
        payload["quality"] = entry.quality
    if session.folder:
        payload["project"] = PurePath(session.folder).name or session.folder
        payload["folder"] = session.folder
    if session.title:
        payload["session_title"] = session.title
    return payload


def _time(entry: Entry, fallback: datetime) -> datetime:
    """Return the time of an entry; a run begins one microsecond after the message that requests it."""
    at = entry.at or fallback
    return at + _ORDER if entry.what == "begin" else at


def channel_of(folder: str) -> str:
    """Return the channel for a project's sessions, named after the project's folder.

    >>> channel_of("/home/ann/shop")
    'project:/home/ann/shop'
    """
    return _short(f"project:{folder}")


def is_below(folder: str | None, project: str) -> bool:
    return folder is not None and (folder == project or PurePath(project) in PurePath(folder).parents)


def _short(id: str) -> str:
    """Return an id of at most 200 bytes. A longer id is truncated and ends with its digest."""
    if len(id.encode(errors="replace")) <= _LONGEST_ID:
        return id
    from hashlib import sha256  # imported here, because few ids are that long

    digest = sha256(id.encode(errors="replace")).hexdigest()[:32]
    head = id.encode(errors="replace")[: _LONGEST_ID - 33].decode(errors="ignore")
    return f"{head}~{digest}"
