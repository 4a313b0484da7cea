"""Which questions teach, and which are asked afterwards. The same seed gives the same split.

Two questions share evidence when an item answers both. Split at random, many test questions ask for what a training
question asked for before (`repeated`); split by evidence, none does, and a gain is more than a memory of answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

import msgspec
import numpy as np

from memory_agent.evaluation.dataset import Question

SplitName = Literal["random", "disjoint"]
SPLITS: tuple[SplitName, ...] = get_args(SplitName)


class Split(msgspec.Struct, frozen=True, kw_only=True):
    """The questions of one user. `train` is in the order in which it is asked; `repeated` are ids of test questions."""

    train: tuple[Question, ...]
    test: tuple[Question, ...]
    repeated: frozenset[str]


def make_split(name: SplitName, questions: Sequence[Question], random: np.random.Generator) -> Split:
    """Return half of the questions to teach with, and the others; by evidence the halves may be unequal."""
    groups = [[question] for question in questions] if name == "random" else evidence_groups(questions)
    train: list[Question] = []
    test: list[Question] = []
    for place in random.permutation(len(groups)):
        chosen = train if len(train) <= len(test) else test
        chosen += groups[place]
    taught = {item for question in train for item in question.relevant}
    return Split(
        train=tuple(train[place] for place in random.permutation(len(train))),
        test=tuple(sorted(test, key=questions.index)),
        repeated=frozenset(question.id for question in test if taught & question.relevant.keys()),
    )


def evidence_groups(questions: Sequence[Question]) -> list[list[Question]]:
    """Return the questions in groups of which no two share evidence, as small as they can be; in their order."""
    groups: list[tuple[set[str], list[Question]]] = []
    for question in questions:
        items, members = set(question.relevant), [question]
        touching = [group for group in groups if group[0] & items]
        groups = [group for group in groups if not group[0] & items]
        for other_items, others in reversed(touching):
            items, members = items | other_items, others + members
        groups.append((items, members))
    return [members for _, members in groups]
