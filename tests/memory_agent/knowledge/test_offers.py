"""Patterns of many users: an offer is hidden until enough users offer the same words, and users stay anonymous."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sharing_world import UNLIMITED, World, after_each_step, parts_of

from memory_agent.care import erase, export_user, make_backup, restore_all, verify_folder
from memory_agent.embedders import Embedder
from memory_agent.erasure.request import Selection
from memory_agent.errors import InvalidInputError
from memory_agent.knowledge.pseudonyms import OFFERS
from memory_agent.records.shared import GlobalRecord, OfferedPattern, SharedChange
from memory_agent.records.shared_requests import Caller, ForgetUser, PendingChanges, ReadLog, Report, ReportedItem
from memory_agent.settings import EmbedderSettings, Settings
from memory_agent.storage.batch import Batch
from relay import SHARED_USER

TITLE = "Deploys to staging"
WORDS = "What successful runs did, in this order: connect to the quokka VPN; deploy; look at the proxy"
QUESTION = "how do deploys to staging succeed?"
USERS = tuple(f"user-{name}" for name in ("ann", "ben", "cas", "dan", "eve", "fay", "gus"))
FIVE = USERS[:5]


def offer(
    world: World, user: str, text: str = WORDS, *groups: str, title: str = TITLE, **fields: object
) -> OfferedPattern:
    shared = world.user(user, *groups).shared
    return shared.offer(shared.preview(title, text, offer=True, **fields))  # type: ignore[arg-type]


def shown(world: World, user: str = "reader", *groups: str) -> list[GlobalRecord]:
    """Run upkeep, and return the items that a user then finds."""
    world.shared.expire()
    return [found.item for found in world.found(user, QUESTION, *groups).values()]


def damage(world: World) -> list[str]:
    with world.closed():
        reports = list(verify_folder(world.data_dir, world.settings, lambda *_: None))
    return [str(finding) for part in reports for finding in part.findings]


def test_no_offer_is_seen_until_the_fifth_user_offers_the_same(world: World) -> None:
    for user in FIVE[:4]:
        offer(world, user)
    assert shown(world) == []
    assert world.user("reader").recall(QUESTION, tiers=("local", "global"), min_relevance=0.0).memories == ()
    assert all(one.proposed_as is None for user in FIVE[:4] for one in world.user(user).shared.offered())
    assert not any(world.user(user).shared.published() for user in USERS)
    offer(world, FIVE[4])
    assert world.found("reader", QUESTION) == {}, "it appears during upkeep, not with the last offer"
    [item] = shown(world)
    assert (item.title, item.summary, item.content_type) == (TITLE, WORDS, "pattern")
    assert (item.author, item.offered_by) == ("5 users", 5)
    assert [one.proposed_as for user in FIVE for one in world.user(user).shared.offered()] == [item.id] * 5
    found = world.user("reader").recall(QUESTION, tiers=("local", "global"), min_relevance=0.0)
    assert [one.shared.author for one in found.memories if one.shared is not None] == ["5 users"]
    assert damage(world) == []


def test_a_pattern_of_many_users_is_shown_only_if_each_offers_it(world: World) -> None:
    for user in USERS:
        memory = world.user(user)
        pattern = memory.remember(WORDS, title=TITLE, kind="pattern")
        memory.shared.preview(memory_id=pattern.id, offer=True)
    assert shown(world) == []
    assert b"quokka" not in world.bytes_of_the_store()


def test_a_user_counts_once_and_can_offer_the_same_words_once(world: World) -> None:
    for user in FIVE[:4]:
        offer(world, user)
    with pytest.raises(InvalidInputError, match="has the same words as an existing offer by this user"):
        offer(world, FIVE[0], f"{WORDS}.")
    assert shown(world) == []


@pytest.mark.parametrize(
    "other",
    [
        "Deploys to staging succeeded",
        "Deploys never reach staging from production",
        "Deploys always reach production from staging",
        "Deploys always reach staging from production after 30 s",
        "Deploys always reach staging, from production",
        "Deploys always reach STAGING from production",
    ],
)
def test_similar_words_with_another_meaning_do_not_count_together(world: World, other: str) -> None:
    words = "Deploys to staging failed" if "succeeded" in other else "Deploys always reach staging from production"
    for user in FIVE[:4]:
        offer(world, user, words)
    offer(world, FIVE[4], other)
    assert shown(world) == []
    offer(world, USERS[5], words)
    assert [item.summary for item in shown(world)] == [words]


def test_the_most_frequent_wording_is_shown(world: World) -> None:
    for user in FIVE[:3]:
        offer(world, user, f"{WORDS}.")
    for user in FIVE[3:]:
        offer(world, user, f"  {WORDS[0].lower()}{WORDS[1:]}  ")
    [item] = shown(world)
    assert item.summary == f"{WORDS}."


def test_an_item_has_the_tags_of_all_its_offers(world: World) -> None:
    for user in FIVE:
        offer(world, user, tags=["deploy", f"of {user}"])
    assert [item.tags for item in shown(world)] == [("deploy",)]


def test_an_item_with_fewer_than_five_offers_left_is_removed(world: World) -> None:
    taken = world.user(FIVE[0]).shared.preview(TITLE, WORDS, offer=True)
    offers = {FIVE[0]: world.user(FIVE[0]).shared.offer(taken)}
    offers |= {user: offer(world, user) for user in USERS[:6] if user != FIVE[0]}
    [item] = shown(world)
    receipt = world.user(USERS[5]).shared.unpublish(offers[USERS[5]].content.item_id)
    assert receipt.found
    assert world.found("reader", QUESTION).keys() == {item.id}
    assert world.user(USERS[5]).shared.offered() == []
    world.user(FIVE[0]).shared.unpublish(offers[FIVE[0]].content.item_id)
    assert world.found("reader", QUESTION) == {}, "at once"
    assert shown(world) == []
    world.reopen()
    assert shown(world) == []
    with pytest.raises(InvalidInputError, match="withdrawn offer"):
        world.user(FIVE[0]).shared.offer(taken)
    offer(world, FIVE[0])
    [again] = shown(world)
    assert again.id != item.id
    assert damage(world) == []


def test_nobody_else_can_withdraw_an_offer(world: World) -> None:
    offers = {user: offer(world, user) for user in FIVE}
    [item] = shown(world)
    for id_ in (offers[FIVE[0]].content.item_id, item.id):
        assert not world.user(FIVE[1]).shared.unpublish(id_).found
    assert [one.id for one in shown(world)] == [item.id]


def test_another_wording_is_shown_when_the_last_user_of_the_former_is_erased(world: World) -> None:
    for user in USERS[:3]:
        offer(world, user, f"{WORDS}.")
    for user in USERS[3:5]:
        offer(world, user)
    [item] = shown(world)
    for user in USERS[5:]:
        offer(world, user)
    assert [one.id for one in shown(world)] == [item.id]
    for user in USERS[:2]:
        world.shared.ask(Caller(user_id=user), ForgetUser())
    assert [one.id for one in shown(world)] == [item.id]
    offer(world, "user-hal")
    world.shared.expire()
    world.shared.ask(Caller(user_id=USERS[2]), ForgetUser())
    assert world.found("reader", QUESTION) == {}, "no remaining user wrote these words"
    [again] = shown(world)
    assert (again.summary, again.author) == (WORDS, "5 users")
    assert again.id != item.id
    assert damage(world) == []


def test_nothing_of_an_erased_offerer_is_left_in_any_file(world: World) -> None:
    offer(world, "user-ann", "The quokkavpn of ann hangs")
    assert b"quokkavpn" in world.bytes_of_the_store()
    world.shared.ask(Caller(user_id="user-ann"), ForgetUser())
    world.shared.expire()
    assert b"quokkavpn" not in world.bytes_of_the_store()


def test_offers_for_different_readers_do_not_count_together(world: World) -> None:
    for user in FIVE[:4]:
        offer(world, user, WORDS, "org:acme", access_policy="org:acme")
    offer(world, FIVE[4])
    assert shown(world, "reader", "org:acme") == []
    offer(world, USERS[5], WORDS, "org:acme", access_policy="org:acme")
    assert [item.access_policy for item in shown(world, "reader", "org:acme")] == ["org:acme"]
    assert shown(world, "outsider") == []
    with pytest.raises(InvalidInputError, match="access_policy"):
        offer(world, USERS[6], WORDS, access_policy="org:acme")


def contributors(world: World, item: GlobalRecord) -> set[str]:
    with world.shared._archive.store.snapshot() as snapshot:
        return {user.decode() for _, parts in parts_of(snapshot, item.id).values() for user in parts}


def test_runs_and_ratings_of_offerers_do_not_count(world: World) -> None:
    for user in FIVE:
        offer(world, user)
    [item] = shown(world)
    used = ReportedItem(item_id=item.id, version="1", retrievals=1, uses=1, quality=1.0)
    counted = [world.shared.ask(Caller(user_id=user), Report(number=1, items=(used,))) for user in USERS]
    assert counted == [0] * 5 + [1] * 2
    with pytest.raises(InvalidInputError, match="the user's own offer"):
        world.user(FIVE[0]).shared.rate(item.id, 1.0)
    world.user(USERS[5]).shared.rate(item.id, 1.0)
    assert len(contributors(world, item)) == 2
    offer(world, USERS[5])
    assert [one.id for one in shown(world)] == [item.id]
    assert len(contributors(world, item)) == 1, "an offerer's earlier reports no longer count"


def told(world: World) -> list[SharedChange]:
    """Return the changes for followers since the last call."""
    caller, changes = Caller(user_id=SHARED_USER), list[SharedChange]()
    untold: PendingChanges = world.shared.ask(caller, ReadLog())
    while untold.through:
        changes += [change for _, change in untold.changes]
        untold = world.shared.ask(caller, ReadLog(after=untold.through))
    return changes


def test_followers_receive_an_items_publication_and_removal_but_no_offers(world: World) -> None:
    offers = five(world)
    assert told(world) == []
    [item] = shown(world)
    [came] = told(world)
    assert (came.kind, came.item_id, came.version, came.content_type) == ("published", item.id, "1", "pattern")
    assert came.at == item.published_at
    offer(world, USERS[5])
    world.shared.expire()
    assert told(world) == [], "a later offer by another user is not announced"
    for user in FIVE[:2]:
        world.user(user).shared.unpublish(offers[user].content.item_id)
    [went] = told(world)
    assert (went.kind, went.item, went.item_id) == ("unpublished", came.item, None)
    offer(world, FIVE[0])
    [again] = shown(world)
    assert [one.item_id for one in told(world)] == [again.id]
    world.shared.ask(Caller(user_id=USERS[5]), ForgetUser())
    assert [one.kind for one in told(world)] == ["unpublished"]


def test_readers_get_the_item_by_id_and_it_counts_towards_no_author(world: World) -> None:
    five(world)
    [item] = shown(world)
    for user in ("reader", FIVE[0]):
        assert world.user(user).shared.item(item.id) == item
    limits = Settings(
        shared=msgspec.structs.replace(UNLIMITED, items_per_author=1), encryption=world.settings.encryption
    )
    with world.closed():
        world.settings = limits
    for user in FIVE:
        assert world.user(user).shared.published() == []
        world.published(user, f"Sheet of {user}")
    assert damage(world) == []


def test_a_recall_excludes_items_that_its_user_offered(world: World) -> None:
    five(world)
    [item] = shown(world)
    other = world.published("author", "Deploys to staging may need another token")
    own = world.published(FIVE[0], "Deploys to staging need a permit")

    def recalled(user: str) -> set[str]:
        found = world.user(user).recall(QUESTION, tiers=("global",), min_relevance=0.0, deadline_ms=30_000.0)
        return {one.record.id for one in found.memories}

    assert recalled("reader") == {item.id, other.id, own.id}
    assert recalled(FIVE[0]) == {other.id}
    assert recalled(FIVE[1]) == {other.id, own.id}
    assert world.found(FIVE[0], QUESTION).keys() == {item.id, other.id, own.id}


def test_an_offer_withdrawn_during_upkeep_does_not_count_for_the_item(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    five(world)
    embed = world.shared._vectors.embed

    def embed_late(*texts: Any, **more: Any) -> Any:
        withdraw_offer(world)
        return embed(*texts, **more)

    with monkeypatch.context() as patched:
        patched.setattr(world.shared._vectors, "embed", embed_late)
        world.shared.expire()
    assert world.found("reader", QUESTION) == {}
    offer(world, FIVE[0])
    assert len(shown(world)) == 1
    assert damage(world) == []


def unpublish(world: World, item_id: str) -> None:
    assert world.user("admin", is_admin=True).shared.unpublish(item_id).found


def erase_from_the_files(world: World, item_id: str) -> None:
    with world.closed():
        assert erase(world.data_dir, world.settings, SHARED_USER, Selection(ids=(item_id,)), datetime.now(UTC)).complete
        assert b"quokka" not in world.bytes_of_the_store()


def forget(world: World, item_id: str) -> None:
    assert world.shared.forget([item_id]) == 1


@pytest.mark.parametrize("take_away", [unpublish, erase_from_the_files, forget])
def test_an_item_that_an_administrator_removes_is_not_made_again(
    world: World, take_away: Callable[[World, str], None]
) -> None:
    five(world)
    backup = world.data_dir.with_name("backup")
    with world.closed():
        make_backup(world.data_dir, backup, world.settings, datetime.now(UTC), lambda *_: None)
    [item] = shown(world)
    take_away(world, item.id)
    assert shown(world) == []
    assert [world.user(user).shared.offered() for user in FIVE] == [[]] * 5
    with world.closed():
        restore_all(backup, world.data_dir, world.settings, datetime.now(UTC), lambda *_: None, replace=True)
    offer(world, USERS[5])
    assert shown(world) == [], "one user's offer does not restore it"
    for user in FIVE[:4]:
        offer(world, user)
    assert [one.summary for one in shown(world)] == [WORDS]
    assert damage(world) == []


def test_an_offer_is_exactly_the_confirmed_preview_of_an_offer(world: World) -> None:
    shared = world.user("user-ann").shared
    with pytest.raises(InvalidInputError, match="is for publishing"):
        shared.offer(shared.preview(TITLE, WORDS, content_type="pattern"))
    with pytest.raises(InvalidInputError, match="is for an offer"):
        shared.confirm(shared.preview(TITLE, WORDS, offer=True))
    with pytest.raises(InvalidInputError, match="content_type"):
        shared.preview(TITLE, WORDS, content_type="document", offer=True)
    preview = shared.preview(TITLE, WORDS, offer=True)
    first = shared.offer(preview)
    assert shared.offer(preview) == first
    assert shared.offered() == [first]
    memory = world.user("user-ann")
    pattern = memory.remember(WORDS, title=TITLE, kind="pattern")
    stale = shared.preview(memory_id=pattern.id, offer=True)
    memory.remember(f"{WORDS} today", title=TITLE, kind="pattern", id=pattern.id)
    with pytest.raises(InvalidInputError, match="is outdated"):
        shared.offer(stale)


def test_a_learned_pattern_is_offered_without_counts_and_dates(world: World) -> None:
    memory = world.user("user-ann")
    steps = [{"text": "connect to the VPN", "run_ids": ["r-1", "r-2"]}, {"text": "deploy", "run_ids": ["r-1"]}]
    learned = {"run_ids": ["r-1", "r-2"], "runs": 2, "steps": steps, "failed_steps": []}
    text = "Asked 2 times on 2026-11-23, most typically: deploy to staging"
    pattern = memory.remember(text, title=TITLE, kind="pattern", metadata=learned)
    content = memory.shared.preview(memory_id=pattern.id, offer=True).content
    assert content.summary == "What successful runs did, in this order: connect to the VPN; deploy"
    assert memory.shared.preview(memory_id=pattern.id).content.summary == text
    bare = memory.remember(text, title=TITLE, kind="pattern", metadata={**learned, "steps": []})
    with pytest.raises(InvalidInputError, match="summary"):
        memory.shared.preview(memory_id=bare.id, offer=True)


def test_nobody_can_choose_the_name_of_several_users(world: World) -> None:
    for name in ("5 users", "５ Users", "1,000 users", "1 user"):
        with pytest.raises(InvalidInputError, match="several users"):
            world.user("user-ann").shared.set_name(name)


def test_a_user_has_a_hundred_offers_at_most(world: World) -> None:
    shared = world.user("user-ann").shared
    for number in range(100):
        offer(world, "user-ann", f"Lesson {number}")
    with pytest.raises(InvalidInputError, match="limit of 100 offers per user"):
        offer(world, "user-ann", "Lesson 100")
    shared.unpublish(shared.offered()[0].content.item_id)
    offer(world, "user-ann", "Lesson 100")


def five(world: World, number: int = 5) -> dict[str, OfferedPattern]:
    return {user: offer(world, user) for user in USERS[:number]}


def withdraw_offer(world: World) -> None:
    shared = world.user(FIVE[0]).shared
    for one in shared.offered():
        shared.unpublish(one.content.item_id)


@pytest.mark.parametrize(
    ("do", "before", "after"),
    [
        (lambda world: world.shared.expire(), 0, 1),
        (withdraw_offer, 1, 0),
        (lambda world: world.shared.ask(Caller(user_id=FIVE[0]), ForgetUser()), 1, 0),
    ],
    ids=["propose", "take back", "erase"],
)
def test_a_kill_at_any_step_leaves_the_item_with_its_offers_or_neither(
    world: World, embedder: Embedder, do: Callable[[World], object], before: int, after: int
) -> None:
    five(world)
    if before:
        shown(world)
    copies: list[Path] = []

    def copy() -> None:
        copies.append(world.data_dir.with_name(f"copy-{len(copies)}"))
        shutil.copytree(world.data_dir, copies[-1])

    copy()
    with after_each_step(copy):
        do(world)
    assert len(copies) > 1
    counts = []
    for place in copies:
        with World(place, embedder) as killed:
            found = killed.found("reader", QUESTION)
            counts.append(len(found))
            behind = [one.proposed_as for user in FIVE for one in killed.user(user).shared.offered() if one.proposed_as]
            assert behind == list(found) * 5
            do(killed)
            assert len(shown(killed)) == after
            assert damage(killed) == []
    assert counts == sorted(counts, reverse=before > after)
    assert (counts[0], counts[-1]) == (before, after)


def test_a_backup_contains_offers_and_a_restore_keeps_withdrawn_offers_withdrawn(
    world: World, embedder: Embedder, tmp_path: Path
) -> None:
    five(world, 6)
    [item] = shown(world)
    backup = world.data_dir.with_name("backup")
    with world.closed():
        make_backup(world.data_dir, backup, world.settings, datetime.now(UTC), lambda *_: None)
    with World(tmp_path / "elsewhere", embedder) as other:
        with other.closed():
            shutil.rmtree(other.data_dir)
            restore_all(backup, other.data_dir, other.settings, datetime.now(UTC), lambda *_: None, replace=True)
        assert [one.id for one in shown(other)] == [item.id]
        assert [one.proposed_as for user in USERS[:6] for one in other.user(user).shared.offered()] == [item.id] * 6
    withdraw_offer(world)
    world.shared.ask(Caller(user_id=FIVE[1]), ForgetUser())
    assert shown(world) == []
    with world.closed():
        restore_all(backup, world.data_dir, world.settings, datetime.now(UTC), lambda *_: None, replace=True)
    assert shown(world) == []
    assert [len(world.user(user).shared.offered()) for user in USERS[:6]] == [0, 0, 1, 1, 1, 1]
    assert damage(world) == []


def test_an_export_has_no_offers_and_no_items_made_of_them(world: World) -> None:
    five(world)
    shown(world)
    own = world.published("user-ann", "Staging needs a permit")
    with world.closed():
        lines = list(export_user(world.data_dir, world.settings, SHARED_USER, lambda *_: None))
    assert len(lines) == 2
    assert own.id.encode() in lines[1]
    assert b"quokka" not in b"".join(lines)


def lose_an_offer(batch: Batch) -> None:
    batch.set_blob(batch.blobs(OFFERS)[0], None)


def damage_an_offer(batch: Batch) -> None:
    batch.set_blob(batch.blobs(OFFERS)[0], b"?")


def move_an_offer(batch: Batch) -> None:
    name = batch.blobs(OFFERS)[0]
    batch.set_blob(OFFERS + "0" * 32, batch.blob(name))
    batch.set_blob(name, None)


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (lose_an_offer, "an item refers to an offer that is missing or has different words"),
        (damage_an_offer, "an offer cannot be read"),
        (move_an_offer, "an offer is stored for the wrong user"),
    ],
)
def test_verify_finds_incomplete_offers(world: World, change: Callable[[Batch], None], fault: str) -> None:
    five(world)
    shown(world)
    assert damage(world) == []
    with world.shared._archive.batch() as batch:
        change(batch)
    assert fault in " ".join(damage(world))
    shutil.rmtree(world.folder)


SAYINGS = ("Deploys to staging need the VPN", "Deploys to staging need no VPN")
users, sayings = st.sampled_from(USERS), st.sampled_from(SAYINGS)
steps = st.one_of(
    st.tuples(st.just("offer"), users, sayings, st.sampled_from(("", "."))),
    st.tuples(st.just("take back"), users, sayings),
    st.sampled_from([("erase", user) for user in USERS]),
    st.sampled_from([("upkeep",), ("upkeep",), ("reopen",)]),
)


@dataclass
class Model:
    """A model of the spelling of each user's offers, and of the spelling and the offerers of each item."""

    offers: dict[tuple[str, str], str] = field(default_factory=dict)
    items: dict[str, tuple[str, set[str]]] = field(default_factory=dict)

    def drop(self, gone: Callable[[str, str], bool]) -> None:
        for user, said in [one for one in self.offers if gone(*one)]:
            del self.offers[user, said]
            if said in self.items:
                self.items[said][1].discard(user)
        for said, (spelled, behind) in list(self.items.items()):
            if len(behind) < 5 or spelled not in {self.offers[user, said] for user in behind}:
                del self.items[said]

    def upkeep(self) -> None:
        for said in SAYINGS:
            by_user = {user: spelled for (user, one), spelled in self.offers.items() if one == said}
            if said in self.items:
                self.items[said][1].update(by_user)
            elif len(by_user) >= 5:
                counts = Counter(by_user.values())
                self.items[said] = (min(counts, key=lambda one: (-counts[one], one)), set(by_user))


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
@given(st.lists(steps, min_size=20, max_size=60))
def test_items_match_a_model_after_any_offers_removals_and_upkeep(
    tmp_path_factory: pytest.TempPathFactory, done: list[tuple[str, ...]]
) -> None:
    limits = Settings(shared=UNLIMITED, embedder=EmbedderSettings(folder="none"))
    model = Model()
    with World(tmp_path_factory.mktemp("world") / "data", None, limits) as world:
        for step in done:
            match step:
                case ("offer", user, said, end):
                    if (user, said) not in model.offers:
                        offer(world, user, said + end)
                        model.offers[user, said] = said + end
                case ("take back", user, said):
                    for one in world.user(user).shared.offered():
                        if one.content.summary.rstrip(".") == said:
                            assert world.user(user).shared.unpublish(one.content.item_id).found
                    model.drop(lambda *one, gone=(user, said): one == gone)  # type: ignore[misc]
                case ("erase", user):
                    world.shared.ask(Caller(user_id=user), ForgetUser())
                    model.drop(lambda one, _, gone=user: one == gone)  # type: ignore[misc]
                case ("upkeep",):
                    world.shared.expire()
                    model.upkeep()
                case _:
                    world.reopen()
            found = [one.item for one in world.found("reader", "deploys to staging").values()]
            expected = {(text, f"{len(behind) // 5 * 5} users") for text, behind in model.items.values()}
            assert {(item.summary, item.author) for item in found} == expected
            assert len(found) == len(expected)
