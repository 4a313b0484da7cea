"""Neighbours in time: what stands next to a match is found, within its session and within the filter."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from memory_samples import NOW, message, texts

from memory_agent.config import RecallSettings
from memory_agent.embedders import Embedder
from memory_agent.memory import Memory
from memory_agent.recall import contiguity
from memory_agent.recall.contiguity import Loan

QUESTION = "Which paint did the landlord choose for the hallway?"
ANSWER = "The warm grey one, two coats of it"
OTHERS = ("Buy bread and milk", "The train leaves at nine", "Water the ferns on the balcony", "Renew the passport")

scores = st.lists(st.floats(0, 1), min_size=1, max_size=40).map(np.array)


@given(scores)
def test_only_the_best_lend_and_only_what_they_have_above_the_next(values: np.ndarray) -> None:
    rows = np.arange(len(values))
    surpluses = contiguity.surpluses(values, rows)
    assert len(surpluses) <= contiguity.LENDERS
    assert all(surplus > 0 for surplus in surpluses.values())
    worst_lender = min((values[row] for row in surpluses), default=np.inf)
    assert all(values[row] <= worst_lender for row in set(rows.tolist()) - set(surpluses))


@given(scores, st.floats(0, 1))
def test_lending_takes_nothing_away_and_is_bounded(values: np.ndarray, share: float) -> None:
    rows = np.arange(len(values))
    surpluses = contiguity.surpluses(values, rows)
    loans = [
        contiguity.loan(row, row + offset, offset, surplus, share)
        for row, surplus in surpluses.items()
        for offset in (-2, -1, 1, 2)
    ]
    lent = contiguity.lend(values, rows, loans) - values
    assert (lent >= 0).all()
    assert (lent <= 2 * share * (1 + 0.6) * max(surpluses.values(), default=0.0) + 1e-9).all()


def test_a_loan_to_a_row_that_is_no_candidate_is_void() -> None:
    values = np.array([0.5, 0.25])
    assert contiguity.lend(values, np.array([3, 7]), [Loan(3, 5, 1.0)]).tolist() == values.tolist()


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


def test_the_answer_next_to_the_question_is_found_and_says_who_lent(tmp_path: Path, embedder: Embedder) -> None:
    with open_memory(tmp_path, embedder) as memory:
        result = memory.recall("What did the landlord choose for the hallway?", top_k=2)
    assert texts(result) == [QUESTION, ANSWER]
    explanation = result.memories[1].explanation
    assert explanation["contiguity"] > 0
    assert result.memories[0].record.id in explanation["lent_by"]


def test_without_lending_it_is_not(tmp_path: Path, embedder: Embedder) -> None:
    with open_memory(tmp_path, embedder, contiguity=0.0) as memory:
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
