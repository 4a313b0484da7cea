"""Test that the metrics of items, and of sessions ranked by their best items, match manual calculations."""

from __future__ import annotations

from math import log2

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memory_agent.evaluation.trial import cutoffs, judge

SESSIONS = {"a1": "A", "a2": "A", "b1": "B", "b2": "B", "c1": "C", "c2": "C", "loose": None}
ranked = st.lists(st.sampled_from(sorted(SESSIONS)), unique=True).map(
    lambda ids: tuple((id_, SESSIONS[id_]) for id_ in ids)
)
graded = st.dictionaries(st.sampled_from(sorted(SESSIONS)), st.integers(1, 3), min_size=1)


def places(*ids: str) -> tuple[tuple[str, str | None], ...]:
    return tuple((id_, SESSIONS.get(id_)) for id_ in ids)


def test_sessions_are_ranked_by_their_best_item_and_counted_once() -> None:
    # The items a1, a2, b1 and c1 rank the sessions in the order A, B, C. The evidence is in B and C.
    metrics = judge(places("a1", "a2", "b1", "c1"), {}, {"c2": 1, "b1": 1}, SESSIONS, [1, 2, 3])
    assert [metrics[f"session_recall@{k}"] for k in (1, 2, 3)] == [0, 0.5, 1]
    assert metrics["session_mrr"] == 0.5
    best = 1 + 1 / log2(3)
    assert metrics["session_ndcg@3"] == pytest.approx((1 / log2(3) + 1 / log2(4)) / best)
    assert [metrics[f"recall@{k}"] for k in (1, 2, 3)] == [0, 0, 0.5]
    assert metrics["mrr"] == pytest.approx(1 / 3)


def test_two_items_of_one_session_are_one_session_of_evidence() -> None:
    metrics = judge(places("a1", "b1"), {}, {"b1": 1, "b2": 1}, SESSIONS, [2])
    assert (metrics["recall@2"], metrics["session_recall@2"]) == (0.5, 1)


def test_a_session_gets_the_best_grade_of_its_items() -> None:
    metrics = judge(places("a1", "b1"), {}, {"a1": 1, "b1": 1, "b2": 2}, SESSIONS, [2])
    assert metrics["session_ndcg@2"] == pytest.approx((1 + 3 / log2(3)) / (3 + 1 / log2(3)))


def test_evidence_without_a_session_gives_no_session_metrics() -> None:
    metrics = judge(places("loose", "a1"), {}, {"loose": 1}, SESSIONS, [1])
    assert metrics == {
        name: 1 for kind in ("", "shown_") for name in (f"{kind}recall@1", f"{kind}ndcg@1", f"{kind}mrr")
    }


def test_a_memory_of_several_items_counts_for_each_at_its_rank() -> None:
    same = {"a1": (("b1", "B"), ("c1", "C"))}
    metrics = judge(places("a1", "a2"), same, {"c1": 1, "c2": 1}, SESSIONS, [1, 2, 3])
    assert [metrics[f"recall@{k}"] for k in (1, 2)] == [0.5, 0.5]
    assert (metrics["mrr"], metrics["ndcg@1"]) == (1, 1)
    assert [metrics[f"session_recall@{k}"] for k in (1, 2, 3)] == [0, 0, 1]


def test_metrics_of_shown_items_ignore_folded_ones() -> None:
    evidence, folded = {"c1": 1, "a2": 1}, {"a1": (("b1", "B"), ("c1", "C"))}
    metrics = judge(places("a1", "a2"), folded, evidence, SESSIONS, [1, 2, 3])
    unfolded = judge(places("a1", "a2"), {}, evidence, SESSIONS, [1, 2, 3])
    shown = {name: value for name, value in metrics.items() if name.startswith("shown_")}
    assert shown == {name: value for name, value in unfolded.items() if name.startswith("shown_")}
    assert shown == {f"shown_{name}": unfolded[name] for name in unfolded if not name.startswith("shown_")}
    assert (metrics["recall@2"], shown["shown_recall@2"], shown["shown_mrr"]) == (1, 0.5, 0.5)
    assert (metrics["session_recall@3"], shown["shown_session_recall@3"]) == (1, 0.5)


@given(
    ranked=ranked, graded=graded, k=st.integers(1, 7), folds=st.dictionaries(st.sampled_from(sorted(SESSIONS)), ranked)
)
def test_metrics_of_shown_items_never_exceed_those_of_all_items(
    ranked: tuple[tuple[str, str | None], ...],
    graded: dict[str, int],
    k: int,
    folds: dict[str, tuple[tuple[str, str | None], ...]],
) -> None:
    metrics = judge(ranked, folds, graded, SESSIONS, [k])
    assert metrics[f"shown_recall@{k}"] <= metrics[f"recall@{k}"]
    assert metrics["shown_mrr"] <= metrics["mrr"]


def test_a_memory_that_is_not_an_item_takes_a_rank_and_has_no_session() -> None:
    metrics = judge((("stranger", None), ("a1", "A")), {}, {"a1": 1}, SESSIONS, [1])
    assert (metrics["recall@1"], metrics["session_recall@1"]) == (0, 1)


@given(ranked=ranked, graded=graded, k=st.integers(1, 7))
def test_the_first_k_sessions_include_those_of_the_first_k_items(
    ranked: tuple[tuple[str, str | None], ...], graded: dict[str, int], k: int
) -> None:
    metrics = judge(ranked, {}, graded, SESSIONS, [k])
    if "session_mrr" in metrics:
        evidence = {SESSIONS[id_] for id_ in graded} - {None}
        reached = {session for _, session in ranked[:k]} & evidence
        assert metrics[f"session_recall@{k}"] >= len(reached) / len(evidence)


def test_only_cutoffs_within_the_answer_are_reported() -> None:
    assert cutoffs(1000) == [1, 5, 10, 50]
    assert cutoffs(10) == [1, 5, 10]
    assert cutoffs(1) == [1]
