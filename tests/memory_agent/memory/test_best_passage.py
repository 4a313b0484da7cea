"""A fact far behind the beginning of a long text is found, and the passage that holds it is shown."""

from __future__ import annotations

from pathlib import Path

import pytest
from memory_samples import NOW, message

from memory_agent.embedders import Embedder
from memory_agent.memory import Memory
from memory_agent.records import Mode

FILLER = " ".join(f"The minutes of week {week} record attendance, agenda and the usual votes." for week in range(170))
FACT = "The fire door of the archive opens with the brass key in the blue vase."
LONG = f"{FILLER} {FACT} {FILLER}"


@pytest.mark.parametrize("mode", ["hybrid", "vector"])
def test_a_fact_behind_two_thousand_words_is_found_and_shown(tmp_path: Path, embedder: Embedder, mode: Mode) -> None:
    assert len(FILLER.split()) > 2_000
    with Memory.open(tmp_path / "a", embedder=embedder) as memory:
        memory.ingest([message(1, LONG), *(message(2 + n, f"Lunch number {n} was soup") for n in range(20))], now=NOW)
        found = memory.recall("Which key opens the fire door of the archive?", 1, mode=mode, now=NOW)
    (best,) = found.memories
    assert best.record.text.startswith("The minutes of week 0")
    (shown,) = best.highlights
    assert "brass **key** in the blue vase" in shown
