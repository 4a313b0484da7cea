"""Reads user-supplied data from JSON lines: records to remember, and queries with the records that answer them.

    {"type": "record", "id": "r1", "text": "The deploy needs the VPN", "timestamp": "2026-02-16T10:00:00Z"}
    {"type": "query", "id": "q1", "text": "why does the deploy hang?", "relevant": ["r1"]}

A record may have `user`, `session_id`, `timestamp`, `kind` and `role` (user or assistant); a query may have `user`,
`category` (default "none") and `timestamp` (when it is asked). `relevant` is a list of ids, or an object that maps ids
to integer grades (0: not relevant), as in TREC. Lines without `user` belong to the user "default". A query is answered
from the records of its user. Records are ingested in file order. An invalid line raises an error that names the line
and the field. An unknown field is also invalid, because a typo would change the measurement.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any

import msgspec

from memory_agent.errors import InvalidInputError
from memory_agent.evaluation.dataset import Dataset, History, Item, Question, Role, read_file
from memory_agent.records.memories import Kind
from relay import described, validate_id, validate_timestamp, validate_user_id
from relay.errors import MalformedEventError

_USER = "default"
_CATEGORY = "none"
_MAX_ID_BYTES = 120  # the event id also contains the user
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_ANY_TIME_S = 1e12  # accepts any date here; ingest rejects future ones

Text = Annotated[str, msgspec.Meta(min_length=1)]
Grade = Annotated[int, msgspec.Meta(ge=0, le=100)]


class _Record(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="record"):
    id: Text
    text: Text
    user: Text = _USER
    session_id: str | None = None
    timestamp: Any = None
    kind: Kind = "episode"
    role: Role = "user"


class _Query(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="query"):
    id: Text
    text: Text
    relevant: list[Text] | dict[Text, Grade]
    user: Text = _USER
    category: Text = _CATEGORY
    timestamp: Any = None

    @property
    def grades(self) -> dict[str, int]:
        given = self.relevant if isinstance(self.relevant, dict) else dict.fromkeys(self.relevant, 1)
        return {id_: grade for id_, grade in given.items() if grade}


_Line = _Record | _Query
_Numbered = tuple[int, Any]  # a line number, from 1, and the line

_decoder: msgspec.json.Decoder[_Line] = msgspec.json.Decoder(described(_Line))


def read_jsonl(file: Path) -> Dataset:
    """Read a dataset from a file. Raises `InvalidInputError` (with the file, line and field)."""
    content = read_file(file)
    lines = [
        (number, _decode(file, number, line)) for number, line in enumerate(content.splitlines(), 1) if line.strip()
    ]
    records: list[_Numbered] = [(number, line) for number, line in lines if isinstance(line, _Record)]
    queries: list[_Numbered] = [(number, line) for number, line in lines if isinstance(line, _Query)]
    if not records:
        raise InvalidInputError(str(file), "has no records")
    _check_ids(file, records, queries)
    users = dict.fromkeys(line.user for _, line in lines)
    histories = tuple(_history(file, user, records, queries) for user in users)
    return Dataset(name="jsonl", digest=sha256(content).hexdigest(), histories=histories)


def _decode(file: Path, number: int, line: bytes) -> _Line:
    try:
        decoded = _decoder.decode(line)
        validate_user_id(decoded.user)
        validate_id("id", decoded.id, _MAX_ID_BYTES)
        validate_id("session_id", getattr(decoded, "session_id", None), _MAX_ID_BYTES)
    except MalformedEventError as error:
        raise _refused(file, number, error.field, error.reason) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidInputError(f"{file}:{number}", _field_first(str(error))) from error
    return decoded


def _check_ids(file: Path, records: Iterable[_Numbered], queries: Iterable[_Numbered]) -> None:
    """Raise `InvalidInputError` for duplicate ids and for evidence without a record."""
    of_records: dict[tuple[str, str], int] = {}
    of_queries: dict[str, int] = {}
    for number, record in records:
        _note(file, number, of_records, (record.user, record.id))
    for number, query in queries:
        _note(file, number, of_queries, query.id)
        for id_ in query.relevant:
            if (query.user, id_) not in of_records:
                raise _refused(file, number, "relevant", f"no record of user {query.user} has the id {id_!r}")


def _note(file: Path, number: int, seen: dict[Any, int], id_: object) -> None:
    if (first := seen.setdefault(id_, number)) != number:
        raise _refused(file, number, "id", f"repeats the id of line {first}")


def _history(file: Path, user: str, records: Iterable[_Numbered], queries: Iterable[_Numbered]) -> History:
    items = tuple(
        Item(
            id=line.id,
            text=line.text,
            timestamp=_moment(file, number, line.timestamp),
            session=line.session_id or None,
            kind=line.kind,
            role=line.role,
        )
        for number, line in records
        if line.user == user
    )
    questions = tuple(
        Question(
            id=line.id,
            text=line.text,
            category=line.category,
            relevant=line.grades,
            asked_at=_moment(file, number, line.timestamp),
        )
        for number, line in queries
        if line.user == user
    )
    return History(user=user, items=items, questions=questions)


def _moment(file: Path, number: int, timestamp: object) -> datetime | None:
    try:
        return None if timestamp is None else validate_timestamp(timestamp, _EPOCH, _ANY_TIME_S)
    except MalformedEventError as error:
        raise _refused(file, number, error.field, error.reason) from error


def _refused(file: Path, number: int, field: str, reason: str) -> InvalidInputError:
    return InvalidInputError(f"{file}:{number}", f"{field}: {reason}")


def _field_first(message: str) -> str:
    """Return msgspec's message with the field first: 'Expected `str`, got `int` - at `$.text`' as 'text: …'."""
    reason, _, place = message.partition(" - at `$.")
    return f"{place.rstrip('`')}: {reason}" if place else message
