"""A fact far behind the beginning of a long text is found, and the passage that holds it is shown."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from memory_samples import NOW, message

from memory_agent.embedders import Embedder
from memory_agent.memory import Memory
from memory_agent.records.memories import Mode

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


def test_a_text_that_is_replaced_while_it_is_recalled_is_shown_as_it_is_now(tmp_path: Path, embedder: Embedder) -> None:
    with Memory.open(tmp_path / "a", embedder=embedder) as memory:
        stored = memory.remember(f"{FILLER} {FACT}", id="minutes", now=NOW)
        shorter = msgspec.structs.replace(stored, text=FILLER[: len(FILLER) // 4])
        (made,) = embedder.begin_passages([shorter.text]).result()
        assert 1 < len(made.vectors) < len(embedder.begin_passages([stored.text]).result()[0].vectors) // 2
        with memory._archive.store.batch() as batch:  # which the columns do not know of yet
            batch.set_words_stamp(embedder.info.words_stamp)
            batch.upsert(shorter, made)
        found = memory.recall("Which key opens the fire door of the archive?", 1, min_relevance=0.0, deadline_ms=60_000)
    (best,) = found.memories
    assert (best.record.text, best.highlights) == (shorter.text, ())
