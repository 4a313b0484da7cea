"""Test interleaving: lists are valid team drafts, coin tosses are fair and reproducible, contests are unbiased."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sona.interleaving import Pick, contest, draw, share, team_draft
from sona.lesson import Contest

RANKINGS = st.lists(st.integers(0, 12), unique=True, max_size=10)
KEYS = st.text(max_size=12)
LIMITS = st.integers(0, 12)


def agreement(one: list[int], other: list[int]) -> int:
    return next(
        (place for place, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other))
    )


@given(RANKINGS, RANKINGS, LIMITS, KEYS)
def test_each_item_is_listed_once_and_is_the_best_left_of_its_ranking(
    baseline: list[int], learned: list[int], limit: int, key: str
) -> None:
    picks = team_draft(baseline, learned, limit, key)
    items = [pick.item for pick in picks]
    assert len(items) == len(set(items)) == min(limit, len({*baseline, *learned}))
    for place, (item, arm) in enumerate(picks):
        before = set(items[:place])
        best = {
            "baseline": next((other for other in baseline if other not in before), None),
            "learned": next((other for other in learned if other not in before), None),
        }
        assert item == best[arm or "baseline"]


@given(RANKINGS, RANKINGS, LIMITS, KEYS)
def test_the_common_prefix_is_credited_to_neither_ranking(
    baseline: list[int], learned: list[int], limit: int, key: str
) -> None:
    picks = team_draft(baseline, learned, limit, key)
    agreed = min(agreement(baseline, learned), limit)
    assert picks[:agreed] == [Pick(item, None) for item in baseline[:agreed]]
    assert all(pick.arm is not None for pick in picks[agreed:])


@given(RANKINGS, LIMITS, KEYS)
def test_a_ranking_interleaved_with_itself_is_unchanged_and_uncredited(items: list[int], limit: int, key: str) -> None:
    picks = team_draft(items, items, limit, key)
    assert picks == [Pick(item, None) for item in items[:limit]]
    assert contest(picks, items[:1]) in (Contest(0, 0), None)


@given(st.permutations(range(10)), st.permutations(range(10)), LIMITS, KEYS)
def test_after_each_round_both_rankings_contributed_equally(
    baseline: list[int], learned: list[int], limit: int, key: str
) -> None:
    arms = [arm for _, arm in team_draft(baseline, learned, limit, key) if arm]
    assert abs(arms.count("baseline") - arms.count("learned")) <= 1
    assert all(set(arms[place : place + 2]) == {"baseline", "learned"} for place in range(0, len(arms) - 1, 2))


def test_when_a_ranking_ends_the_other_fills_the_rest() -> None:
    picks = team_draft([1], [5, 6, 7, 8], 10, "a")
    assert {pick.item: pick.arm for pick in picks} == {1: "baseline", **dict.fromkeys((5, 6, 7, 8), "learned")}
    assert team_draft([], [], 5, "a") == []
    assert team_draft([3, 4], [], 5, "a") == [Pick(3, "baseline"), Pick(4, "baseline")]


def test_each_ranking_picks_first_in_half_of_the_recalls_in_every_round() -> None:
    baseline, learned = list(range(100, 110)), list(range(200, 210))
    lists = [team_draft(baseline, learned, 10, f"recall-{number}") for number in range(4_000)]
    first = np.array([[pick.arm == "learned" for pick in picks[::2]] for picks in lists])
    assert np.abs(first.mean(axis=0) - 0.5).max() < 4 * 0.5 / np.sqrt(len(lists))
    correlation = np.corrcoef(first.T) - np.eye(5)
    assert np.abs(correlation).max() < 4 / np.sqrt(len(lists))  # rounds are independent
    assert len({tuple(picks) for picks in lists}) == 2**5


@given(RANKINGS, RANKINGS, KEYS)
def test_interleaving_is_reproducible_by_key(baseline: list[int], learned: list[int], key: str) -> None:
    assert team_draft(baseline, learned, 8, key) == team_draft(list(baseline), list(learned), 8, key)


def test_a_contest_counts_used_items_by_ranking() -> None:
    picks = [Pick(1, None), Pick(2, "learned"), Pick(3, "baseline"), Pick(4, "baseline"), Pick(5, "learned")]
    assert contest(picks, {1, 2, 5}) == Contest(learned=2, baseline=0)
    assert contest(picks, [3]) == Contest(learned=0, baseline=1)
    assert contest(picks, {1}) == Contest(0, 0)
    assert contest(picks, {77}) == Contest(0, 0)
    assert contest(picks, ()) == Contest(0, 0)
    assert contest([], {1}) == Contest(0, 0)


def test_using_every_shown_item_decides_no_contest() -> None:
    picks = [Pick(2, "learned"), Pick(3, "baseline"), Pick(4, "baseline"), Pick(5, "learned"), Pick(6, "learned")]
    assert contest(picks, {2, 3, 4, 5, 6, 99}) is None
    assert contest(picks[:4], {2, 3, 4, 5}) is None
    assert contest(picks, {2, 3, 4, 6}) == Contest(learned=2, baseline=2)
    assert contest(picks[:3], {2, 3, 4}) is None
    assert contest(picks[:2], {2, 3}) is None
    assert contest(picks[:1], {2}) == Contest(learned=1, baseline=0)  # a list of one item can decide


def test_random_use_prefers_neither_ranking() -> None:
    generator = np.random.default_rng(7)
    baseline, learned = [1, 2, 3, 4, 5, 6], [1, 5, 6, 2, 7, 3]
    sides = Counter[int]()
    for number in range(4_000):
        picks = team_draft(baseline, learned, 5, f"recall-{number}")
        found = contest(picks, {picks[place].item for place in np.flatnonzero(generator.random(5) < 0.3)})
        if found:
            sides[int(np.sign(found.learned - found.baseline))] += 1
    decided = sides[1] + sides[-1]
    assert decided > 1_000
    assert abs(sides[1] / decided - 0.5) < 4 * 0.5 / np.sqrt(decided)


def test_using_the_first_item_of_one_ranking_prefers_that_ranking() -> None:
    baseline, learned = [1, 2, 3, 4, 5, 6, 7, 8], [7, 1, 2, 3, 4, 5, 6, 8]
    contests = [contest(team_draft(baseline, learned, 5, f"recall-{number}"), {7}) for number in range(200)]
    assert set(contests) == {Contest(learned=1, baseline=0)}


def test_draws_are_the_same_in_every_process() -> None:
    program = (
        "from sona.interleaving import draw; print([draw(key, 'route') for key in ('', 'a', 'ä\\ud800', 'x' * 300)])"
    )
    printed = [
        subprocess.run(
            [sys.executable, "-c", program], env={"PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True
        ).stdout
        for seed in ("1", "2")
    ]
    here = [draw(key, "route") for key in ("", "a", "ä\ud800", "x" * 300)]
    assert printed == [f"{here}\n"] * 2
    assert len(set(here)) == 4


def test_draws_are_fixed_for_all_versions() -> None:
    assert [draw("recall-1", "draft", 16), draw("recall-1", "route", 16), draw("recall-2", "draft", 16)] == [
        58284,
        30274,
        48661,
    ]


@pytest.mark.parametrize("bits", [1, 7, 64, 65, 200])
def test_bits_are_fair_and_independent_between_purposes(bits: int) -> None:
    count = 2_000
    draws = [(draw(f"key {number}", "one", bits), draw(f"key {number}", "other", bits)) for number in range(count)]
    one, other = (
        np.array([[drawn >> bit & 1 for bit in range(bits)] for drawn in side]) for side in zip(*draws, strict=True)
    )
    slack = 5 * 0.5 / np.sqrt(count)
    assert np.abs(one.mean(axis=0) - 0.5).max() < slack
    assert np.abs((one == other).mean(axis=0) - 0.5).max() < slack
    assert np.abs((one[:, 64:] == one[:, : max(bits - 64, 0)]).mean(axis=0) - 0.5).max(initial=0.0) < slack
    assert np.abs((one[1:] == one[:-1]).mean(axis=0) - 0.5).max() < slack  # keys that differ in one digit


def test_shares_are_uniform_below_one() -> None:
    shares = np.array([share(str(number), "route") for number in range(5_000)])
    assert shares.min() >= 0.0
    assert shares.max() < 1.0
    counts, _ = np.histogram(shares, bins=10, range=(0.0, 1.0))
    assert np.abs(counts - 500).max() < 5 * np.sqrt(450)
