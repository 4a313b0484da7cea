"""The scale of what learning adds: the spread of the scores, whatever their level and unit."""

from __future__ import annotations

import numpy as np
import pytest

from memory_agent.recall.stages import scale_of

SCORES = np.sort(np.random.default_rng(1).gamma(2.0, 0.2, 80))[::-1]


def test_it_is_two_and_a_half_times_the_spread_of_the_best_fifty_without_the_best_tenth() -> None:
    assert scale_of(SCORES) == pytest.approx(2.5 * (SCORES[5] - SCORES[49]))
    assert scale_of(SCORES[:20]) == pytest.approx(2.5 * (SCORES[2] - SCORES[19]))
    assert scale_of(SCORES[:3]) == pytest.approx(2.5 * (SCORES[0] - SCORES[2]))


def test_a_leader_that_stands_out_does_not_widen_it() -> None:
    assert scale_of(np.append(SCORES[0] + 2.0, SCORES[1:])) == pytest.approx(scale_of(SCORES))


def test_it_follows_the_unit_of_the_scores_and_ignores_their_level() -> None:
    assert scale_of(1.5 * SCORES) == pytest.approx(1.5 * scale_of(SCORES))
    assert scale_of(SCORES + 0.3) == pytest.approx(scale_of(SCORES))


def test_equal_scores_leave_a_tenth_of_the_best_so_that_use_decides() -> None:
    assert scale_of(np.full(12, 1.2)) == pytest.approx(0.12)
    assert scale_of(np.array([0.8])) == pytest.approx(0.08)


def test_without_answers_nothing_is_added() -> None:
    assert scale_of(np.array([])) == 0.0
