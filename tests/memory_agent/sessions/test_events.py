"""Session events become memories and runs in the right project, and trigger no recall."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from memory_agent.memory import Memory
from memory_agent.recall.context import context_block
from memory_agent.records.memories import MemoryFilter
from memory_agent.records.prompt_block import without_blocks
from memory_agent.sessions.entries import Entry, Session
from memory_agent.sessions.events import _CLIENT, _TYPES, channel_of, event_of
from memory_agent.signals import SignalTable
from memory_agent.triggers.table import TriggerTable
from tests.memory_agent.sessions import samples
from tests.memory_agent.sessions.samples import PROMPT, read, write_lines

NOW = datetime(2026, 3, 1, tzinfo=UTC)


@pytest.mark.parametrize("event_type", [f"{family}.{name}" for family in _CLIENT for name in _TYPES.values()])
def test_each_type_is_kept_as_a_memory_and_causes_no_recall(event_type: str) -> None:
    assert SignalTable.load().match(event_type) is not None
    assert TriggerTable.load().name_of(event_type) is None


def test_a_session_becomes_memories_of_its_project_and_runs_with_outcomes(tmp_path: Path) -> None:
    events, _ = read(write_lines(tmp_path / "s.jsonl", samples.claude_session()))
    with Memory.open(tmp_path / "alice") as memory:
        report = memory.ingest(events)
        assert (report.rejected, report.kept) == ((), 11)  # "ok" is too short
        runs = {run.objective: (run.outcome, run.quality, run.is_cancelled) for run in memory.runs.list()}
        assert runs == {
            PROMPT: ("completed", 0.8, False),
            "Now write a test for the refresh": (None, None, True),
        }
        page = memory.list(MemoryFilter(channel_id=channel_of("/home/ann/shop"), session_id="s-claude"), limit=100)
        assert page.total == 11
        first = min(page.records, key=lambda record: record.timestamp)
        assert (first.source, first.kind, first.type) == ("user_input", "episode", "history.user_msg")
        assert first.metadata["imported_from"] == "claude-code"
        assert first.timestamp == datetime(2026, 3, 1, 10, 0, 1, tzinfo=UTC)
        again = memory.ingest(read(tmp_path / "s.jsonl")[0])
        assert (again.kept, again.duplicates) == (0, 11)
        assert memory.stats().memories == 11


def test_recalled_memories_in_a_session_do_not_become_memories(tmp_path: Path) -> None:
    with Memory.open(tmp_path / "alice") as memory:
        memory.remember("A mutex per session fixed the race")
        block = context_block(memory.recall("why do two tabs race?", min_relevance=0), heading="Relevant history")
    assert "A mutex per session" in block
    assert without_blocks(f"Before.\n{block}\nAfter.").split() == ["Before.", "Relevant", "history", "After."]
    assert "mutex" not in without_blocks(block[:-40])
    assert without_blocks("A text about <recalled_memories> and </recalled_memories>.").startswith("A text about <rec")


def test_ids_that_are_too_long_are_cut_and_stay_distinct() -> None:
    session = Session(client="claude-code", id="s" * 300, folder="/home/" + "x" * 300)
    one = event_of(Entry(what="user", id="i" * 300 + "1", text="x"), session, "alice", 1, NOW)
    two = event_of(Entry(what="user", id="i" * 300 + "2", text="x"), session, "alice", 2, NOW)
    assert one is not None
    assert two is not None
    assert one["event_id"] != two["event_id"]
    assert all(len(event[name]) <= 200 for event in (one, two) for name in ("event_id", "session_id", "channel_id"))
    assert one["timestamp"] < two["timestamp"]
