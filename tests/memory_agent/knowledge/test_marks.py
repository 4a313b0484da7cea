"""The words of the query are marked in the shared items that a recall shows, as in those that a search finds."""

from __future__ import annotations

from sharing_world import World

from memory_agent.records.shared import GlobalRecord

QUESTION = "which VPN does staging need?"
SHORT = "Connect to the VPN before a deploy to staging"
FILLING = "The canteen serves soup at noon and the lift is slow. " * 60
LONG = f"Soup, VPN, staging, need. {FILLING}{'A deploy goes through the VPN of the platform team. ' * 12}"
BOTH = ("local", "global")


def published(world: World, text: str) -> GlobalRecord:
    shared = world.user("ann").shared
    return shared.confirm(shared.preview("Sheet", text))


def test_the_store_marks_only_long_texts_and_the_recall_what_it_shows(world: World) -> None:
    """Marking all fifteen items takes .4 ms of the search, and most are not shown."""
    long = published(world, LONG)
    for number in range(8):
        world.published("ann", f"{SHORT}, says sheet {number}")
    ben = world.user("ben")
    for tiers in (BOTH, ("global",)):
        shown = ben.recall(QUESTION, 5, tiers=tiers, min_relevance=0.0, deadline_ms=30_000.0).memories
        _, sent = world.answers[-1]
        assert isinstance(sent, list)
        assert {one.item.id for one in sent if one.highlights} == {long.id}
        searched = world.found("ben", QUESTION)
        assert len(shown) == 5
        for memory in shown:
            assert memory.highlights == searched[memory.record.id].highlights
            assert "**VPN**" in memory.highlights[0]


def test_a_long_text_is_marked_in_its_best_passage(world: World) -> None:
    published(world, LONG)
    (found,) = world.user("ben").recall(QUESTION, tiers=BOTH, min_relevance=0.0, deadline_ms=30_000.0).memories
    assert "**VPN** of the platform team" in found.highlights[0]  # of the whole text it would be the beginning
