"""An answer contains only one of the earlier requests that repeat the query; memories that add information stay."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from memory_samples import NOW, START, message, open_without_model, texts

from memory_agent.embedders import Embedder
from memory_agent.memory import Memory
from memory_agent.records.memories import MemoryFilter, RetrievedMemory

WISH = "check why the nightly backup of the orders database failed"
QUERY = f"Please {WISH}"
REQUESTS = (f"Can you {WISH}?", f"{WISH} again, please", f"Time to {WISH} once more", f"I want you to {WISH}", WISH)
QUALITIES = (0.0, 1.0, 0.8, 0.4, 0.8)
FINDINGS = (
    "The nightly backup stops when the disk of the replica is full: prune old snapshots, then resume it",
    "A failed backup of the orders database leaves its lock in /run/backup.lock, remove it before the next one",
    "The backup job needs the replica and not the primary of the orders database: set BACKUP_HOST=db-2",
    "When the backup fails, its log in /var/log/pg_dump.log names the table that was locked",
)


def request(number: int, text: str, event_type: str = "conductor.run.started", **payload: Any) -> dict[str, Any]:
    """Return a run's start event, or the user message that precedes it."""
    name = "objective" if event_type.startswith("conductor") else "text"
    run = {"run_id": f"run-{number}"} if event_type.startswith("conductor") else {}
    event_id = f"{event_type}-{number}"
    return message(number, event_type=event_type, event_id=event_id, payload={name: text} | run | payload)


def ingest_runs(memory: Memory, requests: Sequence[str], qualities: Sequence[float] = ()) -> None:
    """Ingest requests with their runs and the runs' outcomes."""
    for number, text in enumerate(requests):
        memory.ingest([request(number, text, "chat.user_msg"), request(number, text)])
    for number, quality in enumerate(qualities):
        memory.runs.end(f"run-{number}", quality=quality, now=START + timedelta(hours=1))


def is_request(found: RetrievedMemory) -> bool:
    return found.record.metadata.get("event_type") in ("chat.user_msg", "conductor.run.started")


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory, embedder: Embedder) -> Iterator[Memory]:
    """A memory with five runs for one request, worded differently each time, and four findings that answer it."""
    with Memory.open(tmp_path_factory.mktemp("asked") / "alice", embedder=embedder) as memory:
        ingest_runs(memory, REQUESTS, QUALITIES)
        for finding in FINDINGS:
            memory.remember(finding, now=START)
        yield memory


def test_the_request_whose_run_went_best_represents_all_and_answers_fill_the_other_places(asked: Memory) -> None:
    result = asked.recall(QUERY, 5, now=NOW, deadline_ms=60_000)
    (standing,) = filter(is_request, result.memories)
    assert standing.record.run_id == "run-1"
    assert standing.record.quality_score == 1.0
    assert set(texts(result)) == {standing.record.text, *FINDINGS}


def test_the_explanation_lists_the_folded_requests_and_none_for_other_memories(asked: Memory) -> None:
    result = asked.recall(QUERY, 5, now=NOW, deadline_ms=60_000)
    (standing,) = filter(is_request, result.memories)
    repeats = standing.explanation["repeats"]
    assert repeats["count"] == 2 * len(REQUESTS) - 1
    assert repeats["because"] == "asks what the query asks"
    folded = asked.get(repeats["ids"])
    assert {record.text for record in folded} == set(REQUESTS)
    assert sorted(quality for quality in repeats["qualities"] if quality is not None) == [0.0, 0.4, 0.8, 0.8]
    assert [found.explanation["repeats"] for found in result.memories if found is not standing] == [None] * 4


def test_feedback_for_a_folded_request_counts_for_the_one_that_is_shown(asked: Memory) -> None:
    result = asked.recall(QUERY, 5, now=NOW, deadline_ms=60_000)
    (standing,) = filter(is_request, result.memories)
    report = asked.feedback(result.recall_id, [standing.explanation["repeats"]["ids"][0]], 1.0, now=NOW)
    run = asked.runs.get(report.trajectory_id)
    assert run is not None
    assert [use.record_id for use in run.used] == [standing.record.id]


def test_former_requests_fill_an_answer_that_has_too_little_else(asked: Memory) -> None:
    everything = asked.recall(QUERY, 100, now=NOW, deadline_ms=60_000)
    assert len(everything.memories) == asked.stats().memories
    assert {found.explanation["repeats"] for found in everything.memories} == {None}
    result = asked.recall(QUERY, 7, now=NOW, deadline_ms=60_000)
    assert len(result.memories) == 7
    assert set(FINDINGS) <= set(texts(result))
    assert sum(map(is_request, result.memories)) == 3


def test_a_filter_that_only_former_requests_pass_returns_all_of_them(asked: Memory) -> None:
    result = asked.recall(QUERY, 5, {"sources": ["conductor_plan"]}, now=NOW, deadline_ms=60_000)
    assert {found.record.run_id for found in result.memories} == {f"run-{number}" for number in range(5)}
    assert len(result.memories) == 5
    few = MemoryFilter(until=START + timedelta(minutes=2), kinds=("strategy",))
    assert len(asked.recall(QUERY, 5, few, now=NOW, deadline_ms=60_000).memories) == 2


def test_a_filter_for_user_messages_shows_each_of_them(asked: Memory) -> None:
    result = asked.recall(QUERY, 3, {"sources": ["user_input"]}, now=NOW, deadline_ms=60_000)
    assert [found.explanation["repeats"] for found in result.memories] == [None] * 3


def test_a_statement_in_the_words_of_the_query_is_no_former_request(memory: Memory) -> None:
    told = [
        f"The nightly backup of the orders database failed because {reason}"
        for reason in ("the disk is full", "the token expired", "db-2 was down", "nobody started it")
    ]
    memory.ingest([message(number, text) for number, text in enumerate(told)])
    for finding in FINDINGS:
        memory.remember(finding, now=START)
    result = memory.recall("Why has the nightly backup of the orders database failed", 4, now=NOW, deadline_ms=60_000)
    assert min(found.score or 0.0 for found in result.memories if found.record.text in told) > 0.8
    assert set(texts(result)) == set(told)


def test_a_message_that_negates_the_query_is_no_former_request(memory: Memory) -> None:
    memory.ingest([message(0, "The nightly backup was not complete"), message(1, "The nightly backup was complete")])
    for finding in FINDINGS:
        memory.remember(finding, now=START)
    result = memory.recall("Was the nightly backup complete", 3, now=NOW, deadline_ms=60_000)
    assert {"The nightly backup was not complete", "The nightly backup was complete"} <= set(texts(result))


def test_the_begin_of_a_run_with_a_plan_is_no_former_request(memory: Memory) -> None:
    for number, strategy in enumerate(("read the log", "ask the owner", "try it again")):
        memory.ingest([request(number, WISH, strategy=strategy)])
    for finding in FINDINGS:
        memory.remember(finding, now=START)
    result = memory.recall(QUERY, 3, now=NOW, deadline_ms=60_000)
    assert {found.record.run_id for found in result.memories} == {"run-0", "run-1", "run-2"}


def test_a_request_with_another_number_does_not_represent_the_one_with_the_number_of_the_query(memory: Memory) -> None:
    ingest_runs(memory, [f"Prepare the sales report for week {week}" for week in (11, 12, 13)], (1.0, 0.4, 1.0))
    for finding in FINDINGS:
        memory.remember(finding, now=START)
    result = memory.recall(
        "Please prepare the sales report for week 12", 3, now=NOW, deadline_ms=60_000, min_relevance=0
    )
    (standing,) = filter(is_request, result.memories)
    assert standing.record.run_id == "run-1"


def test_many_former_requests_do_not_hide_answers(memory: Memory) -> None:
    ingest_runs(memory, [f"Please {WISH}, ticket {number}" for number in range(60)])
    for finding in FINDINGS:
        memory.remember(finding, now=START)
    result = memory.recall(QUERY, 5, now=NOW, deadline_ms=60_000)
    assert set(FINDINGS) <= set(texts(result))
    assert sum(map(is_request, result.memories)) == 1


def test_without_a_model_a_request_in_the_same_words_is_a_former_request(tmp_path: Path) -> None:
    with open_without_model(tmp_path / "alice") as memory:
        memory.ingest([request(0, WISH, "chat.user_msg"), request(0, WISH)])
        for finding in FINDINGS:
            memory.remember(finding, now=START)
        result = memory.recall(WISH, 4, now=NOW)
        assert sum(map(is_request, result.memories)) == 1
        assert len(result.memories) == 4
