"""Test the event structure: both wire forms, derived ids, errors that name the invalid field, and topics."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from relays import LIMITS, NOW

from relay import (
    Event,
    EventTooLargeError,
    MalformedEventError,
    decode_event,
    encode_event,
    event_from_mapping,
    matches,
    matches_any,
    read_event,
    validate_user_id,
)

GOLDEN = {
    "event_id": "01JM0000000000000000000000",
    "event_type": "conductor.run.completed",
    "timestamp": "2026-02-16T10:00:00Z",
    "user_id": "alice",
    "session_id": "s-17",
    "actor_id": "conductor:run_7",
    "payload": {"summary": "fixed", "run_id": "run_7", "score": 0.5, "steps": [1, None, True]},
}
GOLDEN_BYTES = bytes.fromhex(
    "87a86576656e745f6964ba30314a4d30303030303030303030303030303030303030303030aa6576656e745f74797065b7636f6e647563746f"
    "722e72756e2e636f6d706c65746564a974696d657374616d70d6ff6992eaa0a7757365725f6964a5616c696365aa73657373696f6e5f6964a4"
    "732d3137a86163746f725f6964af636f6e647563746f723a72756e5f37a77061796c6f616484a672756e5f6964a572756e5f37a573636f7265"
    "cb3fe0000000000000a573746570739301c0c3a773756d6d617279a56669786564"
)

user_ids = st.from_regex(r"\A[A-Za-z0-9_@+:-][A-Za-z0-9._@+:-]{0,40}\Z")
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
scalars = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | texts
values = st.recursive(
    scalars | st.floats(allow_nan=False, allow_infinity=False),
    lambda children: st.lists(children, max_size=3) | st.dictionaries(texts, children, max_size=3),
    max_leaves=10,
)
ids = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=40)
mappings = st.fixed_dictionaries(
    {"event_type": st.from_regex(r"\A[a-z]+(\.[a-z_]+){0,3}\Z"), "user_id": user_ids},
    optional={
        "event_id": ids,
        "timestamp": st.datetimes(timezones=st.just(UTC), max_value=NOW.replace(tzinfo=None)),
        "session_id": ids,
        "correlation_id": ids,
        "payload": st.dictionaries(texts, values, max_size=4),
        "unknown_field": values,
        "extra": values,
    },
)


def decoded(mapping: dict[str, Any]) -> Event:
    return decode_event(json.dumps(mapping).encode(), LIMITS, NOW)


def sifted(sent: bytes | dict[str, Any]) -> Event | MalformedEventError:
    try:
        return decode_event(sent, LIMITS, NOW) if isinstance(sent, bytes) else event_from_mapping(sent, LIMITS, NOW)
    except MalformedEventError as error:
        return error


def flawed(**fields: Any) -> MalformedEventError:
    with pytest.raises(MalformedEventError) as raised:
        decoded({**GOLDEN, **fields})
    return raised.value


def test_the_canonical_bytes_of_an_event_never_change() -> None:
    assert encode_event(decoded(GOLDEN)) == GOLDEN_BYTES


def test_json_and_messagepack_give_the_same_event() -> None:
    packed = msgspec.msgpack.encode(GOLDEN)
    assert decode_event(packed, LIMITS, NOW) == decoded(GOLDEN)
    assert read_event(GOLDEN_BYTES) == decoded(GOLDEN)


@given(mappings)
def test_an_event_survives_its_canonical_bytes(mapping: dict[str, Any]) -> None:
    event = event_from_mapping(mapping, LIMITS, NOW)
    data = encode_event(event)
    assert decode_event(data, LIMITS, NOW) == event
    assert read_event(data) == event
    assert encode_event(read_event(data)) == data


@given(mappings)
def test_a_derived_id_does_not_depend_on_time_or_form(mapping: dict[str, Any]) -> None:
    mapping.pop("event_id", None)
    first = event_from_mapping(mapping, LIMITS, NOW)
    again = decode_event(msgspec.json.encode(mapping), LIMITS, NOW + timedelta(hours=3))
    assert first.event_id == again.event_id
    assert first.event_id.startswith("derived-")
    other = event_from_mapping({**mapping, "payload": {"other": "content"}}, LIMITS, NOW)
    assert other.event_id != first.event_id


@given(st.binary(max_size=200) | st.binary(max_size=200).map(lambda data: b"{" + data))
@settings(max_examples=250)
def test_arbitrary_bytes_raise_nothing_but_the_malformed_event(data: bytes) -> None:
    outcome = sifted(data)
    if isinstance(outcome, Event):
        assert read_event(encode_event(outcome)) == outcome
    else:
        assert outcome.field
        assert outcome.reason


@given(st.dictionaries(st.sampled_from(sorted(GOLDEN)), values | st.binary(max_size=9) | st.floats()))
@settings(max_examples=250, deadline=None)
def test_arbitrary_fields_raise_nothing_but_the_malformed_event(fields: dict[str, Any]) -> None:
    for form in (msgspec.msgpack.encode, lambda mapping: mapping):
        sent = form({**GOLDEN, **fields})
        outcome = sifted(sent)
        if isinstance(outcome, Event):
            assert read_event(encode_event(outcome)) == outcome
        else:
            assert outcome.field.partition(".")[0].partition("[")[0] in GOLDEN


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        (b"", "MessagePack"),
        (b"hello", "MessagePack"),
        (b"{not json}", "not JSON"),
        (b'{"event_type": "a", "user_id": "\xff"}', "not UTF-8"),
        (b"\x81\xa1\xff\x01", "not UTF-8"),
        (b"[1, 2]", "expected an object"),
        (b"\x05", "expected an object"),
        (b'{"payload": NaN}', "not JSON"),
        (b'{"a":' * 5_000 + b"1" + b"}" * 5_000, "nested too deeply"),
        (b"\x81\xa1a" * 5_000 + b"\x01", "nested too deeply"),
        (msgspec.msgpack.encode(GOLDEN)[:-1], "MessagePack"),
        (json.dumps(GOLDEN).encode() + b"}", "not JSON"),
    ],
)
def test_bytes_that_are_not_an_object_are_refused_naming_the_event(sent: bytes, reason: str) -> None:
    with pytest.raises(MalformedEventError, match=reason) as raised:
        decode_event(sent, LIMITS, NOW)
    assert raised.value.field == "event"


@pytest.mark.parametrize("field", ["event_type", "user_id"])
@pytest.mark.parametrize("value", [None, ""])
def test_a_missing_type_or_user_is_named(field: str, value: object) -> None:
    error = flawed(**{field: value})
    assert (error.field, error.reason) == (field, "is missing")
    absent = {name: value for name, value in GOLDEN.items() if name != field}
    with pytest.raises(MalformedEventError, match=f"{field}: is missing"):
        decoded(absent)


@pytest.mark.parametrize(
    "user_id",
    [
        "../x",
        "..",
        ".hidden",
        "a/b",
        "a\\b",
        "x" * 300,
        "a\0b",
        "a\nb",
        "a b",
        "ünï",
        "a%2f",
        17,
        ["a"],
        {"a": 1},
        True,
    ],
)
def test_an_unsafe_user_id_is_refused_by_name(user_id: object) -> None:
    assert flawed(user_id=user_id).field == "user_id"
    with pytest.raises(MalformedEventError):
        validate_user_id(user_id)


@pytest.mark.parametrize("user_id", ["alice", "a", "A.b-c_d@e+f:9", "-x", "x" * 128])
def test_a_safe_user_id_is_accepted_unchanged(user_id: str) -> None:
    assert validate_user_id(user_id) == user_id
    assert decoded({**GOLDEN, "user_id": user_id}).user_id == user_id


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("event_type", 5),
        ("event_type", "two words"),
        ("event_type", "worker.*"),
        ("event_type", "x" * 129),
        ("event_id", 5),
        ("event_id", "x" * 201),
        ("event_id", "\u00e9" * 101),
        ("event_id", "a\u0000b"),
        ("session_id", ["s"]),
        ("session_id", "x" * 201),
        ("actor_id", {}),
        ("thread_id", 1.5),
        ("channel_id", "a\tb"),
        ("agent_id", False),
        ("correlation_id", 3),
        ("payload", "text"),
        ("payload", [1]),
        ("timestamp", "yesterday"),
        ("timestamp", True),
        ("timestamp", [2026]),
        ("timestamp", 1e300),
        ("timestamp", 10**30),
        ("timestamp", ""),
    ],
)
def test_a_field_of_the_wrong_kind_is_named(field: str, value: object) -> None:
    assert flawed(**{field: value}).field == field


@pytest.mark.parametrize(
    ("payload", "path"),
    [
        ({"a": float("nan")}, "payload.a"),
        ({"a": [0, {"b": float("inf")}]}, "payload.a[1].b"),
        ({"a": b"bytes"}, "payload.a"),
        ({"a": 2**70}, "payload.a"),
        ({"text": "\ud800"}, "payload.text"),
        ({"\udfff": 1}, "payload."),
        ({"a": {5: 1}}, "payload.a[5]"),
        ({"a": {1, 2}}, "payload.a"),
        ({"a": NOW}, "payload.a"),
    ],
)
def test_a_payload_that_json_cannot_hold_is_refused_with_its_path(payload: dict[str, Any], path: str) -> None:
    with pytest.raises(MalformedEventError) as raised:
        event_from_mapping({**GOLDEN, "payload": payload}, LIMITS, NOW)
    assert raised.value.field.startswith(path)


def test_a_payload_may_be_nested_to_the_limit_and_no_deeper() -> None:
    def nested(levels: int) -> dict[str, Any]:
        return {} if levels == 1 else {"a": nested(levels - 1)}

    assert event_from_mapping({**GOLDEN, "payload": nested(LIMITS.max_depth)}, LIMITS, NOW)
    with pytest.raises(MalformedEventError, match="nested too deeply"):
        event_from_mapping({**GOLDEN, "payload": nested(LIMITS.max_depth + 1)}, LIMITS, NOW)


def test_an_event_larger_than_the_limit_is_refused() -> None:
    with pytest.raises(EventTooLargeError) as raised:
        decoded({**GOLDEN, "payload": {"text": "x" * LIMITS.max_bytes}})
    assert raised.value.code == "event_too_large"


@pytest.mark.parametrize(
    "written",
    [
        "2026-02-16T10:00:00Z",
        "2026-02-16T10:00:00",
        "2026-02-16 10:00:00",
        "2026-02-16T12:00:00+02:00",
        1771236000,
        1771236000.0,
        1771236000000,
    ],
)
def test_a_timestamp_may_be_written_with_or_without_zone_or_as_an_epoch(written: object) -> None:
    assert decoded({**GOLDEN, "timestamp": written}).timestamp == datetime(2026, 2, 16, 10, 0, tzinfo=UTC)


def test_a_timestamp_from_the_future_is_refused_beyond_the_limit() -> None:
    soon = NOW + timedelta(seconds=LIMITS.max_future_s)
    assert decoded({**GOLDEN, "timestamp": soon.isoformat()}).timestamp == soon
    error = flawed(timestamp=(soon + timedelta(seconds=1)).isoformat())
    assert error.field == "timestamp"
    assert "in the future" in error.reason


def test_an_event_without_timestamp_gets_the_current_time() -> None:
    assert decoded({**GOLDEN, "timestamp": None}).timestamp == NOW


def test_unknown_fields_are_kept() -> None:
    event = decoded({**GOLDEN, "tenant": "acme", "version": 3})
    assert event.extra == {"tenant": "acme", "version": 3}
    assert read_event(encode_event(event)).extra == event.extra


event_types = st.from_regex(r"\A[a-z]{1,5}(\.[a-z]{1,5}){0,3}\Z")


@pytest.mark.parametrize(
    ("pattern", "event_type", "expected"),
    [
        ("*", "anything.at.all", True),
        ("worker.*", "worker.task.completed", True),
        ("worker.*", "worker.x", True),
        ("worker.*", "worker", False),
        ("worker.*", "worker.", False),
        ("worker.*", "workers.task", False),
        ("worker.task.*", "worker.report", False),
        ("chat.user_msg", "chat.user_msg", True),
        ("chat.user_msg", "chat.user_msg.edited", False),
        ("chat", "chat.user_msg", False),
    ],
)
def test_a_topic_matches_a_type_a_prefix_at_a_dot_or_everything(pattern: str, event_type: str, expected: bool) -> None:
    assert matches(pattern, event_type) is expected


@given(event_types, event_types)
def test_a_prefix_matches_only_at_a_dot(prefix: str, event_type: str) -> None:
    parts, below = prefix.split("."), event_type.split(".")
    assert matches(f"{prefix}.*", event_type) == (len(below) > len(parts) and below[: len(parts)] == parts)


def test_one_of_several_topics_is_enough() -> None:
    assert matches_any(("chat.*", "worker.*"), "worker.done")
    assert not matches_any((), "worker.done")
