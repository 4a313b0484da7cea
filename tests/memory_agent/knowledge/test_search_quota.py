"""A user's searches of shared items: some at once, then so many a second, and no user for another."""

from __future__ import annotations

from pathlib import Path

import pytest
from sharing_world import World

from memory_agent.embedders import Embedder
from memory_agent.errors import RateLimitedError
from memory_agent.knowledge import SearchQuota
from memory_agent.settings import Settings, SharedSettings


def taken(quota: SearchQuota, user: str, now_s: float) -> bool:
    try:
        quota.take(user, now_s)
    except RateLimitedError:
        return False
    return True


def test_who_searches_too_often_goes_on_without_shared_items_and_nobody_else_does(
    tmp_path: Path, embedder: Embedder
) -> None:
    limits = SharedSettings(searches=2, searches_per_s=0.001)
    with World(tmp_path / "data", embedder, Settings(shared=limits)) as world:
        item = world.published("ann", "Staging needs the VPN")
        ben = world.user("ben")
        ben.remember("Staging needs a ticket", id="own")
        for _ in range(2):
            assert ben.shared.search("what does staging need?", min_relevance=0.0)
        with pytest.raises(RateLimitedError, match="ask again in"):
            ben.shared.search("what does staging need?")
        result = ben.recall("what does staging need?", tiers=("local", "global"), deadline_ms=30_000.0)
        assert [one.record.id for one in result.memories] == ["own"]
        assert result.degraded == ("global_unavailable",)
        assert world.found("cas", "what does staging need?").keys() == {item.id}


def test_a_bucket_gives_its_tokens_at_once_and_then_fills() -> None:
    quota = SearchQuota(3, per_s=2.0)
    assert [taken(quota, "ann", 10.0) for _ in range(5)] == [True, True, True, False, False]
    assert taken(quota, "ben", 10.0)
    assert [taken(quota, "ann", at_s) for at_s in (10.4, 10.5, 10.6, 11.0)] == [False, True, False, True]
    assert [taken(quota, "ann", 100.0) for _ in range(4)] == [True, True, True, False]


def test_a_refusal_says_when_to_ask_again() -> None:
    quota = SearchQuota(1, per_s=4.0)
    quota.take("ann", 0.0)
    with pytest.raises(RateLimitedError) as refused:
        quota.take("ann", 0.1)
    assert refused.value.retry_after_ms == 150
    assert refused.value.retryable
    quota.take("ann", 0.1 + refused.value.retry_after_ms / 1000 + 1e-6)


def test_a_clock_that_stands_still_gives_nothing_away() -> None:
    quota = SearchQuota(1, per_s=1e-3)
    quota.take("ann", 5.0)
    assert not any(taken(quota, "ann", at_s) for at_s in (5.0, 4.0, 5.0))


def test_the_users_seen_last_are_kept() -> None:
    quota = SearchQuota(1, per_s=1e-6)
    quota.take("ann", 0.0)
    for number in range(10_000):
        quota.take(f"user-{number}", 0.0)
    assert not taken(quota, "user-9999", 0.0)
    assert taken(quota, "ann", 0.0)  # forgotten, with a full bucket
