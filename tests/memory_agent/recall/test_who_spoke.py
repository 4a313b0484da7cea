"""An agent's intermediate messages rank below other memories with similar scores, and nothing else changes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from memory_samples import NOW, message, texts

from memory_agent.embedders import Embedder
from memory_agent.memory import Memory
from memory_agent.records.memories import Mode, RecallResult
from memory_agent.settings import RecallSettings

SAID = "My flight to Lisbon leaves on Friday"
REPEATED = "Yes, your flight to Lisbon does leave on Friday"  # scores .05 higher; processors differ by less
FINDING = "Load balancer benchmark: the proxy saturates at 900 requests per second"
QUERY = "when does your flight to Lisbon leave"
WEIGHT = RecallSettings().speaker_weight


def by_assistant(number: int, text: str) -> dict[str, Any]:
    return message(number, text, event_type="chat.assistant_msg")


def finding(number: int, text: str) -> dict[str, Any]:
    return message(number, event_type="worker.task.finding", payload={"claim": text})


def recall(folder: Path, embedder: Embedder, events: list[dict[str, Any]], query: str, **weights: Any) -> RecallResult:
    mode: Mode = weights.pop("mode", "hybrid")
    settings = RecallSettings(min_relevance=0.0, **weights)
    with Memory.open(folder / "u", embedder=embedder, recall_settings=settings) as memory:
        memory.ingest(events, now=NOW)
        return memory.recall(query, mode=mode, reference_time=NOW)


def scores(result: RecallResult) -> dict[str, float]:
    return {found.record.text: found.sona_score for found in result.memories}


def test_of_two_messages_that_match_about_equally_the_users_comes_first(tmp_path: Path, embedder: Embedder) -> None:
    events = [message(1, SAID), by_assistant(2, REPEATED)]
    without = recall(tmp_path / "without", embedder, events, QUERY, speaker_weight=0.0)
    assert texts(without) == [REPEATED, SAID]
    result = recall(tmp_path / "with", embedder, events, QUERY)
    assert texts(result) == [SAID, REPEATED]
    assert [found.record.source for found in result.memories] == ["user_input", "worker_result"]
    assert [found.explanation["speaker"] for found in result.memories] == [0.0, -WEIGHT]


def test_an_agents_message_that_matches_better_comes_first_all_the_same(tmp_path: Path, embedder: Embedder) -> None:
    events = [message(1, "Hello, are you there?"), message(2, "Start with the proxy then"), by_assistant(3, FINDING)]
    result = recall(tmp_path, embedder, events, "how many requests does the proxy bear")
    assert texts(result)[0] == FINDING
    assert result.memories[0].explanation["speaker"] == -WEIGHT


def test_findings_and_users_messages_keep_their_relative_order(tmp_path: Path, embedder: Embedder) -> None:
    events = [message(1, SAID), by_assistant(2, REPEATED), finding(3, FINDING)]
    result = recall(tmp_path, embedder, events, QUERY)
    lost = {found.record.text: found.explanation["speaker"] for found in result.memories}
    assert lost == {SAID: 0.0, REPEATED: -WEIGHT, FINDING: 0.0}


@pytest.mark.parametrize("speaker", [message, by_assistant, finding])
def test_with_one_kind_of_speaker_nothing_changes(
    tmp_path: Path, embedder: Embedder, speaker: Callable[[int, str], dict[str, Any]]
) -> None:
    events = [speaker(number, text) for number, text in enumerate((SAID, REPEATED, FINDING))]
    without = recall(tmp_path / "without", embedder, events, QUERY, speaker_weight=0.0)
    assert scores(recall(tmp_path / "with", embedder, events, QUERY)) == scores(without)


@pytest.mark.parametrize("mode", ["vector", "lexical"])
def test_a_single_side_ignores_the_speaker(tmp_path: Path, embedder: Embedder, mode: Mode) -> None:
    result = recall(tmp_path, embedder, [message(1, SAID), by_assistant(2, REPEATED)], QUERY, mode=mode)
    assert [found.explanation["speaker"] for found in result.memories] == [0.0, 0.0]


def test_the_parts_add_up_where_several_speak(tmp_path: Path, embedder: Embedder) -> None:
    events = [message(1, SAID), by_assistant(2, REPEATED), finding(3, FINDING)]
    for found in recall(tmp_path, embedder, events, QUERY).memories:
        why = found.explanation
        parts = ("fused", "date_boost", "speaker", "context", "contiguity", "learned")
        assert found.sona_score == pytest.approx(sum(why[part] for part in parts) - why["likeness"])
