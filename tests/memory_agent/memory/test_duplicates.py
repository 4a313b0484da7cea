"""What says the same is one memory of the answer, with how often, when and where; what only looks alike is not."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from memory_samples import NOW, START, message, texts

from memory_agent.config import RecallSettings
from memory_agent.embedders import Embedder
from memory_agent.memory import Memory
from memory_agent.recall.likeness import adds_only_filler, gist
from memory_agent.recall.selection import LIKE_COSINE, Contenders, choose
from memory_agent.records import MemoryRecord
from memory_agent.storage.terms import fingerprint

FIX = "Restarted the billing worker and the queue drained"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Deploy done.", "deploy DONE"),
        ("Restart the worker, then drain the queue", "restart the worker — then drain the queue!"),
        ("a\tb\nc", "A b, c"),
    ],
)
def test_texts_of_the_same_words_have_one_fingerprint(one: str, other: str) -> None:
    assert fingerprint(one) == fingerprint(other)


@given(st.text(max_size=200))
def test_every_text_has_a_fingerprint_that_a_column_holds(text: str) -> None:
    assert 0 <= fingerprint(text) < 2**63
    assert fingerprint(text) == fingerprint(text)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("I can restart the billing worker for you", "Sure! I can restart the billing worker for you", True),
        ("the queue drained after the restart", "and the queue drained after the restart", True),
        ("the deploy to staging succeeded", "the deploy to staging failed", False),
        ("retry the call after 5 seconds", "retry the call after 50 seconds", False),
        ("the migration is done", "the migration is not done", False),
        ("moved the file from old to new", "moved the file from new to old", False),
        ("restart", "restart the billing worker on the second node", False),
        ("user ana_lee_77 is blocked", "user bob_kim_12 is blocked", False),
    ],
)
def test_nearly_the_same_adds_only_filler(one: str, other: str, same: bool) -> None:
    assert adds_only_filler(gist(one), gist(other)) is same
    assert adds_only_filler(gist(other), gist(one)) is same


def record(text: str) -> MemoryRecord:
    return MemoryRecord(id=text, text=text, source="user_input", kind="episode", timestamp=START)


def contenders(said: list[str], vectors: np.ndarray, scores: list[float]) -> Contenders:
    return Contenders(
        places=tuple(range(100, 100 + len(said))),
        records=tuple(record(text) for text in said),
        fingerprints=np.array([fingerprint(text) for text in said]),
        vectors=vectors.astype(np.float32),
        scores=np.array(scores),
    )


def test_the_best_of_those_that_say_the_same_stands_for_all() -> None:
    chosen = choose(contenders(["one", "two", "ONE!", "one."], np.eye(4), [0.9, 0.8, 0.7, 0.6]), 5, 0.5)
    assert [(choice.place, choice.folded) for choice in chosen] == [(100, (102, 103)), (101, ())]
    assert chosen[0].fingerprints == {fingerprint("one")}


def test_a_paraphrase_pays_for_its_likeness_and_says_to_whom() -> None:
    vectors = np.array([[1.0, 0.0], [0.9, np.sqrt(1 - 0.81)], [0.0, 1.0]])
    chosen = choose(contenders(["alpha", "beta", "gamma"], vectors, [0.9, 0.85, 0.84]), 3, 1.0)
    assert [choice.place for choice in chosen] == [100, 102, 101]
    assert chosen[2].like == 100
    assert chosen[2].likeness == pytest.approx(0.9 - LIKE_COSINE, abs=1e-6)
    assert chosen[2].score == pytest.approx(0.85 - 0.1, abs=1e-6)


@given(
    st.lists(st.tuples(st.floats(0, 1), st.integers(0, 2**31)), min_size=1, max_size=30),
    st.integers(1, 12),
    st.floats(0, 1),
)
def test_choices_are_distinct_ordered_and_never_worth_more_than_before(
    drawn: list[tuple[float, int]], top_k: int, diversity: float
) -> None:
    drawn.sort(reverse=True)
    vectors = np.stack([np.random.default_rng(seed).normal(size=3) for _, seed in drawn])
    said = [f"word{seed % 7}" for _, seed in drawn]
    scores = [score for score, _ in drawn]
    chosen = choose(contenders(said, vectors, scores), top_k, diversity)
    assert len(chosen) == min(top_k, len(set(said)))
    assert [choice.score for choice in chosen] == sorted((choice.score for choice in chosen), reverse=True)
    assert all(choice.score <= scores[choice.place - 100] + 1e-9 for choice in chosen)
    stood_for = [place for choice in chosen for place in (choice.place, *choice.folded)]
    assert len(stood_for) == len(set(stood_for))


def test_the_same_text_is_one_memory_with_count_times_and_origins(memory: Memory) -> None:
    variants = [FIX, FIX.upper(), f"{FIX}!", f"  {FIX}."]
    memory.ingest([message(10 * number, text) for number, text in enumerate(variants)], now=NOW)
    memory.ingest([message(100 + number) for number in range(8)], now=NOW)
    result = memory.recall("billing worker queue", top_k=3)
    best = result.memories[0]
    assert best.count == 4
    assert (best.first_seen, best.last_seen) == (START, START + timedelta(minutes=30))
    assert len(best.origins) == 3
    assert best.record.id not in {origin.id for origin in best.origins}
    assert {origin.session_id for origin in best.origins} | {best.record.session_id} == {"s-0", "s-1", "s-2", "s-3"}
    assert sum(FIX.lower() in text.lower() for text in texts(result)) == 1


def test_filler_around_the_same_text_is_folded_too(memory: Memory) -> None:
    memory.ingest([message(1, f"{FIX} on the second node"), message(20, f"And so I {FIX} on the second node")], now=NOW)
    result = memory.recall("billing worker queue")
    assert [found.count for found in result.memories] == [2]


def test_the_count_obeys_the_filter(memory: Memory) -> None:
    memory.ingest([message(10 * number, FIX) for number in range(5)], now=NOW)
    result = memory.recall("billing worker", filter={"until": START + timedelta(minutes=25)})
    assert [(found.count, found.last_seen) for found in result.memories] == [(3, START + timedelta(minutes=20))]


@pytest.mark.parametrize("mode", ["hybrid", "vector", "lexical"])
def test_many_repeats_crowd_nothing_out(tmp_path: Path, embedder: Embedder, mode: str) -> None:
    few = RecallSettings(candidates=20, mode=mode)  # type: ignore[arg-type]
    with Memory.open(tmp_path / "u", embedder=embedder, recall_settings=few) as memory:
        memory.ingest([message(number, "The billing worker hangs", session_id=None) for number in range(200)], now=NOW)
        memory.ingest([message(300, "Why the billing worker hangs: its queue is full", session_id=None)], now=NOW)
        result = memory.recall("billing worker hangs", top_k=2)
    assert sorted(found.count for found in result.memories) == [1, 200]
    assert len(max(result.memories, key=lambda found: found.count).origins) == 8


def test_forgetting_one_of_them_leaves_the_others(memory: Memory) -> None:
    memory.ingest([message(10 * number, FIX) for number in range(3)], now=NOW)
    best = memory.recall("billing worker").memories[0]
    memory.forget([best.record.id, best.origins[0].id])
    left = memory.recall("billing worker").memories
    assert [(found.count, found.record.id) for found in left] == [(1, best.origins[1].id)]
