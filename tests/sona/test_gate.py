"""Test the gate: never ON without winning, seldom ON by luck, OFF again when harmful, deterministic on replay."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator

import msgspec
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sona.comparison import compare
from sona.errors import DamagedStateError
from sona.gate import (
    COOL_DOWN_LESSONS,
    DRIFT_THRESHOLD,
    HARM_THRESHOLD,
    LATER_THRESHOLD,
    LONGEST_TRIAL,
    SHADOW_LESSONS,
    THRESHOLD,
    Gate,
)
from sona.interleaving import contest, team_draft
from sona.lesson import Comparison, Contest

WON, LOST, TIED = Contest(2, 1), Contest(0, 1), Contest(1, 1)
CREDIT = "credit"
BETS = np.array([[0.1], [0.2], [0.4], [0.8]])
Array = npt.NDArray[np.float64]

SHOWN = 10
RANKINGS = [np.random.default_rng(seed).permutation(SHOWN + 5)[:SHOWN] + 1 for seed in range(200)]
BOOSTS = [np.where(ranks <= 2, 80 // ranks, 0) for ranks in RANKINGS]
ONE_USE = [
    [compare(ranks.tolist(), boosts.tolist(), [place]) for place in range(SHOWN)]
    for ranks, boosts in zip(RANKINGS, BOOSTS, strict=True)
]
BETTER, WORSE = Comparison(2.5, 0.4), Comparison(0.4, 2.5)

Fact = Contest | Comparison | str | None
FACTS = st.lists(st.sampled_from([CREDIT, CREDIT, WON, WON, LOST, TIED, BETTER, BETTER, WORSE, None]), max_size=120)


def tell(gate: Gate, facts: Iterable[Fact]) -> Gate:
    for fact in facts:
        if isinstance(fact, str):
            gate.credit()
        else:
            gate.observe(fact)
    return gate


def in_trial() -> Gate:
    return tell(Gate(), [CREDIT] * SHADOW_LESSONS)


def turned_on() -> Gate:
    gate = in_trial()
    while gate.state == "trial":
        gate.observe(WON)
    assert gate.state == "on"
    return gate


def coins(rate: float, count: int, seed: int) -> list[Contest]:
    return [WON if won else LOST for won in np.random.default_rng(seed).random(count) < rate]


def told_until(gate: Gate, contests: Iterable[Contest | Comparison | None], done: Callable[[Gate], bool]) -> int | None:
    """Observe `contests` until `done`; return the number observed, or None if `done` never held."""
    for number, fact in enumerate(contests, start=1):
        gate.observe(fact)
        if done(gate):
            return number
    return None


def comparisons(uses: Callable[[int, int], Array], count: int, seed: int) -> Iterator[Comparison | None]:
    """Yield comparisons of random rankings; a memory's chance of use is proportional to `uses(ranking, number)`."""
    random = np.random.default_rng(seed)
    for number, place in enumerate(random.integers(len(RANKINGS), size=count).tolist()):
        shares = uses(place, number).cumsum()
        yield ONE_USE[place][int(shares.searchsorted(random.random() * shares[-1], side="right"))]


def first(count: int) -> Array:
    return (np.arange(SHOWN) < count).astype(np.float64)


@functools.cache
def most_misleading(place: int) -> Array:
    """Of the uses determined by position alone, return the one that gains most from the bet on this ranking."""
    factors = [0.0 if one is None else one.learned for one in ONE_USE[place]]
    return first(1 + int((np.cumsum(factors) / np.arange(1, SHOWN + 1)).argmax()))


HABITS: dict[str, Callable[[int, int], Array]] = {
    "whatever is shown": lambda _place, _number: np.ones(SHOWN),
    "the first mostly": lambda _place, _number: 1.0 / np.arange(1.0, SHOWN + 1),
    "the first five": lambda _place, _number: first(5),
    "first the first, later anything": lambda _place, number: first(1 if number < 30 else SHOWN),
    "the most misleading": lambda place, _number: most_misleading(place),
}


@pytest.mark.parametrize("habit", HABITS)
def test_uses_by_place_alone_turn_the_learner_on_in_at_most_one_of_28_users(habit: str) -> None:
    users, turned = 400, 0
    for seed in range(users):
        gate = in_trial()
        told_until(gate, comparisons(HABITS[habit], 100, seed), lambda it: it.state != "trial")
        turned += gate.state == "on"
    assert turned / users <= 1 / THRESHOLD + 3 * np.sqrt((1 / THRESHOLD) / users)
    assert turned > 0 or habit != "whatever is shown"  # some gates turn on by chance, but no more than the bound allows


def test_the_gates_of_users_without_gain_open_for_at_most_5_percent_over_all_trials() -> None:
    gate, bound = in_trial(), 0.0
    for _ in range(60):
        bound += 1 / gate.evidence().threshold
        told_until(gate, [LOST] * 50, lambda it: it.state == "off")
        tell(gate, [CREDIT] * COOL_DOWN_LESSONS)
    assert gate.evidence().trial == 61
    assert bound == pytest.approx(0.05)


def test_uses_that_past_use_predicts_turn_the_learner_on_within_ten_runs() -> None:
    needed = [
        told_until(
            in_trial(),
            comparisons(lambda place, _number: np.exp(0.045 * BOOSTS[place]), 80, seed),
            lambda gate: gate.state == "on",
        )
        for seed in range(100)
    ]
    done = [number for number in needed if number is not None]
    assert len(done) >= 97
    assert np.median(done) <= 10


def test_uses_that_the_baseline_predicts_turn_a_random_ranking_off() -> None:
    for seed in range(20):
        gate = in_trial()
        told_until(
            gate,
            comparisons(lambda _place, _number: np.arange(1.0, SHOWN + 1) ** -2, 200, seed),
            lambda it: it.state != "trial",
        )
        assert gate.state == "off"


def test_the_wealth_is_multiplied_by_each_comparison() -> None:
    gate = tell(in_trial(), [WON, BETTER, WORSE, BETTER])
    assert gate.evidence().evidence == pytest.approx(wealth(1, 0).item() * 2.5)
    assert gate.evidence().harm == pytest.approx(wealth(0, 1).item() * 0.4)
    assert (gate.evidence().won, gate.evidence().lost) == (3, 1)


def test_comparisons_count_in_a_trial_alone() -> None:
    for gate in (Gate(), turned_on()):
        before = gate.to_bytes()
        assert tell(gate, [BETTER, WORSE] * 50).to_bytes() == before


def wealth(won: npt.ArrayLike, lost: npt.ArrayLike) -> Array:
    return np.asarray(np.mean(np.power(1 + BETS, won) * np.power(1 - BETS, lost), axis=0))


def chance_of_on(rate: float, threshold: float) -> float:
    """Return the exact probability that one TRIAL turns ON, over all paths, by dynamic programming."""
    won = np.arange(LONGEST_TRIAL + 1)
    at = np.zeros(LONGEST_TRIAL + 1)  # the probability of each number of wins while the trial is undecided
    at[0], turned = 1.0, 0.0
    for decided in range(1, LONGEST_TRIAL + 1):
        at = np.append(0.0, at[:-1]) * rate + at * (1 - rate)
        lost = np.maximum(decided - won, 0)
        on, off = wealth(won, lost) >= threshold, wealth(lost, won) >= HARM_THRESHOLD
        turned += at[on].sum()
        at[on | off] = 0.0
    return float(turned)


def test_a_learner_is_not_tried_before_two_credited_lessons() -> None:
    gate = tell(Gate(), [CREDIT] * (SHADOW_LESSONS - 1) + [WON] * 500)
    assert gate.state == "shadow"
    assert gate.evidence().due == 1
    assert {gate.route(str(number)) for number in range(200)} == {"baseline"}
    gate.credit()
    assert gate.state == "trial"
    assert (gate.evidence().won, gate.evidence().evidence) == (0, 1.0)  # earlier comparisons do not count


@pytest.mark.parametrize("idle", [CREDIT, None, TIED], ids=["credit", "no contest", "ties"])
def test_a_gate_is_never_turned_on_or_off_without_a_decided_contest(idle: Fact) -> None:
    gate = tell(in_trial(), [idle] * 3_000)
    assert gate.state == "trial"
    assert (gate.evidence().evidence, gate.evidence().harm) == (1.0, 1.0)


@pytest.mark.parametrize("limit", [4, 5, 7, 10])
def test_crediting_every_shown_memory_never_turns_the_learner_on(limit: int) -> None:
    generator = np.random.default_rng(limit)
    gate = Gate()
    for number in range(1_000):
        baseline, learned = (generator.permutation(30).tolist() for _ in range(2))
        picks = team_draft(baseline, learned, limit, f"recall-{number}")
        gate.credit()
        gate.observe(contest(picks, {pick.item for pick in picks}))
    assert gate.state == "trial"
    assert gate.evidence().evidence == 1.0
    assert gate.gain() is None


@given(st.integers(0, 400), st.integers(0, 400))
def test_the_wealth_is_the_mean_over_four_bets(won: int, lost: int) -> None:
    gate = in_trial()
    told = [WON, LOST] * min(won, lost) + [WON] * (won - lost) + [LOST] * (lost - won)
    used = told_until(gate, told, lambda it: it.state != "trial") or len(told)
    wins = sum(fact == WON for fact in told[:used])
    if gate.state == "trial":
        assert gate.evidence().evidence == pytest.approx(wealth(wins, used - wins))
        assert gate.evidence().harm == pytest.approx(wealth(used - wins, wins))
    elif gate.state == "on":
        assert wealth(wins, used - wins) >= THRESHOLD > wealth(wins - 1, used - wins)
    elif used < LONGEST_TRIAL:
        assert wealth(used - wins, wins) >= HARM_THRESHOLD > wealth(used - wins - 1, wins)


def test_a_coin_is_turned_on_in_at_most_one_of_28_trials() -> None:
    expected, *later = [chance_of_on(0.5, threshold) for threshold in (THRESHOLD, LATER_THRESHOLD, 2 * LATER_THRESHOLD)]
    assert 0.0 < expected <= 1 / 28
    assert expected + sum(later) <= 0.05 - 1 / 280  # all later trials can add at most 1/280
    seeds = 250
    turned_on = 0
    for seed in range(seeds):
        gate = in_trial()
        told_until(gate, coins(0.5, LONGEST_TRIAL, seed), lambda it: it.state != "trial")
        turned_on += gate.state == "on"
        assert gate.state != "trial"
    assert abs(turned_on / seeds - expected) < 4 * np.sqrt(expected * (1 - expected) / seeds)


def test_a_coin_stays_off_over_all_trials() -> None:
    seeds, ever_on = 40, 0
    for seed in range(seeds):
        gate = in_trial()
        for fact in coins(0.5, 3_000, seed):
            tell(gate, [fact, CREDIT])
            if gate.state == "on":
                ever_on += 1
                break
        assert gate.evidence().trial >= 1
    assert ever_on / seeds <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / seeds)


@pytest.mark.parametrize(("rate", "least", "contests"), [(0.6, 0.9, 200), (0.7, 0.99, 60)])
def test_a_learner_that_helps_is_turned_on(rate: float, least: float, contests: int) -> None:
    assert chance_of_on(rate, THRESHOLD) >= least
    needed = [
        told_until(in_trial(), coins(rate, LONGEST_TRIAL, seed), lambda gate: gate.state == "on") for seed in range(100)
    ]
    done = [number for number in needed if number is not None]
    assert len(done) >= (least - 0.07) * len(needed)
    assert np.median(done) <= contests


@pytest.mark.parametrize("rate", [0.3, 0.4])
def test_a_learner_that_harms_is_turned_off_in_the_trial(rate: float) -> None:
    for seed in range(20):
        gate = in_trial()
        told_until(gate, coins(rate, LONGEST_TRIAL, seed), lambda it: it.state != "trial")
        assert gate.state == "off"


@pytest.mark.parametrize("good", [0, 100, 1_000])
def test_harm_turns_the_learner_off_soon_after_any_good_time(good: int) -> None:
    needed = []
    for seed in range(10):
        gate = tell(turned_on(), coins(0.7, good, seed))
        assert gate.state == "on"
        needed.append(told_until(gate, coins(0.3, 500, 1_000 + seed), lambda it: it.state == "off"))
    assert None not in needed
    assert np.median([number or 0 for number in needed]) <= 120


def test_a_learner_that_helps_stays_on() -> None:
    stayed = [tell(turned_on(), coins(0.6, 800, seed)).state == "on" for seed in range(50)]
    assert np.mean(stayed) >= 0.93


def test_the_bet_on_harm_restarts_when_the_learner_is_turned_on() -> None:
    evidence = turned_on().evidence()
    assert (evidence.won, evidence.lost, evidence.harm, evidence.drift) == (0, 0, 1.0, 1.0)
    gate = tell(turned_on(), [WON] * 200)
    assert gate.evidence().harm < 1e-6
    assert gate.evidence().drift == 1.0
    number = told_until(gate, [LOST] * 50, lambda it: it.state == "off")
    assert number is not None
    assert wealth(number, 0) >= DRIFT_THRESHOLD > wealth(number - 1, 0)


def test_an_undecided_trial_ends_and_the_next_requires_more() -> None:
    gate = tell(in_trial(), [WON, LOST] * (LONGEST_TRIAL // 2 - 1) + [WON])
    assert gate.state == "trial"
    gate.observe(LOST)
    assert gate.state == "off"
    assert {gate.route(str(number)) for number in range(200)} == {"baseline"}
    tell(gate, [CREDIT] * (COOL_DOWN_LESSONS - 1) + [WON] * 100)
    assert (gate.state, gate.evidence().due) == ("off", 1)
    gate.credit()
    evidence = gate.evidence()
    assert (gate.state, evidence.trial, evidence.threshold) == ("trial", 2, LATER_THRESHOLD)
    assert (evidence.won, evidence.lost, evidence.evidence) == (0, 0, 1.0)
    number = told_until(gate, [WON] * 50, lambda it: it.state == "on")
    assert number is not None
    assert wealth(number, 0) >= LATER_THRESHOLD > wealth(number - 1, 0)


def test_a_learner_turned_off_a_thousand_times_still_has_a_threshold() -> None:
    gate = Gate.from_bytes(in_trial().to_bytes())
    for _ in range(1_200):
        told_until(gate, [LOST] * 50, lambda it: it.state == "off")
        tell(gate, [CREDIT] * COOL_DOWN_LESSONS)
    assert gate.evidence().trial == 1_201
    assert np.isfinite(gate.evidence().threshold)


def test_ten_thousand_wins_do_not_overflow() -> None:
    gate = tell(turned_on(), [WON] * 10_000)
    assert gate.state == "on"
    assert np.isfinite(gate.evidence().evidence)
    assert gate.evidence().won == 10_000


def test_a_tenth_of_recalls_is_held_out_and_a_tenth_interleaved_while_on() -> None:
    keys = [f"recall-{number}" for number in range(5_000)]
    shares = Counter(turned_on().route(key) for key in keys)
    slack = 4 * np.sqrt(0.09 / len(keys))
    assert abs(shares["baseline"] / len(keys) - 0.1) < slack
    assert abs(shares["interleave"] / len(keys) - 0.1) < slack
    assert shares["learned"] / len(keys) == pytest.approx(0.8, abs=2 * slack)


def test_nothing_that_is_learned_is_shown_in_a_trial() -> None:
    assert {in_trial().route(f"recall-{number}") for number in range(500)} == {"compare"}


def test_the_route_is_a_function_of_key_and_state() -> None:
    one, other = turned_on(), tell(turned_on(), [CREDIT, WON, TIED, None] * 30)
    keys = [f"recall-{number}" for number in range(500)]
    assert [one.route(key) for key in keys] == [other.route(key) for key in keys]
    assert [one.route(f"recall-{number}") for number in range(11)] == [
        *["learned"] * 4,
        "baseline",
        *["learned"] * 3,
        "baseline",
        "interleave",
        "learned",
    ]


@given(FACTS, st.integers(0, 400))
def test_replay_and_a_round_trip_half_way_give_the_same_state(facts: list[Fact], half: int) -> None:
    story: list[Fact] = [CREDIT] * (SHADOW_LESSONS - 1) + facts * 3
    whole = tell(Gate(), story)
    resumed = tell(Gate.from_bytes(tell(Gate(), story[:half]).to_bytes()), story[half:])
    assert whole.to_bytes() == resumed.to_bytes() == tell(Gate(), story).to_bytes()
    assert whole.evidence() == resumed.evidence()
    assert whole.gain() == resumed.gain()


def test_every_state_round_trips() -> None:
    for gate in (Gate(), in_trial(), turned_on(), tell(turned_on(), [WON, LOST, TIED, *[LOST] * 60, CREDIT])):
        restored = Gate.from_bytes(gate.to_bytes())
        assert (restored.state, restored.evidence()) == (gate.state, gate.evidence())
        assert restored.to_bytes() == gate.to_bytes()


@given(st.binary(max_size=100))
def test_arbitrary_bytes_are_refused_without_a_crash(data: bytes) -> None:
    with pytest.raises(DamagedStateError):
        Gate.from_bytes(data)


@pytest.mark.parametrize(("place", "value"), [(0, 1), (1, "ajar"), (3, -1), (5, -2), (6, 1.5)])
def test_an_impossible_state_is_refused(place: int, value: object) -> None:
    state = msgspec.msgpack.decode(turned_on().to_bytes())
    state[place] = value
    with pytest.raises(DamagedStateError):
        Gate.from_bytes(msgspec.msgpack.encode(state))


def test_a_state_cut_short_is_refused() -> None:
    state = msgspec.msgpack.decode(turned_on().to_bytes())
    for length in range(len(state)):
        with pytest.raises(DamagedStateError):
            Gate.from_bytes(msgspec.msgpack.encode(state[:length]))


def test_the_gain_is_the_share_of_wins_less_a_half_with_wilson_bounds() -> None:
    assert in_trial().gain() is None
    gain = tell(in_trial(), [TIED] * 5 + [WON, LOST, WON, WON, LOST] * 4).gain()
    assert gain is not None
    assert (gain.decided, gain.share) == (20, pytest.approx(0.1))
    for bound in (gain.low + 0.5, gain.high + 0.5):  # the bounds solve the score test's equation for 12 wins in 20
        assert abs(0.6 - bound) / np.sqrt(bound * (1 - bound) / 20) == pytest.approx(1.96, abs=1e-4)
    assert gain.low < gain.share < gain.high


@pytest.mark.parametrize("rate", [0.5, 0.7])
def test_the_interval_of_the_gain_covers_the_truth_in_about_95_percent(rate: float) -> None:
    gains = [tell(Gate(), coins(rate, 200, seed)).gain() for seed in range(400)]
    inside = np.mean([gain is not None and gain.low <= rate - 0.5 <= gain.high for gain in gains])
    assert 0.915 <= inside <= 0.985


def test_the_gain_counts_all_contests_ever() -> None:
    gate = in_trial()
    told_until(gate, [LOST] * 50, lambda it: it.state == "off")
    lost = gate.evidence().lost
    tell(gate, [CREDIT] * COOL_DOWN_LESSONS + [WON] * 5)
    gain = gate.gain()
    assert gain is not None
    assert (gate.evidence().won, gate.evidence().lost) == (5, 0)
    assert gain.share == pytest.approx(5 / (5 + lost) - 0.5)
