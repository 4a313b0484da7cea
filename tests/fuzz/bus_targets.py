"""Fuzz targets for the bus: wire, events, admission, masking, and the intake and replies of a relay without sockets."""

from __future__ import annotations

import atexit
import json
import shutil
import tempfile
from collections import Counter
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
from target import Target, alone, refused

from relay import (
    Batch,
    EventLimits,
    Journal,
    JournalSettings,
    MalformedEventError,
    Masker,
    RelayError,
    RelaySettings,
    RelayStats,
    TableTail,
    decode_event,
    encode_event,
    matches,
    read_event,
    validate_user_id,
    wire,
)
from relay.access import ALL_SCOPES, Principal, publisher_for_all
from relay.answers import Answers
from relay.intake.admission import Admission
from relay.intake.group_commit import Intake, Submission
from relay.intake.table_tail import TableFollower

NOW = datetime(2026, 11, 21, 9, tzinfo=UTC)
LIMITS = EventLimits()
ALICE = Principal("alice-key", "alice", ALL_SCOPES)
SETTINGS = JournalSettings(map_size_bytes=1 << 28, disk_reserve_bytes=0, reserve_bytes=1 << 20)

EVENT: dict[str, Any] = {
    "event_id": "e-1",
    "event_type": "worker.task.finding",
    "timestamp": "2026-02-16T10:00:00Z",
    "user_id": "alice",
    "session_id": "s-1",
    "actor_id": "conductor:run_7",
    "payload": {"claim": "Retries need jitter", "tags": ["http"], "report": {"findings": [{"claim": "so"}], "n": 1.5}},
    "colour": ["blue", {"deep": None}],
}
EVENTS = (
    json.dumps(EVENT).encode(),
    json.dumps({**EVENT, "event_id": None, "timestamp": 1_771_236_000_123, "payload": {"text": "x" * 40}}).encode(),
    json.dumps({"event_type": "chat.user_msg", "user_id": "alice", "payload": {"text": "Why is it red?"}}).encode(),
)
PACKED = tuple(msgspec.msgpack.encode(msgspec.json.decode(data)) for data in EVENTS)
SECRETS = (
    b'{"password": "correct-horse1!", "url": "postgres://bob:hunter2x9@db/x", "note": ["Bearer abcdEFGH12345678zz"]}',
    b"-----BEGIN RSA PRIVATE KEY-----\nMIIEpAIBAAKCAQEA0Z3VS5JJcds3xfn/ygWyF0f\n-----END RSA PRIVATE KEY-----\n",
    b"export API_KEY='sk-proj-4f6d8b0c2e4a6f8d0b2c4e6a8f0d2b4c' && curl -H 'Authorization: Basic dXNlcjpwYXNz'",
    b"secret=" + b"a1!" * 60 + b" token: eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJlLXNpZ25hdHVyZQ",
)
REQUESTS = tuple(
    wire.encode(message)
    for message in (
        wire.Publish(producer_id="p", epoch=7, first_seq=3, base_seq=2, attempt=1, events=[PACKED[0], b"{}"]),
        wire.Publish(
            producer_id="q", epoch=7, first_seq=2**64 - 1, base_seq=2**64 - 1, attempt=1, events=[b"{}", b"{}"]
        ),
        wire.Fetch(after_seq=0, limit=10, max_bytes=100, user_id="alice"),
        wire.Cursor(consumer="m"),
        wire.Commit(consumer="m", seq=1),
        wire.Consumers(),
        wire.RemoveConsumer(consumer="m"),
        wire.Quarantine(data=b"x", code="c", reason="r", source="s", seq=4),
        wire.Quarantined(after=0, limit=10),
        wire.QuarantinedEntry(id=1),
        wire.DropQuarantined(id=1),
        wire.RetryQuarantined(id=1),
        wire.Stats(),
        wire.Ping(),
    )
)
ENTRY = wire.JournalEntry(1, "alice", "a.b", PACKED[0])
REPLIES = (
    wire.encode(wire.Ack(epoch=7, first_seq=3, receipts=[wire.Receipt(41), wire.Receipt(0, False, "c", "f", "r")])),
    wire.encode(wire.Refusal(epoch=7, attempt=1, first_seq=1, expected_seq=2, code="journal_full", arguments=["p", 5])),
    wire.encode(wire.Failure(code="entry_damaged", arguments=["path", 4])),
    wire.encode_answer(Batch(entries=[ENTRY], last_seq=4)),
    wire.encode_answer(5),
)
ROWS = (
    b'{"event_type":"chat.user_msg","payload":"{\\"text\\": \\"hello there\\"}","user_id":"alice","event_id":"e"}',
    b'{"event_type":"a.b","payload":null,"timestamp":1771236000,"session_id":"s","thread_id":7,"actor_id":1.5}',
)


def _requests(data: bytes) -> None:
    try:
        request = wire.decode_request(data)
    except RelayError as error:
        wire.decode_request(REQUESTS[-1])
        refused(wire.decode_reply, wire.encode_failure(error), int)
        return
    assert wire.decode_request(wire.encode(request)) == request or b"\xcb" in data  # NaN does not equal itself


def _events(data: bytes) -> None:
    try:
        event = decode_event(data, LIMITS, NOW)
    except MalformedEventError as error:
        wire.encode_failure(error)
        return
    encoded = encode_event(event)
    assert read_event(encoded) == event
    assert decode_event(encoded, LIMITS, NOW).event_id == event.event_id
    matches("worker.*", event.event_type)


def _admitted(data: bytes) -> None:
    """Check that no event published with a user's key belongs to another user."""
    try:
        assert Admission(LIMITS, _masker()).admit(data, ALICE, NOW).user_id == "alice"
    except MalformedEventError as error:
        wire.encode_failure(error)


def _masked(data: bytes) -> None:
    masker = _masker()
    masker.data(data)
    text = data.decode("utf-8", "replace")
    once = masker.text(text)
    assert len(once) <= 3 * len(text) + 64


def _frames(data: bytes) -> None:
    refused(wire.event_in_frames, [data])
    refused(wire.event_in_frames, data.split(b" "))
    wire.decode_doorbell(data)


def _asked(data: bytes) -> None:
    """Check that a relay answers every request, and that its answers can be encoded."""
    journal, admission, answers = _relay()
    try:
        request = wire.decode_request(data)
    except RelayError:
        return
    if isinstance(request, wire.Publish):
        intake = Intake(journal, admission, Counter())
        again = msgspec.structs.replace(request, epoch=max(0, request.epoch - 1))
        for publish in (request, again, request):
            for reply in intake.take([Submission(b"peer", publish, publisher_for_all("k"))], NOW):
                wire.decode_receipt(wire.encode(reply.message))
        return
    try:
        answer = wire.encode_answer(answers.answer(request, publisher_for_all("k")))
    except RelayError as error:
        answer = wire.encode_failure(error)
    refused(wire.decode_reply, answer, Any)
    assert journal.last_seq >= 0


def _row(data: bytes) -> None:
    """Check that a table row becomes an event or is quarantined, and that later rows are not lost."""
    try:
        values = msgspec.json.decode(data)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        values = {"event_type": data, "payload": data, "event_id": data}
    if not isinstance(values, dict):
        values = {"event_type": "a.b", "payload": values}
    row = {"seq": 1, "event_type": None, "payload": None} | {
        name: value.encode(errors="surrogatepass") if isinstance(value, str) else _sqlite(value)
        for name, value in values.items()
        if name in ("event_type", "payload", "event_id", "timestamp", "actor_id", "user_id", "session_id", "thread_id")
    }
    _follower()._append([row])


def _sqlite(value: object) -> object:
    """Return a value as SQLite stores it: text and blobs as bytes, numbers unchanged."""
    if value is None or isinstance(value, bytes | float):
        return value
    if isinstance(value, int) and -(2**63) <= value < 2**63:
        return int(value)
    return repr(value)[:5_000].encode(errors="replace")


@cache
def _masker() -> Masker:
    return Masker()


@cache
def _relay() -> tuple[Journal, Admission, Answers]:
    journal = Journal.open(scratch() / "journal", SETTINGS)
    admission, counts = Admission(LIMITS, _masker()), Counter[str]()
    return journal, admission, Answers(journal, RelaySettings(), admission, counts)


@cache
def _follower() -> TableFollower:
    journal = Journal.open(scratch() / "table", SETTINGS)
    table = TableTail(name="t", path="/nowhere", default_user="alice")
    return TableFollower(journal, table, Admission(LIMITS, _masker()), Counter(), lambda: None)


@cache
def scratch() -> Path:
    """Return a folder, in memory if possible, that is removed when the process ends."""
    shared = Path("/dev/shm")
    folder = Path(tempfile.mkdtemp(prefix="fuzz-", dir=shared if shared.is_dir() else None))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


_replies = alone(
    wire.decode_receipt,
    lambda data: wire.decode_reply(data, int),
    lambda data: wire.decode_reply(data, Batch),
    lambda data: wire.decode_reply(data, list[wire.QuarantineEntry]),
    lambda data: wire.decode_reply(data, RelayStats),
)

TARGETS = (
    Target("relay-requests", _requests, REQUESTS, "msgpack"),
    Target("relay-replies", _replies, REPLIES, "msgpack"),
    Target("relay-frames", _frames, (*EVENTS, *PACKED, b"chat.user_msg " + EVENTS[0])),
    Target("relay-asked", _asked, REQUESTS, "msgpack"),
    Target("events-json", _events, EVENTS, "json"),
    Target("events-msgpack", _events, PACKED, "msgpack"),
    Target("journaled-event", alone(read_event), PACKED, "msgpack"),
    Target("admission", _admitted, (*EVENTS, SECRETS[0]), "json"),
    Target("masking", _masked, SECRETS),
    Target(
        "user-ids", alone(lambda data: validate_user_id(data.decode("utf-8", "surrogateescape"))), (b"alice", b"a.b@c")
    ),
    Target("table-rows", _row, ROWS, "json"),
)
