"""Models with query and text prefixes, tested with the bundled model and settings for both prefixes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import numpy as np
import pytest
from made_vectors import WAIT_S

from memory_agent import Memory, MemoryRecord, RecallResult
from memory_agent.embedders import Embedder, has_prefixes, open_embedder
from memory_agent.settings import EmbedderSettings

NOW = datetime(2026, 2, 16, tzinfo=UTC)
QUERY_PREFIX, PASSAGE_PREFIX = "Zebra question about llamas: ", "Giraffe passage: "
SETTINGS = EmbedderSettings(allow_download=False, query_prefix=QUERY_PREFIX, passage_prefix=PASSAGE_PREFIX)
FACT = "The spare key of the boat house lies below the blue flowerpot."
LONG = " ".join(f"Entry {number}: the pump ran for an hour and was shut down." for number in range(120)) + " " + FACT
QUERIES = ("where is the spare key of the boat house?", "who must be asked before a deployment?", "tunnel to staging")

Opened = Callable[[EmbedderSettings], Embedder]


@pytest.fixture(scope="module")
def opened(model_cache: Path) -> Iterator[Opened]:
    """Yield a function that opens embedders of the bundled model, and close them at the end."""
    embedders: list[Embedder] = []

    def open_one(settings: EmbedderSettings) -> Embedder:
        embedders.append(open_embedder(settings, cache=model_cache))
        return embedders[-1]

    yield open_one
    for embedder in embedders:
        embedder.close()


@pytest.fixture(scope="module")
def prefixed(opened: Opened) -> Embedder:
    return opened(SETTINGS)


def fill(memory: Memory) -> None:
    memory.remember(LONG, id="long", timestamp=NOW)
    memory.remember("Ask Ann before, on any weekday.", id="titled", title="Deployments", timestamp=NOW)
    memory.remember("The tunnel must be up first.", id="tagged", tags=["staging", "vpn"], timestamp=NOW)
    for number in range(20):
        memory.remember(f"Lamp {number} of the harbour was replaced.", id=f"lamp-{number}", timestamp=NOW)


def ask(memory: Memory, query: str, limit: int = 3) -> RecallResult:
    return memory.recall(query, limit, min_relevance=0, now=NOW, context_tokens=400, deadline_ms=60_000)


def shown(result: RecallResult) -> set[tuple[str, str, tuple[str, ...]]]:
    return {(hit.record.id, hit.record.text, hit.highlights) for hit in result.memories}


def test_queries_and_texts_are_embedded_with_their_prefixes(
    tmp_path: Path, embedder: Embedder, prefixed: Embedder
) -> None:
    with Memory.open(tmp_path / "a", embedder=prefixed) as memory:
        fill(memory)
        (titled,) = memory.get(["titled"], with_embedding=True)
        expected = embedder.embed_texts([f"{PASSAGE_PREFIX}Deployments\nAsk Ann before, on any weekday."])[0]
        assert titled.embedding is not None
        assert np.allclose(titled.embedding, expected, atol=1e-3)
        query = embedder.embed_query(QUERY_PREFIX + QUERIES[1])
        best = memory.recall(QUERIES[1], 1, mode="vector", min_relevance=0, deadline_ms=60_000).memories[0]
        assert (best.record.id, best.score) == ("titled", pytest.approx(float(query @ expected), abs=2e-3))
        assert abs(float(embedder.embed_query(QUERIES[1]) @ expected) - float(query @ expected)) > 0.02


def test_prefixes_never_appear_in_answers(tmp_path: Path, embedder: Embedder, prefixed: Embedder) -> None:
    with (
        Memory.open(tmp_path / "a", embedder=prefixed) as memory,
        Memory.open(tmp_path / "b", embedder=embedder) as usual,
    ):
        fill(memory)
        fill(usual)
        rows = [row for row, _ in usual._archive.store.scan()]
        for query in QUERIES:
            found, other = ask(memory, query), ask(usual, query)
            assert found.memories[0].record.id == other.memories[0].record.id
            both = {hit.record.id for hit in found.memories} & {hit.record.id for hit in other.memories}
            assert {one for one in shown(found) if one[0] in both} == {one for one in shown(other) if one[0] in both}
        found = ask(memory, QUERIES[0], 1)
        assert "flowerpot" in found.memories[0].highlights[0].replace("*", "")
        assert found.context == ask(usual, QUERIES[0], 1).context
        for word in ("zebra", "llamas", "giraffe", "passage"):
            assert memory.recall(word, mode="lexical", deadline_ms=60_000).memories == ()
        view, plain = memory._archive.view, usual._archive.view
        slots, plain_slots = view.slots(rows), plain.slots(rows)
        assert view.word_bits.lengths[slots].tolist() == plain.word_bits.lengths[plain_slots].tolist()
        assert view.word_bits.of(slots)[1].tolist() == plain.word_bits.of(plain_slots)[1].tolist()
        assert prefixed.count_tokens(LONG) == embedder.count_tokens(LONG)
        with memory._archive.store.snapshot() as snapshot:
            passages = snapshot.passages(rows[0])
        assert passages is not None
        spans = passages[0].tolist()
        assert (spans[0][0], spans[-1][1]) == (0, len(LONG))
        assert all(0 <= begin < end <= len(LONG) for begin, end in spans)
        assert all(begin <= before for (begin, _), (_, before) in zip(spans[1:], spans, strict=False))


def test_a_changed_prefix_requires_a_rebuild_that_equals_a_new_store(
    tmp_path: Path, embedder: Embedder, prefixed: Embedder
) -> None:
    with Memory.open(tmp_path / "new", embedder=prefixed) as memory:
        fill(memory)
        expected = [_scores(ask(memory, query)) for query in QUERIES]
    with Memory.open(tmp_path / "a", embedder=embedder) as memory:
        fill(memory)
        former = [_scores(ask(memory, query)) for query in QUERIES]
    with Memory.open(tmp_path / "a", embedder=prefixed) as memory:
        assert ask(memory, QUERIES[0]).degraded == ("model_changed",)
        count = memory.care.rebuild(vectors=True)
        assert count == memory.stats().memories
        thread = memory._vectors._fill_thread
        assert thread is not None
        thread.join(WAIT_S)
        assert ask(memory, QUERIES[0]).degraded == ()
        assert [_scores(ask(memory, query)) for query in QUERIES] == expected != former


@pytest.mark.parametrize("name", ["query_prefix", "passage_prefix"])
def test_each_prefix_is_part_of_the_stamp(opened: Opened, embedder: Embedder, prefixed: Embedder, name: str) -> None:
    other = opened(msgspec.structs.replace(SETTINGS, **{name: "Another: "}))
    stamps = {embedder.info.stamp, prefixed.info.stamp, other.info.stamp}
    assert len(stamps) == len({embedder.info.words_stamp, prefixed.info.words_stamp, other.info.words_stamp}) == 3
    assert [has_prefixes(stamp) for stamp in (embedder.info.stamp, prefixed.info.stamp)] == [False, True]


def test_relevance_is_unknown_with_a_prefix_that_shifts_cosines(
    tmp_path: Path, embedder: Embedder, prefixed: Embedder
) -> None:
    for folder, one in (("a", prefixed), ("b", embedder)):
        with Memory.open(tmp_path / folder, embedder=one) as memory:
            fill(memory)
            is_known = {hit.relevance is not None for hit in ask(memory, QUERIES[0]).memories}
            assert is_known == {one is embedder}
            assert memory.recall("spare key", mode="lexical", deadline_ms=60_000).memories[0].relevance is not None


def _scores(result: RecallResult) -> list[tuple[MemoryRecord, float | None, float]]:
    records = [msgspec.structs.replace(hit.record, times_recalled=0, last_recalled_at=None) for hit in result.memories]
    return [(record, hit.score, hit.sona_score) for record, hit in zip(records, result.memories, strict=True)]
