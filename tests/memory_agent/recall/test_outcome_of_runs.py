"""Outcomes matter from the first run on: among memories with similar scores, memories of successful runs come first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from memory_samples import NOW, START

from memory_agent.embedders import Embedder
from memory_agent.evaluation import read_beam, read_locomo
from memory_agent.memory import Memory
from memory_agent.recall.stages import REQUEST_COSINE
from memory_agent.records.memories import Mode, RecallResult, RetrievedMemory
from memory_agent.settings import LearningSettings, RecallSettings

DATA = Path(__file__).parents[4] / "shared" / "data"
OFF = RecallSettings(outcome=0.0)
WEEK = timedelta(days=7)


class Work(NamedTuple):
    """A run: request, steps, final message, and whether it failed."""

    request: str
    steps: tuple[str, ...]
    ending: str
    failed: bool = False


SETUP = ("Created the project structure", "Added the dependencies", "Wrote the tests")
CASES = {
    "set up a new project with tests": (
        Work("create a fresh project including a test suite", SETUP, "Project with structure, dependencies and tests"),
        Work("set up a new project with docs", ("Copied an old one",), "Setting up the new project broke", failed=True),
    ),
    "add a new actor with tests": (
        Work("create a new actor and write its tests", SETUP, "New actor with structure, dependencies and tests"),
        Work("add a new actor", ("Wrote the actor",), "Adding a new actor with tests broke: no mailbox", failed=True),
    ),
    "deploy the billing service to staging": (
        Work("roll out the billing service on the staging cluster", ("Built it",), "Billing is rolled out on staging"),
        Work("deploy it with kubectl", ("Applied it",), "Deploy of the billing service to staging broke", failed=True),
    ),
}
"""For each request, a successful run, and a failed run that shares more words with the request."""


def events(run_id: str, work: Work, at: datetime, session: str | None = None) -> list[dict[str, Any]]:
    """Return a run's events as reported by a conductor, preceded by the user's message that began the run."""
    last = ("conductor.run.failed", "error") if work.failed else ("conductor.run.completed", "summary")
    payloads = [
        ("chat.user_msg", {"message": work.request}),
        ("conductor.run.started", {"objective": work.request, "run_id": run_id}),
        *(("worker.report.received", {"message": step, "run_id": run_id}) for step in work.steps),
        (last[0], {last[1]: work.ending, "run_id": run_id}),
    ]
    return [
        {
            "event_id": f"{run_id}-{place}",
            "event_type": event_type,
            "timestamp": (at + timedelta(minutes=place)).isoformat(),
            "user_id": "alice",
            "session_id": session or f"session-of-{run_id}",
            "payload": payload,
        }
        for place, (event_type, payload) in enumerate(payloads)
    ]


def opened(path: Path, embedder: Embedder, recall: RecallSettings, mode: str = "auto") -> Memory:
    learning = LearningSettings(mode=mode)  # type: ignore[arg-type]
    return Memory.open(path, embedder=embedder, recall_settings=recall, learning_settings=learning)


def asked(memory: Memory, query: str, top_k: int = 10, mode: Mode | None = None) -> RecallResult:
    return memory.recall(query, top_k, mode=mode, now=NOW + 2 * WEEK, deadline_ms=60_000, context_tokens=2_000)


def first_run(result: RecallResult) -> str | None:
    return next((found.record.run_id for found in result.memories if found.record.run_id), None)


def quality(found: RetrievedMemory) -> float | None:
    ended: float | None = found.explanation["quality"]
    return ended


@pytest.mark.parametrize("query", CASES)
def test_an_approved_run_is_before_a_failed_one_that_shares_more_words_with_the_request(
    tmp_path: Path, embedder: Embedder, query: str
) -> None:
    worked, failed = CASES[query]
    leading = {}
    for name, settings in (("off", OFF), ("default", RecallSettings())):
        with opened(tmp_path / name, embedder, settings) as memory:
            memory.ingest(events("worked", worked, START))
            memory.ingest(events("failed", failed, START + WEEK))
            memory.feedback("worked", quality=0.8, now=START + timedelta(hours=1))
            result = asked(memory, query)
            leading[name] = first_run(result)
            assert result.memories[0].explanation["arm"] is None
    assert leading == {"off": "failed", "default": "worked"}


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory, embedder: Embedder) -> Iterator[tuple[Memory, Memory]]:
    """Two memories with the runs of all cases: one with outcomes off, and one with the default settings."""
    folder = tmp_path_factory.mktemp("cases")
    with opened(folder / "off", embedder, OFF) as off, opened(folder / "on", embedder, RecallSettings()) as on:
        for memory in (off, on):
            for number, (worked, failed) in enumerate(CASES.values()):
                memory.ingest(events(f"worked-{number}", worked, START + timedelta(hours=number)))
                memory.ingest(events(f"failed-{number}", failed, START + WEEK + timedelta(hours=number)))
            memory.remember("Whoever adds a new actor registers its mailbox first", now=START)
        yield off, on


def test_outcomes_change_the_order_and_add_no_memories(both: tuple[Memory, Memory]) -> None:
    moved = 0
    for query in CASES:
        off, on = (asked(memory, query, 50).memories for memory in both)
        assert {found.record.event_id for found in on} == {found.record.event_id for found in off}
        assert {found.relevance for found in on} == {found.relevance for found in off}
        moved += [found.record.event_id for found in on] != [found.record.event_id for found in off]
    assert moved == len(CASES)


@pytest.mark.parametrize("mode", ["vector", "lexical"])
def test_searches_by_one_side_alone_are_ranked_by_it(both: tuple[Memory, Memory], mode: Mode) -> None:
    for query in CASES:
        off, on = (asked(memory, query, 50, mode).memories for memory in both)
        assert [found.record.event_id for found in on] == [found.record.event_id for found in off]
        assert {found.explanation["outcome"] for found in on} == {0.0}
        assert {quality(found) for found in on} >= {0.0, 0.8}


def test_what_an_outcome_adds_is_bounded_and_follows_the_score(both: tuple[Memory, Memory]) -> None:
    changed = 0
    for query in CASES:
        found = asked(both[1], query, 50).memories
        asking = ("chat.user_msg", "conductor.run.started")
        requests = {
            one.record.id for one in found if one.record.type in asking and (one.score or 0.0) >= REQUEST_COSINE
        }
        alone = {
            memory.record.id: memory.sona_score + memory.explanation["likeness"] - memory.explanation["outcome"]
            for memory in found
        }
        best = max([score for id_, score in alone.items() if id_ not in requests])
        for memory in found:
            ended, gained = quality(memory), memory.explanation["outcome"]
            own = min(max(alone[memory.record.id] / best, 0.0), 1.0)
            expected = 0.0 if ended is None else RecallSettings().outcome * best * (ended - 0.5) * own**6
            assert gained == pytest.approx(expected, abs=1e-6)
            assert memory.learned == 0.0
            changed += bool(gained)
    assert changed > 5


def test_former_requests_do_not_set_the_scale(tmp_path: Path, embedder: Embedder) -> None:
    request = "restore the nightly backup of the orders database"
    with opened(tmp_path / "alice", embedder, RecallSettings()) as memory:
        memory.runs.begin(f"Please {request}", "before", now=START)
        memory.runs.begin(f"Can you {request}", "another", now=START)
        for text, ended in (("A backup of orders is restored from replica 2", 1.0), ("Restoring needs the lock", 0.0)):
            memory.remember(text, quality_score=ended, now=START)
        former, best = asked(memory, request, 3).memories[:2]
        assert former.explanation["repeats"]
        assert best.record.text == "A backup of orders is restored from replica 2"
        alone = best.sona_score + best.explanation["likeness"] - best.explanation["outcome"]
        assert alone < 0.8 * former.sona_score
        assert best.explanation["outcome"] == pytest.approx(RecallSettings().outcome / 2 * alone, abs=1e-6)


def test_a_clearly_better_match_stays_first_though_its_run_failed(tmp_path: Path, embedder: Embedder) -> None:
    with opened(tmp_path / "alice", embedder, RecallSettings()) as memory:
        memory.ingest(events("failed", Work("scaffold a new service module", (), "It broke", failed=True), START))
        memory.ingest(events("worked", Work("write the tests of the login page", SETUP, "All is green"), START + WEEK))
        memory.feedback("worked", quality=1.0, now=START + WEEK + timedelta(hours=1))
        result = memory.recall("scaffold a new service module today", 10, now=NOW, min_relevance=0.0)
        assert first_run(result) == "failed"
        assert {found.record.run_id for found in result.memories} >= {"failed", "worked"}


def test_retried_runs_are_between_and_unknown_outcomes_are_neutral(tmp_path: Path, embedder: Embedder) -> None:
    qualities = {"a": 0.0, "b": None, "c": 1.0, "d": 0.4, "e": 0.8}
    with opened(tmp_path / "alice", embedder, RecallSettings()) as memory:
        for letter, ended in qualities.items():
            text = f"Refund the ticket of a customer whose flight was cancelled, {letter}"
            memory.remember(text, quality_score=ended, now=START)
        found = asked(memory, "How to refund the ticket of a customer whose flight was cancelled").memories
        assert [quality(memory) for memory in found] == [1.0, 0.8, None, 0.4, 0.0]
        assert [np.sign(memory.explanation["outcome"]) for memory in found] == [1, 1, 0, -1, -1]


def test_a_later_revision_counts(tmp_path: Path, embedder: Embedder) -> None:
    query = "Bring the ticket of a customer back whose flight was cancelled"
    with opened(tmp_path / "alice", embedder, RecallSettings()) as memory:
        for letter in "ab":
            memory.runs.begin(f"Refund the ticket of a customer whose flight was cancelled, {letter}", letter)
            memory.runs.end(letter, "completed" if letter == "a" else "failed", now=START)
        before = asked(memory, query)
        assert first_run(before) == "a"
        memory.feedback(before.recall_id, [], 0.0, now=NOW)  # feedback on the recall, not on a run
        assert first_run(asked(memory, query)) == "a"
        memory.feedback("a", quality=0.0, now=NOW)
        memory.feedback("b", quality=1.0, now=NOW)
        assert first_run(asked(memory, query)) == "b"


def test_a_message_has_the_outcome_of_the_run_that_it_began(tmp_path: Path, embedder: Embedder) -> None:
    request = "Rotate the keys of the payment provider"
    with opened(tmp_path / "alice", embedder, RecallSettings()) as memory:
        late = events("late", Work(request, (), "Keys rotated"), START, "late")
        for event in late[1:]:
            event["timestamp"] = (START + timedelta(hours=1)).isoformat()
        interrupted = events("interrupted", Work(request, (), "Keys rotated"), START, "interrupted")
        interrupted.insert(1, interrupted[0] | {"event_id": "another", "payload": {"message": "Wait, is it Monday?"}})
        for told in (late, interrupted, events("begun", Work(request, (), "Keys rotated"), START, "begun")):
            memory.ingest(told)
        found = memory.recall(request, 50, {"sources": ["user_input"]}, now=NOW, deadline_ms=60_000)
        (message,) = (one for one in found.memories if one.record.text == request)
        ended = {}
        for session in ("late", "interrupted", "begun"):
            of_session = {"sources": ["user_input"], "session_id": session}
            options = {"context_tokens": 400, "min_relevance": 0}
            result = memory.recall(request, 50, of_session, now=NOW, deadline_ms=60_000, **options)
            ended[session] = [(one.record.text == request, quality(one)) for one in result.memories]
            assert ("ended: completed (0.8)" in (result.context or "")) == (session != "late")
        assert message.count == 3
        assert ended == {"late": [(True, None)], "interrupted": [(True, None), (False, 0.8)], "begun": [(True, 0.8)]}


def test_a_memory_without_a_quality_has_that_of_its_run(tmp_path: Path, embedder: Embedder) -> None:
    with opened(tmp_path / "alice", embedder, RecallSettings()) as memory:
        for run_id, work in (("good", Work("Tune the query", (), "Tuned")), ("open", Work("Tune it", (), "Tuned"))):
            memory.ingest(events(run_id, work, START)[: 3 if run_id == "good" else 2])
            memory.remember(f"The planner needs fresh statistics, {run_id}", run_id=run_id, now=START)
        found = asked(memory, "What does the planner need?").memories
        ended = {one.record.run_id: quality(one) for one in found if one.record.text.startswith("The planner")}
        assert ended == {"good": 0.8, "open": None}


def test_the_learned_ranking_counts_outcomes_once_and_beside_what_it_learned(
    tmp_path: Path, embedder: Embedder
) -> None:
    query, (worked, failed) = next(iter(CASES.items()))
    with opened(tmp_path / "alice", embedder, RecallSettings(), "on") as memory:
        memory.ingest(events("worked", worked, START))
        memory.ingest(events("failed", failed, START + WEEK))
        result = asked(memory, query)
        assert first_run(result) == "worked"
        for found in result.memories:
            why = found.explanation
            assert why["arm"] == "learned"
            assert found.learned == pytest.approx(why["association"] + why["shift"])
            parts = ("fused", "date_boost", "context", "contiguity", "outcome", "learned")
            assert found.sona_score == pytest.approx(sum(why[part] for part in parts) - why["likeness"])


def said_in_block(result: RecallResult, words: str) -> list[str]:
    return [line for line in (result.context or "").splitlines() if words in line]


def test_an_approach_that_failed_repeatedly_shows_the_number_of_failures(tmp_path: Path, embedder: Embedder) -> None:
    approach = ("Applied the migration in one statement", "Lock timeout on the orders table")
    with opened(tmp_path / "alice", embedder, RecallSettings()) as memory:
        for number in range(12):
            request = f"Move table {number} to the new schema"
            memory.ingest(
                events(f"run-{number}", Work(request, approach, "Lock timeout", True), START + number * WEEK / 7)
            )
        result = asked(memory, "apply the migration of the customers table in one statement")
        (step,) = (found for found in result.memories if found.record.text == approach[0])
        assert (step.count, step.failed, len(step.origins)) == (12, 12, 8)
        assert len(said_in_block(result, "ended: failed (0.0), failed 12 times")) >= 1
        memory.feedback("run-3", quality=1.0, now=NOW)
        again = asked(memory, "apply the migration of the customers table in one statement")
        (step,) = (found for found in again.memories if found.record.text == approach[0])
        assert step.failed == 11
        assert quality(step) == 1.0


def test_a_request_shows_the_failures_of_the_requests_folded_into_it(tmp_path: Path, embedder: Embedder) -> None:
    with opened(tmp_path / "alice", embedder, RecallSettings()) as memory:
        for number, wish in enumerate(("Please restore", "Can you restore", "I want you to restore", "Now restore")):
            request = f"{wish} the nightly backup of the orders database"
            memory.ingest(
                events(f"run-{number}", Work(request, (), f"No space, {number}", True), START + number * WEEK / 7)
            )
        for place in range(8):
            memory.remember(f"The nightly backup of the orders database lies on replica {place}", now=START)
        result = asked(memory, "restore the nightly backup of the orders database", 6)
        (standing,) = (found for found in result.memories if found.explanation["repeats"])
        assert standing.explanation["repeats"]["count"] == 7
        assert standing.failed == 4
        assert len(said_in_block(result, "failed 4 times")) == 1


def test_one_failure_is_not_repeated(tmp_path: Path, embedder: Embedder) -> None:
    with opened(tmp_path / "alice", embedder, RecallSettings()) as memory:
        memory.ingest(events("run-1", Work("Restore the nightly backup", ("Read the log",), "No space", True), START))
        result = asked(memory, "the nightly backup is to be restored")
        assert {found.failed for found in result.memories if found.record.run_id} == {1}
        assert not said_in_block(result, "times")


def without_outcomes(name: str) -> tuple[list[dict[str, Any]], Sequence[str]]:
    """Return a conversation's first memories, and the questions about it."""
    read = read_locomo(DATA / "locomo_dev.json") if name == "locomo" else read_beam(DATA / "beam_dev")
    history = read.histories[0]
    items = 60 if name == "locomo" else 10  # BEAM items are long
    return history.events("alice")[:items], [question.text for question in history.questions[:20]]


@pytest.mark.parametrize("name", ["locomo", "beam"])
def test_without_outcomes_the_ranking_is_identical_to_that_without_the_stage(
    tmp_path: Path, embedder: Embedder, name: str
) -> None:
    if not DATA.is_dir():
        pytest.skip("../shared/data is not available")
    told, questions = without_outcomes(name)
    with opened(tmp_path / "alice", embedder, OFF) as memory:
        for start in range(0, len(told), 60):
            memory.ingest(told[start : start + 60])
    answers = []
    for settings in (OFF, RecallSettings(outcome=1.0)):
        with opened(tmp_path / "alice", embedder, settings) as memory:
            found = [memory.recall(text, 10, now=NOW, deadline_ms=60_000, min_relevance=0.0) for text in questions]
            answers.append([[(one.record.id, one.sona_score) for one in result.memories] for result in found])
    assert all(answers[0])
    assert answers[0] == answers[1]
