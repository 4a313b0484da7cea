"""A batch passed along with the previous one is embedded in advance, with the same outcome."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from memory_samples import NOW, message, progress

from memory_agent.embedders import Embedder, EmbedderInfo, Embeddings, PendingVector, PendingVectors, Progress
from memory_agent.memory import Memory
from memory_agent.records.memories import IngestReport
from relay.config import EventLimits
from relay.event import encode_event, event_from_mapping

WAIT_S = 60.0


class Following(Embedder):
    """The real embedder, which records texts and delays their vectors until `goes_on` is set."""

    def __init__(self, embedder: Embedder) -> None:
        self._embedder = embedder
        self.begun: list[list[str]] = []
        self.awaited = threading.Event()
        self.goes_on = threading.Event()
        self.goes_on.set()

    @property
    def info(self) -> EmbedderInfo:
        return self._embedder.info

    def begin_query(self, text: str, timeout_s: float | None = None) -> PendingVector:
        return self._embedder.begin_query(text, timeout_s)

    def begin_texts(self, texts: Sequence[str], progress: Progress | None = None) -> PendingVectors:
        if any("a bug" in text for text in texts):
            raise RuntimeError("unforeseen")
        self.begun.append(list(texts))
        return _Held(self, self._embedder.begin_texts(texts, progress))

    def count_tokens(self, text: str, timeout_s: float | None = None) -> int:
        return self._embedder.count_tokens(text, timeout_s)

    def close(self) -> None:
        """Do nothing, because the test session closes the embedder."""


class _Held:
    def __init__(self, following: Following, pending: PendingVectors) -> None:
        self._following = following
        self._pending = pending

    def result(self) -> Embeddings:
        self._following.awaited.set()
        assert self._following.goes_on.wait(WAIT_S)
        return self._pending.result()


def encoded(*events: dict[str, Any]) -> list[bytes]:
    return [encode_event(event_from_mapping(event, EventLimits(), NOW)) for event in events]


def numbered(events: Sequence[bytes], first: int) -> list[tuple[int, bytes]]:
    return list(enumerate(events, first))


FIRST, SECOND = encoded(*map(message, range(4))), encoded(*map(message, range(4, 8)))
FIRST_SEQS, SECOND_SEQS = range(1, 5), range(5, 9)


def stored_texts(memory: Memory) -> list[str]:
    return [record.text for _, record in memory._archive.store.scan()]


@pytest.fixture
def following(embedder: Embedder) -> Following:
    return Following(embedder)


def test_the_next_batch_is_at_the_embedder_before_this_one_is_committed(tmp_path: Path, following: Following) -> None:
    with Memory.open(tmp_path / "alice", embedder=following) as memory:
        following.goes_on.clear()
        ahead = numbered(SECOND, 5)
        caller = threading.Thread(target=lambda: memory.ingest_encoded(FIRST, seqs=FIRST_SEQS, ahead=ahead))
        caller.start()
        assert following.awaited.wait(WAIT_S)
        assert [len(texts) for texts in following.begun] == [4, 4]
        assert stored_texts(memory) == []
        following.goes_on.set()
        caller.join(WAIT_S)
        assert (len(stored_texts(memory)), memory.stats().cursor) == (4, 4)
        report = memory.ingest_encoded(SECOND, seqs=SECOND_SEQS)
        assert (report.kept, len(following.begun), memory.stats().cursor) == (4, 2, 8)
        vectors = memory._archive.store.vectors(range(1, 9))
        expected = following.embed_texts(stored_texts(memory))
        assert np.allclose(vectors, expected, atol=1e-3)


def test_a_prepared_batch_is_used_only_for_exactly_its_events(tmp_path: Path, following: Following) -> None:
    others = encoded(*(message(number, f"Another event, number {number}") for number in range(4, 8)))
    with Memory.open(tmp_path / "alice", embedder=following) as memory:
        memory.ingest_encoded(FIRST, seqs=FIRST_SEQS, ahead=numbered(SECOND, 5))
        memory.ingest_encoded(others[:2], seqs=SECOND_SEQS[:2])
        assert stored_texts(memory)[4:] == ["Another event, number 4", "Another event, number 5"]
        memory.ingest_encoded(SECOND[2:], seqs=SECOND_SEQS[2:])
        assert len(stored_texts(memory)) == 8


def test_an_error_in_an_announced_batch_is_raised_when_it_arrives(tmp_path: Path, following: Following) -> None:
    bug = encoded(message(9, "an event with a bug"))
    with Memory.open(tmp_path / "alice", embedder=following) as memory:
        assert memory.ingest_encoded(FIRST, seqs=FIRST_SEQS, ahead=numbered(bug, 5)).kept == 4
        with pytest.raises(RuntimeError, match="unforeseen"):
            memory.ingest_encoded(bug, seqs=[5])
        assert memory.ingest_encoded(SECOND, seqs=range(6, 10), ahead=[(10, b"no event")]).kept == 4
        rejected = memory.ingest_encoded([b"no event"], seqs=[10]).rejected
        assert [one.position for one in rejected] == [0]


LINES = ("Step one of the migration", "Step two of the migration", "Step three of the migration")


@given(
    kinds=st.lists(st.sampled_from(["message", "repeat", "progress", "noise", "garbage"]), min_size=1, max_size=24),
    cuts=st.lists(st.integers(1, 6), min_size=24, max_size=24),
    replays=st.lists(st.booleans(), min_size=24, max_size=24),
    announcements=st.lists(
        st.sampled_from(["next", "nothing", "later", "garbage", "restart"]), min_size=24, max_size=24
    ),
)
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_outcome_is_the_same_as_without_announcements(
    tmp_path_factory: pytest.TempPathFactory,
    embedder: Embedder,
    kinds: list[str],
    cuts: list[int],
    replays: list[bool],
    announcements: list[str],
) -> None:
    events = [event_of(kind, number) for number, kind in enumerate(kinds)]
    batches = cut(numbered(events, 1), cuts, replays)
    folder = tmp_path_factory.mktemp("ahead")
    with Memory.open(folder / "plain", embedder=embedder) as memory:
        expected = [take_in(memory, batch, ()) for batch in batches]
        wanted = (stored_texts(memory), memory.stats().events_dropped, memory.stats().cursor)
    reports: list[IngestReport] = []
    memory = Memory.open(folder / "ahead", embedder=embedder)
    for place, batch in enumerate(batches):
        announced = announcements[place]
        following = (
            batches[place + 1 : place + 2] if announced in ("next", "restart") else batches[place + 2 : place + 3]
        )
        ahead = {"nothing": [], "garbage": [(7, b"no event")]}.get(announced, following[0] if following else [])
        reports.append(take_in(memory, batch, ahead))
        if announced == "restart":
            memory.close()
            memory = Memory.open(folder / "ahead", embedder=embedder)
    assert (stored_texts(memory), memory.stats().events_dropped, memory.stats().cursor) == wanted
    assert memory._archive.store.counts().pending == 0
    memory.close()
    assert reports == expected


def event_of(kind: str, number: int) -> bytes:
    if kind == "garbage":
        return b"no event"
    event = {
        "message": message(number),
        "repeat": message(number // 2),
        "progress": progress(number, LINES[number % 3]),
        "noise": message(number, event_type="worker.heartbeat"),
    }[kind]
    return encoded(event)[0]


def cut(
    events: Sequence[tuple[int, bytes]], sizes: Sequence[int], replays: Sequence[bool]
) -> list[list[tuple[int, bytes]]]:
    """Return the events in batches of these sizes. A replayed batch starts with the previous batch's last event."""
    batches: list[list[tuple[int, bytes]]] = []
    start = 0
    for size, replay in zip(sizes, replays, strict=True):
        if start >= len(events):
            break
        batches.append(list(events[max(0, start - replay) : start + size]))
        start += size
    return batches


def take_in(memory: Memory, batch: Sequence[tuple[int, bytes]], ahead: Sequence[tuple[int, bytes]]) -> IngestReport:
    return memory.ingest_encoded([data for _, data in batch], seqs=[seq for seq, _ in batch], ahead=ahead)
