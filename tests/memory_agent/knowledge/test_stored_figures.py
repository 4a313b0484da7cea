"""The stored form of figures: one blob for each user of an item."""

from __future__ import annotations

import threading

import pytest
from sharing_world import World, after_each_step, parts_of

from memory_agent.knowledge import removal
from memory_agent.knowledge.pseudonyms import FIGURES, PARTS, PLACE_CHARS
from memory_agent.records.shared import GlobalRecord, QualityMetrics
from memory_agent.records.shared_requests import Caller, ForgetUser, Rate, Report, ReportedItem
from memory_agent.storage.batch import Batch


def report(world: World, user: str, number: int, *items: GlobalRecord) -> None:
    said = tuple(ReportedItem(item_id=one.id, version=one.version, retrievals=2, uses=1, quality=1.0) for one in items)
    assert world.shared.ask(Caller(user_id=user), Report(number=number, items=said)) == len(items)


def rate(world: World, user: str, item: GlobalRecord, rating: float | None) -> None:
    world.shared.ask(Caller(user_id=user), Rate(item_id=item.id, rating=rating))


def metrics(world: World, item: GlobalRecord) -> QualityMetrics:
    shown = {one.id: one for one in world.user("ann").shared.published()}
    return shown[item.id].quality_metrics


def blobs(world: World, kind: str) -> dict[str, bytes | None]:
    with world.shared._archive.store.snapshot() as snapshot:
        return {name: snapshot.blob(name) for name in snapshot.blobs(kind)}


def test_a_report_writes_the_part_of_its_user_alone(world: World) -> None:
    item, other = world.published("ann", "Staging needs the VPN"), world.published("ann", "Another")
    for number in range(8):
        report(world, f"user-{number}", 1, item, other)
    before = blobs(world, PARTS)
    report(world, "user-3", 2, item)
    after = blobs(world, PARTS)
    assert before.keys() == after.keys()
    assert len([name for name in after if after[name] != before[name]]) == 1
    world.shared.expire()
    assert blobs(world, PARTS) == after  # a release does not change the contributions
    assert metrics(world, item).distinct_users == 5


def test_no_name_of_a_part_tells_which_items_one_user_has_used(world: World) -> None:
    items = [world.published("ann", f"Staging {number} needs the VPN") for number in range(3)]
    report(world, "ben", 1, *items)
    names = [name.removeprefix(PARTS) for name in blobs(world, PARTS)]
    assert len({name[:PLACE_CHARS] for name in names}) == len({name[PLACE_CHARS:] for name in names}) == 3


def test_one_upkeep_releases_the_figures_of_each_version_that_are_due(world: World) -> None:
    item = world.published("ann", "Staging needs the VPN")
    world.published("ann", "Staging needs the new VPN", item_id=item.id, version="2")
    for number in range(5):
        for version in ("1", "2"):
            world.user(f"user-{number}").shared.rate(item.id, 1.0, version)
    world.shared.expire()
    with world.shared._archive.store.snapshot() as snapshot:
        released = {name: standing.metrics().raters for name, (standing, _) in parts_of(snapshot, item.id).items()}
    assert released == {"1": 5, "2": 5}


def test_contributions_are_removed_with_their_item(world: World) -> None:
    item = world.published("ann", "Staging needs the VPN")
    for number in range(8):
        report(world, f"user-{number}", 1, item)
    world.user("ann").shared.unpublish(item.id)
    world.shared.expire()
    assert blobs(world, PARTS) == blobs(world, FIGURES) == {}


def test_a_rating_removed_between_reports_and_releases_is_counted_once(world: World) -> None:
    item = world.published("ann", "Staging needs the VPN")
    for number in range(6):
        rate(world, f"user-{number}", item, 1.0)
    world.shared.expire()
    rate(world, "user-0", item, None)
    world.reopen()
    for number in range(1, 4):
        rate(world, f"user-{number}", item, 0.0)
    world.shared.expire()
    assert metrics(world, item).user_rating == 1.0  # four changes
    assert len(blobs(world, PARTS)) == 6
    rate(world, "user-4", item, 0.0)
    world.shared.expire()
    assert metrics(world, item).user_rating in (0.2, 0.25)
    assert len(blobs(world, PARTS)) == 5


@pytest.mark.parametrize("step", [2, 3, 4, 5])
def test_other_users_write_while_a_user_is_erased(world: World, monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    """Other users write between two transactions of the erasure."""
    monkeypatch.setattr(removal, "_AT_ONCE", 1)
    items = [world.published("ann", f"Staging {number} needs the VPN") for number in range(3)]
    own = world.published("ben", "A fix of his own")
    report(world, "ben", 1, *items)
    world.user("ben").shared.set_name("Ben")
    steps = 0
    writer = threading.Thread(target=report, args=(world, "cas", 1, items[0]), daemon=True)

    def between() -> None:
        nonlocal steps
        steps += 1
        if steps == step:
            writer.start()
            writer.join(0.1)  # lets the writer reach the store's lock, which is held until `between` returns

    with after_each_step(between):
        assert world.shared.ask(Caller(user_id="ben"), ForgetUser()).items == 1
    assert steps > step
    writer.join(30)
    assert not writer.is_alive()
    assert len(blobs(world, PARTS)) == 1  # of cas
    assert own.id not in world.found("dot", "fix")
    world.reopen()
    assert len(blobs(world, PARTS)) == 1


def test_an_erasure_that_fails_half_way_is_completed_by_the_next_opening(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Opening the store completes the erasure even if another removal succeeded in between."""
    monkeypatch.setattr(removal, "_AT_ONCE", 1)
    items = [world.published("ann", f"Staging {number} needs the VPN") for number in range(3)]
    report(world, "ben", 1, *items)
    erase_user, left = removal.erase_user, [1]

    def fails(batch: Batch, place: str, user: bytes) -> None:
        if not left:
            raise OSError("the disk is away")
        left.pop()
        erase_user(batch, place, user)

    with monkeypatch.context() as patched:
        patched.setattr(removal, "erase_user", fails)
        with pytest.raises(OSError, match="away"):
            world.shared.ask(Caller(user_id="ben"), ForgetUser())
    assert len(blobs(world, PARTS)) == 2
    assert world.user("ann").shared.unpublish(items[0].id).found
    world.reopen()
    assert blobs(world, PARTS) == {}


def test_a_removal_that_fails_is_not_hidden_by_one_beside_it(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    failed, done = world.published("ann", "Staging needs the VPN"), world.published("ann", "Another")
    world.shared.removal.note([failed.id])
    world.shared.removal.note([done.id])
    with monkeypatch.context() as patched:
        patched.setattr(world.shared._forgetting, "remove", fails_always)
        with pytest.raises(OSError, match="away"):
            world.shared.removal.carry_out([failed.id])
    world.shared.removal.carry_out([done.id])
    assert world.user("ann").shared.published() == [failed]
    world.reopen()
    assert world.user("ann").shared.published() == []


def fails_always(*_: object) -> int:
    raise OSError("the disk is away")
