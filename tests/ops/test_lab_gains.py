"""Test the comparison of arms: pairing, resampling, the reported gain, and targets."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pytest

from memory_agent.records.trajectories import GateState
from ops.lab.arms import CITE, GATED, OFF, ORACLE, SHUFFLED_CITE
from ops.lab.course import Figures
from ops.lab.forgetting import Moments
from ops.lab.forgetting import summarise as sum_forgetting
from ops.lab.gains import HEADLINE, curve, difference, standings
from ops.lab.gate_streams import Stream
from ops.lab.gate_streams import summarise as sum_gates
from ops.lab.histories import SplitName
from ops.lab.planning import OUTCOMES, Planning, RunFigures
from ops.lab.report import targets
from ops.lab.trials import STAGES, Answered

USERS = ("a", "b", "c", "d")


def answers(
    arm: str, gains: dict[str, float], split: SplitName = "random", stages: Iterable[int] = (100,)
) -> list[Answered]:
    """Return answers of four users under two seeds: a recall of .4, plus a gain on the repeated half, by stage."""
    return [
        Answered(
            arm=arm,
            split=split,
            seed=seed,
            user=user,
            taught=stage,
            question=f"{user}:{number}",
            is_repeated=number % 2 == 0 and split == "random",
            figures=Figures(0.1, 0.4 + (gains[user] * stage / 100 if number % 2 == 0 else 0.0), 0.6, 0.3),
        )
        for stage in stages
        for seed in (0, 1)
        for user in USERS
        for number in range(6)
    ]


EVEN = dict.fromkeys(USERS, 0.0)
HALF = dict.fromkeys(USERS, 0.02)
UNEVEN = {"a": 0.0, "b": 0.02, "c": 0.04, "d": 0.1}


def test_an_arm_is_held_against_learning_off_on_each_group_of_questions() -> None:
    found = {part.group: part for part in standings(answers(OFF, EVEN) + answers(CITE, UNEVEN)) if part.arm == CITE}
    assert {group: part.answers for group, part in found.items()} == {"repeated": 24, "new": 24, "all": 48}
    over_off = {group: part.over_off[HEADLINE].mean for group, part in found.items()}
    assert over_off == {"repeated": pytest.approx(0.04), "new": pytest.approx(0.0), "all": pytest.approx(0.02)}
    assert found["all"].means["mrr"] == pytest.approx(0.3)


def test_answers_are_paired_by_seed_and_question_in_whatever_order_they_came() -> None:
    off = answers(OFF, UNEVEN)
    (own,) = (
        part for part in standings(off[::-1] + answers(CITE, UNEVEN)) if (part.arm, part.group) == (CITE, "repeated")
    )
    assert own.over_off[HEADLINE].mean == pytest.approx(0.0)
    assert own.over_off[HEADLINE].low == own.over_off[HEADLINE].high == pytest.approx(0.0)


def test_the_gain_that_counts_is_the_lesser_of_those_over_learning_off_and_over_the_control() -> None:
    everything = answers(OFF, EVEN) + answers(CITE, UNEVEN) + answers(SHUFFLED_CITE, HALF)
    found = {part.arm: part for part in standings(everything) if part.group == "repeated"}
    assert found[CITE].over_control is not None
    assert found[CITE].over_control.mean == pytest.approx(0.02)
    assert found[CITE].gain == pytest.approx(0.02)
    assert found[SHUFFLED_CITE].gain is found[OFF].gain is None
    worse = answers(OFF, EVEN) + answers(CITE, HALF) + answers(SHUFFLED_CITE, dict.fromkeys(USERS, -0.05))
    (own,) = (part for part in standings(worse) if (part.arm, part.group) == (CITE, "repeated"))
    assert own.gain == pytest.approx(0.02)  # a harmful control does not count as a gain


def test_whole_conversations_are_drawn_so_that_many_questions_of_few_make_nothing_surer() -> None:
    of_users = np.array([[UNEVEN[user]] for user in USERS])
    (few,) = difference(of_users, USERS)
    (many,) = difference(np.repeat(of_users, 50, axis=0), [user for user in USERS for _ in range(50)])
    assert (many.mean, many.low, many.high) == (
        pytest.approx(few.mean),
        pytest.approx(few.low),
        pytest.approx(few.high),
    )
    assert few.low is not None
    assert few.high is not None
    assert 0.0 <= few.low < few.mean < few.high <= 0.1


def test_two_conversations_bound_nothing() -> None:
    (found,) = difference(np.array([[0.0], [0.1]]), ["a", "b"])
    assert (found.mean, found.low, found.high) == (pytest.approx(0.05), None, None)


def test_a_curve_starts_where_learning_off_is_and_leaves_out_arms_that_were_asked_at_the_end_alone() -> None:
    off, taught = answers(OFF, EVEN, stages=STAGES), answers(CITE, HALF, stages=STAGES)
    points = [point for point in curve(off + taught + answers(ORACLE, HALF)) if point.arm != OFF]
    assert [(point.arm, point.taught) for point in points] == [(CITE, stage) for stage in STAGES]
    assert [point.over_off.mean for point in points] == pytest.approx([0.02 * stage / 100 for stage in STAGES])


def moments(arm: str, gains: dict[str, float]) -> list[Moments]:
    return [
        Moments(arm=arm, seed=0, user=user, asked={moment: {"q": 0.4 + gain} for moment, gain in gains.items()})  # type: ignore[misc]
        for user in USERS
    ]


def test_the_kept_share_of_a_gain_is_reported_beside_its_target() -> None:
    nothing = dict.fromkeys(("A after A", "A after B", "B after A", "B after B", "B alone"), 0.0)
    gained = {"A after A": 0.10, "A after B": 0.07, "B after A": -0.02, "B after B": 0.09, "B alone": 0.10}
    (found,) = sum_forgetting(moments(OFF, nothing) + moments(CITE, gained))
    assert [part.share for part in found.kept] == [pytest.approx(0.7), pytest.approx(0.9)]
    assert [part.margin.mean for part in found.kept] == [pytest.approx(-0.01), pytest.approx(0.01)]
    assert found.harm.mean == pytest.approx(-0.02)
    reached = {target.name: target.reached for target in targets([], [], [found], [], [])}
    assert list(reached.values()) == [False, True, False]


def test_a_gain_that_was_none_cannot_be_kept() -> None:
    nothing = dict.fromkeys(("A after A", "A after B", "B after A", "B after B", "B alone"), 0.0)
    (found,) = sum_forgetting(moments(OFF, nothing) + moments(CITE, nothing))
    assert [part.share for part in found.kept] == [None, None]
    assert [target.reached for target in targets([], [], [found], [], [])][:2] == [None, None]


def stream(signal: str, seed: int, opened_at: int | None, state: GateState) -> Stream:
    return Stream(
        signal=signal,  # type: ignore[arg-type]
        seed=seed,
        recalls=100,
        credited=60,
        tried_at=50,
        opened_at=opened_at,
        state=state,
        won=3,
        lost=2,
        tied=1,
        evidence=1.0,
        harm=1.0,
        served={},
    )


def test_a_gate_that_opened_and_shut_again_is_a_false_alarm_all_the_same() -> None:
    streams = [
        stream("shuffled cite", 0, 80, "off"),
        *(stream("shuffled cite", seed, None, "trial") for seed in (1, 2)),
    ]
    (found,) = sum_gates(streams)
    assert (found.streams, found.opened, found.open_at_end, found.opened_at) == (3, 1, 0, (80,))
    (target,) = targets([], [], [], [found], [])
    assert (target.measured, target.reached) == (pytest.approx(1 / 3), False)


def test_targets_are_met_missed_or_undecided() -> None:
    everything = answers(OFF, EVEN) + answers(CITE, UNEVEN | {"d": 0.14}) + answers(SHUFFLED_CITE, HALF)
    everything += answers(OFF, EVEN, "disjoint") + answers(GATED, dict.fromkeys(USERS, -0.05), "disjoint")
    found = targets(standings(everything), [], [], [], [])
    assert [(target.bound, target.reached) for target in found] == [
        ("≥ 0.04", True), ("> 0", True), ("> 0", True), ("≥ -0.01", False),
    ]  # fmt: skip
    few = [answer for answer in everything if answer.user in "ab"]
    assert [target.reached for target in targets(standings(few), [], [], [], [])][1] is None


def test_a_gain_before_any_training_is_a_target_missed() -> None:
    early = {**UNEVEN}
    off, own = answers(OFF, EVEN, stages=STAGES), answers(CITE, early, stages=STAGES)
    honest = targets([], curve(off + own), [], [], [])
    assert [target.reached for target in honest] == [True]
    leaked = [answer if answer.taught else _better(answer) for answer in own]
    assert [target.reached for target in targets([], curve(off + leaked), [], [], [])] == [False]


def test_success_bought_with_relevance_misses_a_target() -> None:
    changed = difference(np.array([[-0.1, 0.0, 0.2, 0.1, 0.0]] * 3), ["1", "2", "3"])
    planned = Planning(
        arm="learning on",
        held="task",
        group="all",
        requests=3,
        tasks=3,
        means={},
        over_similarity=dict(zip(RunFigures._fields, changed, strict=True)),
    )
    found = {target.name.partition(": ")[2]: target.reached for target in targets([], [], [], [], [planned])}
    assert found == {
        "successful run in first place": True,
        "successful run among the top three": True,
        "same task in first place": False,
        "same task among the top three": True,
    }


def test_outcomes_may_take_half_a_point_of_relevance_and_must_add_eight_of_success() -> None:
    for gained, taken, expected in ((0.09, -0.004, [True, True]), (0.07, -0.006, [False, False])):
        changed = difference(np.array([[0.0, taken, gained, 0.0, 0.0]] * 3), ["1", "2", "3"])
        planned = Planning(
            arm=OUTCOMES,
            held="trial",
            group="all",
            requests=3,
            tasks=3,
            means={},
            over_similarity=dict(zip(RunFigures._fields, changed, strict=True)),
        )
        assert [target.reached for target in targets([], [], [], [], [planned])] == expected


def _better(answer: Answered) -> Answered:
    figures = answer.figures._replace(recall_at_5=answer.figures.recall_at_5 + 0.05)
    return Answered(**{name: getattr(answer, name) for name in answer.__struct_fields__} | {"figures": figures})
