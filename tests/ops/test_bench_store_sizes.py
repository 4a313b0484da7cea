"""Test small stores built from data sets: their contents and questions, and that nothing is embedded twice."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from memory_agent.embedders import open_embedder
from memory_agent.evaluation import Dataset, History, Item, Question
from memory_agent.settings import Settings
from ops.bench.store_sizes import MIXTURES, Mixture, Size, deal
from ops.lab.stores import CachingEmbedder

PART, APART, ONE_SESSION = MIXTURES


def history(user: str) -> History:
    """Return twelve items in three sessions, six questions about one item each, and a question about two."""
    items = tuple(Item(id=f"i{n}", text=f"{user} says {n}", session=f"s{n // 4}") for n in range(12))
    relevant = [{f"i{n}": 1} for n in range(6)] + [{"i6": 1, "i7": 1}]
    questions = tuple(
        Question(id=f"{user}-{n}", text=f"{user} asks {n}", category="any", relevant=part)
        for n, part in enumerate(relevant)
    )
    return History(user=user, items=items, questions=questions)


TALKS, CHATS = (
    Dataset(name=name, digest="", histories=tuple(history(f"{name}-{n}") for n in range(4)))
    for name in ("talk", "chat")
)
SETS = {"talk": TALKS, "chat": CHATS}


@pytest.mark.parametrize("mixture", MIXTURES)
@pytest.mark.parametrize("memories", [1, 3, 10])
def test_a_store_has_the_evidence_of_its_own_questions_alone(mixture: Mixture, memories: int) -> None:
    of = TALKS.histories[0]
    for seed in range(20):
        dealt = deal("talk", SETS, of, Size(memories, 1, 3), mixture, np.random.default_rng(seed))
        assert dealt is not None
        ids = {item.id for item in dealt.items}
        assert len(ids) == len(dealt.items) == memories
        assert 1 <= len(dealt.own) <= 3
        assert all(ids.issuperset(question.relevant) for question in dealt.own)
        assert all(ids.isdisjoint(question.relevant) for question in dealt.missing)
        assert len(dealt.others) == len(dealt.own)
        mine = {item.text for item in of.items}
        strange = {item.id for item in dealt.items if item.text not in mine}
        assert dealt.strangers == strange
        said_by = {item.text.partition(" says")[0] for item in dealt.items} | {of.user}
        assert not said_by.intersection(question.text.partition(" asks")[0] for question in dealt.others)


def test_sessions_are_those_of_the_data_none_or_one() -> None:
    def sessions(mixture: Mixture) -> list[str | None]:
        dealt = deal("talk", SETS, TALKS.histories[1], Size(10, 1, 3), mixture, np.random.default_rng(1))
        assert dealt is not None
        return [item.session for item in dealt.items if mixture is not APART or item.id in dealt.strangers]

    assert set(sessions(PART)) <= {"s0", "s1", "s2"}
    assert set(sessions(APART)) == {None}
    assert set(sessions(ONE_SESSION)) == {"one"}


def test_a_part_keeps_the_order_of_its_conversation() -> None:
    dealt = deal("talk", SETS, TALKS.histories[2], Size(10, 1, 3), PART, np.random.default_rng(1))
    assert dealt is not None
    places = [int(item.id[1:]) for item in dealt.items]
    assert all(first < second for first, second in pairwise(places))


def test_a_history_with_too_few_items_makes_no_store() -> None:
    assert deal("talk", SETS, TALKS.histories[0], Size(30, 1, 3), PART, np.random.default_rng(1)) is None


def test_known_texts_are_not_embedded_again() -> None:
    model = open_embedder(Settings().embedder)
    try:
        (other,) = model.embed_passages(["the kiln is hot"])
        caching = CachingEmbedder(model, {"the market is closed": other})
        known, new, again = caching.embed_passages(["the market is closed", "Ann is away", "Ann is away"])
        assert known is other
        assert new is again
        assert np.array_equal(new.vectors, model.embed_passages(["Ann is away"])[0].vectors)
    finally:
        model.close()
