"""Recall of evidence in a real conversation: the fusion and each of its parts must improve the result."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from memory_samples import NOW, message

from memory_agent.embedders import Embedder
from memory_agent.memory import Memory
from memory_agent.records.memories import Mode

LOCOMO = Path(__file__).parents[4] / "shared" / "data" / "locomo_dev.json"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not LOCOMO.exists(), reason="the LoCoMo data is not available"),
]


@pytest.fixture(scope="module")
def conversation() -> dict[str, Any]:
    conversation: dict[str, Any] = json.loads(LOCOMO.read_text(encoding="utf-8"))[0]
    return conversation


@pytest.fixture
def filled(tmp_path: Path, embedder: Embedder, conversation: dict[str, Any]) -> Iterator[Memory]:
    turns = [turn for part in conversation["conversation"].values() if isinstance(part, list) for turn in part]
    with Memory.open(tmp_path / "a", embedder=embedder) as memory:
        events = [
            message(number, payload={"text": f"{turn['speaker']}: {turn['text']}", "dia_id": turn["dia_id"]})
            for number, turn in enumerate(turns)
        ]
        assert memory.ingest(events, now=NOW).kept == len(turns)
        yield memory


def recall_at_10(memory: Memory, conversation: dict[str, Any], mode: Mode) -> float:
    """Return the mean recall at 10 of evidence turns, over every second question."""
    shares = []
    for question in conversation["qa"][1::2]:
        evidence = {*question.get("evidence", ())}
        if evidence:
            result = memory.recall(question["question"], top_k=10, mode=mode)
            assert result.degraded == ()
            found = {recalled.record.metadata["dia_id"] for recalled in result.memories}
            shares.append(len(evidence & found) / len(evidence))
    return sum(shares) / len(shares)


def test_hybrid_finds_more_evidence_than_either_side(filled: Memory, conversation: dict[str, Any]) -> None:
    figures = {mode: recall_at_10(filled, conversation, mode) for mode in ("lexical", "vector", "hybrid")}
    assert figures["hybrid"] >= max(figures["vector"], figures["lexical"]), figures
    assert figures["hybrid"] >= 0.65, figures
    assert figures["vector"] >= 0.40, figures
