"""Runs managed through `Memory.runs` begin, continue and end, are listed, and expire after inactivity."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from run_samples import LATER, OBJECTIVE, START, at, begin, end, event, note, step, things_to_use, whole, without_model
from store_checks import verified

from memory_agent.errors import InvalidInputError, RunEndedError
from memory_agent.learning.run_writer import MOST_STEPS
from memory_agent.memory import Memory

RECALLS = [f"01KHJY9080NWG22H9Q8BBD7B{number}" for number in range(80, 90)]
DAY = 24 * 60


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[Memory]:
    with without_model(tmp_path / "alice", keep_recalls=5, keep_recalls_s=3600.0) as memory:
        yield memory


def test_a_run_through_the_api_equals_one_from_events(memory: Memory) -> None:
    things = things_to_use(memory)
    begun = memory.runs.begin(OBJECTIVE, "r", "s-1", now=START)
    assert (begun.state, begun.objective, begun.session_id, begun.began_at) == ("open", OBJECTIVE, "s-1", START)
    stepped = memory.runs.step("r", "Looked at session_manager.rs", [things[0]], now=at(1))
    assert [told.event_type for told in stepped.steps] == ["worker.report.received"]
    ended = memory.runs.end("r", summary="Fixed it with a mutex", memory_ids=[things[1]], now=at(2))
    assert (ended.state, ended.outcome, ended.quality, ended.ended_at) == ("ended", "completed", 0.8, at(2))
    assert [use.record_id for use in ended.used] == things[:2]
    assert memory.runs.get("r") == ended == memory.runs.list()[0]
    texts = {record.text: record.quality_score for _, record in memory._archive.store.scan() if record.run_id == "r"}
    assert texts == {OBJECTIVE: 0.8, "Looked at session_manager.rs": 0.8, "Fixed it with a mutex": 0.8}
    assert memory.forget_session("s-1") == 3


def test_a_run_may_end_with_an_explicit_quality_or_fail(memory: Memory) -> None:
    memory.runs.begin(OBJECTIVE, "good", now=START)
    memory.runs.begin("Bake bread", "bad", now=START)
    assert memory.runs.end("good", quality=0.65, now=at(1)).quality == 0.65
    failed = memory.runs.end("bad", "failed", "The oven is broken", now=at(1))
    assert (failed.outcome, failed.quality) == ("failed", 0.0)


def test_a_run_without_an_id_gets_one(memory: Memory) -> None:
    first, second = memory.runs.begin(OBJECTIVE), memory.runs.begin(OBJECTIVE)
    assert first.id != second.id
    assert memory.runs.get("nobody knows it") is None


def test_a_change_is_idempotent_by_event_id(memory: Memory) -> None:
    for _ in range(2):
        memory.runs.begin(OBJECTIVE, "r", event_id="e-1", now=START)
        memory.runs.step("r", "Looked at it", event_id="e-2", now=at(1))
        run = memory.runs.end("r", event_id="e-3", now=at(2))
    assert (len(run.steps), len(run.revisions), memory.stats().memories) == (1, 1, 2)


def test_events_of_an_ended_run_count_where_calls_are_refused(memory: Memory) -> None:
    memory.runs.begin(OBJECTIVE, "r", now=START)
    memory.runs.end("r", quality=0.9, now=at(2))
    late = [step("r", 1, 1), event("reversed", "conductor.run.failed", 3, "r", error="It came back"), step("new", 1, 4)]
    memory.ingest(late, now=LATER)
    run, new = memory.runs.get("r"), memory.runs.get("new")
    assert run is not None
    assert new is not None
    assert (run.outcome, len(run.steps), new.objective) == ("failed", 1, None)
    assert memory.runs.begin("Bake bread", "new", now=at(5)).objective == "Bake bread"


def test_of_two_ends_at_once_one_counts_and_the_other_is_refused(memory: Memory) -> None:
    memory.runs.begin(OBJECTIVE, "r", now=START)
    together = threading.Barrier(8)

    def end_it(number: int) -> bool:
        together.wait()
        try:
            memory.runs.end("r", quality=number / 10, now=at(1))
        except RunEndedError:
            return False
        return True

    with ThreadPoolExecutor(8) as threads:
        took = list(threads.map(end_it, range(8)))
    run = memory.runs.get("r")
    assert run is not None
    assert (sum(took), run.quality, len(run.revisions)) == (1, took.index(True) / 10, 1)


def test_runs_are_listed_newest_first_and_by_state(memory: Memory) -> None:
    memory.ingest([*whole("one", 0), begin("two", 30), *whole("three", 20, "Bake")], now=LATER)
    assert [run.id for run in memory.runs.list()] == ["two", "three", "one"]
    assert [run.id for run in memory.runs.list("ended", limit=1)] == ["three"]
    assert [run.id for run in memory.runs.list("open")] == ["two"]
    assert memory.runs.list("expired") == []


@pytest.mark.parametrize(
    ("call", "field"),
    [
        (lambda runs: runs.begin(""), "objective"),
        (lambda runs: runs.begin("x", ""), "run_id"),
        (lambda runs: runs.begin("x", "r" * 300), "run_id"),
        (lambda runs: runs.begin("x", recall_ids="one"), "recall_ids"),
        (lambda runs: runs.begin("x", session_id=7), "session_id"),
        (lambda runs: runs.step("r", " "), "text"),
        (lambda runs: runs.step("r", "x", ["a"] * 201), "memory_ids"),
        (lambda runs: runs.end("r", "gone"), "outcome"),
        (lambda runs: runs.end("r", quality=2), "quality"),
        (lambda runs: runs.end("r", summary="\ud800"), "summary"),
        (lambda runs: runs.list("closed"), "state"),
        (lambda runs: runs.list(limit=0), "limit"),
        (lambda runs: runs.get(""), "run_id"),
    ],
)
def test_invalid_arguments_are_refused_by_name(memory: Memory, call: Any, field: str) -> None:
    with pytest.raises(InvalidInputError) as raised:
        call(memory.runs)
    assert raised.value.field == field
    assert memory.runs.list() == []


def test_noise_and_repeated_progress_count_for_the_run(memory: Memory) -> None:
    events = [begin("r", 0, "ok")]
    events += [event(f"p-{n}", "worker.task.progress", n, "r", message="Running the tests") for n in (1, 2, 3)]
    report = memory.ingest([*events, end("r", 5, summary="ok")], now=LATER)
    run = memory.runs.get("r")
    assert run is not None
    assert sum(report.dropped.values()) == 4
    assert [told.record_id is not None for told in run.steps] == [True, False, False]
    assert (run.objective, run.state, run.quality) == (None, "ended", 0.8)


def test_a_step_after_the_end_counts_and_opens_nothing(memory: Memory) -> None:
    memory.ingest([*whole("r", 0), step("r", 1, 9)], now=LATER)
    run = memory.runs.get("r")
    assert run is not None
    assert (run.state, len(run.steps)) == ("ended", 1)


def test_events_without_a_run_make_none(memory: Memory) -> None:
    report = event("e", "worker.report.received", 0, summary="Found it")
    memory.ingest([report, event("f", "chat.user_msg", 0, text="Hello you")], now=LATER)
    assert memory.runs.list() == []
    assert memory.stats().memories == 2


def test_a_run_silent_for_a_week_expires_and_its_end_still_counts(memory: Memory) -> None:
    memory.ingest([begin("silent", 0), step("silent", 1, 5), begin("busy", 1), step("busy", 1, 3 * DAY)], now=LATER)
    assert memory.expire(at(7 * DAY + 5)) == 0
    assert memory.expire(at(7 * DAY + 6)) == 1
    assert [run.id for run in memory.runs.list("expired")] == ["silent"]
    assert memory.expire(at(7 * DAY + 7)) == 0
    memory.ingest([end("silent", 4 * DAY)], now=LATER + (at(4 * DAY) - START))
    assert memory.runs.list("expired") == []
    assert memory.runs.get("silent").quality == 0.8  # type: ignore[union-attr]
    assert verified(memory._archive.store)


def test_a_begin_expires_silent_runs(memory: Memory) -> None:
    memory.runs.begin(OBJECTIVE, "silent", now=START)
    memory.runs.begin("Bake bread", "next", now=at(8 * DAY))
    assert [run.id for run in memory.runs.list("expired")] == ["silent"]


def test_upkeep_without_anything_to_do_writes_nothing(memory: Memory) -> None:
    memory.ingest([begin("r", 0)], now=LATER)
    file = memory._archive.store.folder / "records" / "data.mdb"
    before = file.read_bytes()
    assert memory.expire(at(5)) == 0
    assert file.read_bytes() == before
    note(memory, RECALLS[0], 1, [])
    memory.expire(at(5))
    assert not memory._archive.store.has_waiting_notes


def test_recalls_without_a_run_are_deleted_by_number_and_by_age(memory: Memory) -> None:
    memory.ingest([begin("r", 0, recall_id=RECALLS[0])], now=LATER)
    for number, recall_id in enumerate(RECALLS):
        note(memory, recall_id, number, [])
    memory.ingest([step("r", 1, 20)], now=LATER)
    store = memory._archive.store
    left = [recall_id for recall_id in RECALLS if store.recall_note(recall_id) is not None]
    assert left == [RECALLS[0], *RECALLS[-5:]]
    memory.expire(at(66))
    left = [recall_id for recall_id in RECALLS[1:] if store.recall_note(recall_id) is not None]
    assert left == RECALLS[6:]
    assert verified(store)


def test_the_earliest_steps_of_many_are_kept_and_all_become_memories(memory: Memory) -> None:
    events = [step("r", number, number / 100) for number in range(MOST_STEPS + 50)]
    memory.ingest([*events[MOST_STEPS:], begin("r", 0), *events[:MOST_STEPS], end("r", 50)], now=LATER)
    run = memory.runs.get("r")
    assert run is not None
    assert len(run.steps) == MOST_STEPS
    assert run.steps[-1].event_id == f"r-step-{MOST_STEPS - 1}"
    memory.ingest([*events, end("r", 50)], now=LATER)
    assert memory.runs.get("r") == run
    assert memory.stats().memories == len(events) + 2
