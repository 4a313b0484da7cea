"""Figures of a shared version: which users are counted, when, and with which weight; an erased user leaves no trace."""

from __future__ import annotations

import doctest
import secrets
from collections.abc import Iterable, Sequence

import msgspec
import pytest
from counted_version import CountedVersion
from hypothesis import given
from hypothesis import strategies as st

from memory_agent.knowledge import figures as module
from memory_agent.knowledge.figures import KEY_BYTES, Contribution, Figures, Part, Rules, Standing
from memory_agent.records.shared import QualityMetrics
from memory_agent.records.shared_requests import ReportedItem

RULES = Rules()
KEY = bytes(range(KEY_BYTES))
AUTHOR = b"author"
USERS = [f"user{number}".encode() for number in range(40)]


def item(retrievals: int = 0, uses: int = 0, quality: float = 0.0) -> ReportedItem:
    return ReportedItem(item_id="i", version="1", retrievals=retrievals, uses=uses, quality=quality)


def empty() -> CountedVersion:
    return CountedVersion(KEY, AUTHOR)


def used_by(qualities: Sequence[float], uses: int = 1) -> CountedVersion:
    figures = empty()
    for user, quality in zip(USERS, qualities, strict=False):
        figures.report(user, 1, item(1, uses, quality * uses))
    return figures


def use_again(figures: CountedVersion, users: Iterable[bytes], number: int, quality: float = 1.0) -> None:
    for user in users:
        figures.report(user, number, item(1, 1, quality))


def test_the_example_runs_as_printed() -> None:
    names = vars(module) | {"secrets": secrets, "ReportedItem": ReportedItem}
    example = doctest.DocTestParser().get_doctest(Figures.__doc__ or "", names, "Figures", None, 0)
    said: list[str] = []
    doctest.DocTestRunner().run(example, out=said.append)
    assert example.examples
    assert not said, "".join(said)


def test_nothing_is_released_for_four_users() -> None:
    figures = used_by([1.0] * 4)
    for user in USERS[:4]:
        figures.rate(user, 1.0)
    assert not figures.release(RULES)
    assert figures.metrics() == QualityMetrics()
    assert (figures.is_proven, figures.boost) == (False, 0.0)


def test_five_users_are_released_and_not_before_the_release() -> None:
    figures = used_by([1.0] * 5)
    assert figures.metrics() == QualityMetrics()
    assert figures.release(RULES)
    assert figures.metrics() == QualityMetrics(
        avg_trajectory_score=0.8, usage_count=5, used_count=5, distinct_users=5, user_rating=None, raters=0
    )
    assert not figures.release(RULES)


def test_the_author_counts_for_nothing() -> None:
    figures = used_by([1.0] * 4)
    before = figures.to_bytes()
    assert not figures.report(AUTHOR, 1, item(1, 1, 1.0))
    assert not figures.rate(AUTHOR, 1.0)
    assert figures.to_bytes() == before
    assert not figures.release(RULES)


def test_each_figure_has_users_of_its_own() -> None:
    figures = empty()
    for user in USERS[:5]:
        figures.report(user, 1, item(retrievals=1))
    for user in USERS[5:9]:
        figures.report(user, 1, item(uses=1, quality=1.0))
    for user in USERS[9:13]:
        figures.rate(user, 1.0)
    assert figures.release(RULES)
    assert figures.metrics() == QualityMetrics(usage_count=5)


def test_each_figure_has_changes_of_its_own() -> None:
    figures = used_by([0.0] * 10)
    figures.release(RULES)
    before = figures.metrics()
    use_again(figures, USERS[:4], 2)
    for user in USERS[4:8]:
        figures.report(user, 2, item(retrievals=2))
    figures.release(RULES)
    after = figures.metrics()
    assert after.usage_count == 20 > before.usage_count  # 4 * 2 + 4 * 3 + 2
    assert (after.avg_trajectory_score, after.used_count) == (before.avg_trajectory_score, before.used_count)
    for user in USERS[:4]:
        figures.report(user, 3, item(retrievals=2))
    for user in USERS[8:13]:
        figures.report(user, 2, item(uses=1))
    figures.release(RULES)
    assert figures.metrics().usage_count == 20  # not 4 more
    assert figures.metrics().used_count == 15  # 4 * 2 + 4 + 2 * 2 + 3


def test_five_changed_users_are_needed_for_another_release() -> None:
    figures = used_by([0.0] * 10)
    figures.release(RULES)
    before = figures.metrics()
    use_again(figures, USERS[:4], 2)
    use_again(figures, USERS[:4], 3)
    assert not figures.release(RULES)
    assert figures.metrics() == before
    use_again(figures, USERS[4:5], 2)
    assert figures.release(RULES)
    assert figures.metrics() != before


def test_higher_thresholds_are_kept() -> None:
    rules = Rules(users=20, changed=7)
    figures = used_by([1.0] * 19)
    assert not figures.release(rules)
    use_again(figures, USERS[19:20], 1)
    assert figures.release(rules)
    use_again(figures, USERS[:6], 2, 0.0)
    assert not figures.release(rules)
    use_again(figures, USERS[6:7], 2, 0.0)
    assert figures.release(rules)


@pytest.mark.parametrize(
    "wrong", [{"users": 4}, {"changed": 4}, {"largest_boost": 0.06}, {"prior": 0.0}, {"doubt": 0.0}, {"user": 5}]
)
def test_rules_below_the_minimum_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(wrong, Rules)


def test_a_hundred_recalls_and_uses_of_one_user_count_as_three() -> None:
    figures, thrice = used_by([1.0] * 6), used_by([1.0] * 6)
    figures.report(USERS[0], 2, item(100, 100, 100.0))
    thrice.report(USERS[0], 2, item(2, 2, 2.0))
    for each in (figures, thrice):
        each.release(RULES)
    assert figures.metrics() == thrice.metrics()
    assert (figures.metrics().usage_count, figures.metrics().used_count) == (5, 5)  # 3 + 5 * 1, down to a multiple of 5


def test_one_user_has_one_vote_however_many_uses() -> None:
    figures = used_by([0.0] * 9)
    figures.report(USERS[9], 1, item(1, 10_000, 10_000.0))
    figures.release(Rules(prior_weight=0.0))
    assert figures.metrics().avg_trajectory_score == pytest.approx(0.1)


@given(st.integers(5, 20), st.integers(0, 20), st.floats(0.0, 1.0))
def test_liars_move_the_score_by_their_share_of_the_users_at_most(honest: int, liars: int, quality: float) -> None:
    figures, alone = used_by([quality] * honest), used_by([quality] * honest)
    for user in USERS[honest : honest + liars]:
        figures.report(user, 1, item(10_000, 10_000, 10_000.0))
    for each in (figures, alone):
        each.release(RULES)
    moved = (figures.metrics().avg_trajectory_score or 0.0) - (alone.metrics().avg_trajectory_score or 0.0)
    assert -1e-9 <= moved <= liars / (honest + liars + RULES.prior_weight) + RULES.score_step + 1e-9


def test_figures_are_rounded() -> None:
    figures = used_by([0.0] * 3 + [1.0] * 10, uses=2)
    figures.release(RULES)
    metrics = figures.metrics()
    assert metrics.avg_trajectory_score == 0.7  # (10 + 5 * .6) / 18 = .722
    assert (metrics.usage_count, metrics.used_count, metrics.distinct_users) == (10, 25, 10)  # 13, 26, 13


def test_ratings_are_shown_from_five_raters_on_and_replaced() -> None:
    figures = empty()
    for user in USERS[:4]:
        assert figures.rate(user, 1.0)
        assert not figures.rate(user, 1.0)
    figures.release(RULES)
    assert figures.metrics().user_rating is None
    figures.rate(USERS[4], 0.0)
    figures.release(RULES)
    assert (figures.metrics().user_rating, figures.metrics().raters) == (0.8, 5)
    for user in USERS[:6]:
        figures.rate(user, 0.0)
    figures.release(RULES)
    assert (figures.metrics().user_rating, figures.metrics().raters) == (0.0, 5)


def test_a_mean_rating_is_rounded_and_not_shrunk() -> None:
    figures = empty()
    for user, rating in zip(USERS, [1.0] * 5 + [0.0] * 2, strict=False):
        figures.rate(user, rating)
    figures.release(RULES)
    assert (figures.metrics().user_rating, figures.metrics().raters) == (0.7, 5)  # .714 of 7


def test_a_removed_rating_is_gone_and_the_mean_with_it_when_fewer_than_five_are_left() -> None:
    figures = empty()
    for user in USERS[:6]:
        figures.rate(user, 1.0)
    figures.release(RULES)
    figures.rate(USERS[0], None)
    assert USERS[0] not in figures.contributions
    figures.release(RULES)
    assert figures.metrics().user_rating == 1.0
    figures.rate(USERS[1], None)
    assert figures.release(RULES)
    assert figures.metrics() == QualityMetrics()


def test_a_rating_given_and_removed_between_releases_is_no_change() -> None:
    figures = empty()
    before = figures.to_bytes()
    figures.rate(USERS[0], 0.5)
    figures.rate(USERS[0], None)
    assert figures.to_bytes() == before


def test_a_dozen_good_users_prove_a_version_and_five_do_not() -> None:
    figures = used_by([1.0] * 5)
    figures.release(RULES)
    assert (figures.is_proven, figures.boost) == (False, 0.0)
    use_again(figures, USERS[5:12], 1)
    figures.release(RULES)
    assert figures.is_proven
    assert figures.boost == 0.05
    assert figures.metrics().distinct_users == 10


def test_a_poor_version_gains_nothing_and_loses_nothing() -> None:
    figures = used_by([0.0] * 30)
    figures.release(RULES)
    assert (figures.is_proven, figures.boost) == (False, 0.0)
    assert figures.metrics().avg_trajectory_score == 0.1


@given(st.lists(st.floats(0.0, 1.0), min_size=5, max_size=40), st.floats(0.05, 0.95), st.floats(0.0, 0.5))
def test_the_boost_is_at_most_05_never_negative_and_rises_with_quality(
    qualities: list[float], prior: float, better: float
) -> None:
    rules = Rules(prior=prior)
    figures, others = used_by(qualities), used_by([min(quality + better, 1.0) for quality in qualities])
    for each in (figures, others):
        each.release(rules)
    assert 0.0 <= figures.boost <= others.boost <= 0.05
    assert figures.is_proven == (figures.boost > 0.0)


def test_changes_after_a_release_appear_in_the_next_one() -> None:
    figures = used_by([1.0] * 12)
    figures.release(RULES)
    before = figures.metrics(), figures.is_proven, figures.boost
    for number in range(2, 6):
        use_again(figures, USERS[:4], number, 0.0)
        figures.release(RULES)
    assert (figures.metrics(), figures.is_proven, figures.boost) == before
    use_again(figures, USERS[4:5], 2, 0.0)
    figures.release(RULES)
    assert (figures.is_proven, figures.boost) == (False, 0.0)


STEPS = st.lists(
    st.tuples(
        st.integers(0, 7),
        st.sampled_from(["retrieve", "use", "rate", "unrate", "release"]),
        st.integers(0, 1_000).map(lambda quality: quality / 1_000),
    ),
    max_size=60,
)
Step = tuple[int, str, float]


def play(steps: Sequence[Step], *, without: int | None = None, releases: bool = True) -> CountedVersion:
    figures = empty()
    for number, (place, verb, quality) in enumerate(steps, 1):
        if verb == "release":
            if releases:
                figures.release(RULES)
        elif place == without:
            continue
        elif verb == "retrieve":
            figures.report(USERS[place], number, item(retrievals=1))
        elif verb == "use":
            figures.report(USERS[place], number, item(1, 1, quality))
        else:
            figures.rate(USERS[place], quality if verb == "rate" else None)
    return figures


@given(STEPS, st.integers(0, 7))
def test_without_releases_an_erased_user_leaves_no_trace_in_the_bytes(steps: list[Step], user: int) -> None:
    figures = play(steps, releases=False)
    contributed = USERS[user] in figures.contributions
    assert figures.erase(USERS[user]) == contributed
    assert figures.to_bytes() == play(steps, without=user, releases=False).to_bytes()


@given(STEPS, st.integers(0, 7))
def test_after_releases_an_erased_user_leaves_the_same_contributions_and_no_figure(
    steps: list[Step], user: int
) -> None:
    figures = play(steps)
    before = figures.metrics()
    figures.erase(USERS[user])
    never = play(steps, without=user)
    assert figures.contributions == never.contributions
    assert USERS[user] not in figures.parts
    data = figures.to_bytes()
    assert USERS[user] not in data
    after = figures.metrics()
    assert after.avg_trajectory_score in (before.avg_trajectory_score, None)
    assert after.usage_count in (before.usage_count, 0)
    assert not figures.erase(USERS[user])
    assert figures.to_bytes() == data


@given(STEPS)
def test_erasing_all_users_leaves_an_empty_state(steps: list[Step]) -> None:
    figures = play(steps)
    for user in USERS[:8]:
        figures.erase(user)
    assert figures.to_bytes() == empty().to_bytes()


@given(STEPS)
def test_the_stored_form_gives_the_same_figures_back(steps: list[Step]) -> None:
    figures = play(steps)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(figures.standing), type=Standing) == figures.standing
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(figures.parts), type=dict[bytes, Part]) == figures.parts


@given(STEPS)
def test_the_sums_are_always_those_of_the_parts(steps: list[Step]) -> None:
    figures = play(steps)
    assert figures.standing == figures.standing.counted(figures.parts)
    assert all(part.sums != Contribution() or user in figures.standing.left for user, part in figures.parts.items())


def test_a_user_who_removed_a_rating_is_forgotten_at_the_next_release() -> None:
    figures = empty()
    for user in USERS[:10]:
        figures.rate(user, 1.0)
    figures.release(RULES)
    figures.rate(USERS[0], None)
    assert USERS[0] in figures.parts  # the user counts once among the five changes
    figures.rate(USERS[0], 0.5)
    figures.rate(USERS[0], None)
    assert figures.standing.rating.waiting == 1
    for user in USERS[1:5]:
        figures.rate(user, 0.5)
    assert figures.release(RULES)
    assert USERS[0] not in figures.parts
    assert USERS[0] not in figures.to_bytes()


def test_the_bytes_do_not_depend_on_the_order_of_the_users() -> None:
    forwards, backwards = empty(), empty()
    for user in USERS:
        forwards.report(user, 1, item(1, 1, 0.5))
    for user in reversed(USERS):
        backwards.report(user, 1, item(1, 1, 0.5))
    assert forwards.to_bytes() == backwards.to_bytes()


def test_reads_and_writes_do_not_grow_with_the_number_of_users() -> None:
    figures = empty()
    for number in range(1_000):
        figures.report(secrets.token_bytes(8), 1 + number, item(5, 3, 2.345))
    figures.release(RULES)
    assert len(msgspec.msgpack.encode(figures.standing)) < 150
    assert max(len(msgspec.msgpack.encode(part)) for part in figures.parts.values()) < 20


def test_an_invalid_key_is_refused() -> None:
    with pytest.raises(ValueError, match="16 bytes"):
        Standing.create(b"short", AUTHOR)


@pytest.mark.parametrize(
    ("prior", "succeeded", "failed", "is_worse"),
    [
        (0.6, 0, 4, False),  # nothing is released
        (0.6, 0, 5, True),
        (0.6, 2, 3, True),
        (0.6, 3, 2, False),  # equal to the prior
        (0.62, 3, 2, False),  # both are rounded to .6
        (0.8, 3, 2, True),
    ],
)
def test_a_released_score_below_the_prior_is_worse(prior: float, succeeded: int, failed: int, is_worse: bool) -> None:
    rules = Rules(prior=prior)
    figures = used_by([1.0] * succeeded + [0.0] * failed)
    assert not figures.standing.is_worse(rules)
    figures.release(rules)
    assert figures.standing.is_worse(rules) == is_worse


def test_erasing_a_user_withdraws_that_a_version_is_worse_with_its_score() -> None:
    figures = used_by([0.0] * 6)
    figures.release(RULES)
    assert figures.standing.is_worse(RULES)
    figures.erase(USERS[0])
    assert not figures.standing.is_worse(RULES)
