"""Test that recurring incidents in the demo are reworded, and that only shown memories are cited."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memory_agent import Memory, MemoryFilter
from memory_agent.errors import ModelMissingError
from memory_agent.records.memories import MemoryRecord, RecallResult, RetrievedMemory
from memory_agent.records.trajectories import GateEvidence, GateState, SonaStatus
from ops.demo.recurring import Page, Recurring
from ops.demo.standings import Standings, by_likeness, progress, rank_of, reasons
from ops.demo.story import Event, Story
from relay import EventLimits, event_from_mapping

NOW = datetime(2026, 11, 21, 10, 0, tzinfo=UTC)
STORY = Recurring.load()
PAGES = STORY.pages()
DECEIVING = [page for page in PAGES if page.kind.looks_deceive]


def every_event() -> list[Event]:
    of_pages = [event for page in PAGES for event in STORY.page_events(page, NOW, f"r-{page.id}", ["m"])]
    return [*STORY.past_events(NOW), *of_pages, *STORY.final_events(NOW, "r", ["m"])]


def memory_of(
    run_id: str, score: float, learned: float, text: str = "", quality: float | None = None
) -> RetrievedMemory:
    record = MemoryRecord(
        id=f"{run_id}-{score}", text=text or run_id, source="user_input", kind="episode", timestamp=NOW,
        run_id=run_id, quality_score=quality,
    )  # fmt: skip
    parts = {"learned": learned, "association": learned, "shift": 0.0, "outcome": 0.0, "caused_by": []}
    return RetrievedMemory(
        record=record, score=None, lexical_score=None, sona_score=score, retrieval="both", explanation=parts,
        learned=learned,
    )  # fmt: skip


def test_every_event_is_valid_for_the_relay_and_has_a_unique_id() -> None:
    events = every_event()
    for event in events:
        assert event_from_mapping(event, EventLimits(), NOW).event_id == event["event_id"]
    assert len({event["event_id"] for event in events}) == len(events)


def test_no_event_belongs_to_the_other_users() -> None:
    assert STORY.user not in Story.load().users
    assert {event["user_id"] for event in every_event()} == {STORY.user}


def test_no_page_comes_twice_or_repeats_a_past_run() -> None:
    texts = [*(page.text for page in PAGES), STORY.final.page]
    assert len(set(texts)) == len(texts)
    said = {value for event in STORY.past_events(NOW) for value in event["payload"].values()}
    assert said.isdisjoint(texts)


def test_pages_come_in_order_of_time_as_many_a_week_as_the_story_says_after_the_runs_they_resemble() -> None:
    days = [page.days_ago for page in PAGES]
    assert days == sorted(days, reverse=True)
    assert Counter(page.week for page in PAGES) == dict(enumerate(STORY.pages_per_week, 1))
    resembled = {name for kind in STORY.kind for name in (kind.closest, kind.worked)}
    assert max(days) < min(run.days_ago for run in STORY.run if run.id in resembled)
    assert min(days) > STORY.final.run.days_ago > 0


def test_every_kind_of_incident_is_equally_frequent() -> None:
    counts = Counter(page.kind.name for page in PAGES).values()
    assert max(counts) - min(counts) <= 1


def test_its_agent_cites_how_the_run_that_worked_ended_and_only_if_that_was_shown() -> None:
    page = STORY.final_page()
    ending = memory_of(page.kind.worked, 0.5, 0.0, STORY.ending_of(page.kind.worked))
    others = [memory_of(page.kind.closest, 0.9, 0.0), memory_of(page.kind.worked, 0.8, 0.0, "its plan")]
    assert STORY.cited(page, [*others, ending]) is ending
    assert STORY.cited(page, others) is None


def test_a_run_that_used_nothing_is_never_approved() -> None:
    for page in PAGES:
        _, ended = STORY.page_events(page, NOW, "r", [])
        assert "approved" not in ended["payload"]


def test_standings_count_all_pages_and_those_that_likeness_misleads_beside_those_it_helps() -> None:
    standings = Standings()
    page = DECEIVING[0]
    closest, worked = memory_of(page.kind.closest, 0.9, 0.0), memory_of(page.kind.worked, 0.8, 0.0)
    standings.count(page, [closest, worked])
    standings.count(page, [memory_of(page.kind.worked, 1.2, 0.6), closest])
    standings.count(page, [worked])
    honest = next(page for page in PAGES if not page.kind.looks_deceive)
    standings.count(honest, [memory_of(honest.kind.worked, 0.8, 0.0)])
    assert standings.rows() == [("week 1", "3 (2) of 4", "2 (1) of 3", "1 (1) of 1")]
    assert standings.led(1) == (3, 2)


def test_by_likeness_the_order_follows_the_remaining_scores() -> None:
    worked, closest = memory_of("worked", 1.1, 0.6), memory_of("closest", 1.0, -0.1)
    assert by_likeness([worked, closest]) == [closest, worked]
    assert rank_of("closest", [worked, closest]) == 2
    assert rank_of("unknown", [worked, closest]) is None


def status(state: GateState, won: int = 0, lost: int = 0) -> SonaStatus:
    gate = GateEvidence(state=state, won=won, lost=lost, tied=0, evidence=7.1, harm=0.1, threshold=28.0)
    return SonaStatus(
        user_id="carol", mode="auto", gate=gate, trajectories=0, credited=1, exemplars=0, memories_with_credit=0,
        served={}, gain=None, gain_low=None, gain_high=None, consolidated_at=None, state_bytes=0,
    )  # fmt: skip


def test_progress_shows_the_evidence_of_the_gate() -> None:
    assert progress(1, 1, status("shadow")) == "week 1, page   1  shadow: 1 of the 2 runs required before a trial"
    assert progress(1, 5, status("trial", 5, 1)).endswith("won 5 of 6 comparisons, the bet is at 7")
    assert progress(1, 9, status("on")).endswith("on: the bet reached 28, so learned rankings are now shown")
    assert progress(1, 9, status("on", 1)).endswith("on: won 1 of 1 comparison since")
    assert "did not help; won 1 of 10" in progress(1, 9, status("off", 1, 9))


def test_reasons_name_the_past_run_what_it_was_asked_and_how_it_ended() -> None:
    best = memory_of("ops-302", 1.1, 0.6, quality=1.0)
    best.explanation["caused_by"] = [{"trajectory_id": "page-007", "similarity": 0.667, "quality": 0.8}]
    said = "\n".join(reasons(best, {"page-007": "the disk is full"}))
    assert "page-007 “the disk is full”, 67 % similar, ended: completed (0.8)" in said
    assert "ops-302, which was approved (1.0)" in said


@given(st.tuples(*[st.floats(-1, 1)] * 3))
def test_the_printed_reasons_add_up(parts: tuple[float, float, float]) -> None:
    best = memory_of("ops-302", 1.1, 0.6)
    best.explanation.update(zip(("association", "shift", "outcome"), parts, strict=True))
    total, *printed = reasons(best, {})
    each = [round(100 * float(line.split()[0])) for line in printed]
    assert len(each) == 3
    assert total == f"raised by {sum(each) / 100:+.2f}:"


@dataclass
class Told:
    """Carol's memory after all pages. `first` is the answer to the last page before the first lesson."""

    memory: Memory
    first: RecallResult
    standings: Standings = field(default_factory=Standings)

    def live_through(self, pages: list[Page]) -> None:
        for page in pages:
            result = self.memory.recall(page.text, 5)
            self.standings.count(page, result.memories)
            cited = STORY.cited(page, result.memories)
            used = [] if cited is None else [cited.record.id]
            self.memory.ingest(STORY.page_events(page, NOW, result.recall_id, used), now=NOW)


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Told]:
    with Memory.open(Path(tmp_path_factory.mktemp("carol")), user_id=STORY.user) as memory:
        memory.ingest(STORY.past_events(NOW), now=NOW)
        if memory.stats().model is None:
            pytest.skip(f"no embedding model on this machine: {ModelMissingError.code}")
        told = Told(memory, memory.recall(STORY.final.page, 5))
        told.live_through(PAGES)
        yield told


def test_before_anything_is_learned_the_run_that_looked_closest_leads_and_the_one_that_worked_is_shown(
    told: Told,
) -> None:
    kind = STORY.final_page().kind
    assert rank_of(kind.closest, told.first.memories) == 1
    assert STORY.cited(STORY.final_page(), told.first.memories) is not None


def test_pages_leave_runs_and_no_memories(told: Told) -> None:
    assert told.memory.stats().memories == len(STORY.past_events(NOW))
    run = told.memory.runs.get(PAGES[0].id)
    assert run is not None
    assert run.outcome == "completed"
    assert len(run.recall_ids) == 1


def test_the_gate_opens_by_its_own_evidence_and_then_the_run_that_worked_leads_more_often(told: Told) -> None:
    learner = told.memory.sona.status()
    assert (learner.mode, learner.gate.state) == ("auto", "on")
    led, by_likeness_alone = told.standings.led(3)
    assert led > 1.5 * by_likeness_alone
    assert told.standings.worked[3, False] >= 3  # of 5 pages; a mixed answer may begin with another run


def test_the_last_run_is_kept_with_its_recall_and_what_it_used(told: Told) -> None:
    page = STORY.final_page()
    result = told.memory.recall(page.text, 5)
    cited = STORY.cited(page, result.memories)
    assert cited is not None
    told.memory.ingest(STORY.final_events(NOW, result.recall_id, [cited.record.id]), now=NOW)
    run = told.memory.runs.get(page.id)
    assert run is not None
    assert run.recall_ids == (result.recall_id,)
    assert [(used.record_id, used.how) for used in run.used if used.how == "event"] == [(cited.record.id, "event")]
    assert run.quality == 1.0


def test_the_chore_of_each_week_becomes_a_pattern_and_nothing_else_does(told: Told) -> None:
    told.memory.sona.consolidate(NOW)
    patterns = MemoryFilter(kinds=("pattern",))
    found = told.memory.recall("what comes again", 50, patterns, now=NOW, min_relevance=0).memories
    made = [memory.record.metadata["run_ids"] for memory in found if "run_ids" in memory.record.metadata]
    assert made == [["ops-321", "ops-322", "ops-323"]]
