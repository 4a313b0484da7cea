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
from memory_agent.recall import boosts
from memory_agent.recall.boosts import REACH, Window
from memory_agent.settings import RecallSettings

QUESTION = "Which paint did the landlord choose for the hallway?"
ANSWER = "The warm grey one, two coats of it"
OTHERS = ("Buy bread and milk", "The train leaves at nine", "Water the ferns on the balcony", "Renew the passport")

scores = st.lists(st.floats(0, 1), min_size=1, max_size=40).map(np.array)


def windows(count: int) -> list[Window]:
    """Return every memory with its neighbours, all in one session."""
    return [
        Window(row, tuple(other for other in range(row - REACH, row + REACH + 1) if 0 <= other < count))
        for row in range(count)
    ]


@given(scores, st.floats(0.01, 1))
def test_only_the_best_memories_boost_neighbours_and_only_by_their_margin(values: np.ndarray, share: float) -> None:
    rows = np.arange(len(values))
    best = set(boosts.lenders(values, rows))
    made = boosts.loans(values, rows, windows(len(values)), share)
    assert len(best) == min(len(values), boosts.LENDERS)
    next_best = max((values[row] for row in set(rows.tolist()) - best), default=0.0)
    assert all(loan.lender in best and values[loan.lender] > next_best for loan in made)
    assert all(0 < loan.amount <= share * 0.6 * values.max() + 1e-9 for loan in made)


@given(scores, st.floats(0.01, 1))
def test_a_neighbour_of_several_takes_the_best_offer_alone(values: np.ndarray, share: float) -> None:
    made = boosts.loans(values, np.arange(len(values)), windows(len(values)), share)
    borrowers = [loan.borrower for loan in made]
    assert len(borrowers) == len(set(borrowers))
    assert all(0 < abs(loan.lender - loan.borrower) <= REACH for loan in made)


def test_the_next_one_gets_more_than_the_one_behind_it() -> None:
    values = np.array([1.0, 0.0, 0.0, 0.0])
    made = boosts.loans(values, np.arange(4), windows(4), 0.5)
    assert [(loan.borrower, round(loan.amount, 3)) for loan in made] == [(1, 0.3), (2, 0.18)]


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
