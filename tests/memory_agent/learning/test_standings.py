"""The status derives the gate's history and the memories' credit from the lessons alone."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from made_vectors import MadeVectors
from memory_samples import NOW, SUBJECTS

from memory_agent.learning.standings import _chosen, _replayed
from memory_agent.memory import Memory
from memory_agent.records.memories import MemoryRecord
from sona import Comparison, Fact, Gate

RUNS = 12


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[Memory]:
    with Memory.open(tmp_path / "alice", embedder=MadeVectors()) as memory:
        yield memory


def run(memory: Memory, number: int, used: list[MemoryRecord], quality: float) -> None:
    at, run_id = NOW + timedelta(hours=number), f"run-{number}"
    memory.recall(SUBJECTS[number % 3], 3, by_run=run_id, now=at, min_relevance=0.0)
    memory.runs.begin(f"Work on {SUBJECTS[number % 3]}", run_id, now=at)
    memory.runs.end(run_id, quality=quality, memory_ids=[one.id for one in used], now=at + timedelta(minutes=5))


def test_the_history_ends_with_the_gates_own_evidence(memory: Memory) -> None:
    records = [memory.remember(f"{text}: done", now=NOW) for text in SUBJECTS[:3]]
    for number in range(RUNS):
        run(memory, number, [records[number % 3]], 1.0)
    for status in (memory.sona.status(), reopened(memory).sona.status()):
        assert [one.run_id for one in status.history] == [f"run-{number}" for number in range(RUNS)]
        assert [one.at for one in status.history][-1] == NOW + timedelta(hours=RUNS - 1, minutes=5)
        assert [one.state for one in status.history][:3] == ["shadow", "trial", "trial"]
        last, gate = status.history[-1], status.gate
        assert (last.state, last.won, last.lost, last.evidence, last.threshold) == (
            gate.state,
            gate.won,
            gate.lost,
            gate.evidence,
            gate.threshold,
        )
        assert last.gain == status.gain
    memory.sona.reset()
    assert (memory.sona.status().history, memory.sona.status().most_credited) == ((), ())


def reopened(memory: Memory) -> Memory:
    """Relearn everything, as a new process does."""
    memory._learner.follow(from_scratch=True)
    return memory


def test_the_memories_with_most_credit_name_their_latest_runs(memory: Memory) -> None:
    good, bad, once = (memory.remember(f"{text}: done", now=NOW) for text in SUBJECTS[:3])
    for number in range(8):
        run(memory, number, [good, once] if number == 5 else [good if number % 2 else bad], float(number % 2))
    found = memory.sona.status().most_credited
    assert [one.id for one in found] == [good.id, once.id, bad.id]
    assert (found[0].runs, found[0].credit, found[0].quality, found[0].lift) == (4, 4.0, 1.0, 0.5)
    assert found[0].run_ids == ("run-7", "run-5", "run-3")
    assert (found[2].runs, found[2].quality, found[2].lift) == (4, 0.0, -0.5)
    memory.forget([good.id])
    assert good.id not in {one.id for one in memory.sona.status().most_credited}


def test_a_long_history_keeps_every_change_of_state() -> None:
    against = Comparison(0.5, 1.5)
    facts = {64 * number: Fact("run", 1.0, (1,), (1.0,), against) for number in range(1, 1_001)}
    whole = _replayed(facts)
    chosen = _chosen(whole)
    states = [one.evidence.state for one in whole]
    changes = [place for place in range(1, len(states)) if states[place] != states[place - 1]]
    assert len(whole) == 1_000
    assert len(changes) > 10
    assert {whole[place].lesson for place in changes} <= {one.lesson for one in chosen}
    assert len(chosen) <= 100
    gate = Gate()
    for _ in facts:
        gate.credit()
        gate.observe(against)
    assert chosen[-1].evidence == gate.evidence()
