"""Feedback on a recall credits only the named memories, never the whole list."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from run_samples import LATER, at, begin, end, event, note, step, things_to_use, without_model
from store_checks import verified

from memory_agent.errors import InvalidInputError
from memory_agent.memory import Memory
from memory_agent.records.memories import Utility
from memory_agent.records.trajectories import Trajectory

RECALL = "01KHJY9080NWG22H9Q8BBD7B80"
OTHER = "01KHJY9080NWG22H9Q8BBD7B81"


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[Memory]:
    with without_model(tmp_path / "alice") as memory:
        yield memory


@pytest.fixture
def things(memory: Memory) -> list[str]:
    stored = things_to_use(memory, 6)
    note(memory, RECALL, 0, stored[:4], session_id="s-1")
    return stored


def run(memory: Memory, run_id: str = RECALL) -> Trajectory:
    found = memory.runs.get(run_id)
    assert found is not None
    assert verified(memory._archive.store)
    return found


def test_feedback_on_a_recall_of_no_run_makes_a_trajectory_of_its_own(memory: Memory, things: list[str]) -> None:
    report = memory.feedback(RECALL, things[:1], 1.0, now=at(5))
    assert (report.trajectory_id, report.credited, report.not_credited) == (RECALL, (things[0],), {})
    found = run(memory)
    assert (found.state, found.quality, found.session_id) == ("ended", 1.0, "s-1")
    assert [(use.how, use.credit, use.recall_id) for use in found.used] == [("feedback", 1.0, RECALL)]
    (record,) = memory.get(things[:1])
    assert record is not None
    assert record.utility == Utility(used=1, reward_sum=1.0)


def test_feedback_with_memories_and_no_quality_counts_as_success(memory: Memory, things: list[str]) -> None:
    assert memory.feedback(RECALL, things[:1], now=at(5)).quality == 0.8
    assert [(told.quality, told.reason) for told in run(memory).revisions] == [(0.8, "completed")]


def test_later_feedback_on_a_recall_replaces_earlier_feedback(memory: Memory, things: list[str]) -> None:
    memory.feedback(RECALL, things[:1], now=at(5))
    memory.feedback(RECALL, things[1:2], now=at(6))
    report = memory.feedback(RECALL, quality=0.2, now=at(7))
    assert report.quality == 0.2
    assert [use.record_id for use in run(memory).used] == [things[1]]
    assert [told.quality for told in run(memory).revisions] == [0.8, 0.2]
    utilities = [record.utility for record in memory.get(things[:2])]
    assert utilities == [Utility(), Utility(used=1, reward_sum=0.2)]


def test_feedback_is_idempotent_by_event_id(memory: Memory, things: list[str]) -> None:
    for _ in range(2):
        report = memory.feedback(RECALL, things[:1], 0.5, "The mutex held", event_id="f-1", now=at(5))
        assert report.credited == (things[0],)
    assert len(run(memory).revisions) == 1
    assert memory.stats().by_kind["pattern"] == 1


def test_naming_all_of_four_shown_memories_credits_none(memory: Memory, things: list[str]) -> None:
    report = memory.feedback(RECALL, [*things[:4], things[4]], 1.0, now=at(5))
    assert report.credited == (things[4],)
    assert list(report.not_credited) == things[:4]
    assert all("all memories shown" in reason for reason in report.not_credited.values())


@pytest.mark.parametrize(
    ("shown", "named", "credits"), [(3, 3, [0.5] * 3), (2, 2, [0.5] * 2), (3, 2, [1.0] * 2), (1, 1, [1.0])]
)
def test_naming_all_of_two_or_three_shown_memories_credits_half(
    memory: Memory, things: list[str], shown: int, named: int, credits: list[float]
) -> None:
    note(memory, OTHER, 1, things[:shown])
    assert memory.feedback(OTHER, things[:named], now=at(5)).credited == tuple(things[:named])
    told = memory.runs.get(OTHER)
    assert told is not None
    assert [use.credit for use in told.used] == credits


def test_a_list_named_by_an_event_of_the_run_credits_nothing_either(memory: Memory, things: list[str]) -> None:
    memory.ingest([begin("r", 1, recall_id=RECALL), step("r", 1, 2, memory_ids=things[:4])], now=LATER)
    assert run(memory, "r").used == ()
    memory.ingest([end("r", 3, memory_ids=things[1:3])], now=LATER)
    assert [use.record_id for use in run(memory, "r").used] == things[1:3]


def test_unknown_ids_are_reported_with_the_reason_and_the_rest_is_credited(memory: Memory, things: list[str]) -> None:
    memory.forget([things[1]])
    report = memory.feedback(RECALL, ["no-such-memory", things[1], things[2]], now=at(5))
    assert report.credited == (things[2],)
    assert report.not_credited == dict.fromkeys(
        ["no-such-memory", things[1]], "is not stored, was forgotten, or is a shared item that was not shown"
    )


def test_a_memory_that_was_not_shown_is_credited_but_not_to_the_recall(memory: Memory, things: list[str]) -> None:
    assert memory.feedback(RECALL, [things[5]], now=at(5)).credited == (things[5],)
    assert run(memory).used[0].recall_id is None


def test_feedback_counts_for_the_run_that_the_recall_belongs_to(memory: Memory, things: list[str]) -> None:
    memory.ingest([begin("r", 1, recall_ids=[RECALL]), end("r", 3)], now=LATER)
    report = memory.feedback(RECALL, things[:1], 0.3, now=at(5))
    assert (report.trajectory_id, report.quality) == ("r", 0.3)
    assert memory.runs.get(RECALL) is None


def test_feedback_follows_the_recall_to_the_run_that_names_it_later(memory: Memory, things: list[str]) -> None:
    memory.feedback(RECALL, things[:1], 0.3, "It was the wrong lock", now=at(5))
    memory.ingest([begin("r", 6, recall_ids=[RECALL]), end("r", 7)], now=LATER)
    assert memory.runs.get(RECALL) is None
    assert (run(memory, "r").quality, [use.record_id for use in run(memory, "r").used]) == (0.3, [things[0]])
    said = memory.recall("wrong lock", mode="lexical", now=LATER).memories[0].record
    assert said.run_id == "r"


def test_feedback_right_after_a_recall_does_not_wait_for_a_write(memory: Memory, things: list[str]) -> None:
    note(memory, OTHER, 3, things[:2])
    assert memory._archive.store.has_waiting_notes
    assert memory.feedback(OTHER, things[:1], now=at(5)).trajectory_id == OTHER
    assert not memory._archive.store.has_waiting_notes


def test_a_comment_alone_is_remembered_and_credits_nothing(memory: Memory, things: list[str]) -> None:
    report = memory.feedback(RECALL, comment="I looked at these", now=at(5))
    assert (report.credited, report.quality, run(memory).state) == ((), None, "open")
    assert memory.recall("looked at these", mode="lexical", now=LATER).memories[0].record.session_id == "s-1"


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"recall_id": "01KHJY9080NWG22H9Q8BBD7B99", "quality": 1.0}, "recall_id"),
        ({"recall_id": "", "quality": 1.0}, "recall_id"),
        ({"recall_id": RECALL}, "used"),
        ({"recall_id": RECALL, "used": "m-1"}, "used"),
        ({"recall_id": RECALL, "used": [""]}, "used"),
        ({"recall_id": RECALL, "quality": 1.5}, "quality"),
        ({"recall_id": RECALL, "quality": float("nan")}, "quality"),
        ({"recall_id": RECALL, "quality": True}, "quality"),
        ({"recall_id": RECALL, "comment": "lone \ud800"}, "comment"),
    ],
)
def test_invalid_feedback_is_refused_with_the_argument_name(
    memory: Memory, things: list[str], arguments: dict[str, Any], field: str
) -> None:
    with pytest.raises(InvalidInputError) as raised:
        memory.feedback(**arguments)
    assert raised.value.field == field
    assert memory.runs.list() == []


def test_unknown_recalls_and_memories_in_events_are_ignored(memory: Memory, things: list[str]) -> None:
    events = [
        event("f-1", "feedback.recall", 1, recall_id="01KHJY9080NWG22H9Q8BBD7B99", approved=True),
        begin("r", 2, recall_id="no-such-recall", memory_ids=["no-such-memory", things[0]]),
    ]
    assert not memory.ingest(events, now=LATER).rejected
    assert [use.record_id for use in run(memory, "r").used] == [things[0]]
    counters = memory._archive.store.state.counters
    assert (counters["runs.unknown_recall"], counters["runs.unknown_memory"]) == (1, 1)


def test_approval_reaches_the_memories_of_the_run_and_filters_find_them(memory: Memory) -> None:
    memory.ingest([begin("r", 0), step("r", 1, 1), step("r", 2, 2, exit_code=1, quality=0.1), end("r", 3)], now=LATER)
    asked: dict[str, Any] = {"filter": {"min_quality": 1.0}, "mode": "lexical", "now": LATER}
    assert memory.recall("auth token", **asked).memories == ()
    memory.ingest([event("f", "feedback.approved", 9, "r")], now=LATER)
    found = {answer.record.event_id for answer in memory.recall("auth token rotation", **asked).memories}
    assert found == {"r-begin", "r-step-1", "r-end"}
