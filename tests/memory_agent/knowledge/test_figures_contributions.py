"""Reports count once, impossible reports are refused, and a value is released only as a coarse, unbiased level."""

from __future__ import annotations

import math
from itertools import accumulate, pairwise
from random import Random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memory_agent.errors import InvalidInputError
from memory_agent.knowledge.figures import QUARTERS, Contribution, check_report
from memory_agent.records.shared_requests import LARGEST_REPORT, Report, ReportedItem

KEYS = [number.to_bytes(16, "big") for number in range(2_000)]


def item(retrievals: int = 0, uses: int = 0, quality: float = 0.0, name: str = "i") -> ReportedItem:
    return ReportedItem(item_id=name, version="1", retrievals=retrievals, uses=uses, quality=quality)


def report_of(*items: ReportedItem, number: int = 1) -> Report:
    return Report(number=number, items=items)


def used(quality: float, uses: int = 1) -> Contribution:
    return Contribution().with_item(1, item(uses=uses, quality=quality * uses))


@st.composite
def possible_items(draw: st.DrawFn) -> ReportedItem:
    uses = draw(st.integers(0, 10_000))
    return item(draw(st.integers(0 if uses else 1, 10_000)), uses, draw(st.floats(0.0, 1.0)) * uses)


@given(st.integers(1, 1 << 53), st.lists(possible_items(), min_size=1, max_size=LARGEST_REPORT))
def test_a_possible_report_is_accepted(number: int, items: list[ReportedItem]) -> None:
    named = [msgspec.structs.replace(each, item_id=str(place)) for place, each in enumerate(items)]
    check_report(report_of(*named, number=number))


def test_a_report_of_twenty_items_is_accepted() -> None:
    check_report(report_of(*[item(10_000, 10_000, 10_000.0, name=str(place)) for place in range(20)], number=1 << 53))


@pytest.mark.parametrize(
    ("report", "field"),
    [
        (report_of(item(1), number=0), "number"),
        (report_of(item(1), number=-3), "number"),
        (report_of(item(1), number=(1 << 53) + 1), "number"),
        (report_of(), "items"),
        (report_of(*[item(1, name=str(place)) for place in range(21)]), "items"),
        (report_of(item(1), item(uses=1)), "items"),
        (report_of(item(-1, 1)), "items[0].retrievals"),
        (report_of(item(10_001)), "items[0].retrievals"),
        (report_of(item(1, -1)), "items[0].uses"),
        (report_of(item(1, name="j"), item(1, 10_001)), "items[1].uses"),
        (report_of(item()), "items[0]"),
        (report_of(item(uses=2, quality=2.001)), "items[0].quality"),
        (report_of(item(1, quality=0.1)), "items[0].quality"),
        (report_of(item(uses=2, quality=-0.001)), "items[0].quality"),
        (report_of(item(uses=2, quality=math.nan)), "items[0].quality"),
        (report_of(item(uses=2, quality=math.inf)), "items[0].quality"),
    ],
)
def test_an_impossible_report_is_refused_by_the_name_of_its_field(report: Report, field: str) -> None:
    with pytest.raises(InvalidInputError) as refused:
        check_report(report)
    assert refused.value.field == field


@given(st.lists(st.tuples(st.integers(1, 8), possible_items()), max_size=20))
def test_a_report_counts_once_and_not_after_a_later_one(sent: list[tuple[int, ReportedItem]]) -> None:
    first = dict(reversed(sent))  # the first content sent for each number
    contribution = Contribution()
    for number, _ in sent:
        before = contribution
        contribution = contribution.with_item(number, first[number])
        assert (contribution is before) == (number <= before.report)
    highest = [0, *accumulate([number for number, _ in sent], max)]
    counted = [first[now] for before, now in pairwise(highest) if now > before]
    assert contribution.retrievals == sum(each.retrievals for each in counted)
    assert contribution.uses == sum(each.uses for each in counted)
    assert contribution.quality == sum(round(each.quality * 1_000) for each in counted)


def test_a_lower_number_is_lost_even_if_it_never_counted() -> None:
    contribution = Contribution().with_item(5, item(uses=1, quality=1.0))
    assert contribution.with_item(4, item(uses=9, quality=9.0)) == contribution
    assert contribution.with_item(6, item(uses=1)).uses == 2


@given(
    st.lists(st.integers(0, 1_000).map(lambda quality: quality / 1_000), min_size=1, max_size=30),
    st.randoms(use_true_random=False),
)
def test_sums_do_not_depend_on_the_order(qualities: list[float], random: Random) -> None:
    def summed(order: list[float]) -> Contribution:
        contribution = Contribution()
        for number, quality in enumerate(order, 1):
            contribution = contribution.with_item(number, item(uses=1, quality=quality))
        return contribution

    assert summed(random.sample(qualities, len(qualities))) == summed(qualities)


@pytest.mark.parametrize("rating", [-0.01, 1.01, math.nan, math.inf])
def test_a_rating_outside_0_to_1_is_refused(rating: float) -> None:
    with pytest.raises(InvalidInputError, match="rating"):
        Contribution().with_rating(rating)


def test_a_rating_is_replaced_and_removed() -> None:
    contribution = used(0.5)
    assert contribution.with_rating(0.2).with_rating(0.7) == contribution.with_rating(0.7)
    assert contribution.with_rating(0.2).with_rating(None) == contribution


@pytest.mark.parametrize("quality", [0.0, 0.13, 0.25, 0.4, 0.6, 0.85, 0.97, 1.0])
def test_levels_lie_within_a_quarter_of_the_value_and_have_its_mean(quality: float) -> None:
    for levels in (
        [used(quality).quality_level(b"user", key) / QUARTERS for key in KEYS],
        [Contribution().with_rating(quality).rating_level(b"user", key) / QUARTERS for key in KEYS],
    ):
        assert all(abs(level - quality) < 0.25 and 0.0 <= level <= 1.0 for level in levels)
        assert sum(levels) / len(levels) == pytest.approx(quality, abs=0.01)


@given(st.binary(min_size=1, max_size=32), st.sampled_from(KEYS), st.integers(0, 1_000), st.integers(1, 50))
def test_a_level_stays_while_the_mean_stays_and_rises_with_it(user: bytes, key: bytes, mean: int, uses: int) -> None:
    level = used(mean / 1_000).quality_level(user, key)
    assert used(mean / 1_000, uses).quality_level(user, key) == level
    assert used(min(mean + 37, 1_000) / 1_000).quality_level(user, key) >= level
    assert used(min(mean + 250, 1_000) / 1_000).quality_level(user, key) == min(level + 1, QUARTERS) or mean > 750


def test_users_versions_and_purposes_have_offsets_of_their_own() -> None:
    middle = used(0.375).with_rating(0.375)  # level 1 or 2, depending only on the offset
    by_user = [middle.quality_level(str(number).encode(), KEYS[0]) for number in range(400)]
    by_key = [middle.quality_level(b"user", key) for key in KEYS[:400]]
    of_rating = [middle.rating_level(b"user", key) for key in KEYS[:400]]
    for levels in (by_user, by_key, of_rating):
        assert levels.count(1) + levels.count(2) == 400
        assert 150 < levels.count(1) < 250
    assert 150 < sum(one == other for one, other in zip(by_key, of_rating, strict=True)) < 250
