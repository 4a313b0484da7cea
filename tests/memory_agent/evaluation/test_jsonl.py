"""Reading JSON lines: valid lines are parsed, and invalid lines are rejected."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from memory_agent.errors import InvalidInputError
from memory_agent.evaluation import Dataset, read_jsonl
from relay.config import EventLimits
from relay.event import event_from_mapping

RECORD = {"type": "record", "id": "r1", "text": "one"}
QUERY = {"type": "query", "id": "q1", "text": "which?", "relevant": ["r1"]}


def read(folder: Path, *lines: Any) -> Dataset:
    file = folder / "own.jsonl"
    file.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return read_jsonl(file)


def test_all_fields_of_a_line_are_kept(tmp_path: Path) -> None:
    moments = {"session_id": "s-1", "timestamp": "2026-02-16T10:00:00+01:00", "kind": "finding"}
    (history,) = read(
        tmp_path, RECORD | moments, "", QUERY | {"category": "people", "timestamp": "2026-03-01"}
    ).histories
    (item,), (question,) = history.items, history.questions
    assert (history.user, item.session, item.kind) == ("default", "s-1", "finding")
    assert item.timestamp == datetime(2026, 2, 16, 9, tzinfo=UTC)
    assert (question.category, question.relevant) == ("people", {"r1": 1})
    assert read(tmp_path, RECORD, QUERY).histories[0].questions[0].category == "none"
    assert question.asked_at == datetime(2026, 3, 1, tzinfo=UTC)


def test_users_are_separate_and_queries_may_come_first(tmp_path: Path) -> None:
    alice, bob = read(
        tmp_path, QUERY | {"user": "alice"}, RECORD | {"user": "alice"}, RECORD | {"user": "bob"}
    ).histories
    assert (alice.user, len(alice.items), len(alice.questions)) == ("alice", 1, 1)
    assert (bob.user, len(bob.items), len(bob.questions)) == ("bob", 1, 0)


def test_grade_0_is_not_relevant_and_a_query_without_relevant_ids_is_left_out(tmp_path: Path) -> None:
    (history,) = read(
        tmp_path,
        RECORD,
        RECORD | {"id": "r2"},
        QUERY | {"relevant": {"r1": 2, "r2": 0}},
        QUERY | {"id": "q2", "relevant": []},
    ).histories
    assert [question.relevant for question in history.questions] == [{"r1": 2}, {}]
    assert [question.id for question in history.answerable] == ["q1"]


@pytest.mark.parametrize("kind", ["episode", "finding", "strategy", "pattern"])
def test_a_record_becomes_an_event_that_the_relay_accepts(tmp_path: Path, kind: str) -> None:
    (history,) = read(tmp_path, RECORD | {"kind": kind, "timestamp": 1_700_000_000}).histories
    (event,) = history.events("jsonl-default")
    checked = event_from_mapping(event, EventLimits(), datetime(2026, 1, 1, tzinfo=UTC))
    assert (checked.event_id, checked.user_id) == ("jsonl-default:r1", "jsonl-default")
    assert list(checked.payload.values()) == ["one"]


@pytest.mark.parametrize(
    ("of_line", "event_type"),
    [
        ({}, "chat.user_msg"),
        ({"role": "assistant"}, "chat.assistant_msg"),
        ({"role": "assistant", "kind": "finding"}, "worker.task.finding"),
    ],
)
def test_the_role_of_an_episode_decides_its_event_type(
    tmp_path: Path, of_line: dict[str, str], event_type: str
) -> None:
    (history,) = read(tmp_path, RECORD | of_line).histories
    assert [event["event_type"] for event in history.events("jsonl-default")] == [event_type]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("not json", "own.jsonl:3: JSON is malformed"),
        ('{"id": "x"}', "own.jsonl:3: Object missing required field `type`"),
        ({"type": "answer"}, "type: Invalid value 'answer'"),
        (RECORD | {"id": "r2", "text": 7}, "own.jsonl:3: text: Expected `str`, got `int`"),
        (RECORD | {"id": "r2", "text": ""}, "text: Expected `str` of length >= 1"),
        (RECORD | {"id": ""}, "id: Expected `str` of length >= 1"),
        (RECORD | {"id": "r" * 121}, "id: has 121 bytes; at most 120 are allowed"),
        (RECORD | {"id": "r2", "user": "../x"}, "own.jsonl:3: user_id: '../x' is unsafe"),
        (RECORD | {"id": "r2", "kind": "idea"}, "kind: Invalid enum value 'idea'"),
        (RECORD | {"id": "r2", "timestamp": "noon"}, "own.jsonl:3: timestamp: 'noon' is neither an ISO 8601 time"),
        (RECORD | {"id": "r2", "sesion_id": "s"}, "Object contains unknown field `sesion_id`"),
        (RECORD, "own.jsonl:3: id: repeats the id of line 1"),
        (QUERY, "own.jsonl:3: id: repeats the id of line 2"),
        (QUERY | {"id": "q2", "relevant": "r1"}, "relevant: Expected `object | array`, got `str`"),
        (QUERY | {"id": "q2", "relevant": {"r1": -1}}, "relevant[...]: Expected `int` >= 0"),
        (QUERY | {"id": "q2", "relevant": {"r1": 0.5}}, "relevant[...]: Expected `int`, got `float`"),
        (QUERY | {"id": "q2", "relevant": ["r9"]}, "own.jsonl:3: relevant: no record of user default has the id 'r9'"),
        (QUERY | {"id": "q2", "user": "bob"}, "own.jsonl:3: relevant: no record of user bob has the id 'r1'"),
    ],
)
def test_an_invalid_line_is_refused_by_number_and_field(tmp_path: Path, line: Any, said: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        read(tmp_path, RECORD, QUERY, line)
    assert said in str(caught.value)
    assert "own.jsonl:3" in str(caught.value)


def test_a_file_without_records_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match=r"own.jsonl: has no records"):
        read(tmp_path, "")
