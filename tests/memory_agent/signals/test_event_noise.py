"""Test that noise is recorded with its reason, invalid fields are reported, and no other error is raised."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from event_samples import OBJECTIVE, kept, read
from hypothesis import example, given
from hypothesis import strategies as st

from memory_agent.errors import UnhandledEventError
from memory_agent.records.memories import MemoryRecord
from memory_agent.signals import Dropped

TABLE = Path(__file__).parents[3] / "memory_agent" / "signals" / "signals.toml"
SIGNALS = msgspec.toml.decode(TABLE.read_bytes())["signal"].values()


@pytest.mark.parametrize(
    ("event_type", "payload", "reason"),
    [
        ("worker.started", {"message": "A worker was started"}, "not_high_signal"),
        ("feedback", {"message": "Not below feedback.*"}, "not_high_signal"),
        ("worker.heartbeat", {}, "heartbeat"),
        ("worker.task.progress", {"message": "Working on it", "type": "Heartbeat"}, "heartbeat"),
        ("worker.task.progress", {"message": "Still running (30s)..."}, "heartbeat"),
        ("llm.token_count", {"tokens": 3}, "token_count"),
        ("worker.task.progress", {"message": "tokens used: 12,345 / 200k"}, "token_count"),
        ("worker.task.progress", {"message": "Prompt tokens: 12, completion tokens: 3"}, "token_count"),
        ("chat.user_msg", {"message": "  "}, "no_text"),
        ("chat.user_msg", {"value": 12345}, "no_text"),
        ("chat.user_msg", {"message": {"a": [1, {"b": None}]}}, "no_text"),
        ("conductor.assignment.dispatched", {"worker_id": "w-1"}, "no_text"),
        ("terminal.command.completed", {"exit_code": 0}, "no_text"),
        ("chat.user_msg", {"message": "ok."}, "too_short"),
    ],
)
def test_noise_is_dropped_for_a_reason(event_type: str, payload: dict[str, Any], reason: str) -> None:
    assert read(event_type, payload) == Dropped(reason)


@pytest.mark.parametrize(
    "text",
    [
        "Is the token still valid?",
        "Keep-alive should be 30 s",
        "The run still fails",
        "Count the tokens",
        "Use 2 tokens",
    ],
)
def test_text_about_noise_is_not_noise(text: str) -> None:
    assert kept("worker.task.progress", {"message": text}).text == text


@pytest.mark.parametrize(
    ("payload", "field"), [({"message": "a\ud800b"}, "message"), ({"text": OBJECTIVE, "tags": ["\udfff"]}, "tags")]
)
def test_text_that_is_not_unicode_is_refused_by_field(payload: dict[str, Any], field: str) -> None:
    with pytest.raises(UnhandledEventError, match=field):
        read("user_input", payload)


@pytest.mark.parametrize("payload", [None, [], "text", 3])
def test_a_payload_that_is_not_an_object_is_refused(payload: Any) -> None:
    with pytest.raises(UnhandledEventError, match="payload"):
        read("user_input", payload)


FIELDS = """message text content summary objective error claim insight report findings details value command exit_code
query results payload data title tags provenance run_id status rating quality type strategy path patch"""
any_text = st.text(st.characters(), max_size=40)
names = st.sampled_from(FIELDS.split()) | any_text
scalars = st.none() | st.booleans() | st.integers() | st.floats() | any_text | st.datetimes() | st.binary(max_size=4)
json_values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(names, inner, max_size=5)
)
event_types = st.sampled_from([event_type.replace("*", "given") for row in SIGNALS for event_type in row["events"]])


@given(event_types, st.dictionaries(names, json_values, max_size=8))
@example("user_input", {"text": '{"a":' * 2000 + "1" + "}" * 2000})
@example("user_input", {"text": "[" * 100_000})
def test_any_payload_becomes_a_storable_memory_or_noise_or_an_error(event_type: str, payload: dict[str, Any]) -> None:
    try:
        record = read(event_type, payload)
    except UnhandledEventError as error:
        field, colon, _ = error.reason.partition(": ")
        if not (field and colon):
            raise
        return
    if isinstance(record, MemoryRecord):
        assert any(map(str.isalpha, record.text))
        assert record.quality_score is None or 0 <= record.quality_score <= 1
        assert msgspec.msgpack.decode(msgspec.msgpack.encode(record), type=MemoryRecord) == record
