"""Duplicates become one memory in the answer, with their count, times and origins; similar texts stay separate."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from memory_samples import NOW, START, SUBJECTS, message, texts
from talks import VOCABULARY, Turn, asked_of, open_talk, turns

from memory_agent.embedders import Embedder
from memory_agent.memory import Memory
from memory_agent.recall import candidates
from memory_agent.recall.candidates import Candidates, scored
from memory_agent.recall.search import Search
from memory_agent.recall.selection import selected
from memory_agent.records.memories import MemoryRecord, Mode
from memory_agent.settings import EmbedderSettings, RecallSettings, Settings, StoreSettings
from memory_agent.storage.column import Slots
from memory_agent.storage.terms import fingerprint

FIX = "Restarted the billing worker and the queue drained"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Deploy done.", "deploy DONE!"),
        ("Restart the worker, then drain the queue", "restart worker then drain the queue…"),
        ("a\tb\nc", "A b, c"),
        (
            "I can restart the billing worker for you",
            "Sure! I can restart the billing worker for you, ok?".replace("?", ""),
        ),
        ("“Caf\u00e9” opens", "cafe\u0301 opens"),
    ],
)
def test_equivalent_texts_have_one_fingerprint(one: str, other: str) -> None:
    assert fingerprint(one) == fingerprint(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("the deploy to staging succeeded", "the deploy to staging failed"),
        ("the deploy succeeded", "the deploy almost succeeded"),
        ("deploy succeeded.", "deploy succeeded?"),
        ("retry the call after 5 seconds", "retry the call after 50 seconds"),
        ("restart the database before the migration", "restart the database after the migration"),
        ("copy the backup from staging to production", "copy the backup to staging from production"),
        ("You owe Alice", "I owe Alice"),
        ("the migration is done", "the migration is not done"),
        ("it does not want X but wants Y", "it does want X but not wants Y"),
        ("-5", "5"),
        ("a < b", "a > b"),
        ("+12%", "-12%"),
        ("C++", "C#"),
        ("✅", "❌"),
        ("rm -rf build/*", "rm -rf build /*"),
        ("दिन", "दान"),
        ("", "   x"),
        ("plan A failed", "the plan failed"),
        ("I am not sure it works", "I am not it works"),
        ("the deploy works so well now", "the deploy works now"),
    ],
)
def test_texts_that_differ_in_anything_but_filler_do_not(one: str, other: str) -> None:
    assert fingerprint(one) != fingerprint(other)


@given(st.text(max_size=200))
def test_every_text_has_a_fingerprint_that_a_column_holds(text: str) -> None:
    assert 0 <= fingerprint(text) < 2**63
    assert fingerprint(text) == fingerprint(text)


def test_title_and_text_have_separate_parts_in_a_fingerprint() -> None:
    assert fingerprint("a b", "c d") != fingerprint("a", "b c d")


@given(st.lists(turns, min_size=1, max_size=20), st.lists(st.sampled_from(VOCABULARY), min_size=1, max_size=3))
@settings(deadline=None, max_examples=30)
def test_the_best_of_several_duplicates_represents_them(said: list[Turn], words: list[str]) -> None:
    with TemporaryDirectory() as folder, open_talk(Path(folder) / "a", said) as talk:
        search = asked_of(talk.archive, words)
        found = scored(search, np.arange(search.view.count))
        leaders = selected(found, search)
    ranked = sorted(range(len(said)), key=lambda place: (-found.total[place], -found.rows[place]))
    groups: dict[int, list[int]] = {}
    for place in ranked:
        groups.setdefault(int(search.view.fingerprints[place]), []).append(place)
    copies = [slots.tolist() for slots in leaders.copies]
    assert list(zip(leaders.fingerprints.tolist(), leaders.slots.tolist(), copies, strict=True)) == [
        (fingerprint, best, others) for fingerprint, (best, *others) in groups.items()
    ]


def test_the_same_text_is_one_memory_with_count_times_and_origins(memory: Memory) -> None:
    variants = [FIX, FIX.upper(), f"{FIX}!", f"  {FIX}."]
    memory.ingest([message(10 * number, text) for number, text in enumerate(variants)], now=NOW)
    memory.ingest([message(100 + number) for number in range(8)], now=NOW)
    result = memory.recall("billing worker queue", top_k=3)
    best = result.memories[0]
    assert best.count == 4
    assert (best.first_seen, best.last_seen) == (START, START + timedelta(minutes=30))
    assert len(best.origins) == 3
    assert best.record.id not in {origin.id for origin in best.origins}
    assert {origin.session_id for origin in best.origins} | {best.record.session_id} == {"s-0", "s-1", "s-2", "s-3"}
    assert sum(FIX.lower() in text.lower() for text in texts(result)) == 1


def test_filler_around_the_same_text_is_folded_too(memory: Memory) -> None:
    memory.ingest(
        [message(1, f"{FIX} on the second node"), message(20, f"And so, well, {FIX} on the second node")], now=NOW
    )
    result = memory.recall("billing worker queue")
    assert [found.count for found in result.memories] == [2]


def test_the_count_obeys_the_filter(memory: Memory) -> None:
    memory.ingest([message(10 * number, FIX) for number in range(5)], now=NOW)
    result = memory.recall("billing worker", filter={"until": START + timedelta(minutes=25)})
    assert [(found.count, found.last_seen) for found in result.memories] == [(3, START + timedelta(minutes=20))]


@pytest.mark.parametrize("mode", ["hybrid", "vector", "lexical"])
def test_many_duplicates_crowd_nothing_out_and_the_newest_represents_them(
    tmp_path: Path, embedder: Embedder, mode: str
) -> None:
    few = RecallSettings(candidates=20, mode=mode, min_relevance=0.0)  # type: ignore[arg-type]
    with Memory.open(tmp_path / "u", embedder=embedder, recall_settings=few) as memory:
        memory.ingest([message(number, "The billing worker hangs", session_id=None) for number in range(200)], now=NOW)
        memory.ingest([message(300, "Why the billing worker hangs: its queue is full", session_id=None)], now=NOW)
        memory.ingest([message(301, "The billing report is late", session_id=None)], now=NOW)
        result = memory.recall("billing worker hangs", top_k=3)
    assert sorted(found.count for found in result.memories) == [1, 1, 200]
    many = max(result.memories, key=lambda found: found.count)
    assert (many.record.event_id, len(many.origins)) == ("event-199", 8)
    assert many.first_seen == START


def test_another_title_or_kind_is_another_memory(memory: Memory) -> None:
    for title, kind in (("Deploy production", "finding"), ("Deploy staging", "finding"), ("Deploy staging", "pattern")):
        memory.remember("Done.", kind, title=title, now=NOW)  # type: ignore[arg-type]
    assert sorted(found.count for found in memory.recall("deploy done").memories) == [1, 1, 1]


def test_a_floor_applies_to_the_count(memory: Memory) -> None:
    memory.ingest([message(1, FIX), message(20, FIX + "!")], now=NOW)
    raw = {found.count: found.score for found in memory.recall(FIX).memories}
    assert list(raw) == [2]
    strict = memory.recall(FIX, filter={"min_score": 0.9999}).memories
    assert [(found.count, len(found.origins)) for found in strict] == [(1, 0)]


def test_consecutive_copies_lend_each_other_nothing(memory: Memory) -> None:
    memory.ingest([message(number, FIX, session_id="s") for number in range(4)], now=NOW)
    memory.ingest([message(50 + number, session_id=f"other-{number}") for number in range(8)], now=NOW)
    best = memory.recall("billing worker queue").memories[0]
    assert (best.count, best.explanation["contiguity"], best.explanation["lent_by"]) == (4, 0.0, [])


def test_forgetting_one_of_them_leaves_the_others(memory: Memory) -> None:
    memory.ingest([message(10 * number, FIX) for number in range(3)], now=NOW)
    best = memory.recall("billing worker").memories[0]
    memory.forget([best.record.id, best.origins[0].id])
    left = memory.recall("billing worker").memories
    assert [(found.count, found.record.id) for found in left] == [(1, best.origins[1].id)]


def test_memories_without_a_vector_are_found_behind_hundreds_of_duplicates_without_one(
    tmp_path: Path, embedder: Embedder
) -> None:
    others = [f"{FIX} as step {number} of many" for number in range(4)]
    with Memory.open(tmp_path / "alice", embedder=embedder) as memory:
        memory.ingest([message(0, "Sourdough")], now=NOW)
        with memory._archive.batch() as batch:
            for number, text in enumerate([FIX] * 300 + others):
                record = MemoryRecord(
                    id=f"m-{number}", text=text, source="worker_result", kind="episode", timestamp=START
                )
                batch.put(record, None)
        result = memory.recall(FIX, top_k=5, now=NOW)
    assert sorted(texts(result)) == sorted([FIX, *others])


def test_an_answer_is_filled_behind_more_duplicates_than_a_graph_returns(tmp_path: Path, embedder: Embedder) -> None:
    others = [f"{FIX}, step {number}" for number in range(4)]
    filler = [f"{SUBJECTS[number % len(SUBJECTS)]}, part {number}" for number in range(60)]
    chosen = Settings(embedder=EmbedderSettings(allow_download=False), store=StoreSettings(exact_search_limit=100))
    with Memory.open(tmp_path / "alice", embedder=embedder, settings=chosen) as memory:
        said = enumerate([*others, *[FIX] * 600, *filler])
        memory.ingest([message(number, text) for number, text in said], now=NOW)
        deadline = time.monotonic() + 60
        while memory.stats().index != "approximate":
            assert time.monotonic() < deadline
            time.sleep(0.005)
        result = memory.recall(FIX, top_k=5, mode="vector", now=NOW)
    assert sorted(texts(result)) == sorted([FIX, *others])


@pytest.fixture(scope="module")
def crowded(tmp_path_factory: pytest.TempPathFactory, embedder: Embedder) -> Iterator[Memory]:
    """A memory with 2,000 copies of a text, 1,000 texts that differ only in a number, and 40 related texts."""
    copies = [message(number, FIX) for number in range(2_000)]
    numbered = [message(number, f"Backup {number} of the wiki is done") for number in range(2_000, 3_000)]
    others = [message(number, f"Worker {number} drained the billing queue") for number in range(3_000, 3_040)]
    with Memory.open(tmp_path_factory.mktemp("crowded") / "alice", embedder=embedder) as memory:
        memory.ingest(copies + others, now=NOW)
        memory.ingest(numbered, now=NOW)
        yield memory


@pytest.mark.parametrize("mode", ["hybrid", "vector", "lexical"])
@pytest.mark.parametrize("query", ["what became of the billing worker?", "backup of the wiki"])
def test_neither_copies_nor_ties_are_all_scored(
    crowded: Memory, monkeypatch: pytest.MonkeyPatch, mode: Mode, query: str
) -> None:
    sizes: list[int] = []

    def counting(search: Search, slots: Slots) -> Candidates:
        sizes.append(slots.size)
        return scored(search, slots)

    monkeypatch.setattr(candidates, "scored", counting)
    result = crowded.recall(query, 10, mode=mode, min_relevance=0, now=NOW, deadline_ms=60_000)
    assert len(set(texts(result))) == 10
    assert sum(sizes) <= 600, sizes


def test_a_text_of_many_copies_keeps_its_count_and_origins_and_the_newest_is_shown(crowded: Memory) -> None:
    result = crowded.recall("what became of the billing worker?", 10, min_relevance=0, now=NOW, deadline_ms=60_000)
    (found,) = (memory for memory in result.memories if memory.record.text == FIX)
    assert (found.count, len(found.origins)) == (2_000, 8)
    assert found.first_seen == START
    assert found.record.timestamp == found.last_seen == START + timedelta(minutes=1_999)
