"""A recall of both tiers shows what others share: the caller's own items take no place."""

from __future__ import annotations

from sharing_world import World

QUESTION = "what does staging need?"
FIX = "Connect to the VPN before a deploy to staging"


def test_own_items_take_no_place_in_a_recall_and_are_found_by_a_search(world: World) -> None:
    own = {world.published("ann", f"{FIX}, says sheet {number}").id for number in range(30)}
    other = world.published("ben", "Staging may need another token")
    ann = world.user("ann")
    for tiers in (("global",), ("local", "global")):
        result = ann.recall(QUESTION, 5, tiers=tiers, min_relevance=0.0, deadline_ms=30_000.0)
        assert [one.record.id for one in result.memories] == [other.id]
        theirs = world.user("ben").recall(QUESTION, 5, tiers=tiers, min_relevance=0.0, deadline_ms=30_000.0)
        assert {one.record.id for one in theirs.memories} <= own
        assert len(theirs.memories) == 5
    assert world.found("ann", QUESTION).keys() == {*own, other.id}


def test_a_memory_is_not_said_to_be_shared_by_its_own_user(world: World) -> None:
    ann = world.user("ann")
    ann.remember(FIX, id="own")
    item = ann.shared.confirm(ann.shared.preview(memory_id="own"))
    (found,) = ann.recall(QUESTION, tiers=("local", "global"), min_relevance=0.0, deadline_ms=30_000.0).memories
    assert (found.record.id, found.tier, found.shared) == ("own", "local", None)
    same = world.published("ben", FIX)
    (found,) = ann.recall(QUESTION, tiers=("local", "global"), min_relevance=0.0, deadline_ms=30_000.0).memories
    assert found.shared is not None
    assert (found.record.id, found.shared.author) == ("own", same.author)
    assert same.author != item.author
