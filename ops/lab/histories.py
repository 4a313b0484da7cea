"""Splits a user's questions into training and test halves, and merges several users' histories into one.

Two questions share evidence if an item answers both. In a random split, many test questions share evidence with a
training question (`repeated`). In a disjoint split, no test question shares evidence with a training question, so a
gain is not due to remembered answers alone. The same seed gives the same split.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Literal, get_args

import msgspec
import numpy as np

from memory_agent.evaluation import History, Item, Question

SplitName = Literal["random", "disjoint"]
SPLITS: tuple[SplitName, ...] = get_args(SplitName)


class Split(msgspec.Struct, frozen=True, kw_only=True):
    """One user's questions. `train` is in training order.

    `repeated` contains the ids of test questions that share evidence with a training question.
    """

    train: tuple[Question, ...]
    test: tuple[Question, ...]
    repeated: frozenset[str]


def make_split(name: SplitName, questions: Sequence[Question], random: np.random.Generator) -> Split:
    """Split the questions into a training half and a test half; disjoint halves may be unequal."""
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
    """Divide the questions, in order, into the smallest groups that share no evidence with each other."""
    groups: list[tuple[set[str], list[Question]]] = []
    for question in questions:
        items, members = set(question.relevant), [question]
        touching = [group for group in groups if group[0] & items]
        groups = [group for group in groups if not group[0] & items]
        for other_items, others in reversed(touching):
            items, members = items | other_items, others + members
        groups.append((items, members))
    return [members for _, members in groups]


def only_main(history: History, categories: Collection[str], user: str) -> History:
    """Return the history with `user` as its owner, and only the answerable questions in `categories` (empty: all)."""
    kept = (question for question in history.answerable if not categories or question.category in categories)
    return msgspec.structs.replace(history, user=user, questions=tuple(kept))


def merged(histories: Sequence[History], user: str) -> History:
    """Merge several users' histories into one user's history; item and session ids are prefixed with the owners'
    names.
    """
    return History(
        user=user,
        items=tuple(_item(item, part.user) for part in histories for item in part.items),
        questions=tuple(question for part in histories for question in project(part)),
    )


def project(history: History) -> tuple[Question, ...]:
    """Return the history's questions with the item ids of a merged history."""
    return tuple(
        msgspec.structs.replace(
            question, relevant={_named(history.user, item): grade for item, grade in question.relevant.items()}
        )
        for question in history.questions
    )


def _item(item: Item, user: str) -> Item:
    session = None if item.session is None else _named(user, item.session)
    return msgspec.structs.replace(item, id=_named(user, item.id), session=session)


def _named(user: str, name: str) -> str:
    return f"{user}/{name}"
