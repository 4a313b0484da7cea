"""A recall of both tiers shows what others share: the caller's own items take no place."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path

import pytest
from sharing_world import UNLIMITED, World

from memory_agent.embedders import Embedder
from memory_agent.memory import Memory
from memory_agent.records.embedded import Embedding
from memory_agent.records.shared_requests import Caller, SearchItems
from memory_agent.settings import Settings, StoreSettings
from memory_agent.storage.folders import user_folder
from memory_agent.storage.indexes import Cosines, Mask
from memory_agent.storage.passage_vectors import PassageView
from ops.bench.shared import share
from ops.bench.texts import events, passages
from relay import SHARED_USER

QUESTION = "what does staging need?"
FIX = "Connect to the VPN before a deploy to staging"
OTHERS = 400


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


def test_a_graph_goes_on_answering_around_own_items(
    tmp_path: Path, embedder: Embedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A search that left them out by a mask would read all vectors, of which there may be millions."""
    masks: list[Mask | None] = []
    scan = PassageView.scan

    def heard(view: PassageView, query: Embedding, limit: int, mask: Mask | None = None) -> Cosines:
        masks.append(mask)
        return scan(view, query, limit, mask)

    settings = Settings(shared=UNLIMITED, store=StoreSettings(exact_search_limit=200))
    folder = user_folder(tmp_path, SHARED_USER)
    with Memory.open(folder, user_id=SHARED_USER, embedder=embedder) as items:
        items.ingest(events(passages(OTHERS, seed=1), SHARED_USER, "fill"), now=datetime(2026, 7, 1, tzinfo=UTC))
    share(folder)
    with World(tmp_path, embedder, settings) as world:
        own = {world.published("ann", f"{FIX}, says sheet {number}").id for number in range(3)}
        deadline_s = time.monotonic() + 60
        while world.shared.stats().index != "approximate":
            assert time.monotonic() < deadline_s
            time.sleep(0.005)
        ask = SearchItems(query=QUESTION, top_k=5, mode="vector", min_relevance=0.0, of_others=True)
        monkeypatch.setattr(PassageView, "scan", heard)
        of_ben, of_ann = (
            [one.item.id for one in world.shared.ask(Caller(user_id=name), ask)] for name in ("ben", "ann")
        )
        assert set(of_ben[:3]) == own
        assert (len(of_ann), of_ann[:2]) == (5, of_ben[3:])
        assert masks == [None, None]


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
