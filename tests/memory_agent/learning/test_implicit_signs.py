"""What followed a run is read from events that say nothing of it, and goes where they go."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from run_samples import (
    LATER,
    OBJECTIVE,
    SMALL,
    approval,
    at,
    begin,
    end,
    event,
    failure,
    note,
    qualities,
    things_to_use,
    whole,
)
from store_checks import verified

from memory_agent.embedders import Embedder
from memory_agent.learning.lessons import lessons_of
from memory_agent.memory import Memory
from memory_agent.recall.context import context_block
from memory_agent.records.trajectories import ImplicitSign, Trajectory
from memory_agent.settings import LearningSettings, Settings
from memory_agent.storage.snapshot import RECORDS, RUN_INDEX, RUNS
from relay.config import EncryptionSettings

AGAIN = "Please fix the race condition in the auth module"
ELSEWHERE = "Book a table for four on Friday"
RELATED = "Write a test for the race in the auth module"
RECALL = "01KHJY9080NWG22H9Q8BBD7B80"
_WRITER = """
import sys
from pathlib import Path
sys.path[:0] = {here!r}, str(Path({here!r}).parent)
from memory_agent.embedders import open_embedder
from memory_agent.settings import EmbedderSettings
from test_implicit_signs import opened, take_in
embedder = open_embedder(EmbedderSettings(allow_download=False))
with opened(Path({folder!r}), embedder) as memory:
    for number in take_in(memory):
        print(number, flush=True)
"""


def opened(folder: Path, embedder: Embedder, **learning: Any) -> Memory:
    return Memory.open(folder, embedder=embedder, settings=Settings(store=SMALL, learning=LearningSettings(**learning)))


@pytest.fixture
def memory(tmp_path: Path, embedder: Embedder) -> Iterator[Memory]:
    with opened(tmp_path / "alice", embedder) as memory:
        yield memory


def message(event_id: str, minute: float, text: str, session_id: str | None = "s-1") -> dict[str, Any]:
    return event(event_id, "chat.user_msg", minute, text=text, session_id=session_id)


def asked(run_id: str, minute: float, objective: str = OBJECTIVE, session_id: str = "s-1") -> list[dict[str, Any]]:
    """A completed run of five minutes, with the message that caused it."""
    first, last = whole(run_id, minute, objective, session_id=session_id)
    return [message(f"{run_id}-asked", minute - 1, objective, session_id), first, last]


def take(memory: Memory, *events: list[dict[str, Any]] | dict[str, Any], now: datetime = LATER) -> None:
    """Ingest, then infer what followed, as the daemon's upkeep does."""
    flat = [single for event in events for single in (event if isinstance(event, list) else [event])]
    assert not memory.ingest(flat, now=LATER).rejected
    memory.sona.consolidate(now)
    assert verified(memory._archive.store)


def run_of(memory: Memory, run_id: str) -> Trajectory:
    run = memory.runs.get(run_id)
    assert run is not None
    return run


def signs(memory: Memory, run_id: str) -> list[tuple[str, str | None]]:
    """The kinds of a run's signs, each with the event of the memory that it cites."""
    found = []
    for sign in run_of(memory, run_id).implicit:
        (record,) = memory.get([sign.record_id or ""])
        found.append((sign.kind, record.event_id))
    return found


def test_the_same_request_again_counts_against_a_completed_run(memory: Memory) -> None:
    take(memory, asked("one", 0))
    assert (run_of(memory, "one").implicit, run_of(memory, "one").implicit_quality) == ((), None)
    take(memory, message("again", 7, AGAIN))
    run = run_of(memory, "one")
    (again,) = memory.get([run.implicit[0].record_id or ""])
    assert run.implicit == (
        ImplicitSign(kind="asked_again", at=at(7), similarity=run.implicit[0].similarity, record_id=again.id),
    )
    assert again.event_id == "again"
    assert run.implicit[0].similarity > 0.9
    assert (run.quality, run.revisions[-1].reason) == (0.8, "completed")
    assert run.implicit_quality == pytest.approx(0.8 / 1.2)
    kept = {record.event_id: record for _, record in memory._archive.store.scan()}
    assert (kept["one-end"].quality_score, kept["one-end"].implicit_quality) == (0.8, pytest.approx(0.8 / 1.2))
    assert kept["again"].implicit_quality is None


def test_it_counts_less_the_later_it_comes_and_not_after_half_an_hour(memory: Memory) -> None:
    take(memory, asked("one", 0), message("again", 20, AGAIN))
    assert run_of(memory, "one").implicit_quality == pytest.approx(0.8 / 1.1)
    take(memory, asked("two", 100, session_id="s-2"), message("late", 136, AGAIN, "s-2"))
    assert run_of(memory, "two").implicit == ()


@pytest.mark.parametrize(
    ("text", "session_id", "is_sign"),
    [(AGAIN, "s-2", True), (AGAIN, None, True), (OBJECTIVE, "s-1", True), (OBJECTIVE, "s-2", False)],
    ids=["other words, elsewhere", "no session", "the same words, here", "the same words, elsewhere"],
)
def test_where_and_in_which_words_it_may_come(memory: Memory, text: str, session_id: str | None, is_sign: bool) -> None:
    take(memory, asked("one", 0), message("again", 7, text, session_id))
    assert [kind for kind, _ in signs(memory, "one")] == ["asked_again"] * is_sign


def test_a_job_that_repeats_its_request_does_not_ask_again(memory: Memory) -> None:
    for number in range(3):
        take(memory, asked(f"job-{number}", 10 * number))
    assert [kind for kind, _ in signs(memory, "job-0")] == ["asked_again"]  # nothing came before it yet
    assert signs(memory, "job-1") == []


def test_a_session_that_goes_on_counts_a_little_and_a_follow_up_nothing(memory: Memory) -> None:
    take(memory, asked("one", 0), message("next", 200, ELSEWHERE))
    assert signs(memory, "one") == [("went_on", "next")]
    assert run_of(memory, "one").implicit_quality == pytest.approx(0.85 / 1.05)
    take(memory, asked("two", 300, session_id="s-2"), message("more", 310, RELATED, "s-2"))
    take(memory, message("off", 320, ELSEWHERE, "s-2"))
    assert signs(memory, "two") == []
    take(memory, asked("three", 400, session_id="s-3"), message("elsewhere", 410, ELSEWHERE, "s-4"))
    assert signs(memory, "three") == []


def test_a_related_later_success_counts_less_than_a_linked_one(memory: Memory) -> None:
    take(memory, asked("one", 0), asked("two", 300, RELATED), approval("two", 310))
    assert signs(memory, "one")[-1] == ("later_success", "two-begin")
    assert run_of(memory, "one").implicit_quality == pytest.approx(0.9 / 1.1)
    take(memory, asked("three", 600, session_id="s-2"), asked("four", 900, RELATED, "s-3"))
    assert signs(memory, "three") == []  # too late for another session
    linked = whole("six", 1300, RELATED, session_id="s-5", parent_run_id="five")
    take(memory, asked("five", 1200, session_id="s-5"), linked)
    assert run_of(memory, "five").quality == 0.9
    assert (signs(memory, "five"), run_of(memory, "five").implicit_quality) == ([], None)


def test_a_failed_run_stays_failed_and_points_to_what_worked(memory: Memory) -> None:
    take(memory, begin("one", 0, session_id="s-1"), failure("one", 5), asked("two", 8, AGAIN), approval("two", 20))
    run = run_of(memory, "one")
    assert (run.quality, run.implicit_quality) == (0.0, None)
    assert ("later_success", "two-begin") in signs(memory, "one")
    both = memory.recall("fix the race in the auth module", runs=2, now=LATER)
    block = context_block(both, max_tokens=800, now=LATER)
    assert "Failed before" in block
    assert "worked later" not in block  # what worked stands above it
    (failed,) = (run for run in both.runs if run.id == "one")
    alone = context_block(msgspec.structs.replace(both, runs=(failed,)), max_tokens=800, now=LATER)
    assert "a related request worked later (inferred)" in alone


def test_a_later_success_is_withdrawn_with_its_verdict(memory: Memory) -> None:
    take(memory, asked("one", 0), asked("two", 300, RELATED))
    assert signs(memory, "one")[-1][0] == "later_success"
    assert not memory.ingest([approval("two", 310, approved=False)], now=LATER).rejected
    assert [kind for kind, _ in signs(memory, "one")] == []  # in the same transaction
    memory.ingest([approval("two", 320) | {"event_id": "second-thoughts"}], now=LATER)
    memory.sona.consolidate(LATER)
    assert signs(memory, "one")[-1][0] == "later_success"


def test_a_run_that_never_ended_has_at_most_implicit_evidence(memory: Memory) -> None:
    take(memory, message("m", -1, OBJECTIVE), begin("one", 0, session_id="s-1"), message("again", 7, AGAIN))
    assert run_of(memory, "one").implicit == ()  # it may still be at work
    take(memory, message("hours-later", 200, ELSEWHERE, "s-9"))
    run = run_of(memory, "one")
    assert (run.state, run.quality, run.revisions) == ("open", None, ())
    assert run.implicit_quality == pytest.approx(0.5 / 1.1)
    assert qualities(memory)["one-begin"] is None
    found = memory.recall("fix the race in the auth module", now=LATER)
    told = {item.record.event_id: item for item in found.memories}
    assert told["one-begin"].explanation["outcome"] < 0
    assert "end not known (0.45 by what followed, inferred)" in context_block(found, max_tokens=800, now=LATER)
    filtered = memory.recall("fix the race in the auth module", now=LATER, filter={"min_quality": 0.1})
    assert filtered.memories == ()
    take(memory, end("one", 230))
    assert (run_of(memory, "one").quality, run_of(memory, "one").implicit) == (0.8, ())


def test_an_inferred_success_is_marked_and_not_called_approved(memory: Memory) -> None:
    take(memory, asked("one", 0), asked("two", 300, RELATED), approval("two", 310))
    found = memory.recall("fix the race in the auth module", runs=1, now=LATER)
    block = context_block(found, max_tokens=1_200, now=LATER)
    assert "completed (0.8; 0.82 by what followed, inferred)" in block


def test_an_explicit_verdict_ends_what_was_inferred(memory: Memory) -> None:
    take(memory, asked("one", 0), message("again", 7, AGAIN))
    memory.ingest([approval("one", 9)], now=LATER)
    run = run_of(memory, "one")
    assert (run.quality, run.implicit_quality) == (1.0, None)
    kept = {record.event_id: record for _, record in memory._archive.store.scan()}
    assert (kept["one-end"].quality_score, kept["one-end"].implicit_quality) == (1.0, None)


def test_what_followed_is_forgotten_with_what_said_it(memory: Memory) -> None:
    take(memory, asked("one", 0), message("again", 7, AGAIN), message("next", 12, ELSEWHERE))
    assert signs(memory, "one") == [("asked_again", "again")]
    (sign,) = run_of(memory, "one").implicit
    memory.forget([sign.record_id or ""])
    assert run_of(memory, "one").implicit_quality is None
    memory.sona.consolidate(LATER)
    assert signs(memory, "one") == [("went_on", "next")]
    kept = {record.event_id: record.implicit_quality for _, record in memory._archive.store.scan()}
    assert kept["one-end"] == pytest.approx(0.85 / 1.05)
    memory.forget_session("s-1")
    with memory._archive.store.snapshot() as snapshot:
        assert not any(key[:1] in b"wc" for key, _ in snapshot._transaction.scan(RUN_INDEX))


def test_it_is_found_withdrawn_and_forgotten_in_an_encrypted_store_too(tmp_path: Path, embedder: Embedder) -> None:
    encryption = EncryptionSettings(keys_folder=str(tmp_path / "keys"))
    with Memory.open(
        tmp_path / "alice", embedder=embedder, settings=Settings(store=SMALL, encryption=encryption)
    ) as memory:
        take(memory, asked("one", 0), message("again", 7, AGAIN), asked("two", 40, RELATED))
        assert signs(memory, "one") == [("asked_again", "again"), ("later_success", "two-begin")]
        take(memory, approval("two", 50, approved=False))
        assert signs(memory, "one") == [("asked_again", "again")]
        memory.forget([run_of(memory, "one").implicit[0].record_id or ""])
        assert run_of(memory, "one").implicit == ()
        assert verified(memory._archive.store)


def test_a_forgotten_session_takes_the_success_that_it_was_for_another_run(memory: Memory) -> None:
    take(memory, asked("one", 0), asked("two", 20, RELATED, "s-2"))
    assert ("later_success", "two-begin") in signs(memory, "one")
    memory.forget_session("s-2")
    memory.sona.consolidate(LATER)
    assert run_of(memory, "one").implicit == ()
    assert run_of(memory, "one").implicit_quality is None


def test_forgetting_the_request_forgets_what_resembled_it(memory: Memory) -> None:
    take(memory, asked("one", 0), message("again", 7, AGAIN))
    (record_id,) = (record.id for _, record in memory._archive.store.scan() if record.event_id == "one-begin")
    memory.forget([record_id])
    memory.sona.consolidate(LATER)
    assert (run_of(memory, "one").implicit, run_of(memory, "one").implicit_quality) == ((), None)


def test_lessons_have_the_quality_with_what_followed_and_lose_it_again(memory: Memory) -> None:
    (thing, *_) = things_to_use(memory)
    note(memory, RECALL, -2, [thing], OBJECTIVE)
    first, begun, last = asked("one", 0)
    last["payload"]["memory_ids"] = [thing]
    take(memory, first, begun, last)

    def taught() -> list[float]:
        with memory._archive.store.snapshot() as snapshot:
            run = snapshot.trajectory("one")
            assert run is not None
            return [lesson.quality for lesson in lessons_of(snapshot, run)]

    assert taught() == [0.8]
    version = memory._archive.store.state.lessons_version
    take(memory, message("again", 7, AGAIN))
    assert taught() == [pytest.approx(0.8 / 1.2)]
    assert memory._archive.store.state.lessons_version > version
    (used,) = memory.get([thing])
    assert used.utility.reward_sum == 0.8  # what happened when it was recalled is what was stated
    (sign,) = run_of(memory, "one").implicit
    memory.forget([sign.record_id or ""])
    assert taught() == [0.8]


def test_clocks_that_disagree_give_no_signs(memory: Memory) -> None:
    behind = [begin("one", -20, session_id="s-1"), end("one", -15)]  # a slow clock; its request had arrived
    take(memory, message("asked", 0, AGAIN), behind)
    assert run_of(memory, "one").implicit == ()
    last = [begin("late", 80, AGAIN, session_id="s-4"), end("late", 85)]  # as slow, and later than what it precedes
    take(memory, asked("early", 100, session_id="s-4"), last)
    assert run_of(memory, "late").implicit == ()
    ahead = [begin("two", 600, session_id="s-2"), end("two", 605)]
    take(memory, ahead, message("at once", 547, AGAIN, "s-2"))
    assert run_of(memory, "two").implicit == ()


def test_a_clock_that_is_days_ahead_does_not_end_the_waiting_of_other_runs(memory: Memory) -> None:
    far = message("far", 4_200, "Plan the summer holiday", "s-2")
    take(memory, asked("one", 0), far, now=at(6))
    take(memory, message("again", 7, AGAIN), now=at(8))
    assert signs(memory, "one") == [("asked_again", "again")]


def test_a_run_is_left_alone_once_nothing_can_follow_it(memory: Memory) -> None:
    take(memory, asked("one", 0), message("again", 7, AGAIN), message("days-later", 4_000, ELSEWHERE, "s-9"))

    def watched() -> bool:
        with memory._archive.store.snapshot() as snapshot:
            run = snapshot.trajectory("one")
            assert run is not None
            return run.is_watched

    assert not watched()
    assert signs(memory, "one") == [("asked_again", "again")]
    memory.ingest(
        [event("one-late", "worker.report.received", 6, "one", summary="A late report of the run")], now=LATER
    )
    assert watched()


def test_with_nothing_new_nothing_is_written(memory: Memory) -> None:
    take(memory, asked("one", 0), message("again", 7, AGAIN))
    memory.sona.consolidate(LATER)
    before = memory._archive.store.state.lessons_version, memory._archive.view.applied
    for hours in range(3):
        memory.sona.consolidate(LATER + timedelta(hours=hours))
    assert (memory._archive.store.state.lessons_version, memory._archive.view.applied) == before


def test_it_can_be_switched_off(tmp_path: Path, embedder: Embedder) -> None:
    with opened(tmp_path / "alice", embedder, implicit=False) as memory:
        take(memory, asked("one", 0), message("again", 7, AGAIN))
        assert run_of(memory, "one").implicit == ()


def take_in(memory: Memory) -> Iterator[int]:
    """Ingest in order, as a journal gives it, with upkeep between; yield each batch once it is on the disk."""
    events = [
        *asked("one", 0), message("again", 7, AGAIN), *asked("two", 40, RELATED), *asked("three", 80, ELSEWHERE),
        begin("four", 100, AGAIN, session_id="s-1"), message("off", 140, "What will the weather be in Rome?"),
        approval("two", 150), *asked("five", 2_000, session_id="s-2"),
    ]  # fmt: skip
    for start in range(0, len(events), 3):
        batch = events[start : start + 3]
        memory.ingest(batch, seqs=range(start + 1, start + 1 + len(batch)), now=LATER)
        memory.sona.consolidate(LATER)
        yield start
    memory.sona.consolidate(LATER)


def contents(memory: Memory) -> tuple[dict[bytes, bytes], dict[bytes, bytes], list[tuple[Any, ...]]]:
    with memory._archive.store.snapshot() as snapshot:
        scan = snapshot._transaction.scan
        told = [(record.event_id, record.quality_score, record.implicit_quality) for _, record in snapshot.scan()]
        assert len(told) == sum(1 for _ in scan(RECORDS))
        return dict(scan(RUNS)), dict(scan(RUN_INDEX)), told


@pytest.mark.slow
def test_a_replay_after_a_crash_infers_the_same_byte_for_byte(tmp_path: Path, embedder: Embedder) -> None:
    with opened(tmp_path / "whole", embedder) as memory:
        assert list(take_in(memory))
        expected = contents(memory)
        assert [kind for kind, _ in signs(memory, "one")] == ["asked_again", "later_success"]
    seeded = random.Random(20261123)
    for attempt in range(2):
        folder = tmp_path / f"crashed-{attempt}"
        for most in (4, 6):
            code = _WRITER.format(here=str(Path(__file__).parent), folder=str(folder))
            with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as writer:
                assert writer.stdout is not None
                for _ in range(seeded.randrange(1, most)):
                    assert writer.stdout.readline()
                writer.kill()
        with opened(folder, embedder) as memory:
            list(take_in(memory))
            assert verified(memory._archive.store)
            assert contents(memory) == expected
