"""Following sessions that grow: new lines, new files, and incomplete last lines, which are read once complete."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from memory_agent.sessions.finding import Places
from memory_agent.sessions.importing import Scope, SessionImport
from tests.memory_agent.sessions import samples
from tests.memory_agent.sessions.samples import PROMPT, read, said, write_document, write_lines


class Following:
    """Imports from a folder whose files grow."""

    def __init__(self, folder: Path) -> None:
        self.imported = SessionImport(Places((folder,)), Scope("alice"), lambda *_: None)

    def round(self) -> list[dict[str, Any]]:
        return list(self.imported.events(is_growing=True))


def append(path: Path, text: str) -> None:
    with path.open("a") as stream:
        stream.write(text)


def test_a_growing_file_yields_the_same_events_as_the_complete_one(tmp_path: Path) -> None:
    for name, lines in (
        ("s.jsonl", samples.claude_session()),
        ("rollout-1.jsonl", samples.codex_session()),
        ("session-1.jsonl", samples.gemini_session()),
    ):
        folder = tmp_path / name
        folder.mkdir()
        following, found = Following(folder), list[dict[str, Any]]()
        for line in lines:
            append(folder / name, json.dumps(line) + "\n")
            found += following.round()
        found += following.round()
        whole, _ = read(folder)
        assert sorted(said(found)) == sorted(said(whole))
        assert following.round() == []
        assert following.imported.counts.bad == 0


def test_a_half_written_line_waits_for_its_end(tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl"
    write_lines(path, [samples.claude_line(1, "user", PROMPT)])
    following = Following(tmp_path)
    assert len(following.round()) == 2
    line = json.dumps(samples.claude_line(2, "user", "Now write a test for it"))
    append(path, line[:50])
    assert following.round() == []
    append(path, line[50:])
    assert following.round() == []
    append(path, "\n")
    assert said(following.round()) == [
        ("user_msg", "Now write a test for it"),
        ("run.started", "Now write a test for it"),
    ]
    assert (following.imported.counts.bad, following.round()) == (0, [])


def test_new_files_and_files_that_became_sessions_are_found(tmp_path: Path) -> None:
    following = Following(tmp_path)
    assert following.round() == []
    (tmp_path / "s.jsonl").write_text("")
    assert following.round() == []
    write_lines(tmp_path / "s.jsonl", samples.claude_session())
    write_lines(tmp_path / "deeper" / "rollout-1.jsonl", samples.codex_session())
    assert len(following.round()) == 12 + 9
    assert following.imported.counts.sessions == {"claude-code": 1, "codex": 1}


def test_a_rewritten_file_is_read_from_its_beginning(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "s.jsonl", samples.claude_session())
    following = Following(tmp_path)
    assert len(following.round()) == 12
    write_lines(path, [samples.claude_line(50, "user", PROMPT)])
    assert [event["event_id"] for event in following.round()] == [
        "claude-code:uuid-50:0:user",
        "claude-code:uuid-50:0:begin",
    ]


def test_a_file_that_disappears_is_not_an_error(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "s.jsonl", samples.claude_session())
    following = Following(tmp_path)
    following.round()
    path.unlink()
    assert (following.round(), following.imported.counts.bad) == ([], 0)


def test_a_document_that_is_being_written_waits_and_one_that_changed_is_read_again(tmp_path: Path) -> None:
    run = samples.mini_trajectory()
    path = write_document(tmp_path / "shop-2.traj.json", run)
    whole = path.read_text()
    path.write_text(whole[:-20])
    following = Following(tmp_path)
    assert (following.round(), following.imported.counts.bad) == ([], 0)
    path.write_text(whole)
    first = following.round()
    assert len(first) == 5
    run["messages"].append({"role": "assistant", "content": "I look at it.", "extra": {}})
    write_document(path, run)
    later = following.round()
    assert {event["event_id"] for event in first} < {event["event_id"] for event in later}


def test_only_new_files_of_a_conversation_of_openhands_are_read(tmp_path: Path) -> None:
    folder = samples.write_openhands(tmp_path) / "c-17" / "events"
    last = sorted(folder.glob("*.json"))[5:]
    kept = {path: path.read_text() for path in last}
    for path in last:
        path.unlink()
    following = Following(tmp_path)
    assert len(following.round()) == 4
    last[0].write_text(kept[last[0]][:30])
    assert following.round() == []
    for path, text in kept.items():
        path.write_text(text)
    assert said(following.round()) == [("run.completed", "A mutex guards the refresh.")]
    assert following.imported.counts.bad == 0


def test_only_recent_entries_and_files_are_read(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "s.jsonl", samples.claude_session())
    events, counts = read(path, since=datetime(2026, 3, 1, 10, 0, 10, tzinfo=UTC))
    assert len(events) == 7
    assert counts.left["before --since"] == 5
    os.utime(path, (1_700_000_000, 1_700_000_000))
    events, counts = read(path, since=datetime(2026, 3, 1, tzinfo=UTC))
    assert (events, counts.left) == ([], {"before --since": 1})


def test_sessions_are_found_below_the_home_folder_or_by_environment_variables(tmp_path: Path) -> None:
    home, moved = tmp_path / "home", tmp_path / "moved"
    write_lines(home / ".claude/projects/-home-ann-shop/s.jsonl", samples.claude_session())
    write_lines(home / ".claude/projects/-home-ann-shop/s/subagents/agent-a1.jsonl", samples.claude_session())
    write_lines(home / ".gemini/tmp/shop/chats/session-1.jsonl", samples.gemini_session())
    write_lines(moved / "sessions/2026/03/02/rollout-1.jsonl", samples.codex_session())
    write_document(home / ".config/mini-swe-agent/last_mini_run.traj.json", samples.mini_trajectory())
    samples.write_openhands(home / ".openhands/conversations")
    write_lines(home / ".claude/history.jsonl", [{"display": "/clear"}])
    found = list(Places(home=home, variables={"CODEX_HOME": str(moved)}).find())
    assert [path.name for path in found] == [
        *("agent-a1.jsonl", "s.jsonl", "rollout-1.jsonl", "session-1.jsonl", "events", "last_mini_run.traj.json"),
    ]
    assert [path.name for path in Places(home=home, clients=("gemini",)).find()] == ["session-1.jsonl"]
