"""Patterns as memories in a real store: recalled, updated in place, and removed with their runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from run_samples import SMALL, at, begin, end, event, failure, step
from store_checks import verified

from memory_agent.embedders import Embedder, EmbedderInfo, PendingVector, PendingVectors, Progress, open_embedder
from memory_agent.learning import pattern_store, patterns
from memory_agent.memory import Memory
from memory_agent.records.memories import MemoryRecord, Utility
from memory_agent.settings import EmbedderSettings, LearningSettings

DAY = 24 * 60
LATER = at(400 * DAY)
EXPORT = "Repair the invoice export, umlauts are broken"
FENCE = "Paint the garden fence green"


class CountingEmbedder(Embedder):
    """The real embedder; records the texts that it embeds."""

    def __init__(self, embedder: Embedder) -> None:
        self._embedder = embedder
        self.texts: list[str] = []

    @property
    def info(self) -> EmbedderInfo:
        return self._embedder.info

    def begin_query(self, text: str, timeout_s: float | None = None) -> PendingVector:
        return self._embedder.begin_query(text, timeout_s)

    def begin_texts(self, texts: Sequence[str], progress: Progress | None = None) -> PendingVectors:
        self.texts += texts
        return self._embedder.begin_texts(texts, progress)

    def count_tokens(self, text: str, timeout_s: float | None = None) -> int:
        return self._embedder.count_tokens(text, timeout_s)

    def close(self) -> None:
        """Do nothing; the `real` fixture closes the embedder."""


@pytest.fixture(scope="module")
def real() -> Iterator[Embedder]:
    embedder = open_embedder(EmbedderSettings(allow_download=False))
    yield embedder
    embedder.close()


@pytest.fixture
def embedder(real: Embedder) -> CountingEmbedder:
    return CountingEmbedder(real)


@pytest.fixture
def memory(tmp_path: Path, embedder: CountingEmbedder) -> Iterator[Memory]:
    with opened(tmp_path / "alice", embedder) as memory:
        yield memory


def opened(folder: Path, embedder: Embedder, **settings: Any) -> Memory:
    learning = LearningSettings(**settings)
    return Memory.open(folder, embedder=embedder, store_settings=SMALL, learning_settings=learning)


def run(
    number: int, objective: str = EXPORT, session: str | None = None, *, fails: bool = False
) -> list[dict[str, Any]]:
    """Return the events of a run on its own day and, by default, in its own session."""
    name, minute = f"run-{number}", number * DAY
    session = session or f"s-{number}"
    told = step(name, 1, minute + 1, summary="Set encoding to utf-8 in export.toml", session_id=session)
    last = failure(name, minute + 2) if fails else end(name, minute + 2, summary=f"Exported {number} invoices")
    return [begin(name, minute, objective, session_id=session), told, last]


def ingest(memory: Memory, *runs: list[dict[str, Any]]) -> None:
    memory.ingest([event for events in runs for event in events], now=LATER)


def stored(memory: Memory) -> list[MemoryRecord]:
    return [record for _, record in memory._archive.store.scan() if "run_ids" in record.metadata]


def only(memory: Memory) -> MemoryRecord:
    (record,) = stored(memory)
    return record


def id_of(memory: Memory, event_id: str) -> str:
    record = memory._archive.store.record(memory._archive.store.row_of_event(event_id) or 0)
    assert record is not None
    return record.id


def test_three_similar_runs_become_a_recallable_memory_with_count_and_outcomes(
    memory: Memory,
) -> None:
    ingest(memory, run(1, session="a"), run(2, session="a", fails=True), run(3, session="b"))
    assert stored(memory) == []
    assert memory.sona.consolidate(LATER)
    answer = memory.recall(
        "invoice export with broken umlauts", 3, {"kinds": ["pattern"]}, now=LATER, deadline_ms=60_000
    )
    (found,) = answer.memories
    assert found.record.id == only(memory).id
    assert found.score is not None
    assert f"Asked 3 times from 2026-02-17 to 2026-02-19, most typically: {EXPORT}" in found.record.text
    assert "2 completed, 1 failed; mean quality 0.53" in found.record.text
    assert "Exported 3 invoices" in found.record.text
    assert found.record.metadata["run_ids"] == ["run-1", "run-2", "run-3"]
    assert memory.recall(EXPORT, 20, now=LATER, deadline_ms=60_000).memories[0].record.run_id != found.record.id


def test_a_further_run_updates_the_pattern_in_place_and_its_words_and_vector_follow(
    memory: Memory, embedder: CountingEmbedder
) -> None:
    ingest(memory, *(run(number) for number in range(1, 4)))
    memory.sona.consolidate(LATER)
    before, row = only(memory), memory._archive.store.row_of_id(only(memory).id)
    memory.recall("invoice export", 3, {"kinds": ["pattern"]}, now=LATER, deadline_ms=60_000)
    ingest(memory, run(4))
    embedder.texts.clear()
    assert memory.sona.consolidate(LATER)
    after = only(memory)
    assert (after.id, memory._archive.store.row_of_id(after.id)) == (before.id, row)
    assert "Asked 4 times" in after.text
    assert after.times_recalled == 1
    assert embedder.texts == [after.text]
    vector = memory._archive.store.vectors([row or 0])[0]
    assert vector @ embedder.embed_query(after.text) > 0.99
    found = memory.recall("Exported 4 invoices", 3, {"kinds": ["pattern"]}, "lexical", now=LATER, deadline_ms=60_000)
    assert [one.record.id for one in found.memories] == [after.id]


def test_nothing_is_written_or_embedded_without_changes(tmp_path: Path, embedder: CountingEmbedder) -> None:
    with opened(tmp_path / "alice", embedder) as memory:
        ingest(memory, *(run(number) for number in range(1, 4)))
        memory.sona.consolidate(LATER)
        embedder.texts.clear()
        ingest(memory, run(9, FENCE))
        store = memory._archive.store
        changes = store.state.last_change
        texts = list(embedder.texts)
        memory.sona.consolidate(LATER)
        assert not memory.sona.consolidate(LATER)
        assert (store.state.last_change, embedder.texts) == (changes, texts)
        record = only(memory)
    with opened(tmp_path / "alice", embedder) as memory:
        assert not memory.sona.consolidate(LATER)
        assert (memory._archive.store.state.last_change, embedder.texts) == (changes, texts)
        assert only(memory) == record
        assert verified(memory._archive.store) == 13


def test_a_pattern_belongs_to_no_run_and_its_runs_did_not_use_it(memory: Memory) -> None:
    filler = [event(f"f-{n}", "chat.user_msg", n, text=f"Day {n}: read logs of build {n}") for n in range(40)]
    memory.ingest(filler, now=LATER)
    ingest(memory, *(run(number) for number in range(1, 4)))
    memory.sona.consolidate(LATER)
    pattern = only(memory)
    assert pattern.run_id is None
    ingest(memory, run(4)[:1])
    answer = memory.recall(EXPORT, 3, {"kinds": ["pattern"]}, by_run="run-4", now=at(4 * DAY), deadline_ms=60_000)
    assert [found.record.id for found in answer.memories] == [pattern.id]
    ingest(memory, run(4)[1:])
    memory.sona.consolidate(LATER)
    run_4 = memory.runs.get("run-4")
    assert run_4 is not None
    credited = [(use.record_id, use.how) for use in run_4.used]
    assert credited == [(pattern.id, "overlap")]  # the run repeats steps that the pattern quotes from other runs
    memory.ingest([step("run-4", 9, 4 * DAY + 3, summary="Nothing else")], now=LATER)
    memory.sona.consolidate(LATER)
    run_4 = memory.runs.get("run-4")
    assert run_4 is not None
    assert run_4.used == ()  # the pattern now quotes this run
    assert pattern.id not in {told.record_id for told in run_4.steps}


@pytest.mark.parametrize("part", ["run-3-begin", "run-3-step-1", "run-3-end"])
def test_forgetting_a_memory_of_a_pattern_removes_it_until_it_is_found_again(memory: Memory, part: str) -> None:
    ingest(memory, *(run(number) for number in range(1, 5)))
    memory.sona.consolidate(LATER)
    before = only(memory)
    assert memory.forget([id_of(memory, part)]) == 1
    assert stored(memory) == []
    memory.sona.consolidate(LATER)
    after = only(memory)
    assert after.id == before.id
    assert after.metadata["runs"] == (3 if part == "run-3-begin" else 4)
    assert verified(memory._archive.store) > 0


def test_a_run_whose_request_arrives_late_joins_the_pattern_then(memory: Memory) -> None:
    ingest(memory, run(1), run(2), run(3)[1:])
    memory.sona.consolidate(LATER)
    assert stored(memory) == []
    ingest(memory, run(3)[:1])
    memory.sona.consolidate(LATER)
    assert only(memory).metadata["runs"] == 3


def test_forgetting_a_session_removes_its_runs_and_too_few_form_no_pattern(memory: Memory) -> None:
    ingest(memory, run(1, session="a"), run(2, session="a"), run(3, session="b"))
    memory.sona.consolidate(LATER)
    assert memory.forget_session("b") == 3
    assert stored(memory) == []
    memory.sona.consolidate(LATER)
    assert stored(memory) == []
    assert memory.recall("invoice export", 5, {"kinds": ["pattern"]}, now=LATER, deadline_ms=60_000).memories == ()


def test_a_forgotten_pattern_stays_forgotten_and_new_runs_form_another(memory: Memory) -> None:
    ingest(memory, *(run(number) for number in range(1, 4)))
    memory.sona.consolidate(LATER)
    first = only(memory)
    assert memory.forget([first.id]) == 1
    ingest(memory, run(4), run(5))
    memory.sona.consolidate(LATER)
    assert stored(memory) == []
    ingest(memory, run(6))
    memory.sona.consolidate(LATER)
    assert only(memory).metadata["run_ids"] == ["run-4", "run-5", "run-6"]
    assert only(memory).id != first.id


def test_removing_a_pattern_removes_it_from_runs_that_used_it(memory: Memory) -> None:
    ingest(memory, *(run(number) for number in range(1, 4)))
    memory.sona.consolidate(LATER)
    pattern = only(memory)
    memory.ingest([begin("other", 9 * DAY, FENCE), end("other", 9 * DAY + 1, memory_ids=[pattern.id])], now=LATER)
    assert [one.utility for one in memory.get([pattern.id])] == [Utility(used=1, reward_sum=0.8)]
    memory.forget([id_of(memory, "run-1-begin")])
    other = memory.runs.get("other")
    assert other is not None
    assert other.used == ()
    assert verified(memory._archive.store) > 0


def test_without_similar_runs_or_switched_off_there_is_no_pattern(tmp_path: Path, embedder: CountingEmbedder) -> None:
    runs = [run(number) for number in range(1, 4)]
    with opened(tmp_path / "alice", embedder) as memory:
        memory.sona.consolidate(LATER)
        assert stored(memory) == []
        ingest(memory, *runs[:2], run(7, FENCE))
        memory.sona.consolidate(LATER)
        assert stored(memory) == []
        ingest(memory, runs[2])
        memory.sona.consolidate(LATER)
        assert len(stored(memory)) == 1
        mine = memory.remember("Always the same", "pattern", metadata={"run_ids": ["run-1"]}, now=LATER)
    with opened(tmp_path / "alice", embedder, patterns=False) as memory:
        memory.sona.consolidate(LATER)
        assert [record.id for record in stored(memory)] == [mine.id]
        assert not memory.sona.consolidate(LATER)
    with opened(tmp_path / "bob", embedder, mode="off") as memory:
        ingest(memory, *runs)
        assert not memory.sona.consolidate(LATER)
        assert stored(memory) == []


def test_patterns_wait_for_the_vectors_of_requests_and_for_their_own(
    tmp_path: Path, embedder: CountingEmbedder
) -> None:
    nowhere = EmbedderSettings(folder=str(tmp_path / "no-such-model"), allow_download=False)
    with Memory.open(tmp_path / "alice", embedder_settings=nowhere, store_settings=SMALL) as memory:
        ingest(memory, *(run(number) for number in range(1, 4)))
        memory.sona.consolidate(LATER)
        assert stored(memory) == []
    with opened(tmp_path / "alice", embedder) as memory:
        memory.fill_vectors()
    with Memory.open(tmp_path / "alice", embedder_settings=nowhere, store_settings=SMALL) as memory:
        memory.sona.consolidate(LATER)
        assert memory.stats().without_vector == 1
        memory.ingest([event("approved", "feedback.approved", 9 * DAY, "run-3", comment="Good")], now=LATER)
        memory.sona.consolidate(LATER)
        assert "1 approved" in only(memory).text
    with opened(tmp_path / "alice", embedder) as memory:
        memory.fill_vectors()
        row = memory._archive.store.row_of_id(only(memory).id) or 0
        known = memory._archive.store.vectors([row])[0]
        assert known @ embedder.embed_query(only(memory).text) > 0.99
    with Memory.open(tmp_path / "alice", embedder_settings=nowhere, store_settings=SMALL) as memory:
        memory.ingest([event("rejected", "feedback.rejected", 10 * DAY, "run-3", comment="Bad")], now=LATER)
        memory.sona.consolidate(LATER)
        assert "1 approved" not in only(memory).text
        assert (memory._archive.store.vectors([row])[0] == known).all()
    with opened(tmp_path / "alice", embedder) as memory:
        memory.fill_vectors()
        memory.sona.consolidate(LATER)
        assert memory._archive.store.vectors([row])[0] @ embedder.embed_query(only(memory).text) > 0.99


def test_a_pattern_beyond_the_newest_runs_stays_and_accepts_newer_runs(
    memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (patterns, pattern_store):
        monkeypatch.setattr(module, "MOST_RUNS", 5)
    ingest(memory, *(run(number) for number in range(1, 5)))
    memory.sona.consolidate(LATER)
    pattern = only(memory)
    ingest(memory, *(run(number, FENCE, "garden") for number in range(10, 14)))
    memory.sona.consolidate(LATER)
    assert pattern.id in {record.id for record in stored(memory)}
    ingest(memory, *(run(number) for number in range(20, 23)))
    memory.sona.consolidate(LATER)
    exports = [record for record in stored(memory) if record.title == EXPORT]
    assert {record.metadata["runs"] for record in exports} == {4, 3}
    ingest(memory, *(run(number) for number in range(23, 26)))
    memory.sona.consolidate(LATER)
    newest = [record for record in stored(memory) if record.title == EXPORT]
    assert {record.id for record in newest} == {record.id for record in exports}
    assert "run-25" in newest[-1].metadata["run_ids"]
    memory.forget([id_of(memory, "run-1-begin")])
    assert pattern.id not in {record.id for record in stored(memory)}
    memory.sona.consolidate(LATER)
    assert pattern.id not in {record.id for record in stored(memory)}


def test_runs_forgotten_while_patterns_are_computed_are_in_none(
    memory: Memory, embedder: CountingEmbedder, real: Embedder
) -> None:
    ingest(memory, *(run(number) for number in range(1, 5)))

    def forget_meanwhile(texts: Sequence[str], progress: Progress | None = None) -> PendingVectors:
        memory.forget([id_of(memory, "run-4-end")])
        return real.begin_texts(texts)

    embedder.begin_texts = forget_meanwhile  # type: ignore[method-assign, assignment]
    memory.sona.consolidate(LATER)
    assert stored(memory) == []
    del embedder.begin_texts
    memory.sona.consolidate(LATER)
    assert only(memory).metadata["runs"] == 4
    assert "Exported 4 invoices" not in only(memory).text


def test_steps_in_other_words_are_shared_until_the_memory_of_one_is_forgotten(memory: Memory) -> None:
    said = (
        ("Create the project structure", "Add the dependencies", "Write the tests"),
        ("Create the structure", "Add the dependencies to Cargo.toml", "Write tests for the module"),
        ("Lay a folder structure for the project", "Install the dependencies", "Write unit tests"),
    )
    for number, steps in enumerate(said):
        name, minute, session = f"run-{number}", number * DAY, f"s-{number}"
        told = [
            step(name, place, minute + place + 1, summary=text, session_id=session) for place, text in enumerate(steps)
        ]
        ingest(memory, [begin(name, minute, EXPORT, session_id=session), *told, end(name, minute + 9, summary=name)])
    memory.sona.consolidate(LATER)
    shared = only(memory).metadata["steps"]
    assert len(shared) == 3
    assert all(len(one["run_ids"]) >= 2 for one in shared)
    assert all(one["text"] in said[0] + said[1] + said[2] for one in shared)
    memory.forget([id_of(memory, "run-1-step-0")])
    memory.sona.consolidate(LATER)
    texts = [record.text + repr(record.metadata) for _, record in memory._archive.store.scan()]
    assert not any("Create the structure" in text for text in texts)
