"""Reads LoCoMo (Maharana et al. 2024): long conversations in dated sessions, questions, and the turns that answer them.

A file is a list of `{conversation: {session_N: [{speaker, dia_id, text, blip_caption?}], session_N_date_time}, qa:
[{question, evidence, category}]}`. Each conversation is a user, named after its position in the file, and each turn is
an item with the role `user`. All questions are asked at the time of the last session.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec

from memory_agent.errors import InvalidInputError
from memory_agent.evaluation.dataset import Dataset, History, Item, Question, read_file
from relay import described

MAIN_CATEGORIES = ("1", "2", "3", "4")  # category 5 repeats questions with a false premise

_SESSION = re.compile(r"session_(\d+)")
_TURN_ID = re.compile(r"D:?(\d+):(\d+)")
_DATE = "%I:%M %p on %d %B, %Y"


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


def read_locomo(file: Path) -> Dataset:
    """Read the conversations in a file. Raises `InvalidInputError`."""
    content = read_file(file)
    try:
        entries = msgspec.json.decode(content, type=described(list[_Entry]))
        histories = tuple(_read(str(number), entry) for number, entry in enumerate(entries))
    except (msgspec.DecodeError, ValueError) as error:
        raise InvalidInputError(str(file), f"is not a LoCoMo file: {error}") from error
    digest = sha256(content).hexdigest()
    return Dataset(name="locomo", digest=digest, histories=histories, main_categories=MAIN_CATEGORIES)


def choose_conversations(dataset: Dataset, numbers: Iterable[int]) -> Dataset:
    """Return the dataset with only the conversations at these positions, which count from 0. Raises
    `InvalidInputError`."""
    chosen, there = set(map(str, numbers)), [history.user for history in dataset.histories]
    if absent := sorted(chosen - set(there), key=int):
        raise InvalidInputError(
            "conversations", f"not found: {', '.join(absent)}; the file contains conversations 0 to {len(there) - 1}"
        )
    return dataset.only(chosen)


def parse_evidence(evidence: object) -> set[str]:
    """Return the turn ids in an annotation, which may be `D1:3`, `D8:6; D9:17`, `D:11:26` or a list."""
    if isinstance(evidence, list):
        return {id_ for item in evidence for id_ in parse_evidence(item)}
    return {_turn_id(*found) for found in _TURN_ID.findall(str(evidence))}


def _read(user: str, entry: _Entry) -> History:
    items = tuple(item for name in _sessions(entry.conversation) for item in _read_session(entry.conversation, name))
    known = {item.id for item in items}
    asked_at = max((item.timestamp for item in items if item.timestamp), default=None)
    cited = [parse_evidence(question.evidence) for question in entry.qa]
    questions = tuple(
        Question(
            id=f"{user}:{place}",
            text=question.question,
            category=str(question.category),
            relevant=dict.fromkeys(sorted(known & ids), 1),
            asked_at=asked_at,
        )
        for place, (question, ids) in enumerate(zip(entry.qa, cited, strict=True))
    )
    return History(user=user, items=items, questions=questions, unmatched=sum(len(ids - known) for ids in cited))


def _sessions(conversation: dict[str, Any]) -> list[str]:
    """Return the names of sessions that have turns, in order. Files also contain dates for sessions without turns."""
    found = (match for name, value in conversation.items() if value and (match := _SESSION.fullmatch(name)))
    return [match[0] for match in sorted(found, key=lambda match: int(match[1]))]


def _read_session(conversation: dict[str, Any], name: str) -> list[Item]:
    timestamp = datetime.strptime(conversation.get(f"{name}_date_time", ""), _DATE).replace(tzinfo=UTC)
    turns = msgspec.convert(conversation[name], described(list[_Turn]))
    return [Item(id=_known_id(turn), text=_text(turn), session=name, timestamp=timestamp) for turn in turns]


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
