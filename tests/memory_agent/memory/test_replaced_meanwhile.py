"""A memory that is replaced while a recall runs: the answer shows it as it is, or not at all under a filter."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from made_vectors import MadeQuery, MadeVectors

from memory_agent import Memory
from memory_agent.embedders import Pending
from memory_agent.records.embedded import EmbeddedQuery

OLD, NEW = "the kiln is fired with olive wood", "the kiln is sold and the price is secret"


class Interrupted(MadeVectors):
    """Calls a function once, while a query is embedded: after its filter was applied, before memories are read."""

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
