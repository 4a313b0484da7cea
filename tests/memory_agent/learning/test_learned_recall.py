"""Recalls of a real memory that learns which memories runs used, from the first request until the gate opens."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import msgspec
import numpy as np
import pytest
from recurring_requests import THINGS, Company, copied, open_company

from memory_agent.embedders import Embedder
from memory_agent.errors import InvalidInputError
from memory_agent.records.memories import RecallResult
from memory_agent.settings import LearningSettings

ON, AUTO, OFF = (LearningSettings(mode=mode) for mode in ("on", "auto", "off"))
TAUGHT = range(40)
ASKED = range(40, 55)
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def without_times(result: RecallResult) -> bytes:
    """Return an answer without the fields that differ between calls."""
    memories = [
        msgspec.structs.replace(found, record=msgspec.structs.replace(found.record, last_recalled_at=None))
        for found in result.memories
    ]
    return msgspec.json.encode((memories, result.degraded, result.dates))


def arms(result: RecallResult) -> set[str]:
    """Return the rankings that contributed memories to the answer."""
    return {found.explanation["arm"] for found in result.memories if found.explanation["arm"]}


@pytest.mark.parametrize("settings", [ON, AUTO])
def test_with_nothing_learned_answers_equal_the_usual_ranking_byte_for_byte(
    tmp_path: Path, untaught: Path, embedder: Embedder, settings: LearningSettings
) -> None:
    answers = []
    for name, mode in (("off", OFF), ("other", settings)):
        company = open_company(copied(untaught, tmp_path / name), embedder, mode)
        answers.append([without_times(company.ask(number)[1]) for number in range(10)])
        company.memory.close()
    assert answers[0] == answers[1]


@pytest.mark.parametrize(("taught", "state"), [(1, "shadow"), (9, "trial")])
def test_until_the_gate_opens_answers_equal_the_usual_ranking_byte_for_byte(
    tmp_path: Path, untaught: Path, embedder: Embedder, taught: int, state: str
) -> None:
    company = open_company(copied(untaught, tmp_path / "taught"), embedder, AUTO)
    company.learn(range(taught))
    company.memory.close()
    answers = []
    for name, mode in (("off", OFF), ("auto", AUTO)):
        company = open_company(copied(tmp_path / "taught", tmp_path / name), embedder, mode)
        assert name == "off" or company.memory.sona.status().gate.state == state
        answers.append([without_times(company.ask(number)[1]) for number in ASKED])
        company.memory.close()
    assert answers[0] == answers[1]


def test_memories_used_for_similar_requests_rise_above_closer_ones(
    tmp_path: Path, taught: Path, embedder: Embedder
) -> None:
    usual = open_company(copied(taught, tmp_path / "off"), embedder, OFF)
    learned = open_company(copied(taught, tmp_path / "on"), embedder, ON)
    before, after = usual.leads(ASKED), learned.leads(ASKED)
    usual.memory.close()
    learned.memory.close()
    assert before <= 5
    assert after >= 13


def test_an_answer_explains_what_was_learned_and_from_which_runs(
    tmp_path: Path, taught: Path, embedder: Embedder
) -> None:
    company = open_company(copied(taught, tmp_path / "on"), embedder, ON)
    thing, result = company.ask(42)
    best = result.memories[0]
    assert best.record.id == company.notes[thing].id
    why = best.explanation
    assert why["arm"] == "learned"
    assert why["learned"] == pytest.approx(why["association"] + why["shift"])
    assert why["association"] > 0.2
    parts = ("fused", "date_boost", "context", "contiguity", "outcome", "learned")
    assert best.sona_score == pytest.approx(sum(why[part] for part in parts) - why["likeness"])
    cause = why["caused_by"][0]
    run = company.memory.runs.get(cause["trajectory_id"])
    assert run is not None
    assert [use.record_id for use in run.used] == [best.record.id]
    assert (cause["quality"], run.quality) == (1.0, 1.0)
    assert 0.5 < cause["similarity"] <= 1.0
    company.memory.close()


def test_filters_apply_to_learned_candidates(tmp_path: Path, taught: Path, embedder: Embedder) -> None:
    company = open_company(copied(taught, tmp_path / "on"), embedder, ON)
    thing, words = company.request(41)
    result = company.memory.recall(words.format(thing), 5, {"kinds": ["episode"]}, deadline_ms=60_000)
    assert {found.record.kind for found in result.memories} == {"episode"}
    company.memory.close()


def test_the_gate_opens_by_its_own_evidence_and_then_the_learned_ranking_answers(
    tmp_path: Path, untaught: Path, embedder: Embedder
) -> None:
    company = open_company(copied(untaught, tmp_path / "auto"), embedder, AUTO)
    states: list[str] = []
    number = 0
    while (state := company.memory.sona.status().gate.state) != "on" and number < 40:
        states.append(state)
        company.learn([number])
        number += 1
    status = company.memory.sona.status()
    assert list(dict.fromkeys(states)) == ["shadow", "trial"]
    assert status.gate.state == "on"  # measured: after 15 runs
    assert status.served == {"baseline": number, "learned": 0, "interleaved": 0}
    assert status.gain is None
    answers = [company.ask(asked) for asked in range(number, number + 60)]
    learned = [(thing, result) for thing, result in answers if arms(result) == {"learned"}]
    assert len(learned) >= 36  # a tenth is held out and a tenth is interleaved; fails once in 10,000 runs
    leading = sum(result.memories[0].record.id == company.notes[thing].id for thing, result in learned)
    assert leading >= 0.6 * len(learned)  # only 1 of 60 with the usual ranking
    company.memory.close()
    again = open_company(tmp_path / "auto", embedder, AUTO)
    assert again.memory.sona.status().gate == status.gate
    again.memory.close()


def test_while_the_gate_is_open_some_answers_are_interleaved_and_measure_the_gain(
    tmp_path: Path, taught: Path, embedder: Embedder
) -> None:
    company = open_company(copied(taught, tmp_path / "auto"), embedder, AUTO)
    assert company.memory.sona.status().gate.state == "on"
    number, both = 40, 0
    while both < 4:
        thing, result = company.ask(number)
        if {"baseline", "learned"} <= arms(result):
            both += 1
            company.judge(number, result, [company.notes[thing]])
        number += 1
    status = company.memory.sona.status()
    assert status.served["interleaved"] >= 4
    assert status.gain is not None
    assert status.gain_low is not None
    assert status.gain_low <= status.gain
    assert (status.history[-1].gain, status.history[-1].evidence) == (status.gain, status.gate.evidence)
    company.memory.close()


def test_a_comparison_counts_uses_that_were_stated_of_memories_that_were_shown(
    tmp_path: Path, untaught: Path, embedder: Embedder
) -> None:
    company = open_company(copied(untaught, tmp_path / "auto"), embedder, AUTO)
    company.learn(range(9))
    decided = _decided(company)
    assert decided > 0
    for number in range(9, 15):
        _, result = company.ask(number)
        other = next(note for note in company.notes.values() if note.id not in company.places(result))
        company.memory.feedback(result.recall_id, [other.id], 1.0)
    assert _decided(company) == decided
    company.memory.close()


def test_a_compared_recall_notes_what_past_use_adds_to_each_memory(
    tmp_path: Path, untaught: Path, embedder: Embedder
) -> None:
    company = open_company(copied(untaught, tmp_path / "auto"), embedder, AUTO)
    company.learn(range(9))
    thing, result = company.ask(0)
    place = company.places(result).index(company.notes[thing].id)
    note = company.memory._archive.store.recall_note(result.recall_id)
    assert note is not None
    assert sorted(note.ranks) != list(note.ranks)
    assert len(note.boosts) == len(note.ranks)
    assert note.boosts[place] == max(note.boosts) > 0
    assert note.ranks[place] < place + 1
    company.memory.close()


def test_uses_by_failed_runs_count_as_evidence_but_change_no_rank(
    tmp_path: Path, untaught: Path, embedder: Embedder
) -> None:
    company = open_company(copied(untaught, tmp_path / "failed"), embedder, AUTO)
    for number in range(9):
        thing, result = company.ask(number)
        company.judge(number, result, [company.notes[thing]], quality=0.0)
    note = company.memory._archive.store.recall_note(result.recall_id)
    assert note is not None
    assert list(note.ranks) == [1, 2, 3]
    assert note.boosts[company.places(result).index(company.notes[thing].id)] == max(note.boosts) > 0
    gate = company.memory.sona.status().gate
    assert (gate.won, gate.lost) == (4, 0)
    assert gate.evidence > 2
    company.memory.close()


def _decided(company: Company) -> int:
    gate = company.memory.sona.status().gate
    return gate.won + gate.lost


def test_naming_every_shown_memory_credits_nothing_and_opens_no_gate(
    tmp_path: Path, untaught: Path, embedder: Embedder
) -> None:
    company = open_company(copied(untaught, tmp_path / "list"), embedder, AUTO)
    for number in range(60):
        _, result = company.ask(number, top_k=5)
        company.judge(number, result, [found.record for found in result.memories])
    status = company.memory.sona.status()
    assert (status.credited, status.gate.state, status.gate.won + status.gate.lost) == (0, "shadow", 0)
    company.memory.close()


def test_recalls_by_a_run_are_credited_with_the_runs_outcome(
    tmp_path: Path, untaught: Path, embedder: Embedder
) -> None:
    company = open_company(copied(untaught, tmp_path / "on"), embedder, ON)
    note = company.notes["the login page"]
    company.memory.runs.begin("Bring the login page back", "run-7")
    result = company.memory.recall("the login page hangs", 3, by_run="run-7", deadline_ms=60_000)
    company.memory.runs.end("run-7", quality=1.0, memory_ids=[note.id])
    run = company.memory.runs.get("run-7")
    assert run is not None
    assert run.recall_ids == (result.recall_id,)
    assert [(use.record_id, use.recall_id) for use in run.used] == [(note.id, result.recall_id)]
    assert company.memory.sona.status().credited == 1
    company.memory.close()


@pytest.mark.parametrize("by_run", ["", "x" * 300, 7, "\ud800"])
def test_an_invalid_run_id_is_refused(tmp_path: Path, untaught: Path, embedder: Embedder, by_run: object) -> None:
    company = open_company(copied(untaught, tmp_path / "on"), embedder, OFF)
    with pytest.raises(InvalidInputError, match="by_run"):
        company.memory.recall("anything", by_run=by_run)  # type: ignore[arg-type]
    company.memory.close()


def test_nothing_is_learned_when_learning_is_off(tmp_path: Path, untaught: Path, embedder: Embedder) -> None:
    company = open_company(copied(untaught, tmp_path / "off"), embedder, OFF)
    company.learn(range(5))
    status = company.memory.sona.status()
    assert (status.mode, status.credited, status.trajectories) == ("off", 0, 5)
    company.memory.close()
    assert not (tmp_path / "off" / "sona.state").exists()


def test_no_memory_can_rise_by_more_than_the_parts_allow(tmp_path: Path, taught: Path, embedder: Embedder) -> None:
    usual = open_company(copied(taught, tmp_path / "off"), embedder, OFF)
    company = open_company(copied(taught, tmp_path / "on"), embedder, ON)
    most = ON.association * 0.8 + ON.recurrence + ON.shift * 0.5
    for number in range(40, 60):
        scores = np.array([found.sona_score for found in usual.ask(number, top_k=50)[1].memories])
        learned = [found.explanation["learned"] for found in company.ask(number, top_k=10)[1].memories]
        assert 0.0 < np.abs(learned).max() <= 2.5 * (scores.max() - scores.min()) * most
    assert set(THINGS) == set(company.notes)
    usual.memory.close()
    company.memory.close()


def test_a_recall_by_a_run_omits_the_runs_own_memories(tmp_path: Path, untaught: Path, embedder: Embedder) -> None:
    company = open_company(copied(untaught, tmp_path / "on"), embedder, OFF)
    company.memory.runs.begin("Bring the login page back to life", "run-7")
    others = company.memory.recall("Bring back to life the login page", 3, deadline_ms=60_000, min_relevance=0)
    assert others.memories[0].record.run_id == "run-7"
    own = company.memory.recall(
        "Bring the login page back to life", 3, by_run="run-7", deadline_ms=60_000, min_relevance=0
    )
    assert len(own.memories) == 3
    assert all(found.record.run_id != "run-7" for found in own.memories)
    assert own.excluded == {"run": 1}
    company.memory.close()
