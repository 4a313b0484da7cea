"""Neighbours in time: memories next to a match are found, within its session and the filter."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from memory_samples import NOW, message, texts

from memory_agent.embedders import Embedder
from memory_agent.memory import Memory
from memory_agent.recall.candidates import Candidates
from memory_agent.recall.neighbours import LENDERS, REACH, loans
from memory_agent.settings import RecallSettings
from memory_agent.storage.indexes import Scores, Slots

QUESTION = "Which paint did the landlord choose for the hallway?"
ANSWER = "The warm grey one, two coats of it"
OTHERS = ("Buy bread and milk", "The train leaves at nine", "Water the ferns on the balcony", "Renew the passport")

scores = st.lists(st.floats(0, 1), min_size=1, max_size=40).map(np.array)


def candidates(totals: Scores) -> Candidates:
    """Return candidates with these scores, in slots from 0."""
    slots, nothing = np.arange(totals.size), np.zeros(totals.size)
    return Candidates(
        slots=slots,
        rows=slots,
        cosines=totals,
        bm25=nothing,
        weight=1.0,
        best_bm25=0.0,
        fused=totals,
        dates=nothing,
        context=nothing,
        lent=nothing,
        lenders=np.full(totals.size, -1),
        association=nothing,
    )


def windows(centres: Slots, count: int) -> Slots:
    """Return memories among their neighbours, all in one session of `count`."""
    around = centres[:, None] + np.arange(-REACH, REACH + 1)
    return np.where(around < count, np.maximum(around, -1), -1)


def lent(totals: Scores, share: float) -> list[tuple[int, int, float]]:
    """Return borrower, lender and amount of each loan."""
    best = np.lexsort((-np.arange(totals.size), -totals))[:LENDERS]
    borrowers, lenders, amounts = loans(candidates(totals), windows(best, totals.size), share)
    return list(zip(borrowers.tolist(), lenders.tolist(), amounts.tolist(), strict=True))


@given(scores, st.floats(0.01, 1))
def test_only_the_best_memories_boost_neighbours_and_only_by_their_margin(values: np.ndarray, share: float) -> None:
    best = set(np.lexsort((-np.arange(values.size), -values))[:LENDERS].tolist())
    next_best = max((values[slot] for slot in set(range(values.size)) - best), default=0.0)
    for _, lender, amount in lent(values, share):
        assert lender in best
        assert values[lender] > next_best
        assert 0 < amount <= share * 0.6 * values.max() + 1e-9


@given(scores, st.floats(0.01, 1))
def test_a_neighbour_of_several_takes_the_best_offer_alone(values: np.ndarray, share: float) -> None:
    made = lent(values, share)
    borrowers = [borrower for borrower, _, _ in made]
    assert len(borrowers) == len(set(borrowers))
    assert all(0 < abs(lender - borrower) <= REACH for borrower, lender, _ in made)


def test_the_next_one_gets_more_than_the_one_behind_it() -> None:
    made = lent(np.array([1.0, 0.0, 0.0, 0.0]), 0.5)
    assert [(borrower, round(amount, 3)) for borrower, _, amount in made] == [(1, 0.3), (2, 0.18)]


def talk(session: str | None, first: int, *texts: str, **fields: object) -> list[dict[str, object]]:
    return [message(first + place, text, session_id=session, **fields) for place, text in enumerate(texts)]


def conversation() -> list[dict[str, object]]:
    return [
        *talk("home", 100, *OTHERS, QUESTION, ANSWER, *OTHERS),
        *talk("office", 200, ANSWER + " for the office", *OTHERS),
    ]


def open_memory(folder: Path, embedder: Embedder, **settings: float) -> Memory:
    memory = Memory.open(folder / "u", embedder=embedder, recall_settings=RecallSettings(**settings))  # type: ignore[arg-type]
    memory.ingest(conversation(), now=NOW)
    return memory


def test_the_answer_next_to_the_question_is_found_and_names_its_booster(tmp_path: Path, embedder: Embedder) -> None:
    with open_memory(tmp_path, embedder) as memory:
        result = memory.recall("What did the landlord choose for the hallway?", top_k=2)
    assert texts(result) == [QUESTION, ANSWER]
    explanation = result.memories[1].explanation
    assert explanation["contiguity"] > 0
    assert result.memories[0].record.id in explanation["lent_by"]


def test_without_lending_it_is_not(tmp_path: Path, embedder: Embedder) -> None:
    with open_memory(tmp_path, embedder, contiguity=0.0, context_words=0.0) as memory:
        result = memory.recall("What did the landlord choose for the hallway?", top_k=2)
    assert texts(result)[0] == QUESTION
    assert ANSWER not in texts(result)
    assert result.memories[0].explanation["contiguity"] == 0.0
    assert result.memories[0].explanation["lent_by"] == []


@pytest.mark.parametrize("mode", ["vector", "lexical"])
def test_a_single_side_is_left_as_it_is(tmp_path: Path, embedder: Embedder, mode: str) -> None:
    with open_memory(tmp_path, embedder) as memory:
        result = memory.recall("hallway paint", top_k=3, mode=mode)  # type: ignore[arg-type]
    assert all(found.explanation["contiguity"] == 0.0 for found in result.memories)


def test_a_neighbour_that_the_filter_leaves_out_stays_out(tmp_path: Path, embedder: Embedder) -> None:
    with Memory.open(tmp_path / "u", embedder=embedder) as memory:
        memory.ingest(talk("home", 1, QUESTION, agent_id="asker") + talk("home", 2, ANSWER, agent_id="other"), now=NOW)
        result = memory.recall("What did the landlord choose?", filter={"agent_id": "asker"})
    assert texts(result) == [QUESTION]


def test_memories_without_a_session_have_no_neighbours(tmp_path: Path, embedder: Embedder) -> None:
    with Memory.open(tmp_path / "u", embedder=embedder) as memory:
        memory.ingest(talk(None, 1, QUESTION, ANSWER, *OTHERS), now=NOW)
        result = memory.recall("What did the landlord choose?", top_k=6)
    assert all(found.explanation["contiguity"] == 0.0 for found in result.memories)
