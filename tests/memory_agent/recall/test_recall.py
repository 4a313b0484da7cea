"""Recall: modes, scores and invalid arguments. Every query gets an answer, and every degradation is reported."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import structlog
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from memory_samples import NOW, SUBJECTS, message, open_without_model, texts
from structlog.testing import LogCapture
from ulid import ULID

from memory_agent import MemoryProvider
from memory_agent.embedders import (
    Embedder,
    EmbedderInfo,
    PendingVector,
    PendingVectors,
    Progress,
    SettledVector,
    lazy_embedder,
)
from memory_agent.embedders.remote import RemoteEmbedder
from memory_agent.embedders.weights import PACKAGE, find_default
from memory_agent.errors import InvalidInputError
from memory_agent.memory import Memory
from memory_agent.recall.candidates import fuse
from memory_agent.recall.query import REASONS
from memory_agent.records.memories import Mode
from memory_agent.settings import EmbedderSettings, RecallSettings


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory, embedder: Embedder) -> Iterator[Memory]:
    """A memory with three messages about each subject. Read-only."""
    with Memory.open(tmp_path_factory.mktemp("filled") / "alice", embedder=embedder) as memory:
        memory.ingest([message(number) for number in range(24)], now=NOW)
        yield memory


class OtherModel(Embedder):
    """The same engine under a different name, so its vectors are not comparable with the store's."""

    def __init__(self, embedder: Embedder) -> None:
        self._embedder = embedder

    @property
    def info(self) -> EmbedderInfo:
        return EmbedderInfo(model="other", model_sha256="0" * 64, scheme="int8", runtime="r", ndim=384)

    def begin_query(self, text: str, timeout_s: float | None = None) -> PendingVector:
        return SettledVector(-self._embedder.embed_query(text, timeout_s))

    def begin_texts(self, texts: Sequence[str], progress: Progress | None = None) -> PendingVectors:
        return SettledVector(-self._embedder.embed_texts(texts, progress))

    def count_tokens(self, text: str, timeout_s: float | None = None) -> int:
        return self._embedder.count_tokens(text)

    def close(self) -> None:
        self._embedder.close()


def test_hybrid_finds_by_meaning_and_by_word_and_explains_itself(filled: Memory) -> None:
    result = filled.recall("race in the auth module", top_k=3)
    assert all(text.startswith(SUBJECTS[0]) for text in texts(result))
    assert (ULID.from_str(result.recall_id).datetime.year, result.degraded) == (
        result.memories[0].record.timestamp.year,
        (),
    )
    best = result.memories[0]
    assert (best.retrieval, best.tier) == ("hybrid", "local")
    assert best.score is not None
    assert best.score == pytest.approx(best.explanation["vector"])
    assert best.score > 0.6
    assert best.lexical_score is not None
    assert "**race**" in best.highlights[0]
    parts = best.explanation
    sides = (np.array([parts[name]]) for name in ("vector", "words", "lexical"))
    assert parts["fused"] == pytest.approx(fuse(*sides, parts["alpha"])[0])
    assert parts["near"] >= parts["words"] > 0
    whole = parts["fused"] + parts["date_boost"] + parts["context"] + parts["contiguity"] - parts["likeness"]
    assert math.isclose(best.sona_score, whole, abs_tol=1e-6)
    assert (parts["alpha"], parts["filter"]) == (RecallSettings().vector_weight, "none")


def test_meaning_is_found_without_a_shared_word(filled: Memory) -> None:
    result = filled.recall("threading bug during sign-in", top_k=2, mode="vector")
    assert {memory.retrieval for memory in result.memories} == {"vector"}
    assert {memory.lexical_score for memory in result.memories} == {None}
    assert all("auth" in text or "login" in text for text in texts(result))


def test_words_alone_answer_the_lexical_mode(filled: Memory) -> None:
    result = filled.recall("sourdough", top_k=10, mode="lexical")
    assert sorted(texts(result)) == sorted(f"{SUBJECTS[3]}, part {number}" for number in (3, 11, 19))
    assert {(memory.retrieval, memory.score) for memory in result.memories} == {("lexical", None)}
    assert result.degraded == ()


def test_the_score_is_the_cosine_after_any_number_of_recalls(tmp_path: Path, embedder: Embedder) -> None:
    with Memory.open(tmp_path / "a", embedder=embedder) as memory:
        memory.ingest([message(number) for number in range(8)], now=NOW)
        for number in range(25):
            memory.recall(f"{SUBJECTS[number % 8]} again", now=NOW)
        result = memory.recall(SUBJECTS[1], top_k=8, mode="vector", with_embedding=True)
        query = embedder.embed_query(SUBJECTS[1])
        for found in result.memories:
            assert found.explanation["centred"] is False
            assert found.score == pytest.approx(float(np.dot(found.record.embedding or [], query)), abs=1e-3)
        assert [m.sona_score for m in result.memories] == sorted((m.sona_score for m in result.memories), reverse=True)


def test_recalls_are_counted_on_the_memories_that_answered(tmp_path: Path, embedder: Embedder) -> None:
    with Memory.open(tmp_path / "a", embedder=embedder) as memory:
        memory.ingest([message(1), message(3)], now=NOW)
        for _ in range(3):
            memory.recall("login page", top_k=1, now=NOW, min_relevance=0)
    with Memory.open(tmp_path / "a", embedder=embedder) as memory:
        found = memory.recall("anything", top_k=2, min_relevance=0).memories
        counts = {one.record.event_id: one.record.times_recalled for one in found}
        assert counts == {"event-1": 3, "event-3": 0}
        assert memory.recall("login page", top_k=1, min_relevance=0).memories[0].record.last_recalled_at is not None


def test_an_unlogged_recall_answers_alike_and_leaves_no_trace(tmp_path: Path, embedder: Embedder) -> None:
    with Memory.open(tmp_path / "a", embedder=embedder) as memory:
        memory.ingest([message(1), message(3)], now=NOW)
        unlogged = memory.recall("login page", top_k=1, now=NOW, unlogged=True)
        (answered,) = memory.recall("login page", top_k=1, now=NOW).memories
        assert (answered.record.id, answered.sona_score) == (
            unlogged.memories[0].record.id,
            unlogged.memories[0].sona_score,
        )
        assert answered.record.times_recalled == 0
        with pytest.raises(InvalidInputError, match="unknown recall"):
            memory.feedback(unlogged.recall_id, used=[answered.record.id])


def test_embeddings_are_included_only_on_request(filled: Memory) -> None:
    assert filled.recall("login").memories[0].record.embedding is None
    assert len(filled.recall("login", with_embedding=True).memories[0].record.embedding or []) == 384


def test_an_empty_memory_answers_with_nothing_and_lacks_nothing(memory: Memory) -> None:
    for mode in ("hybrid", "vector", "lexical"):
        result = memory.recall("anything", mode=mode)
        assert (result.memories, result.degraded) == ((), ())


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"query": ""}, "query"),
        ({"query": " \n\t"}, "query"),
        ({"query": b"bytes"}, "query"),
        ({"query": "lone \ud800"}, "query"),
        ({"query": "x" * 100_001}, "query"),
        ({"top_k": 0}, "top_k"),
        ({"top_k": 1001}, "top_k"),
        ({"top_k": 2.0}, "top_k"),
        ({"top_k": True}, "top_k"),
        ({"mode": "psychic"}, "mode"),
        ({"deadline_ms": math.nan}, "deadline_ms"),
        ({"deadline_ms": "soon"}, "deadline_ms"),
        ({"now": datetime(2026, 1, 1)}, "now"),  # noqa: DTZ001
        ({"now": datetime(1950, 1, 1, tzinfo=UTC)}, "now"),
        ({"filter": 3}, "filter"),
        ({"filter": {"colour": "red"}}, "filter.colour"),
        ({"filter": {"kinds": ["novel"]}}, "filter.kinds"),
        ({"filter": {"kinds": "finding"}}, "filter.kinds"),
        ({"filter": {"since": "2026-02-01T00:00:00"}}, "filter.since"),
        ({"filter": {"min_quality": "high"}}, "filter.min_quality"),
        ({"filter": {"min_quality": 80}}, "filter.min_quality"),
        ({"filter": {"min_score": math.nan}}, "filter.min_score"),
        ({"filter": {"min_score": -1.5}}, "filter.min_score"),
        ({"filter": {"exclude": {"colour": "red"}}}, "filter.exclude.colour"),
        ({"filter": {"exclude": {"sessions": "s-1"}}}, "filter.exclude.sessions"),
        ({"filter": {"exclude": {"since": "2026-02-01T00:00:00"}}}, "filter.exclude.since"),
        ({"filter": {"exclude": {"events": ["\ud800"]}}}, "filter.exclude.events"),
        ({"filter": {"exclude": {"records": [str(number) for number in range(1_001)]}}}, "filter.exclude.records"),
        ({"by_session": ""}, "by_session"),
        ({"by_event": 7}, "by_event"),
    ],
)
def test_invalid_arguments_are_refused_by_name(filled: Memory, arguments: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        filled.recall(**({"query": "login"} | arguments))
    assert caught.value.field.startswith(field)


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=80), st.sampled_from(["hybrid", "vector", "lexical"]))
@example("the of and", "lexical")
@example('" OR text:* NEAR(a b) -x ^y (', "hybrid")
@example("'; DROP TABLE memories; --", "hybrid")
@example("\x00\x01\x7f\ufffe", "hybrid")
@example("word " * 19_000, "hybrid")
@example("💥" * 500, "vector")
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_text_is_answered_or_refused_by_name(filled: Memory, query: str, mode: Mode) -> None:
    try:
        result = filled.recall(query, mode=mode, top_k=30, deadline_ms=60_000, min_relevance=0)
    except InvalidInputError as error:
        if error.field != "query" or query.strip():
            raise
        return
    assert result.degraded in ((), ("script_unknown",))
    scores = [memory.sona_score for memory in result.memories]
    assert np.isfinite(scores).all()
    assert scores == sorted(scores, reverse=True)
    assert len({memory.record.id for memory in result.memories}) == len(scores)
    if mode != "lexical" and not result.degraded:
        assert len(scores) == 24


def test_without_a_model_words_answer_and_the_vectors_come_later(tmp_path: Path, embedder: Embedder) -> None:
    with open_without_model(tmp_path / "a") as memory:
        memory.ingest([message(number) for number in range(10)], now=NOW)
        for mode in ("hybrid", "vector"):
            result = memory.recall("sourdough", mode=mode)
            assert (texts(result), result.degraded) == ([f"{SUBJECTS[3]}, part 3"], ("no_model",))
        assert memory.recall("sourdough", mode="lexical").degraded == ()
        assert memory.recall("sourdough", filter={"min_score": 0.1}).memories == ()
        assert memory.fill_vectors() == 0
        assert memory.stats().without_vector == 10
    with Memory.open(tmp_path / "a", embedder=embedder) as memory:
        assert memory.recall("sourdough").degraded == ("vectors_pending",)
        assert (memory.fill_vectors(4), memory.stats().without_vector) == (4, 6)
    with open_without_model(tmp_path / "a") as memory:  # closing computed the remaining vectors
        assert memory.stats().without_vector == 0
        memory.ingest([message(10)], now=NOW)
    with Memory.open(tmp_path / "a", embedder=embedder) as memory:
        assert (memory.fill_vectors(), memory.fill_vectors()) == (1, 0)
        result = memory.recall("dough for baking", top_k=1, mode="vector")
        assert (texts(result), result.degraded) == ([f"{SUBJECTS[3]}, part 3"], ())


def test_the_default_floor_leaves_out_distant_memories_and_is_ignored_without_vectors(
    tmp_path: Path, embedder: Embedder
) -> None:
    usual = RecallSettings(min_score=0.5, min_relevance=0.0)
    with Memory.open(tmp_path / "a", embedder=embedder, recall_settings=usual) as memory:
        memory.ingest([message(number) for number in range(8)], now=NOW)
        near = memory.recall("Bake a sourdough bread")
        assert texts(near) == [f"{SUBJECTS[3]}, part 3"]
        assert len(memory.recall("Bake a sourdough bread", top_k=8, filter={"min_score": -1.0}).memories) == 8
        assert len(memory.recall("part", top_k=8, mode="lexical").memories) == 8
    nowhere = EmbedderSettings(folder=str(tmp_path / "no-such-model"))
    with Memory.open(tmp_path / "a", embedder_settings=nowhere, recall_settings=usual) as memory:
        result = memory.recall("part", top_k=8)
        assert (len(result.memories), result.degraded) == (8, ("no_model",))


def test_a_model_that_arrives_while_the_memory_is_open_is_used(
    tmp_path: Path, model_cache: Path, embedder: Embedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MEMORY_AGENT_MODEL_CACHE", str(model_cache))
    weights = find_default(PACKAGE).folder
    assert weights is not None
    folder = tmp_path / "model"
    with Memory.open(tmp_path / "a", embedder_settings=EmbedderSettings(folder=str(folder))) as memory:
        memory.ingest([message(number) for number in range(8)], now=NOW)
        assert memory.recall("sourdough").degraded == ("no_model",)
        folder.symlink_to(weights)
        assert memory.fill_vectors() == 8
        assert memory.recall("sourdough").degraded == ()


def test_vectors_of_another_model_are_never_mixed_and_are_recomputed_on_request(
    tmp_path: Path, embedder: Embedder
) -> None:
    with Memory.open(tmp_path / "a", embedder=embedder) as memory:
        memory.ingest([message(number) for number in range(8)], now=NOW)
        before = memory.stats().model
    other = OtherModel(embedder)
    with Memory.open(tmp_path / "a", embedder=other) as memory:
        memory.ingest([message(11)], now=NOW)
        for mode in ("hybrid", "vector"):
            result = memory.recall("sourdough", mode=mode)
            assert result.degraded == ("model_changed",)
            assert len(texts(result)) == 2
        assert (memory.fill_vectors(), memory.stats().without_vector, memory.stats().model) == (0, 1, before)
        steps: list[tuple[int, int]] = []
        assert memory.reembed(lambda done, total: steps.append((done, total))) == 9
        assert steps[-1] == (9, 9)
        result = memory.recall("sourdough", top_k=9)
        assert (result.degraded, len(result.memories)) == ((), 9)
        assert memory.stats().model == other.info.stamp
    with Memory.open(tmp_path / "a", embedder=embedder) as memory:
        assert memory.recall("sourdough").degraded == ("model_changed",)


def test_an_embedder_that_does_not_answer_is_not_waited_for_beyond_the_deadline(tmp_path: Path) -> None:
    silent = RemoteEmbedder(f"ipc://{tmp_path}/nobody.sock", timeout_s=1.0, bulk_timeout_s=0.1)
    with Memory.open(tmp_path / "a", embedder=silent) as memory:
        memory.remember("Sourdough wants time")
        result = memory.recall("sourdough", deadline_ms=300)
        assert (texts(result), result.degraded) == (["Sourdough wants time"], ("embedder_timeout",))
    silent.close()


def test_an_expired_deadline_returns_an_empty_degraded_answer(filled: Memory) -> None:
    for deadline_ms in (0.0, -5.0):
        result = filled.recall("sourdough", deadline_ms=deadline_ms)
        assert (result.memories, result.degraded) == ((), ("deadline",))


def test_while_columns_are_rebuilt_what_is_known_is_answered_and_marked(tmp_path: Path, embedder: Embedder) -> None:
    with Memory.open(tmp_path / "a", embedder=embedder) as memory:
        memory.ingest([message(number) for number in range(8)], now=NOW)
        archive = memory._archive
        with archive._writing:  # blocks the rebuild in its intermediate state
            archive._start_rebuild(from_records=True)
            result = memory.recall("sourdough", top_k=1)
            assert (texts(result), result.degraded) == ([f"{SUBJECTS[3]}, part 3"], ("index_rebuilding",))
        archive.settled_view()
        result = memory.recall("sourdough", top_k=8, min_relevance=0)
        assert (len(result.memories), result.degraded) == (8, ())
        assert result.memories[0].retrieval == "hybrid"


def test_several_threads_recall_while_one_ingests(tmp_path: Path, embedder: Embedder) -> None:
    failures: list[BaseException] = []
    done = threading.Event()

    def recall(memory: Memory) -> None:
        try:
            while not done.is_set():
                result = memory.recall("sourdough", top_k=20, deadline_ms=60_000)
                assert len({found.record.id for found in result.memories}) == len(result.memories)
                assert result.degraded == ()
        except BaseException as error:
            failures.append(error)

    with Memory.open(tmp_path / "a", embedder=embedder) as memory:
        threads = [threading.Thread(target=recall, args=(memory,)) for _ in range(3)]
        for thread in threads:
            thread.start()
        for start in range(0, 100, 20):
            report = memory.ingest([message(number) for number in range(start, start + 20)], now=NOW)
            memory.forget(report.record_ids[:5])
        done.set()
        for thread in threads:
            thread.join()
        assert failures == []
        assert memory.stats().memories == 75


def test_a_memory_is_a_provider_and_the_reasons_are_the_words_of_the_contract(filled: Memory) -> None:
    assert isinstance(filled, MemoryProvider)
    by_model = {
        "no_model",
        "embedder_timeout",
        "vectors_pending",
        "word_vectors_pending",
        "model_changed",
        "script_unknown",
    }
    by_judge = {"judge_unavailable", "judge_timeout", "judge_invalid"}
    of_indexes = {"index_rebuilding", "index_unavailable"}
    assert by_model | by_judge | of_indexes | {"global_unavailable", "deadline", "waking"} == set(REASONS)


@pytest.mark.parametrize("field", ["session_id", "run_id", "channel_id", "in_channel", "agent_id", "tags"])
def test_a_filter_that_is_not_unicode_is_refused_and_stops_no_batch(
    tmp_path: Path, embedder: Embedder, field: str
) -> None:
    """Otherwise every later batch would fail, because it would store this recall's invalid log entry."""
    with Memory.open(tmp_path / "alice", embedder=embedder) as memory:
        with pytest.raises(InvalidInputError, match=f"filter.{field}"):
            memory.recall("login", filter={field: ["\ud800"] if field == "tags" else "\ud800"}, now=NOW)
        assert memory.ingest([message(1)], now=NOW).kept == 1


class FailingModel(OtherModel):
    """A custom embedder that raises unexpected errors for some texts."""

    def begin_query(self, text: str, timeout_s: float | None = None) -> PendingVector:
        if "at once" in text:
            raise RuntimeError(text)
        return _Failing() if "later" in text else super().begin_query(text, timeout_s)

    def count_tokens(self, text: str, timeout_s: float | None = None) -> int:
        raise KeyError(text)


class _Failing:
    def result(self) -> Any:
        raise OSError("CUDA error")


@pytest.mark.parametrize("mode", ["hybrid", "vector"])
@pytest.mark.parametrize("query", ["what fails at once", "what fails later"])
def test_an_embedder_that_raises_anything_is_a_degradation_and_logged_by_type_alone(
    tmp_path: Path, embedder: Embedder, query: str, mode: Mode, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing, logs = FailingModel(embedder), LogCapture()
    monkeypatch.setattr(structlog, "is_configured", lambda: True)
    monkeypatch.setattr(lazy_embedder, "log", structlog.wrap_logger(None, processors=[logs]))
    with Memory.open(tmp_path / "a", embedder=failing) as memory:
        assert memory.ingest([message(0, "It fails on Safari")], now=NOW).kept == 1
        result = memory.recall(query, mode=mode, context_tokens=200)
        assert result.degraded == ("no_model",)
        assert texts(result) == ["It fails on Safari"]
        assert result.context is not None
        assert "It fails on Safari" in result.context
    failures = [entry for entry in logs.entries if entry["event"] == "embedder.failed"]
    assert [entry["error"] for entry in failures] == ["RuntimeError" if "at once" in query else "OSError", "KeyError"]
    assert all(set(entry) == {"event", "error", "log_level"} for entry in failures)
