"""The cost of shared items in a recall, measured by the order of requests and the numbers of calls and reads."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import pytest
from sharing_world import UNLIMITED, World

from memory_agent.embedders import Embedder, EmbedderInfo, PassageEmbedder, Pending, Progress
from memory_agent.knowledge import Knowledge
from memory_agent.knowledge.pseudonyms import SECRET
from memory_agent.memory import Memory
from memory_agent.records.embedded import Embedded, EmbeddedQuery
from memory_agent.records.shared_requests import AnySharedRequest, Caller, PendingItems, SearchItems
from memory_agent.settings import Settings
from memory_agent.storage.snapshot import Snapshot
from ops.bench.cost import python_calls
from ops.bench.shared import share
from ops.bench.texts import events, passages, queries

NOW = datetime(2026, 7, 1, tzinfo=UTC)
MEMORIES = 300
BOTH = ("local", "global")


class Listed(PassageEmbedder):
    """The model, which records the queries that it embeds."""

    def __init__(self, model: Embedder, steps: list[str]) -> None:
        self._model = model
        self._steps = steps

    @property
    def info(self) -> EmbedderInfo:
        return self._model.info

    def begin_query_words(self, text: str, timeout_s: float | None = None) -> Pending[EmbeddedQuery]:
        self._steps.append("query")
        return self._model.begin_query_words(text, timeout_s)

    def begin_passages(
        self, texts: Sequence[str], progress: Progress | None = None, timeout_s: float | None = None
    ) -> Pending[list[Embedded]]:
        return self._model.begin_passages(texts, progress, timeout_s)

    def count_tokens(self, text: str, timeout_s: float | None = None) -> int:
        return self._model.count_tokens(text, timeout_s)

    def close(self) -> None:
        """Do nothing: the model stays open."""


class ListedStore:
    """A store that records when searches start."""

    def __init__(self, knowledge: Knowledge, steps: list[str]) -> None:
        self._knowledge = knowledge
        self._steps = steps

    def ask(self, caller: Caller, ask: AnySharedRequest, timeout_s: float) -> object:
        return self._knowledge.ask(caller, ask, timeout_s)

    def begin_search(self, caller: Caller, ask: SearchItems, timeout_s: float) -> PendingItems:
        self._steps.append("search")
        return self._knowledge.begin_search(caller, ask, timeout_s)


def test_a_query_is_with_the_embedder_before_the_search_of_shared_items_begins(
    tmp_path: Path, embedder: Embedder, world: World
) -> None:
    """Both searches wait for the embedder, and starting the shared search takes 0.2 ms."""
    item, steps = world.published("ann", "Connect to the VPN before a deploy to staging"), list[str]()
    store = ListedStore(world.shared, steps)
    with Memory.open(tmp_path / "ben", embedder=Listed(embedder, steps), shared=store) as ben:
        ben.remember("Staging is slow on Mondays")
        steps.clear()
        found = ben.recall("what does staging need?", tiers=BOTH, min_relevance=0.0).memories
        assert item.id in {memory.record.id for memory in found}
        assert steps == ["query", "search"]
        steps.clear()
        ben.recall("what does staging need?", tiers=("global",))
        assert steps == ["search"]


def test_the_secret_is_read_as_often_for_many_items_as_for_one(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The secret is part of the names of an item's blobs."""
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
        ask = SearchItems(query="what does staging need?", top_k=top_k, min_relevance=0.0, of_others=True)
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
