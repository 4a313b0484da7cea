"""Context words: the query words that a memory and its neighbours have together."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from memory_samples import NOW, message, texts

from memory_agent.memory import Memory
from memory_agent.recall.neighbours import REACH, coverage
from memory_agent.storage.indexes import Slots

hits = st.integers(1, 5).flatmap(
    lambda words: st.lists(st.lists(st.booleans(), min_size=words, max_size=words), min_size=1, max_size=12)
)


def windows(count: int) -> Slots:
    """Return every memory among its neighbours, all in one session."""
    around = np.arange(count)[:, None] + np.arange(-REACH, REACH + 1)
    return np.where(around < count, np.maximum(around, -1), -1)


@given(hits)
def test_shares_lie_between_nothing_and_one_and_the_best_has_one(drawn: list[list[bool]]) -> None:
    having = np.array(drawn).T
    shares = coverage(having, np.arange(having.shape[1]), windows(having.shape[1]))
    assert ((shares >= 0) & (shares <= 1 + 1e-12)).all()
    assert shares.max() == pytest.approx(1.0 if having.any() else 0.0)


@given(hits)
def test_neighbours_only_add(drawn: list[list[bool]]) -> None:
    having = np.array(drawn).T
    rows = np.arange(having.shape[1])
    among = coverage(having, rows, windows(rows.size)) > 0
    alone = coverage(having, rows, np.where(np.arange(-REACH, REACH + 1) == 0, rows[:, None], -1)) > 0
    assert (among >= alone).all()


def test_a_word_counts_once_however_many_neighbours_repeat_it() -> None:
    having = np.array([[True, True, True, False], [False, False, False, True]])
    shares = coverage(having, np.arange(4), np.array([[-1, 0, 1, 2, -1], [-1, -1, 3, -1, -1]]))
    assert shares[0] == shares[1] == shares[2]
    assert shares[3] == pytest.approx(1.0)  # the rarer word alone weighs more


def test_rows_beyond_the_reach_do_not_help() -> None:
    having = np.array([[True, False, False, False]])
    shares = coverage(having, np.arange(4), np.array([[0, 1, 2, 3, -1]]))
    assert (shares > 0).tolist() == [True, True, True, False]


def test_a_question_spread_over_two_turns_is_answered_by_them_and_not_by_half_a_match(memory: Memory) -> None:
    talk = ["The zeppelin project slipped again", "Its budget was cut by the council in spring"]
    noise = ["The council met", "A budget for the kitchen", "The zeppelin museum opens", "Lunch is at noon"]
    memory.ingest([message(number, text, session_id="work") for number, text in enumerate(talk)], now=NOW)
    memory.ingest([message(50 + n, text, session_id=f"other-{n}") for n, text in enumerate(noise)], now=NOW)
    result = memory.recall("who cut the budget of the zeppelin project", top_k=2)
    assert sorted(texts(result)) == sorted(talk)
    best = result.memories[0].explanation
    assert best["context"] == pytest.approx(0.2)
