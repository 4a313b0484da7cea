"""An answer shows the best passage of a long text. A memory that is replaced during a recall appears in its new
version, or not at all.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from made_vectors import MadeQuery, MadeVectors
from memory_samples import NOW, message

from memory_agent.embedders import Embedder, Pending
from memory_agent.memory import Memory
from memory_agent.records.embedded import EmbeddedQuery
from memory_agent.records.memories import Mode

OLD, NEW = "the kiln is fired with olive wood", "the kiln is sold and the price is secret"
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


def test_a_text_replaced_during_a_recall_is_shown_in_its_new_version(tmp_path: Path, embedder: Embedder) -> None:
    with Memory.open(tmp_path / "a", embedder=embedder) as memory:
        stored = memory.remember(f"{FILLER} {FACT}", id="minutes", now=NOW)
        shorter = msgspec.structs.replace(stored, text=FILLER[: len(FILLER) // 4])
        (made,) = embedder.begin_passages([shorter.text]).result()
        assert 1 < len(made.vectors) < len(embedder.begin_passages([stored.text]).result()[0].vectors) // 2
        with memory._archive.store.batch() as batch:  # the columns do not contain this change yet
            batch.set_words_stamp(embedder.info.words_stamp)
            batch.upsert(shorter, made)
        found = memory.recall("Which key opens the fire door of the archive?", 1, min_relevance=0.0, deadline_ms=60_000)
    (best,) = found.memories
    assert (best.record.text, best.highlights) == (shorter.text, ())


class Interrupted(MadeVectors):
    """Calls a function once while a query is embedded, after the filter is applied and before memories are read."""

    def __init__(self) -> None:
        super().__init__()
        self.meanwhile: Callable[[], object] = lambda: None

    def begin_query_words(self, text: str, timeout_s: float | None = None) -> Pending[EmbeddedQuery]:
        found = super().begin_query_words(text, timeout_s).result()
        embedder = self

        class Late(MadeQuery):
            def result(self) -> EmbeddedQuery:
                meanwhile, embedder.meanwhile = embedder.meanwhile, lambda: None
                meanwhile()
                return found

        return Late(found)


@pytest.mark.parametrize("mode", ["hybrid", "vector"])
def test_no_answer_shows_what_its_filter_excludes(tmp_path: Path, mode: str) -> None:
    embedder = Interrupted()
    with Memory.open(tmp_path / "alice", embedder=embedder) as memory:
        memory.remember(OLD, id="kiln", metadata={"audience": "all"})
        other = memory.remember("the kiln burns wood", metadata={"audience": "all"})

        def recalled(filter: dict[str, object] | None) -> list[str]:
            memory.remember(OLD, id="kiln", metadata={"audience": "all"})
            embedder.meanwhile = lambda: memory.remember(NEW, id="kiln", metadata={"audience": "board"})
            answer = memory.recall("kiln wood", filter=filter, mode=mode, min_relevance=0)  # type: ignore[arg-type]
            return sorted(found.record.text for found in answer.memories)

        assert recalled({"metadata": {"audience": "all"}}) == [other.text]
        assert recalled(None) == sorted([NEW, other.text])
