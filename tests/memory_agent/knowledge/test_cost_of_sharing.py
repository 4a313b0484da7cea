"""Test the cost that shared items add to a recall: the order of requests, and the number of calls and reads."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest
from sharing_world import UNLIMITED, World

from memory_agent.embedders import Embedder, EmbedderInfo, PassageEmbedder, Pending, Progress, Settled
from memory_agent.errors import EmbedderUnavailableError
from memory_agent.knowledge import Knowledge
from memory_agent.knowledge.pseudonyms import SECRET
from memory_agent.memory import Memory
from memory_agent.records.embedded import Embedded, EmbeddedQuery
from memory_agent.records.memories import RetrievedMemory
from memory_agent.records.shared import FoundItem
from memory_agent.records.shared_requests import Caller, SearchItems
from memory_agent.settings import Settings
from memory_agent.storage.snapshot import Snapshot
from ops.bench.cost import python_calls
from ops.bench.shared import share
from ops.bench.texts import events, passages, queries

NOW = datetime(2026, 7, 1, tzinfo=UTC)
MEMORIES = 100
BOTH = ("local", "global")
QUESTION = "what does staging need?"


class Listed(PassageEmbedder):
    """The model, optionally renamed.

    It records the queries that it is asked to embed. With `is_late`, it always misses the deadline.
    """

    def __init__(self, model: Embedder, name: str | None = None, *, is_late: bool = False) -> None:
        self._model = model
        self._name = name
        self._is_late = is_late
        self.queries: list[str] = []

    @property
    def info(self) -> EmbedderInfo:
        info = self._model.info
        return info if self._name is None else msgspec.structs.replace(info, model=self._name, model_sha256="0" * 64)

    def begin_query_words(self, text: str, timeout_s: float | None = None) -> Pending[EmbeddedQuery]:
        self.queries.append(text)
        if self._is_late:
            return Settled(EmbedderUnavailableError("late"))
        return self._model.begin_query_words(text, timeout_s)

    def begin_passages(
        self, texts: Sequence[str], progress: Progress | None = None, timeout_s: float | None = None
    ) -> Pending[list[Embedded]]:
        return self._model.begin_passages(texts, progress, timeout_s)

    def count_tokens(self, text: str, timeout_s: float | None = None) -> int:
        return self._model.count_tokens(text, timeout_s)

    def close(self) -> None:
        """Do nothing: the model stays open."""


def recalled(folder: Path, own: Listed, of_items: Listed, world: World) -> tuple[RetrievedMemory, FoundItem]:
    """Recall an item from both tiers, each with its own embedder, and then search only for the item."""
    world.published("ann", "Connect to the VPN before a deploy to staging")
    with (
        world.closed(),
        Knowledge.open(world.folder, settings=world.settings, embedder=of_items) as shared,
        Memory.open(folder, embedder=own, shared=shared) as ben,
    ):
        ben.remember("Staging is slow on Mondays")
        result = ben.recall(QUESTION, tiers=BOTH, min_relevance=0.0, deadline_ms=30_000.0)
        (found,) = ben.shared.search(QUESTION, min_relevance=0.0)
    (memory,) = (memory for memory in result.memories if memory.tier == "global")
    return memory, found


def test_a_recall_of_both_tiers_embeds_its_query_once(tmp_path: Path, embedder: Embedder, world: World) -> None:
    """Embedding a second query would take .35 ms of processor time in the embedder, its client and four threads."""
    own, of_items = Listed(embedder), Listed(embedder)
    memory, found = recalled(tmp_path / "ben", own, of_items, world)
    assert (own.queries, of_items.queries) == ([QUESTION], [QUESTION])  # the second query is for the search
    assert (memory.score, memory.sona_score, memory.relevance) == (found.score, found.sona_score, found.relevance)


def test_items_with_vectors_of_another_model_are_searched_with_a_vector_of_that_model(
    tmp_path: Path, embedder: Embedder, world: World
) -> None:
    own, of_items = Listed(embedder, "other"), Listed(embedder)
    memory, found = recalled(tmp_path / "ben", own, of_items, world)
    assert (own.queries, of_items.queries) == ([QUESTION], 2 * [QUESTION])
    assert memory.score is not None
    assert (memory.score, memory.sona_score) == (found.score, found.sona_score)


def test_an_embedder_that_was_late_for_a_recall_is_not_asked_again_for_the_items(
    tmp_path: Path, embedder: Embedder, world: World
) -> None:
    own, of_items = Listed(embedder, is_late=True), Listed(embedder)
    memory, found = recalled(tmp_path / "ben", own, of_items, world)
    assert (own.queries, of_items.queries) == ([QUESTION], [QUESTION])  # the second query is for the search
    assert (memory.record.id, memory.score) == (found.item.id, None)


def test_the_secret_is_read_as_often_for_many_items_as_for_one(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The names of an item's blobs depend on the secret."""
    for number in range(6):
        world.published("ann", f"Connect to the VPN before a deploy to staging, says sheet {number}")
    read, blob = list[str](), Snapshot.blob

    def listed(snapshot: Snapshot, name: str) -> bytes | None:
        read.append(name)
        return blob(snapshot, name)

    monkeypatch.setattr(Snapshot, "blob", listed)
    times = []
    for top_k in (1, 6):
        read.clear()
        ask = SearchItems(query=QUESTION, top_k=top_k, min_relevance=0.0, of_others=True)
        assert len(world.shared.ask(Caller(user_id="ben"), ask)) == top_k
        times.append(read.count(SECRET))
    assert times[0] == times[1] > 0


@pytest.mark.slow
def test_a_search_of_items_calls_no_more_functions_than_a_recall_of_as_many_memories(
    tmp_path: Path, embedder: Embedder
) -> None:
    with Memory.open(tmp_path / "ann", embedder=embedder) as memory:
        memory.ingest(events(passages(MEMORIES, seed=1), "ann", "fill"), now=NOW)
    share(Path(shutil.copytree(tmp_path / "ann", tmp_path / "shared")))
    settings, caller = Settings(shared=UNLIMITED), Caller(user_id="ben")
    with (
        Memory.open(tmp_path / "ann", embedder=embedder) as memory,
        Knowledge.open(tmp_path / "shared", settings=settings, embedder=embedder) as shared,
    ):

        def recalled(query: str) -> None:
            assert len(memory.recall(query, 15, min_relevance=0.0, now=NOW).memories) == 15

        def searched(query: str) -> None:
            assert len(shared.ask(caller, SearchItems(query=query, top_k=15, min_relevance=0.0))) == 15

        for query in queries(3, seed=2):
            recalled(query)
            searched(query)
        for query in queries(5, seed=3):
            own, others = (python_calls(lambda do=do, query=query: do(query)) for do in (recalled, searched))
            assert others <= own
