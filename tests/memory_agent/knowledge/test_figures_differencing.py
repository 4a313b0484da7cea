"""Test what releases reveal about one user to an attacker who controls all other users and compares the releases."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

import pytest
from counted_version import CountedVersion
from hypothesis import given, settings
from hypothesis import strategies as st

from memory_agent.knowledge.figures import QUARTERS, Contribution, Rules
from memory_agent.records.shared import QualityMetrics
from memory_agent.records.shared_requests import ReportedItem

RULES = Rules()
VICTIM = b"victim"
LIARS = [f"liar{number}".encode() for number in range(12)]
KEYS = [(number * 0x9E3779B97F4A7C15F39CC0605CEDC835 % (1 << 128)).to_bytes(16, "big") for number in range(24)]
GRID = [thousandths / 1_000 for thousandths in range(0, 1_001, 25)]

Seen = tuple[QualityMetrics, bool, float]


def item(uses: int, quality: float, retrievals: int = 1) -> ReportedItem:
    return ReportedItem(item_id="i", version="1", retrievals=retrievals, uses=uses, quality=quality)


def seen(figures: CountedVersion) -> Seen:
    return figures.metrics(), figures.is_proven, figures.boost


def all_that_shows(key: bytes, value: float, kind: str, others: int) -> tuple[Seen, ...]:
    """Return everything released during an attack on a victim whose quality or rating has this value.

    The attacker controls all other users. Their values are multiples of 1/4, which always map to the same levels, and
    are chosen so that every possible sum occurs. For each sum, these users are erased and contribute again before a
    release. The victim contributes the same value each time, so that there are five changes even with only four other
    users.
    """
    figures = CountedVersion(key, b"author")
    shown = []
    for number in range(1, QUARTERS * others + 2):
        whole, rest = divmod(number - 1, QUARTERS)
        mix = [1.0] * whole + [rest / QUARTERS] + [0.0] * others
        for liar in LIARS[:others]:
            figures.erase(liar)
        for user, its in [*zip(LIARS[:others], mix, strict=False), (VICTIM, value)]:
            if kind == "quality":
                figures.report(user, number, item(1, its))
            else:
                figures.rate(user, None)
                figures.rate(user, its)
        figures.release(RULES)
        shown.append(seen(figures))
    return tuple(shown)


def level(key: bytes, value: float, kind: str) -> int:
    contribution = Contribution().with_item(1, item(1, value)).with_rating(value)
    return (contribution.quality_level if kind == "quality" else contribution.rating_level)(VICTIM, key)


@pytest.mark.parametrize("kind", ["quality", "rating"])
@pytest.mark.parametrize("others", [4, 5])
def test_an_attacker_with_all_other_users_never_learns_a_value_to_an_eighth(others: int, kind: str) -> None:
    causes: defaultdict[tuple[Seen, ...], list[float]] = defaultdict(list)
    for key in KEYS:
        for value in GRID:
            causes[all_that_shows(key, value, kind, others)].append(value)
    assert len(causes) == QUARTERS + 1  # the strongest possible attack: it finds the level
    widths = sorted(max(values) - min(values) for values in causes.values())
    assert widths[0] > 0.22  # levels 0 and 1: tends to .25 with more keys
    assert widths[2] > 0.42  # the other levels: tends to .5


Action = tuple[str, int, float]
ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(["use", "retrieve", "rate", "erase", "release", "release", "victim uses", "victim rates"]),
        st.integers(0, 8),
        st.sampled_from([0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0]),
    ),
    max_size=80,
)


def shown_by(key: bytes, quality: float, uses: int, actions: Sequence[Action], rules: Rules) -> list[Seen]:
    """Return all releases during an attack. The victim's runs have this quality; each report contains `uses` uses."""
    figures = CountedVersion(key, b"author")
    shown = []
    for number, (verb, place, value) in enumerate(actions, 1):
        if verb == "use":
            figures.report(LIARS[place], number, item(1, value))
        elif verb == "retrieve":
            figures.report(LIARS[place], number, item(0, 0.0, retrievals=1 + place))
        elif verb == "rate":
            figures.rate(LIARS[place], value if place else None)
        elif verb == "erase":
            figures.erase(LIARS[place])
        elif verb == "victim uses":
            figures.report(VICTIM, number, item(uses, quality * uses, retrievals=uses))
        elif verb == "victim rates":
            figures.rate(VICTIM, None)
            figures.rate(VICTIM, quality)
        else:
            figures.release(rules)
        shown.append(seen(figures))
    return shown


def levels(key: bytes, value: float) -> tuple[int, int]:
    return level(key, value, "quality"), level(key, value, "rating")


def exact(quality: float) -> float:
    """Return the quality rounded to thousandths, as in a sum of several uses."""
    return round(quality * 1_000) / 1_000


@settings(max_examples=300)
@given(ACTIONS, st.sampled_from(KEYS), st.floats(0.0, 1.0).map(exact), st.floats(0.0, 1.0).map(exact), st.data())
def test_two_qualities_of_one_level_are_indistinguishable_whatever_other_users_do(
    actions: list[Action], key: bytes, one: float, other: float, data: st.DataObject
) -> None:
    if levels(key, one) != levels(key, other):
        other = data.draw(st.sampled_from([near for near in GRID if levels(key, near) == levels(key, one)] or [one]))
    rules = Rules(prior_weight=0.0, score_step=0.01, count_step=1)  # the result does not depend on rounding
    assert shown_by(key, one, 3, actions, rules) == shown_by(key, other, 50, actions, rules)


def contributors(qualities: Iterable[float], key: bytes) -> CountedVersion:
    figures = CountedVersion(key, b"author")
    for liar, quality in zip(LIARS, qualities, strict=False):
        figures.report(liar, 1, item(1, quality))
        figures.rate(liar, quality)
    return figures


@pytest.mark.parametrize("key", KEYS[:5])
def test_figures_before_and_after_an_erasure_cannot_be_differenced(key: bytes) -> None:
    figures = contributors([1.0, 0.0] * 5, key)
    figures.report(VICTIM, 1, item(1, 0.6))
    figures.rate(VICTIM, 0.6)
    figures.release(RULES)
    assert figures.metrics().distinct_users == 10
    figures.erase(VICTIM)
    assert seen(figures) == (QualityMetrics(), False, 0.0)
    for number in range(2, 5):
        for liar in LIARS[:4]:
            figures.report(liar, number, item(1, 1.0))
            figures.rate(liar, number / 10)
        assert not figures.release(RULES)
        assert seen(figures) == (QualityMetrics(), False, 0.0)
    figures.report(LIARS[4], 2, item(1, 1.0))
    figures.rate(LIARS[4], 0.5)
    assert figures.release(RULES)
    assert figures.metrics().distinct_users == 10


def test_an_erased_user_who_was_in_no_release_changes_no_figure() -> None:
    figures = contributors([1.0] * 8, KEYS[0])
    figures.release(RULES)
    before = seen(figures), figures.to_bytes()
    figures.report(VICTIM, 1, item(1, 0.0))
    figures.rate(VICTIM, 0.0)
    figures.erase(VICTIM)
    assert (seen(figures), figures.to_bytes()) == before


def test_a_user_of_the_last_release_who_changed_since_is_withdrawn_with_it() -> None:
    figures = contributors([1.0] * 8, KEYS[0])
    figures.release(RULES)
    figures.report(LIARS[0], 2, item(1, 0.0))
    figures.rate(LIARS[0], None)
    figures.erase(LIARS[0])
    assert seen(figures) == (QualityMetrics(), False, 0.0)


def test_an_erasure_does_not_count_as_one_of_the_five_changes() -> None:
    figures = contributors([1.0] * 10, KEYS[0])
    figures.release(RULES)
    for liar in LIARS[:4]:
        figures.report(liar, 2, item(1, 0.0))
    figures.erase(LIARS[9])
    assert not figures.release(RULES)
    assert figures.metrics().avg_trajectory_score is None
