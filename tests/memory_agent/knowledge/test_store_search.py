"""Searches of shared items: the caller's own items, highlights, and the quota per user."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import pytest
from sharing_world import UNLIMITED, World

from memory_agent.embedders import Embedder
from memory_agent.errors import RateLimitedError
from memory_agent.indexes import Where
from memory_agent.knowledge.store import SearchQuota
from memory_agent.memory import Memory
from memory_agent.recall import answer
from memory_agent.recall.highlights import Highlight, highlight_of
from memory_agent.records.embedded import Embedding
from memory_agent.records.memories import MemoryRecord
from memory_agent.records.shared import GlobalRecord
from memory_agent.records.shared_requests import Caller, SearchItems
from memory_agent.settings import Settings, SharedSettings, StoreSettings
from memory_agent.storage.column import Cosines, Mask
from memory_agent.storage.folders import user_folder
from memory_agent.storage.passages import PassageView
from ops.bench.shared import share
from ops.bench.texts import events, passages
from relay import SHARED_USER

QUESTION = "what does staging need?"
FIX = "Connect to the VPN before a deploy to staging"
OTHERS = 250


def test_a_recall_excludes_own_items_and_a_search_finds_them(world: World) -> None:
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


def test_a_graph_search_excludes_own_items_without_a_mask(
    tmp_path: Path, embedder: Embedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mask would make the search read all vectors, possibly millions."""
    masks: list[Mask | None] = []
    scan = PassageView.scan

    def heard(
        view: PassageView, query: Embedding, limit: int, mask: Mask | None, where: Where, timeout_s: float | None
    ) -> Cosines:
        masks.append(mask)
        return scan(view, query, limit, mask, where, timeout_s)

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


def test_a_memory_has_no_shared_origin_by_its_own_user(world: World) -> None:
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


WHICH_VPN = "which VPN does staging need?"
SHORT = "Connect to the VPN before a deploy to staging"
FILLING = "The canteen serves soup at noon and the lift is slow. " * 60
LONG = f"Soup, VPN, staging, need. {FILLING}{'A deploy goes through the VPN of the platform team. ' * 12}"
BOTH = ("local", "global")


def published_sheet(world: World, text: str) -> GlobalRecord:
    shared = world.user("ann").shared
    return shared.confirm(shared.preview("Sheet", text))


def test_the_store_marks_only_long_texts_and_the_recall_what_it_shows(world: World) -> None:
    """Marking all fifteen items would add 0.4 ms to the search, although most of the items are not shown."""
    long = published_sheet(world, LONG)
    for number in range(8):
        world.published("ann", f"{SHORT}, says sheet {number}")
    ben = world.user("ben")
    for tiers in (BOTH, ("global",)):
        shown = ben.recall(WHICH_VPN, 5, tiers=tiers, min_relevance=0.0, deadline_ms=30_000.0).memories
        _, sent = world.answers[-1]
        assert isinstance(sent, list)
        assert {one.item.id for one in sent if one.highlights} == {long.id}
        searched = world.found("ben", WHICH_VPN)
        assert len(shown) == 5
        for memory in shown:
            assert memory.highlights == searched[memory.record.id].highlights
            assert "**VPN**" in memory.highlights[0]


def test_own_memories_are_marked_whether_or_not_an_item_takes_the_last_place(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A memory that an item may displace is marked only if it is shown."""
    ben, marked = world.user("ben"), list[str]()
    for number in range(5):
        ben.remember(f"{SHORT}, says sheet {number}")
    alone = ben.recall(WHICH_VPN, 5, min_relevance=0.0, deadline_ms=30_000.0).memories
    assert all("**VPN**" in memory.highlights[0] for memory in alone)

    def noted(record: MemoryRecord, words: Sequence[str]) -> Highlight | None:
        marked.append(record.id)
        return highlight_of(record, words)

    monkeypatch.setattr(answer, "highlight_of", noted)
    ids = [memory.record.id for memory in alone]
    for text, shown in (("Soup at noon", 4), (alone[4].record.text, 5)):
        item = world.published("ann", text)
        found = ben.recall(WHICH_VPN, 5, tiers=BOTH, min_relevance=0.0, deadline_ms=30_000.0).memories
        assert [one.highlights for one in found[:shown]] == [one.highlights for one in alone[:shown]]
        assert [one.record.id for one in found] == [*ids[:shown], item.id][:5]
        assert marked == ids[:4]
        marked.clear()
        world.user("ann").shared.unpublish(item.id)
    found = ben.recall(WHICH_VPN, 5, tiers=BOTH, min_relevance=0.0, deadline_ms=30_000.0).memories
    assert [(one.record.id, one.highlights) for one in found] == [(one.record.id, one.highlights) for one in alone]


def test_a_long_text_is_marked_in_its_best_passage(world: World) -> None:
    published_sheet(world, LONG)
    (found,) = world.user("ben").recall(WHICH_VPN, tiers=BOTH, min_relevance=0.0, deadline_ms=30_000.0).memories
    assert "**VPN** of the platform team" in found.highlights[0]  # not the beginning of the text


def taken(quota: SearchQuota, user: str, now_s: float) -> bool:
    try:
        quota.take(user, now_s)
    except RateLimitedError:
        return False
    return True


def test_the_search_quota_of_a_user_affects_nobody_else(tmp_path: Path, embedder: Embedder) -> None:
    limits = SharedSettings(searches=2, searches_per_s=0.001)
    with World(tmp_path / "data", embedder, Settings(shared=limits)) as world:
        item = world.published("ann", "Staging needs the VPN")
        ben = world.user("ben")
        ben.remember("Staging needs a ticket", id="own")
        for _ in range(2):
            assert ben.shared.search("what does staging need?", min_relevance=0.0)
        with pytest.raises(RateLimitedError, match="retry in"):
            ben.shared.search("what does staging need?")
        result = ben.recall("what does staging need?", tiers=("local", "global"), deadline_ms=30_000.0)
        assert [one.record.id for one in result.memories] == ["own"]
        assert result.degraded == ("global_unavailable",)
        assert world.found("cas", "what does staging need?").keys() == {item.id}


def test_a_bucket_allows_a_burst_and_then_refills() -> None:
    quota = SearchQuota(3, per_s=2.0)
    assert [taken(quota, "ann", 10.0) for _ in range(5)] == [True, True, True, False, False]
    assert taken(quota, "ben", 10.0)
    assert [taken(quota, "ann", at_s) for at_s in (10.4, 10.5, 10.6, 11.0)] == [False, True, False, True]
    assert [taken(quota, "ann", 100.0) for _ in range(4)] == [True, True, True, False]


def test_a_quota_error_has_the_time_until_the_next_token() -> None:
    quota = SearchQuota(1, per_s=4.0)
    quota.take("ann", 0.0)
    with pytest.raises(RateLimitedError) as refused:
        quota.take("ann", 0.1)
    assert refused.value.retry_after_ms == 150
    assert refused.value.retryable
    quota.take("ann", 0.1 + refused.value.retry_after_ms / 1000 + 1e-6)


def test_a_clock_that_stands_still_adds_no_tokens() -> None:
    quota = SearchQuota(1, per_s=1e-3)
    quota.take("ann", 5.0)
    assert not any(taken(quota, "ann", at_s) for at_s in (5.0, 4.0, 5.0))


def test_the_quota_keeps_the_users_seen_last() -> None:
    quota = SearchQuota(1, per_s=1e-6)
    quota.take("ann", 0.0)
    for number in range(10_000):
        quota.take(f"user-{number}", 0.0)
    assert not taken(quota, "user-9999", 0.0)
    assert taken(quota, "ann", 0.0)  # ann's empty bucket was dropped, so she starts with a full bucket
