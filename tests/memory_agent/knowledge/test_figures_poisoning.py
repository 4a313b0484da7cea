"""Attacks on one item by many keys have a bounded effect, which is undone by erasing their users."""

from __future__ import annotations

import pytest
from sharing_world import World, parts_of

from memory_agent.knowledge.figures import Contribution
from memory_agent.records.shared import FoundItem, GlobalRecord
from memory_agent.records.shared_requests import Caller, ForgetUser, Rate, Report, ReportedItem

QUESTION = "what does a deploy to staging need?"
BEST = "A deploy to staging needs the VPN"
PRAISED = "A deploy to staging may need a restart of the tunnel"
OWN = "What a deploy to staging needs: ask Kim"


@pytest.fixture
def items(world: World) -> dict[str, GlobalRecord]:
    return {"best": world.published("ann", BEST), "praised": world.published("ben", PRAISED)}


def praise(world: World, item: GlobalRecord, users: range) -> None:
    """Submit reports, as a host does, for users who repeatedly use a version successfully and rate it."""
    report(world, item, users, 1.0)


def report(world: World, item: GlobalRecord, users: range, rating: float) -> None:
    quality = 1_000.0 * rating
    said = ReportedItem(item_id=item.id, version=item.version, retrievals=1_000, uses=1_000, quality=quality)
    for number in users:
        caller = Caller(user_id=f"sybil-{number}")
        assert world.shared.ask(caller, Report(number=1, items=(said,))) == 1
        world.shared.ask(caller, Rate(item_id=item.id, rating=rating))
    world.shared.expire()


def contributed(world: World, item: GlobalRecord) -> dict[bytes, Contribution]:
    with world.shared._archive.store.snapshot() as snapshot:
        _, parts = parts_of(snapshot, item.id)[item.version]
        return {user: part.sums for user, part in parts.items()}


def seen(world: World) -> dict[str, FoundItem]:
    return world.found("cas", QUESTION)


@pytest.mark.parametrize(
    ("keys", "is_proven", "score"), [(5, False, 0.8), (6, True, 0.8), (20, True, 0.9), (100, True, 1)]
)
def test_keys_that_praise_an_item_prove_it_and_raise_its_score_by_at_most_a_twentieth(
    world: World, items: dict[str, GlobalRecord], keys: int, is_proven: bool, score: float
) -> None:
    best, praised = items["best"].id, items["praised"].id
    world.user("cas").remember(OWN, id="own")
    before = seen(world)
    assert before[best].sona_score - before[praised].sona_score > 0.05
    praise(world, items["praised"], range(keys))
    after = seen(world)
    assert after[praised].is_proven == is_proven
    assert after[praised].item.quality_metrics.avg_trajectory_score == pytest.approx(score, abs=0.05)
    assert after[praised].sona_score - before[praised].sona_score <= 0.05 + 1e-9
    assert (after[best], after[praised].relevance) == (before[best], before[praised].relevance)
    assert list(after) == [best, praised]  # a more relevant item still comes first
    result = world.user("cas").recall(QUESTION, tiers=("local", "global"), deadline_ms=30_000.0)
    order = [best, praised] if not is_proven else [praised, best]  # proven items come before new items
    assert [one.record.id for one in result.memories] == ["own", *order]  # but never before the caller's own memories


@pytest.mark.parametrize(("keys", "is_worse", "score"), [(4, False, None), (5, True, 0.3), (100, True, 0.05)])
def test_keys_that_report_failure_move_an_item_only_after_the_new_ones(
    world: World, items: dict[str, GlobalRecord], keys: int, is_worse: bool, score: float | None
) -> None:
    best, other = items["best"].id, items["praised"].id
    world.user("cas").remember(OWN, id="own")
    before = seen(world)
    report(world, items["best"], range(keys), 0.0)
    after = seen(world)
    assert after[best].item.quality_metrics.avg_trajectory_score == score
    assert after[best].is_worse == is_worse
    assert [(one.sona_score, one.relevance) for one in after.values()] == [
        (one.sona_score, one.relevance) for one in before.values()
    ]
    assert list(after) == [best, other]  # searches are unchanged
    result = world.user("cas").recall(QUESTION, tiers=("local", "global"), deadline_ms=30_000.0)
    order = [other, best] if is_worse else [best, other]
    assert [one.record.id for one in result.memories] == ["own", *order]


def test_honest_users_restore_an_item_that_keys_reported_as_a_failure(
    world: World, items: dict[str, GlobalRecord]
) -> None:
    item = items["best"]
    report(world, item, range(5), 0.0)
    assert seen(world)[item.id].is_worse
    said = ReportedItem(item_id=item.id, version="1", retrievals=1, uses=1, quality=1.0)
    for number in range(10):
        world.shared.ask(Caller(user_id=f"honest-{number}"), Report(number=1, items=(said,)))
    world.shared.expire()
    assert not seen(world)[item.id].is_worse


def test_erasing_a_hundred_attackers_removes_their_contributions_exactly(
    world: World, items: dict[str, GlobalRecord]
) -> None:
    item = items["praised"]
    for number in range(7):
        said = ReportedItem(item_id=item.id, version="1", retrievals=1, uses=1, quality=0.5)
        world.shared.ask(Caller(user_id=f"honest-{number}"), Report(number=1, items=(said,)))
    honest = contributed(world, item), seen(world)
    praise(world, item, range(100))
    assert seen(world)[item.id].is_proven
    for number in range(100):
        world.shared.ask(Caller(user_id=f"sybil-{number}"), ForgetUser())
    assert (contributed(world, item), seen(world)) == honest
    world.reopen()
    assert (contributed(world, item), seen(world)) == honest


def test_an_administrator_removes_a_praised_item_with_its_praise(world: World, items: dict[str, GlobalRecord]) -> None:
    item = items["praised"]
    praise(world, item, range(20))
    assert world.user("operator", is_admin=True).shared.unpublish(item.id).found
    assert seen(world).keys() == {items["best"].id}
    with world.shared._archive.store.snapshot() as snapshot:
        assert parts_of(snapshot, item.id) == {}
