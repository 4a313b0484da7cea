"""LoCoMo (Maharana et al. 2024): long conversations over dated sessions, questions, and the turns that answer them.

Reads its file and turns each conversation into events of one user. A file is a list of `{conversation: {session_N:
[{speaker, dia_id, text, blip_caption?}], session_N_date_time}, qa: [{question, evidence, category}]}`. What this does
not do: ask or count (`trial`).
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from memory_agent.errors import InvalidInputError

_SESSION = re.compile(r"session_(\d+)")
_TURN_ID = re.compile(r"D:?(\d+):(\d+)")
_DATE = "%I:%M %p on %d %B, %Y"


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    """What somebody said. `id` is `D<session>:<turn>`."""

    id: str
    text: str
    session: str
    timestamp: datetime


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """A question, and the ids of the turns that hold its answer, as far as the conversation has them."""

    text: str
    category: int
    evidence: frozenset[str]


class Conversation(msgspec.Struct, frozen=True, kw_only=True):
    """One conversation. `unmatched` counts ids of evidence that no turn has."""

    turns: tuple[Turn, ...]
    questions: tuple[Question, ...]
    unmatched: int


class _Turn(msgspec.Struct, frozen=True):
    speaker: str
    dia_id: str
    text: str
    blip_caption: str | None = None


class _Question(msgspec.Struct, frozen=True):
    question: str
    category: int
    evidence: Any = None


class _Entry(msgspec.Struct, frozen=True):
    conversation: dict[str, Any]
    qa: list[_Question]


def read_locomo(file: Path) -> list[Conversation]:
    """Return the conversations of a file. Raises `InvalidInputError` naming what is wrong."""
    try:
        entries = msgspec.json.decode(file.read_bytes(), type=list[_Entry])
        return [_read(entry) for entry in entries]
    except OSError as error:
        raise InvalidInputError(str(file), f"cannot be read: {error.strerror}") from error
    except (msgspec.DecodeError, ValueError) as error:
        raise InvalidInputError(str(file), f"is not a LoCoMo file: {error}") from error


def turn_events(conversation: Conversation, user_id: str) -> list[dict[str, Any]]:
    """Return the turns as events that `user_id` emits; the same file gives the same ids, so a repeat is known."""
    return [
        {
            "event_id": event_id(user_id, turn.id),
            "event_type": "chat.user_msg",
            "timestamp": turn.timestamp.isoformat(),
            "user_id": user_id,
            "session_id": turn.session,
            "payload": {"text": turn.text, "dia_id": turn.id},
        }
        for turn in conversation.turns
    ]


def event_id(user_id: str, turn_id: str) -> str:
    """Return the id of the event that carries a turn."""
    return f"{user_id}:{turn_id}"


def parse_evidence(evidence: object) -> set[str]:
    """Return the ids of turns in an annotation, however it is written: `D1:3`, `D8:6; D9:17`, `D:11:26`, lists."""
    if isinstance(evidence, list):
        return {id_ for item in evidence for id_ in parse_evidence(item)}
    return {_turn_id(*found) for found in _TURN_ID.findall(str(evidence))}


def _read(entry: _Entry) -> Conversation:
    turns = tuple(turn for name in _sessions(entry.conversation) for turn in _read_session(entry.conversation, name))
    known = frozenset(turn.id for turn in turns)
    cited = [parse_evidence(item.evidence) for item in entry.qa]
    questions = (
        Question(text=item.question, category=item.category, evidence=known & ids)
        for item, ids in zip(entry.qa, cited, strict=True)
    )
    return Conversation(turns=turns, questions=tuple(questions), unmatched=sum(len(ids - known) for ids in cited))


def _sessions(conversation: dict[str, Any]) -> list[str]:
    """Return the names of the sessions in their order; dates without turns are in the files too."""
    found = (match for name, value in conversation.items() if value and (match := _SESSION.fullmatch(name)))
    return [match[0] for match in sorted(found, key=lambda match: int(match[1]))]


def _read_session(conversation: dict[str, Any], name: str) -> list[Turn]:
    timestamp = datetime.strptime(conversation.get(f"{name}_date_time", ""), _DATE).replace(tzinfo=UTC)
    turns = msgspec.convert(conversation[name], list[_Turn])
    return [Turn(id=_known_id(turn), text=_text(turn), session=name, timestamp=timestamp) for turn in turns]


def _known_id(turn: _Turn) -> str:
    match = _TURN_ID.fullmatch(turn.dia_id)
    if match is None:
        raise ValueError(f"dia_id {turn.dia_id!r} is not D<session>:<turn>")
    return _turn_id(match[1], match[2])


def _turn_id(session: str, turn: str) -> str:
    return f"D{int(session)}:{int(turn)}"


def _text(turn: _Turn) -> str:
    shared = f" [shares {turn.blip_caption}]" if turn.blip_caption else ""
    return f"{turn.speaker}: {turn.text}{shared}"
