"""Votes on shared items are counted per person or organisation, and only once the oldest key is old enough."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sharing_world import UNLIMITED, World, after_each_step, copy_folder, parts_of

from memory_agent.embedders import Embedder
from memory_agent.knowledge import faults_of_knowledge
from memory_agent.knowledge import store as store_module
from memory_agent.knowledge.figures import KEY_BYTES
from memory_agent.knowledge.items import place_in
from memory_agent.knowledge.pseudonyms import PARTS, RECORDED, VOTERS
from memory_agent.knowledge.stored_figures import ItemFigures, standings_at, write_standings
from memory_agent.knowledge.voters import groups_of
from memory_agent.records.shared import FoundItem, GlobalRecord
from memory_agent.records.shared_requests import Caller, ForgetUser, Rate, Report, ReportedItem
from memory_agent.settings import Settings, SharedSettings
from relay import Scope, StoredKey, create_key, read_keys, revoke_key, rotate_key, set_person
from relay.access.key_file import _write_keys
from relay.net import curve_pair

NOW = datetime.now(UTC)
LATER = NOW + timedelta(days=8)
READ = frozenset({Scope.RECALL})
TEXT = "A deploy to staging needs the VPN"
SIX = [f"mallory-{number}" for number in range(6)]
HONEST = [f"honest-{number}" for number in range(12)]
WEEK = msgspec.structs.replace(UNLIMITED, votes_after_days=SharedSettings().votes_after_days)
BY_ORG = msgspec.structs.replace(WEEK, one_vote_per="organisation")


@pytest.fixture
def world(tmp_path: Path, embedder: Embedder) -> Iterator[World]:
    with World(tmp_path / "data", embedder, Settings(shared=WEEK)) as world:
        yield world


@pytest.fixture
def item(world: World) -> GlobalRecord:
    return world.published("ann", TEXT)


def report(world: World, item: GlobalRecord, users: Sequence[str], quality: float, number: int = 1) -> None:
    used = ReportedItem(item_id=item.id, version=item.version, retrievals=2, uses=1, quality=quality)
    for user in users:
        world.shared.ask(Caller(user_id=user), Report(number=number, items=(used,)))


def rate(world: World, item: GlobalRecord, users: Sequence[str], rating: float | None) -> None:
    for user in users:
        world.shared.ask(Caller(user_id=user), Rate(item_id=item.id, rating=rating))


def keys_for(world: World, users: Sequence[str], person: str | None = None, **groups: frozenset[str]) -> None:
    for user in users:
        create_key(world.data_dir, user, user, READ, **groups)
    if person is not None:
        set_person(world.data_dir, users, person)


def seen(world: World, item: GlobalRecord) -> FoundItem:
    return world.found("cas", TEXT)[item.id]


def users_of(world: World, item: GlobalRecord) -> int:
    return seen(world, item).item.quality_metrics.distinct_users


def faults(world: World) -> Sequence[str]:
    with world.shared._archive.store.snapshot() as snapshot:
        return list(faults_of_knowledge(snapshot))


def blobs(world: World, kind: str) -> list[str]:
    with world.shared._archive.store.snapshot() as snapshot:
        return snapshot.blobs(kind)


def key(user: str, days: int, **fields: object) -> StoredKey:
    made = StoredKey(id=f"{user}-{days}", created=NOW - timedelta(days=days), scopes=(), user_id=user)
    return msgspec.structs.replace(made, **fields)


def test_users_of_a_person_are_one_group_as_old_as_its_oldest_key() -> None:
    keys = [key("b", 1, person="ann"), key("a", 9, person="ann"), key("c", 2), key("c", 5, revoked=NOW)]
    groups = groups_of([*keys, StoredKey(id="local", created=NOW, scopes=())], SharedSettings())
    assert groups["a"] == groups["b"] == ("person:ann", NOW - timedelta(days=9))
    assert groups["c"] == ("", NOW - timedelta(days=5))
    assert groups.keys() == {"a", "b", "c"}


def test_users_without_an_organisation_are_one_group_if_organisations_vote() -> None:
    keys = [key("a", 1, orgs=("labs", "acme")), key("b", 3, orgs=("acme",)), key("c", 2)]
    groups = groups_of(keys, BY_ORG)
    assert groups["a"] == groups["b"] == ("org:acme", NOW - timedelta(days=3))
    assert groups["c"][0] == groups[""][0] == "org:"


@pytest.mark.parametrize("quality", [1.0, 0.0])
def test_six_keys_of_one_person_neither_prove_nor_bury_an_item(
    world: World, item: GlobalRecord, quality: float
) -> None:
    keys_for(world, SIX, "mallory")
    report(world, item, SIX, quality)
    world.shared.expire(LATER)
    assert seen(world, item).item.quality_metrics.avg_trajectory_score is None
    report(world, item, HONEST[:5], quality)
    world.shared.expire(LATER)
    assert (users_of(world, item), faults(world)) == (5, [])  # six voters, rounded down
    assert seen(world, item).is_proven == (quality == 1.0)


def test_a_vote_is_recorded_and_counts_when_the_key_is_old_enough(world: World, item: GlobalRecord) -> None:
    keys_for(world, SIX)
    world.shared.expire(NOW)
    report(world, item, SIX, 1.0)
    rate(world, item, SIX, 1.0)
    world.shared.expire(NOW + timedelta(days=6))
    assert seen(world, item).item.quality_metrics.avg_trajectory_score is None
    world.reopen()
    world.shared.expire(LATER)
    assert seen(world, item).is_proven
    assert seen(world, item).item.quality_metrics.raters == 5
    assert (blobs(world, VOTERS), faults(world)) == ([], [])


def test_votes_before_the_first_upkeep_that_reads_a_new_key_wait_too(world: World, item: GlobalRecord) -> None:
    keys_for(world, SIX)
    report(world, item, SIX, 1.0)
    world.shared.expire(NOW)
    assert users_of(world, item) == 0
    world.shared.expire(LATER)
    assert users_of(world, item) == 5


def aged(world: World, days: int) -> None:
    """Make all keys older."""
    old = [
        msgspec.structs.replace(one, created=one.created - timedelta(days=days)) for one in read_keys(world.data_dir)
    ]
    _write_keys(world.data_dir, tuple(old))


def test_rotated_and_replaced_keys_keep_their_age_and_person(world: World, item: GlobalRecord) -> None:
    keys_for(world, SIX)
    set_person(world.data_dir, SIX[:2], "mallory")
    aged(world, 8)
    for name in SIX[:3]:
        rotate_key(world.data_dir, name, curve_pair)
    for name in (SIX[1], SIX[3]):
        revoke_key(world.data_dir, name)
        create_key(world.data_dir, f"{name}-new", name, READ)
    report(world, item, SIX, 1.0)
    world.shared.expire(NOW)
    assert users_of(world, item) == 5  # two of the six keys belong to one person
    assert {one.user_id for one in read_keys(world.data_dir) if one.person == "mallory"} == set(SIX[:2])


def test_keys_assigned_to_a_person_later_lose_their_votes_and_get_them_back(world: World, item: GlobalRecord) -> None:
    keys_for(world, SIX)
    report(world, item, SIX, 1.0)
    world.shared.expire(LATER)
    assert seen(world, item).is_proven
    set_person(world.data_dir, SIX, "mallory")
    world.shared.expire(LATER)
    assert (seen(world, item).is_proven, users_of(world, item)) == (False, 0)
    set_person(world.data_dir, SIX[:3], "renamed")
    world.shared.expire(LATER)
    assert users_of(world, item) == 0
    set_person(world.data_dir, SIX, None)
    world.shared.expire(LATER)
    assert (seen(world, item).is_proven, users_of(world, item), faults(world)) == (True, 5, [])


def test_figures_that_count_a_reassigned_user_are_withheld_until_five_voters_changed(
    world: World, item: GlobalRecord
) -> None:
    keys_for(world, SIX)
    report(world, item, [*SIX, *HONEST], 1.0)
    world.shared.expire(LATER)
    assert users_of(world, item) == 15
    set_person(world.data_dir, SIX, "mallory")
    world.shared.expire(LATER)
    assert users_of(world, item) == 0
    report(world, item, HONEST[:4], 1.0, number=2)
    world.shared.expire(LATER)
    assert users_of(world, item) == 10  # thirteen voters


def test_the_other_users_of_the_author_do_not_vote(world: World, item: GlobalRecord) -> None:
    keys_for(world, ["ann", *SIX])
    report(world, item, SIX, 1.0)
    world.shared.expire(LATER)
    assert seen(world, item).is_proven
    set_person(world.data_dir, ["ann", *SIX], "ann")
    world.shared.expire(LATER)
    report(world, item, HONEST[:4], 1.0)
    world.shared.expire(LATER)
    assert users_of(world, item) == 0
    assert len(blobs(world, PARTS)) == 4


def test_an_organisation_has_one_vote_if_the_setting_says_so(tmp_path: Path, embedder: Embedder) -> None:
    with World(tmp_path / "data", embedder, Settings(shared=WEEK)) as world:
        item = world.published("ann", TEXT)
        keys_for(world, SIX, orgs=frozenset({"acme"}))
        report(world, item, [*SIX, *HONEST], 1.0)
        world.shared.expire(LATER)
        assert users_of(world, item) == 15
        world.close()
        world.settings = Settings(shared=BY_ORG)
        world.open()
        world.shared.expire(LATER)
        assert users_of(world, item) == 0  # two voters: acme, and all users without an organisation
        assert len(blobs(world, PARTS)) == 1  # the author has no organisation either
        for name in HONEST[:5]:
            create_key(world.data_dir, name, name, READ, orgs=frozenset({name}))
        world.shared.expire(LATER)
        assert (users_of(world, item), faults(world)) == (5, [])


def test_erasing_a_user_of_a_person_leaves_what_the_others_contributed(world: World, item: GlobalRecord) -> None:
    keys_for(world, SIX, "mallory")
    report(world, item, [*SIX[:2], *HONEST[:4]], 1.0)
    rate(world, item, SIX[:2], 0.5)
    world.shared.expire(LATER)
    assert users_of(world, item) == 5
    assert world.shared.ask(Caller(user_id=SIX[0]), ForgetUser(dry_run=True)).ratings == 1
    assert world.shared.ask(Caller(user_id=SIX[0]), ForgetUser()).ratings == 1
    assert users_of(world, item) == 0  # withdrawn
    world.shared.expire(LATER)
    with world.shared._archive.store.snapshot() as snapshot:
        standing, _ = parts_of(snapshot, item.id)[item.version]
        assert (standing.quality.users, standing.rating.users) == (5, 1)
        assert len(snapshot.blobs(RECORDED)) == 1
    world.shared.ask(Caller(user_id=SIX[1]), ForgetUser())
    world.shared.expire(LATER)
    assert (len(blobs(world, PARTS)), blobs(world, RECORDED), faults(world)) == (4, [], [])


def test_an_erased_user_leaves_no_pseudonym_in_any_file(world: World, item: GlobalRecord) -> None:
    keys_for(world, SIX, "mallory")
    world.shared.expire(LATER)
    report(world, item, SIX, 1.0)
    names = [world.shared._authors.pseudonym(user).encode() for user in SIX]
    for user in SIX:
        world.shared.ask(Caller(user_id=user), ForgetUser())
    world.shared.expire(LATER)
    world.shared.expire(LATER)
    assert blobs(world, RECORDED) == []
    assert [name for name in names if name in world.bytes_of_the_store()] == []


def test_a_user_erased_while_voters_are_assigned_is_not_stored_as_one(
    world: World, item: GlobalRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys_for(world, SIX, "mallory")
    report(world, item, SIX, 1.0)
    erased = world.shared._authors.pseudonym(SIX[0]).encode()
    erasing = threading.Thread(target=world.shared.ask, args=(Caller(user_id=SIX[0]), ForgetUser()), daemon=True)
    assign = ItemFigures.assign

    def erase_first(figures: ItemFigures, users: Sequence[bytes]) -> None:
        erasing.start()
        erasing.join(0.2)  # the erasure waits for the batch, then for the voters
        assign(figures, users)

    with monkeypatch.context() as patched:
        patched.setattr(ItemFigures, "assign", erase_first)
        world.shared.expire(LATER)
    erasing.join(30)
    with world.shared._archive.store.snapshot() as snapshot:
        assert erased not in (snapshot.blob(VOTERS) or b"")
        assert len(snapshot.blobs(RECORDED)) == 5
    assert faults(world) == []


def test_unpublishing_removes_recorded_votes(world: World, item: GlobalRecord) -> None:
    keys_for(world, SIX, "mallory")
    report(world, item, SIX, 1.0)
    world.shared.expire(LATER)
    world.user("ann").shared.unpublish(item.id)
    assert blobs(world, RECORDED) == blobs(world, PARTS) == []


def test_five_keys_of_one_person_create_no_pattern_and_new_keys_create_one_later(world: World) -> None:
    keys_for(world, SIX, "mallory")
    keys_for(world, HONEST[:4])
    for user in (*SIX, *HONEST[:4]):
        shared = world.user(user).shared
        shared.offer(shared.preview("Flaky deploys", "Retry once", offer=True, access_policy="public"))
    world.shared.expire(NOW)
    assert world.found("cas", "flaky deploys") == {}
    world.shared.expire(LATER)  # five persons
    assert len(world.found("cas", "flaky deploys")) == 1


def test_a_removed_rating_of_a_person_is_gone(world: World, item: GlobalRecord) -> None:
    keys_for(world, SIX, "mallory")
    world.shared.expire(LATER)
    rate(world, item, SIX[:2], 0.5)
    world.shared.expire(LATER)
    assert len(blobs(world, RECORDED)) == 2
    rate(world, item, SIX[:2], None)
    world.shared.expire(LATER)
    assert (blobs(world, RECORDED), blobs(world, PARTS)) == ([], [])


def test_an_assignment_that_fails_half_way_is_repeated(
    world: World, item: GlobalRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    report(world, item, SIX, 1.0)
    keys_for(world, SIX, "mallory")

    def fails(figures: ItemFigures, users: Sequence[bytes]) -> None:
        raise OSError("the disk is away")

    with monkeypatch.context() as patched:
        patched.setattr(store_module.ItemFigures, "assign", fails)
        with pytest.raises(OSError, match="away"):
            world.shared.expire(LATER)
    world.shared.expire(LATER)
    assert users_of(world, item) == 0
    assert len(blobs(world, RECORDED)) == 6


def test_a_kill_at_any_step_of_an_assignment_leaves_it_to_the_next_upkeep(
    world: World, item: GlobalRecord, tmp_path: Path
) -> None:
    report(world, item, SIX, 1.0)
    world.shared.expire(LATER)
    keys_for(world, SIX, "mallory")
    copies: list[Path] = []

    def keep() -> None:
        copies.append(tmp_path / f"copy-{len(copies)}")
        copy_folder(world.data_dir, copies[-1])

    with after_each_step(keep):
        world.shared.expire(LATER)
    assert len(copies) >= 3
    for copy in copies:
        world.crash(copy)
        world.shared.expire(LATER)
        assert (users_of(world, item), len(blobs(world, RECORDED)), len(blobs(world, PARTS))) == (0, 6, 1)
        assert faults(world) == []


def test_a_damaged_key_file_changes_no_voter(world: World, item: GlobalRecord) -> None:
    keys_for(world, SIX, "mallory")
    world.shared.expire(LATER)
    (world.data_dir / "keys.json").write_bytes(b"damaged")
    report(world, item, [*SIX, *HONEST[:3]], 1.0)
    world.shared.expire(LATER)
    assert users_of(world, item) == 0


def test_an_encrypted_store_shows_neither_persons_nor_pseudonyms(tmp_path: Path, embedder: Embedder) -> None:
    with World(tmp_path / "data", embedder, keys=tmp_path / "keys") as world:
        item = world.published("ann", TEXT)
        keys_for(world, SIX, "mallory")
        world.shared.expire(LATER)
        report(world, item, SIX, 1.0)
        world.shared.expire(LATER)
        found = world.bytes_of_the_store()
        assert b"mallory" not in found
        assert world.shared._authors.pseudonym(SIX[0]).encode() not in found


@pytest.fixture(scope="module")
def divided(tmp_path_factory: pytest.TempPathFactory, embedder: Embedder) -> Iterator[World]:
    """A world where mallory has six keys, and no other user has a key."""
    with World(tmp_path_factory.mktemp("divided") / "data", embedder) as world:
        world.published("ann", TEXT)
        keys_for(world, SIX, "mallory")
        world.shared.expire(LATER)
        yield world


Evidence = tuple[int, int, int]
"""The retrievals, uses and mean quality (in thousandths) of one report."""
evidence = st.tuples(st.integers(1, 4), st.integers(0, 3), st.integers(0, 1_000))


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.tuples(evidence, st.integers(0, 5)), min_size=1, max_size=8),
    st.lists(evidence, min_size=4, max_size=8),
    st.integers(0, 4),
    st.randoms(use_true_random=False),
)
def test_no_division_of_one_persons_evidence_among_keys_changes_a_figure(
    divided: World, own: list[tuple[Evidence, int]], others: list[Evidence], rating: int, random: object
) -> None:
    """The same holds if reports arrive in a different order or upkeep runs in between."""
    figures = []
    for users in ([0] * len(own), [user for _, user in own]):
        item = divided.published("ann", TEXT)
        as_one_version(divided, item)
        sent = [(SIX[user], one) for (one, _), user in zip(own, users, strict=True)]
        sent += list(zip(HONEST, others, strict=False))
        if len(figures) == 1:
            random.shuffle(sent)  # type: ignore[attr-defined]
        for number, (user, (retrievals, uses, quality)) in enumerate(sent, 1):
            used = ReportedItem(
                item_id=item.id,
                version=item.version,
                retrievals=retrievals,
                uses=uses,
                quality=uses * quality / 1_000,
            )
            divided.shared.ask(Caller(user_id=user), Report(number=number, items=(used,)))
        rate(divided, item, sorted({SIX[user] for user in users}), rating / 4)
        divided.shared.expire(LATER)
        with divided.shared._archive.store.snapshot() as snapshot:
            standing = standings_at(snapshot, place_in(snapshot, item.id))[item.version]
        figures.append(standing)
        divided.user("ann").shared.unpublish(item.id)
    assert figures[0] == figures[1]


def as_one_version(world: World, item: GlobalRecord) -> None:
    """Give the item's version the same secret key as in all other examples."""
    with world.shared._archive.batch() as batch:
        place = place_in(batch, item.id)
        standings = standings_at(batch, place)
        standings[item.version].key = bytes(KEY_BYTES)
        write_standings(batch, place, standings)


def test_an_erased_item_with_due_figures_leaves_no_id_in_the_files(world: World, item: GlobalRecord) -> None:
    report(world, item, HONEST[:2], 1.0)
    world.shared.ask(Caller(user_id="ann"), ForgetUser())
    for _ in range(2):
        assert item.id.encode() not in world.bytes_of_the_store()
        world.shared.expire()  # releases the figures that are due
