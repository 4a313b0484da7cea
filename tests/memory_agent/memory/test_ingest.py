"""Ingest: events are stored exactly once, bad events are isolated, and counts add up."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import pytest
from forks import forking, kill_after, serve
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from memory_samples import NOW, SUBJECTS, message, open_without_model, progress, texts

from memory_agent.embedders import Embedder
from memory_agent.errors import InvalidInputError, SettingsError
from memory_agent.memory import Memory
from memory_agent.records.memories import IngestReport
from memory_agent.settings import IngestSettings
from relay.config import EventLimits
from relay.event import encode_event, event_from_mapping

BATCH = [message(number) for number in range(12)]
NOISE = [
    message(20, event_type="worker.heartbeat"),
    message(21, event_type="worker.started"),
    message(22, ""),
    message(23, "ok!"),
]


def everything(report: IngestReport) -> int:
    return report.kept + report.duplicates + sum(report.dropped.values()) + len(report.rejected)


def test_ingested_events_are_recalled_with_their_ids(memory: Memory) -> None:
    report = memory.ingest(BATCH, now=NOW)
    assert report.kept == len(BATCH)
    best = memory.recall("auth race, part 0", top_k=1).memories[0].record
    assert best.text == f"{SUBJECTS[0]}, part 0"
    assert best.id in report.record_ids
    assert (best.event_id, best.session_id) == ("event-0", "s-0")


def test_ingesting_a_batch_twice_stores_it_once(memory: Memory) -> None:
    first, again = memory.ingest(BATCH, now=NOW), memory.ingest(BATCH, now=NOW)
    assert (first.kept, again.kept, again.duplicates) == (12, 0, 12)
    stats = memory.stats()
    assert (stats.memories, stats.events_kept, stats.events_duplicate) == (12, 12, 12)


def test_a_repeat_within_a_batch_is_stored_once(memory: Memory) -> None:
    report = memory.ingest([BATCH[0], BATCH[1], BATCH[0]], now=NOW)
    assert (report.kept, report.duplicates, memory.stats().memories) == (2, 1, 2)


def test_journal_numbers_that_overlap_are_handled_once_and_counted_once(memory: Memory) -> None:
    events = BATCH + NOISE
    seqs = list(range(100, 100 + len(events)))
    memory.ingest(events[:10], seqs=seqs[:10], now=NOW)
    replayed = memory.ingest(events[4:], seqs=seqs[4:], now=NOW)
    assert (replayed.kept, replayed.duplicates, everything(replayed)) == (2, 6, len(events) - 4)
    memory.ingest(events, seqs=seqs, now=NOW)
    stats = memory.stats()
    assert (stats.memories, stats.cursor, stats.events_duplicate) == (12, seqs[-1], 0)
    assert stats.events_dropped == {"heartbeat": 1, "no_text": 1, "not_high_signal": 1, "too_short": 1}


def test_new_events_of_another_journal_are_not_mistaken_for_old_ones(memory: Memory) -> None:
    """After the journal is lost or the folder is moved, sequence numbers restart, but event ids do not repeat."""
    memory.ingest(BATCH[5:], seqs=range(6, 13), now=NOW)
    report = memory.ingest([*BATCH[:5], *NOISE, BATCH[7]], seqs=range(1, 7 + len(NOISE)), now=NOW)
    assert (report.kept, report.duplicates) == (5, 1 + len(NOISE))
    assert memory.ingest(BATCH, now=NOW).kept == 0
    assert memory.stats().cursor == 12


def test_journal_numbers_that_do_not_match_the_events_are_refused(memory: Memory) -> None:
    with pytest.raises(InvalidInputError, match="seqs"):
        memory.ingest(BATCH, seqs=[1], now=NOW)
    with pytest.raises(InvalidInputError, match="seqs"):
        memory.ingest(BATCH[:1], seqs=["1"], now=NOW)  # type: ignore[list-item]


def test_bad_events_are_reported_and_do_not_affect_others(memory: Memory) -> None:
    bad: list[Any] = [
        message(1, user_id="../x"),
        message(2, event_type=None),
        message(3, timestamp="2100-01-01T00:00:00Z"),
        message(4, payload=["no object"]),
        message(5, payload={"message": "lone \ud800"}),
        "no mapping",
        message(6, timestamp="not a time"),
    ]
    mixed = [event for pair in zip(bad, BATCH[:7], strict=True) for event in pair]
    report = memory.ingest(mixed, now=NOW)
    assert report.kept == 7
    assert [rejected.position for rejected in report.rejected] == [0, 2, 4, 6, 8, 10, 12]
    named = [rejected.reason.partition(":")[0] for rejected in report.rejected]
    assert named == ["user_id", "event_type", "timestamp", "payload", "payload.message", "event", "timestamp"]


def test_an_event_that_is_too_large_is_refused_at_the_limit_of_the_settings(tmp_path: Path, embedder: Embedder) -> None:
    limits = EventLimits(max_bytes=1024)
    with Memory.open(tmp_path / "alice", embedder=embedder, event_limits=limits) as memory:
        report = memory.ingest([message(1), message(2, "x" * 2000), message(3)], now=NOW)
    assert report.kept == 2
    assert [(rejected.position, rejected.reason.partition(":")[0]) for rejected in report.rejected] == [(1, "event")]
    assert "at most 1024 bytes" in report.rejected[0].reason


@pytest.mark.parametrize("events", [message(1), "text", b"bytes"])
def test_a_single_event_instead_of_a_list_is_refused(memory: Memory, events: Any) -> None:
    with pytest.raises(InvalidInputError, match="events: must be a list of events"):
        memory.ingest(events, now=NOW)
    assert memory.stats().memories == 0


def test_encoded_events_are_read_in_the_format_of_the_journal(memory: Memory) -> None:
    encoded = [encode_event(event_from_mapping(event, EventLimits(), NOW)) for event in BATCH]
    report = memory.ingest_encoded([*encoded, b"\xc1 no event"], seqs=range(1, 14))
    assert (report.kept, [rejected.position for rejected in report.rejected]) == (12, [12])
    assert memory.ingest(BATCH, now=NOW).duplicates == 12


def test_a_rejected_event_is_reported_again_on_replay(memory: Memory) -> None:
    """The process that quarantines the event may die between its two commits."""
    encoded = [encode_event(event_from_mapping(event, EventLimits(), NOW)) for event in BATCH[:2]]
    batch = [encoded[0], b"\xc1 no event", encoded[1]]
    memory.ingest_encoded(batch, seqs=[1, 2, 3])
    again = memory.ingest_encoded(batch, seqs=[1, 2, 3])
    assert (again.kept, again.duplicates, [rejected.position for rejected in again.rejected]) == (0, 2, [1])


def test_event_objects_and_mappings_are_equivalent(memory: Memory) -> None:
    events = [event_from_mapping(event, EventLimits(), NOW) for event in BATCH]
    assert memory.ingest(events, now=NOW).kept == 12
    assert memory.ingest(BATCH, now=NOW).duplicates == 12


LINES = ["Reading the tests", "Running the tests", "Reading the tests", "Reading the tests", "Writing the fix"]


def test_progress_that_repeats_the_last_text_is_noise(memory: Memory) -> None:
    report = memory.ingest([progress(number, line) for number, line in enumerate(LINES)], now=NOW)
    assert (report.kept, report.dropped) == (4, {"repeated_progress": 1})
    elsewhere = memory.ingest([progress(50, LINES[-1], run_id="run_8"), message(51, LINES[-1])], now=NOW)
    assert elsewhere.kept == 2


@given(
    lines=st.lists(st.tuples(st.sampled_from(LINES), st.sampled_from(["run_7", "run_8"])), max_size=12),
    cuts=st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12)), max_size=5),
    numbered=st.booleans(),
)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_replay_of_progress_has_the_same_outcome(
    tmp_path_factory: pytest.TempPathFactory,
    lines: list[tuple[str, str]],
    cuts: list[tuple[int, int]],
    numbered: bool,
) -> None:
    events = [progress(number, line, run_id) for number, (line, run_id) in enumerate(lines)]
    seqs = range(1, len(events) + 1) if numbered else None
    folder = tmp_path_factory.mktemp("progress")
    with open_without_model(folder / "straight") as straight:
        kept = straight.ingest(events, seqs=seqs, now=NOW).record_ids
    replayed: list[str] = []
    reached = 0
    for start, length in [*cuts, (0, len(events))]:
        start, end = min(start, reached), min(min(start, reached) + length, len(events))
        reached = max(reached, end)
        with open_without_model(folder / "replayed") as memory:
            part = None if seqs is None else seqs[start:end]
            replayed += memory.ingest(events[start:end], seqs=part, now=NOW).record_ids
    assert replayed == list(kept)


def test_a_long_text_is_kept_up_to_the_limit(tmp_path: Path, embedder: Embedder) -> None:
    limits = IngestSettings(max_text_chars=50)
    with Memory.open(tmp_path / "a", embedder=embedder, ingest_settings=limits) as memory:
        memory.ingest([message(1, "word " * 100)], now=NOW)
        record = memory.recall("word", top_k=1).memories[0].record
        assert (len(record.text), record.metadata["truncated_from_chars"]) == (50, 499)
        with pytest.raises(InvalidInputError, match="text"):
            memory.remember("word " * 100)


def test_an_invalid_table_fails_the_opening_and_releases_the_folder(tmp_path: Path, embedder: Embedder) -> None:
    table = tmp_path / "signals.toml"
    table.write_text("[colours]")
    with pytest.raises(SettingsError, match="colours"):
        Memory.open(tmp_path / "a", embedder=embedder, ingest_settings=IngestSettings(signals=str(table)))
    with Memory.open(tmp_path / "a", embedder=embedder) as memory:
        assert memory.stats().memories == 0


def test_an_empty_batch_changes_nothing(memory: Memory) -> None:
    assert everything(memory.ingest([], seqs=[], now=NOW)) == 0
    assert memory.stats().cursor == 0


def kill_while_ingesting(folder: str, acknowledged: int, last: str) -> None:
    """Ingest batches in a fork, kill it after this many, and write the last acknowledged number into `last`."""

    def ingest(lines: IO[str]) -> None:
        with open_without_model(Path(folder)) as memory:
            print(0, file=lines, flush=True)
            for start in range(1, 4000, 7):
                batch = range(start, start + 7)
                memory.ingest([message(number) for number in batch], seqs=list(batch), now=NOW)
                print(start + 6, file=lines, flush=True)

    Path(last).write_text(kill_after(1 + acknowledged, ingest)[-1])


@pytest.fixture(scope="module")
def killing() -> Iterator[Callable[..., int]]:
    """A function that calls `kill_while_ingesting` in a fork of another process."""
    with forking(__file__) as run:
        yield run


@pytest.mark.parametrize("acknowledged", [0, 3, 20])
def test_a_process_killed_while_ingesting_neither_loses_nor_repeats_events(
    tmp_path: Path, killing: Callable[..., int], acknowledged: int
) -> None:
    folder, last = tmp_path / "alice", tmp_path / "last"
    assert killing(folder, acknowledged, last) == 0
    with open_without_model(folder) as memory:
        cursor = memory.stats().cursor
        assert cursor >= int(last.read_text())
        assert cursor % 7 == 0
        assert memory.stats().memories == cursor
        through = cursor + 50
        memory.ingest([message(number) for number in range(1, through + 1)], seqs=range(1, through + 1), now=NOW)
        stats = memory.stats()
        assert (stats.memories, stats.events_kept, stats.events_duplicate) == (through, through, 0)
        recalled = texts(memory.recall("part", top_k=1000, min_relevance=0))
        assert len(recalled) == len(set(recalled)) == min(through, 1000)


if __name__ == "__main__":
    serve(kill_while_ingesting)
