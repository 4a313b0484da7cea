"""Memories and questions in other languages: shared words are found, and unanswerable questions get no answer.

`languages.json` contains the stores of each language. Each store has questions that share words with a memory, and
questions that no memory answers. Each language's second store was written after the constants were chosen.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from memory_samples import NOW, texts

from memory_agent.embedders import Embedder
from memory_agent.memory import Memory

READ = ("en", "de", "es", "fr", "pt")
"""The languages whose letters the model's vocabulary contains."""


class Store(msgspec.Struct):
    memories: list[str]
    answered: list[tuple[str, int]]
    unanswered: list[str]


STORES = msgspec.json.decode((Path(__file__).parent / "languages.json").read_bytes(), type=dict[str, tuple[Store, ...]])


@pytest.mark.parametrize(
    ("language", "place"), [(language, place) for language, stores in STORES.items() for place in range(len(stores))]
)
def test_questions_find_only_memories_that_share_their_words(memory: Memory, language: str, place: int) -> None:
    store = STORES[language][place]
    for text in store.memories:
        memory.remember(text, now=NOW)
    results = [memory.recall(text, now=NOW, deadline_ms=60_000) for text, _ in store.answered]
    found = [
        texts(result)[:1] == [store.memories[right]] for result, (_, right) in zip(results, store.answered, strict=True)
    ]
    assert sum(found) >= len(found) - 1
    results += [memory.recall(text, now=NOW, deadline_ms=60_000) for text in store.unanswered]
    refused = [not result.memories for result in results[len(found) :]]
    assert sum(refused) >= len(refused) - 1
    if language != "emoji":
        expected = () if language in READ else ("script_unknown",)
        assert {result.degraded for result in results} == {expected}


def test_a_query_of_unknown_tokens_matches_nothing_by_vector(memory: Memory) -> None:
    memory.remember("😀😀", now=NOW)
    for mode in ("hybrid", "vector"):
        result = memory.recall("🦄🦄", mode=mode, min_relevance=0, now=NOW, deadline_ms=60_000)
        assert (result.memories, result.degraded) == ((), ("script_unknown",))


@pytest.mark.parametrize(
    ("text", "least", "most"),
    [
        ("why did PostgreSQL reject user_id=7 in Köln?", 1.0, 1.0),
        ("3.14 ?!", 1.0, 1.0),
        ("", 1.0, 1.0),
        ("The 🦄 channel is for the release party", 0.9, 0.99),
        ("what does 注文 mean", 0.8, 0.9),
        ("Что такое Redis?", 0.3, 0.5),
        ("部署为什么失败", 0.0, 0.0),
        ("🦄🦄", 0.0, 0.0),
    ],
)
def test_the_embedder_reports_the_share_of_a_query_that_it_reads(
    embedder: Embedder, text: str, least: float, most: float
) -> None:
    assert least <= embedder.embed_query_words(text).read <= most
