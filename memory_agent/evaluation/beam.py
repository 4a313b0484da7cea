"""Reads BEAM (Tavakoli et al. 2025, "Beyond a Million Tokens"): long chats with an assistant, and probing questions.

A chat is a folder with `chat.json` (or `chat_trunecated.json`, which takes precedence) and
`probing_questions/probing_questions.json`; `chats/100K/7` is user `100K-7`. A chat is a list of batches `{batch_number,
time_anchor, turns: [[{role, id, content, time_anchor?}]]}`, a list of plain lists of messages, or an object of plans
`{"plan-1": [batches], …}`. Questions are `{TYPE: [{question, source_chat_ids?, …}]}`.

An item is a message without the locator at its end (such as `->-> 1,2`), and a session is a batch. An item's time is
the day of the last anchor before it (`March-15-2024`); a question's time is that of the chat's last anchor. The
evidence consists of the messages in `source_chat_ids`, which may be grouped by their role in the question. Questions
without ids are omitted. An id that does not match exactly one message is ignored and counted.

No chat of ten million tokens was available, so it was not verified that message ids are unique in such a chat, or that
its questions group ids by plan. Recall of evidence is not the BEAM score: for that score, a language model judges the
answers.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec

from memory_agent.errors import InvalidInputError
from memory_agent.evaluation.dataset import Dataset, History, Item, Question, Role, read_file
from relay import described

_QUESTIONS = Path("probing_questions") / "probing_questions.json"
_CHATS = ("chat_trunecated.json", "chat.json")
_LOCATOR = re.compile(r"\s*->->[\s\d,]*$")
_ANCHORS = ("%B-%d-%Y", "%b-%d-%Y", "%B %d, %Y", "%Y-%m-%d")
_DIGITS = re.compile(r"([0-9]+)")
_UNSAFE = re.compile(r"[^A-Za-z0-9_-]+")

T = TypeVar("T")


class _Message(msgspec.Struct, frozen=True):
    content: str
    role: str | None = None
    id: int | None = None
    time_anchor: str | None = None


class _Question(msgspec.Struct, frozen=True):
    question: str
    source_chat_ids: Any = None


class _Batch(NamedTuple):
    session: str
    time_anchor: str | None
    messages: list[_Message]


def read_beam(folder: Path) -> Dataset:
    """Read a folder with one chat, the chats of one size, or all chats. Raises `InvalidInputError`."""
    chats = sorted((file.parents[1] for file in folder.rglob(str(_QUESTIONS))), key=lambda chat: _natural(str(chat)))
    if not chats:
        raise InvalidInputError(str(folder), f"contains no BEAM chat: no folder contains {_QUESTIONS}")
    names = Counter(_name(chat, folder) for chat in chats)
    if alike := [name for name, count in names.items() if count > 1]:
        raise InvalidInputError(str(folder), f"several chats map to the user {alike[0]}; rename a folder")
    digest = sha256()
    for file in (file for chat in chats for file in _files(chat)):
        digest.update(sha256(read_file(file)).digest())
    histories = tuple(_read(chat, name) for chat, name in zip(chats, names, strict=True))
    return Dataset(name="beam", digest=digest.hexdigest(), histories=histories)


def source_ids(value: object) -> set[int]:
    """Return the message ids in `source_chat_ids`: a number, a list, or an object of lists by role."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        return {id_ for part in value for id_ in source_ids(part)}
    return {value} if isinstance(value, int) and not isinstance(value, bool) else set()


def _read(chat: Path, user: str) -> History:
    chat_file, question_file = _files(chat)
    batches = _decoded(chat_file, lambda content: list(_batches(msgspec.json.decode(content))))
    probes = _decoded(
        question_file, lambda content: msgspec.json.decode(content, type=described(dict[str, list[_Question]]))
    )
    items, of_messages = _items(batches)
    asked_at = next((item.timestamp for item in reversed(items) if item.timestamp), None)
    cited = [(type_, place, probe) for type_, of_type in probes.items() for place, probe in enumerate(of_type)]
    if not items:
        raise InvalidInputError(str(chat_file), "contains no messages")
    if not cited:
        raise InvalidInputError(str(question_file), "contains no questions")
    questions = tuple(
        Question(
            id=f"{user}:{type_}:{place}",
            text=probe.question,
            category=type_,
            relevant={of_messages[id_]: 1 for id_ in sorted(source_ids(probe.source_chat_ids)) if id_ in of_messages},
            asked_at=asked_at,
        )
        for type_, place, probe in cited
    )
    unmatched = sum(len(source_ids(probe.source_chat_ids) - of_messages.keys()) for _, _, probe in cited)
    return History(user=user, items=tuple(items), questions=questions, unmatched=unmatched)


def _items(batches: list[_Batch]) -> tuple[list[Item], dict[int, str]]:
    counts = Counter(message.id for batch in batches for message in batch.messages)
    timestamps = list(_timestamps(batches))
    items: list[Item] = []
    of_messages: dict[int, str] = {}
    for session, message in ((batch.session, message) for batch in batches for message in batch.messages):
        place = len(items)
        is_known = message.id is not None and counts[message.id] == 1
        item_id = f"m{message.id}" if is_known else f"n{place}"
        if message.id is not None and is_known:
            of_messages[message.id] = item_id
        text = _LOCATOR.sub("", message.content)
        role: Role = "assistant" if message.role == "assistant" else "user"
        items.append(Item(id=item_id, text=text, timestamp=timestamps[place], session=session, role=role))
    return items, of_messages


def _timestamps(batches: list[_Batch]) -> Iterator[datetime | None]:
    """Yield the day of each message: the day of the latest anchor or, before any anchor, that of the first one."""
    anchors = (anchor for batch in batches for anchor in (batch.time_anchor, *(m.time_anchor for m in batch.messages)))
    day = next(filter(None, map(_day, anchors)), None)
    for batch in batches:
        day = _day(batch.time_anchor) or day
        for message in batch.messages:
            day = _day(message.time_anchor) or day
            yield day


def _day(anchor: str | None) -> datetime | None:
    for form in _ANCHORS:
        with suppress(ValueError):
            return datetime.strptime((anchor or "").strip(), form).replace(tzinfo=UTC)
    return None


def _batches(chat: Any, plan: str = "") -> Iterator[_Batch]:
    if isinstance(chat, dict):
        for name in sorted(chat, key=_natural):
            yield from _batches(chat[name], f"{name}/")
        return
    for place, entry in enumerate(msgspec.convert(chat, list[dict[str, Any] | list[Any]]), 1):
        if isinstance(entry, list):
            yield _Batch(f"{plan}batch-{place}", None, list(_messages(entry)))
        elif "turns" in entry:
            session = f"{plan}batch-{entry.get('batch_number', place)}"
            anchor = msgspec.convert(entry.get("time_anchor"), str | None)
            yield _Batch(session, anchor, list(_messages(entry["turns"])))
        else:
            yield from _batches(entry)


def _messages(node: Any) -> Iterator[_Message]:
    if isinstance(node, list):
        for part in node:
            yield from _messages(part)
    else:
        yield msgspec.convert(node, described(_Message))


def _files(chat: Path) -> tuple[Path, Path]:
    there = next((chat / name for name in _CHATS if (chat / name).exists()), None)
    if there is None:
        raise InvalidInputError(str(chat), f"contains neither {' nor '.join(_CHATS)}")
    return there, chat / _QUESTIONS


def _decoded(file: Path, decode: Callable[[bytes], T]) -> T:
    try:
        return decode(read_file(file))
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidInputError(str(file), f"is not a BEAM file: {error}") from error


def _name(chat: Path, folder: Path) -> str:
    parts = chat.relative_to(folder).parts or (folder.absolute().name,)
    return _UNSAFE.sub("_", "-".join(parts))


def _natural(name: str) -> list[tuple[int, str]]:
    """Return a sort key for natural order, in which 2 precedes 10."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in _DIGITS.split(name)]
