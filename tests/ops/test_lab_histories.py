"""Test splitting questions into training and test halves: no overlap, and no shared evidence in disjoint splits."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memory_agent.evaluation import Question
from ops.lab.histories import SPLITS, SplitName, evidence_groups, make_split


def questions(evidence: list[set[int]]) -> list[Question]:
    return [
        Question(id=f"q{place}", text="?", category="1", relevant={f"i{item}": 1 for item in sorted(items)})
        for place, items in enumerate(evidence)
    ]


evidence = st.lists(st.sets(st.integers(0, 12), min_size=1, max_size=3), min_size=2, max_size=20)


@given(evidence=evidence, seed=st.integers(0, 99), name=st.sampled_from(SPLITS))
def test_every_question_is_in_one_half(evidence: list[set[int]], seed: int, name: SplitName) -> None:
    asked = questions(evidence)
    split = make_split(name, asked, np.random.default_rng(seed))
    halves = [question.id for question in (*split.train, *split.test)]
    assert sorted(halves) == sorted(question.id for question in asked)


@given(evidence=evidence, seed=st.integers(0, 99))
def test_repeated_are_the_test_questions_that_training_asked_the_evidence_of(
    evidence: list[set[int]], seed: int
) -> None:
    split = make_split("random", questions(evidence), np.random.default_rng(seed))
    taught = {item for question in split.train for item in question.relevant}
    assert split.repeated == {
        question.id for question in split.test if any(item in taught for item in question.relevant)
    }
    assert abs(len(split.train) - len(split.test)) <= 1


@given(evidence=evidence, seed=st.integers(0, 99))
def test_by_evidence_nothing_is_repeated(evidence: list[set[int]], seed: int) -> None:
    assert make_split("disjoint", questions(evidence), np.random.default_rng(seed)).repeated == frozenset()


def test_questions_that_share_evidence_through_a_third_are_one_group() -> None:
    groups = evidence_groups(questions([{1}, {2}, {3}, {1, 2}, {4}]))
    assert [[question.id for question in group] for group in groups] == [["q2"], ["q0", "q1", "q3"], ["q4"]]


@pytest.mark.parametrize("name", SPLITS)
def test_the_same_seed_gives_the_same_split_and_another_seed_another(name: SplitName) -> None:
    asked = questions([{place} for place in range(40)])
    first, again, other = (make_split(name, asked, np.random.default_rng(seed)) for seed in (1, 1, 2))
    assert first == again
    assert first.train != other.train


def test_the_test_is_asked_in_the_order_of_the_file_and_training_is_not() -> None:
    asked = questions([{place} for place in range(40)])
    split = make_split("random", asked, np.random.default_rng(0))
    assert [question.id for question in split.test] == sorted((q.id for q in split.test), key=lambda id_: int(id_[1:]))
    assert [question.id for question in split.train] != sorted(
        (q.id for q in split.train), key=lambda id_: int(id_[1:])
    )
