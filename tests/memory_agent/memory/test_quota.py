"""The memory quota of a tier: new memories are refused, or the oldest unused memories are forgotten."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from memory_samples import NOW, message

from memory_agent.errors import QuotaExceededError, SettingsError
from memory_agent.memory import Memory
from memory_agent.settings import EmbedderSettings, QuotaSettings, Settings, load_settings

TIERS = {"small": 3, "large": 300}


def opened(folder: Path, **quota: Any) -> Memory:
    no_model = EmbedderSettings(folder="none", allow_download=False)
    return Memory.open(folder, settings=Settings(embedder=no_model, quota=QuotaSettings(tiers=TIERS, **quota)))


def stored(memory: Memory) -> list[str]:
    return [record.text for record in memory.list(order="oldest").records]


def test_a_memory_over_the_quota_is_refused_with_advice_and_one_with_a_known_id_is_replaced(tmp_path: Path) -> None:
    with opened(tmp_path / "alice", users={"alice": "small"}) as memory:
        for number in range(3):
            memory.remember(f"Fact {number}", id=f"m-{number}")
        with pytest.raises(QuotaExceededError, match="forget some, or choose another tier") as caught:
            memory.remember("Fact 3")
        assert (caught.value.args, caught.value.retryable) == (("alice", 3, "small"), False)
        memory.remember("Fact 1, revised", id="m-1")
        memory.forget(["m-0"])
        memory.remember("Fact 4")
        assert sorted(stored(memory)) == ["Fact 1, revised", "Fact 2", "Fact 4"]
    with opened(tmp_path / "alice", users={"alice": "large"}) as memory:
        memory.remember("Fact 5")
        assert memory.stats().memories == 4


def test_events_over_the_quota_are_dropped_and_counted_and_their_runs_recorded(tmp_path: Path) -> None:
    with opened(tmp_path / "bob", default="small") as memory:
        report = memory.ingest([message(number) for number in range(5)], now=NOW)
        assert (report.kept, report.dropped, memory.stats().memories) == (3, {"over_quota": 2}, 3)
        assert memory.stats().events_dropped == {"over_quota": 2}
        run = memory.runs.begin("Fix the login")
        assert memory.runs.end(run.id, quality=1.0).quality == 1.0
        memory.forget([record.id for record in memory.list().records])
        assert memory.ingest([message(3), message(0)], now=NOW).kept == 1  # 0 was kept and forgotten


def test_the_oldest_unused_memories_are_forgotten_but_never_the_new_one(tmp_path: Path) -> None:
    with opened(tmp_path / "carl", default="small", when_full="forget") as memory:
        for number in range(3):
            memory.remember(f"Fact {number} about {('kilns', 'locks', 'roads')[number]}", id=f"m-{number}")
        memory.recall("kilns", mode="lexical", min_relevance=0)
        memory.remember("Fact 3")
        assert [record.id for record in memory.get(["m-0", "m-1", "m-2"])] == ["m-0", "m-2"]
        memory.remember("Fact 4")
        assert stored(memory) == ["Fact 0 about kilns", "Fact 3", "Fact 4"]
        memory.recall("Fact", mode="lexical", min_relevance=0)
        memory.remember("Fact 5")  # all others were recalled
        assert len(stored(memory)) == 3
        assert "Fact 5" in stored(memory)
        assert memory.stats().expired == {"over_quota": 3}
        report = memory.ingest([message(number) for number in range(4)], now=NOW)
        assert (report.kept, memory.stats().memories) == (4, 4)  # none of one batch


def test_patterns_are_forgotten_last_since_runs_whose_pattern_is_forgotten_never_form_one_again(tmp_path: Path) -> None:
    with opened(tmp_path / "fred", default="small", when_full="forget") as memory:
        memory.remember("Deploys need the VPN", kind="pattern")
        for number in range(4):
            memory.remember(f"Fact {number}")
        assert stored(memory) == ["Deploys need the VPN", "Fact 2", "Fact 3"]


def test_a_hundredth_of_the_quota_is_forgotten_at_once(tmp_path: Path) -> None:
    with opened(tmp_path / "dora", default="large", when_full="forget") as memory:
        memory.ingest([message(number) for number in range(300)], now=NOW)
        memory.ingest([message(300)], now=NOW)
        assert memory.stats().memories == 298


def test_a_user_without_a_tier_has_no_quota(tmp_path: Path) -> None:
    with opened(tmp_path / "ella", users={"alice": "small"}) as memory:
        assert memory.ingest([message(number) for number in range(5)], now=NOW).kept == 5


def test_an_unknown_tier_is_refused_by_name() -> None:
    for overrides in ({"quota.default": "huge"}, {"quota.users": {"alice": "huge"}}):
        with pytest.raises(SettingsError, match="huge is not one of the tiers: standard, large"):
            load_settings(environment={}, overrides=overrides)
    assert load_settings(environment={}, overrides={"quota.default": "large"}).quota.tiers["large"] == 100_000
