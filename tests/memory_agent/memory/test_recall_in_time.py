"""A recall with a late lexicon answers by vectors; nothing is taken for damage, and the next recall is complete."""

from __future__ import annotations

from pathlib import Path

from memory_samples import NOW, message, texts

from memory_agent.embedders import Embedder
from memory_agent.memory import Memory

PATIENT_MS = 60_000.0


def test_while_the_lexicon_is_taken_the_vectors_answer_at_the_deadline(tmp_path: Path, embedder: Embedder) -> None:
    with Memory.open(tmp_path / "a", embedder=embedder) as memory:
        memory.ingest([message(number) for number in range(16)], now=NOW)
        whole = memory.recall("sourdough bread", top_k=2, deadline_ms=PATIENT_MS)
        lexicon = memory._archive.lexicon
        with lexicon._reading:
            late = memory.recall("sourdough bread", top_k=2, deadline_ms=500)
        assert sorted(texts(late)) == sorted(texts(whole))
        assert late.degraded == ("deadline",)
        assert {found.retrieval for found in late.memories} == {"vector"}
        assert not memory._archive.is_rebuilding("lexicon")
        assert memory.recall("sourdough bread", top_k=2, deadline_ms=PATIENT_MS).degraded == ()


def test_under_a_filter_that_cannot_be_looked_up_in_time_nothing_is_returned(
    tmp_path: Path, embedder: Embedder
) -> None:
    with Memory.open(tmp_path / "a", embedder=embedder) as memory:
        memory.ingest([message(number) for number in range(16)], now=NOW)
        with memory._archive.lexicon._reading:
            late = memory.recall("sourdough bread", filter={"session_id": "s-0"}, deadline_ms=300)
        assert (late.memories, late.degraded) == ((), ("deadline",))
