"""Test the simulation of attackers with several keys: what they need, and what the rules cost honest teams."""

from __future__ import annotations

import pytest

from ops.bench.sybils import AIMS, BEFORE, POLICIES, SHIPPED, Aim, Success, Team, delay, fewest, over_seeds, page

SEEDS = range(3)


@pytest.mark.parametrize(("aim", "keys"), [("prove", 6), ("bury", 5)])
def test_keys_of_one_person_succeed_without_persons_and_never_with_them(aim: Aim, keys: int) -> None:
    for seed in SEEDS:
        assert fewest(Team(0), aim, BEFORE, seed, of_one=True) == Success(keys, 0)
        assert fewest(Team(0), aim, SHIPPED, seed, of_one=True) is None
        assert fewest(Team(0), aim, SHIPPED, seed, of_one=False) == Success(keys, 7)


def test_a_week_delays_a_new_team_but_not_an_old_one() -> None:
    old, new = Team(60), Team(60, age_days=0)
    for seed in SEEDS:
        first = delay(old, BEFORE, seed)
        assert first is not None
        assert [delay(old, policy, seed) for policy in POLICIES] == [first] * len(POLICIES)
        assert [delay(new, policy, seed) for policy in POLICIES] == [first, first, max(first, 7), max(first, 30)]


def test_the_page_has_a_row_for_each_team_and_policy() -> None:
    text = page(range(2), teams=(0,), sizes=(3,))
    assert len([line for line in text.splitlines() if line.startswith("| 0 |")]) == 3 * len(AIMS)
    assert len([line for line in text.splitlines() if line.startswith("| 3 |")]) == 15
    assert over_seeds([3, None, 1]) == "3 (1 to never)"
