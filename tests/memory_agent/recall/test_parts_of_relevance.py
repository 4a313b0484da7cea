"""The relevance of memories as a function of its parts."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memory_agent.recall.evidence import Met, credit, evidence, relevance

shares = st.floats(0, 1)
parts = st.fixed_dictionaries(
    {
        "cosine": st.floats(-1, 1) | st.just(np.nan),
        "near": st.floats(-1, 1) | st.just(np.nan),
        "closest": st.floats(-1, 1),
        "held": shares,
        "held_nearby": shares,
        "lacked": st.floats(0, 60),
        "length": st.integers(0, 10_000),
        "rarity": st.floats(0.1, 300) | st.just(0.0),
        "words": st.integers(0, 10**8),
    }
)


def one(**drawn: float) -> float:
    """Return the evidence of one memory."""
    return float(
        evidence(
            Met(
                own=np.zeros(1),
                near=np.zeros(1),
                closeness=np.array([drawn["near"]]),
                closest=np.array([drawn["closest"]]),
                held=np.array([drawn["held"]]),
                held_nearby=np.array([max(drawn["held"], drawn["held_nearby"])]),
                lacked=np.array([drawn["lacked"]]),
                rarity=drawn["rarity"],
            ),
            np.array([drawn["cosine"]]),
            np.array([drawn["length"]], dtype=np.int32),
            int(drawn["words"]),
        )[0]
    )


def relevance_of(own: float, share: float, best: float) -> float:
    """Return the relevance of one memory with this evidence and credit."""
    return float(relevance(np.array([own]), np.array([share]), best)[0])


@settings(deadline=None)
@given(parts, st.sampled_from(["cosine", "near", "closest", "held", "held_nearby"]), st.floats(0, 1))
def test_each_part_only_adds(drawn: dict[str, float], name: str, more: float) -> None:
    raised = drawn | {name: min(drawn[name] + more, 1.0)}
    before, after = one(**drawn), one(**raised)
    assert np.isnan(before) == np.isnan(after)
    assert np.isnan(before) or after >= before


@settings(deadline=None)
@given(parts, st.floats(0, 60))
def test_the_same_match_says_less_where_more_is_lacked(drawn: dict[str, float], more: float) -> None:
    before, after = one(**drawn), one(**drawn | {"lacked": drawn["lacked"] + more})
    assert np.isnan(before) or after <= before


@settings(deadline=None)
@given(parts, st.integers(0, 10**8))
def test_the_same_match_says_less_among_more_text(drawn: dict[str, float], more: int) -> None:
    before, after = one(**drawn), one(**drawn | {"words": drawn["words"] + more})
    assert np.isnan(before) or after <= before


@settings(deadline=None)
@given(parts)
def test_it_is_unknown_only_where_neither_vector_nor_words_can_tell(drawn: dict[str, float]) -> None:
    assert np.isnan(one(**drawn)) == (np.isnan(drawn["cosine"]) and not drawn["rarity"])


logits = st.lists(st.floats(-1e6, 1e6) | st.just(np.nan), max_size=9).map(
    lambda drawn: np.array(drawn, dtype=np.float64)
)


@settings(deadline=None)
@given(logits, shares, st.floats(-1e6, 1e6) | st.just(-np.inf))
def test_relevance_is_a_probability_that_keeps_the_order_and_what_is_unknown(
    found: np.ndarray[tuple[int], np.dtype[np.float64]], share: float, best: float
) -> None:
    probabilities = relevance(found, np.full(found.shape, share), best)
    known = ~np.isnan(found)
    assert (np.isnan(probabilities) == ~known).all()
    assert ((probabilities[known] >= 0) & (probabilities[known] <= 1)).all()
    assert (np.diff(probabilities[known][np.argsort(found[known], kind="stable")]) >= 0).all()


@settings(deadline=None)
@given(st.floats(-30, 30), st.floats(-30, 30), st.floats(0, 30))
def test_a_better_best_only_raises_the_others_and_not_without_bound(own: float, best: float, more: float) -> None:
    by_itself, beside, beside_better = (relevance_of(own, 1.0, one) for one in (-np.inf, best, best + more))
    assert by_itself <= beside <= beside_better
    assert relevance_of(-8.0, 1.0, 1e6) < 0.1


@settings(deadline=None)
@given(st.floats(-30, 30), st.floats(-30, 30), shares, shares)
def test_the_best_vouches_for_more_the_more_credit_there_is(own: float, best: float, share: float, more: float) -> None:
    assert relevance_of(own, 0.0, best) == relevance_of(own, 1.0, -np.inf)
    assert relevance_of(own, share, best) <= relevance_of(own, min(share + more, 1.0), best)


def test_credit_grows_with_the_cosine_up_to_one_and_is_whole_without_a_vector() -> None:
    found = credit(np.array([-0.2, 0.1, 0.2, 0.3, 0.9, np.nan]))
    assert found == pytest.approx([0.0, 0.0, 0.5, 1.0, 1.0, 1.0])


def test_no_memories_have_no_relevance() -> None:
    nothing = np.empty(0)
    found = evidence(Met(*[nothing] * 7, 3.0), nothing, np.empty(0, dtype=np.int32), 0)
    assert relevance(found, credit(nothing), -np.inf).shape == (0,)


def test_without_word_vectors_or_words_the_scale_is_the_same_at_what_each_is_sure_of() -> None:
    known = {
        "cosine": 0.75,
        "near": 0.8,
        "closest": 0.8,
        "held": 0.9,
        "held_nearby": 1.0,
        "lacked": 2.0,
        "length": 20,
        "rarity": 20.0,
        "words": 15_000,
    }
    alien = known | {"cosine": 0.15, "near": 0.35, "closest": 0.45, "held": 0.0, "held_nearby": 0.0, "lacked": 8.0}
    for lacking in ({}, {"near": np.nan}, {"rarity": 0.0}, {"cosine": np.nan, "near": np.nan}):
        sure, unsure = one(**known | lacking), one(**alien | lacking)
        assert relevance_of(sure, 1.0, sure) > 0.9, lacking
        assert relevance_of(unsure, 1.0, unsure) < 0.1, lacking
    best_by_chance = [np.sqrt(2 * np.log1p(tokens / 30)) for tokens in (19_500, 20_000)]
    met = 1.35 * 0.8 + 0.4 * 0.8 + 0.35 * 0.81 - 0.03 * 2.0
    s = 0.75 + met - 0.3 * (best_by_chance[0] - best_by_chance[1])
    assert one(**known) == pytest.approx(9.0 * (s - 1.2))


def test_few_memories_are_asked_for_less_and_many_for_little_more() -> None:
    """By chance one of 10 is better than the first, one of 100,000 hardly than one of 10,000."""
    drawn = {"cosine": 0.4, "near": 0.4, "closest": 0.5, "held": 0.0, "held_nearby": 0.0, "lacked": 6.0}
    found = [one(**drawn | {"length": 20, "rarity": 20.0, "words": words}) for words in (15, 150, 150_000, 1_500_000)]
    assert found[0] - found[1] > 2 > found[2] - found[3] > 0.5
