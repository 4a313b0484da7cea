"""Histories as one user may have them: with the questions that count alone, and several projects in one memory."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import msgspec

from memory_agent.evaluation.dataset import History, Item, Question


def only_main(history: History, categories: Collection[str], user: str) -> History:
    """Return the history as that of `user`, with the answerable questions of these categories; all where none is."""
    kept = (question for question in history.answerable if not categories or question.category in categories)
    return msgspec.structs.replace(history, user=user, questions=tuple(kept))


def merged(histories: Sequence[History], user: str) -> History:
    """Return the histories as those of one user, in their order; ids of items and sessions say whose they were."""
    return History(
        user=user,
        items=tuple(_item(item, part.user) for part in histories for item in part.items),
        questions=tuple(question for part in histories for question in project(part)),
    )


def project(history: History) -> tuple[Question, ...]:
    """Return the questions of a history as they are in a merged one."""
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
