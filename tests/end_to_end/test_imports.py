"""Test importing sessions, plain memories and documents while a daemon runs, and recalling them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from memory_agent import MemoryClient
from tests.memory_agent.sessions import samples
from tests.memory_agent.sessions.samples import PROMPT, write_lines

from .conftest import DaemonProcess, environment


def document(*words: str) -> Any:
    command = [sys.executable, "-m", "memory_agent", *words, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(), timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_imported_sessions_are_recallable_when_wait_returns_and_repeating_changes_nothing(
    daemon: DaemonProcess, tmp_path: Path
) -> None:
    place = ("--user", "import-sessions", "--data-dir", str(daemon.data_dir))
    write_lines(tmp_path / "s.jsonl", samples.claude_session())
    write_lines(tmp_path / "rollout-1.jsonl", samples.codex_session())
    with MemoryClient("import-sessions", data_dir=daemon.data_dir) as memory:
        first = document("import-sessions", str(tmp_path), "--wait", *place)
        assert (first["delivered"]["new"], first["delivered"]["known"]) == (21, 0)
        before = memory.list(limit=100).records
        assert len(before) == 20
        again = document("import-sessions", str(tmp_path), "--wait", *place)
        assert (again["delivered"]["new"], again["delivered"]["known"]) == (0, 21)
        assert memory.list(limit=100).records == before
    found = document("recall", "who gets signed out?", "--channel", "project:/home/ann/shop", *place)
    assert PROMPT in [memory["record"]["text"] for memory in found["memories"]]
    runs = document("trajectory", "similar", PROMPT, *place)
    assert [run["end"] for run in runs] == ["completed", "completed"]


def test_plain_memories_and_documents_are_imported_beside_a_daemon(daemon: DaemonProcess, tmp_path: Path) -> None:
    place = ("--user", "import-notes", "--data-dir", str(daemon.data_dir))
    (tmp_path / "notes.json").write_text('{"entries": [{"text": "Staging needs the VPN", "id": "vpn"}]}')
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "release.md").write_text("# Release\nTag the commit, then push the tag.\n# Who\nAnn.\n")
    assert document("import", str(tmp_path / "notes.json"), *place)["added"] == 1
    assert document("import", str(tmp_path / "notes.json"), *place)["unchanged"] == 1
    assert document("index", str(tmp_path / "docs"), *place)["added"] == 2
    (tmp_path / "docs" / "release.md").write_text("# Release\nTag the commit, then push the tag.\n")
    changed = document("index", str(tmp_path / "docs"), *place)
    assert (changed["added"], changed["removed"], changed["unchanged"]) == (0, 1, 1)
    with MemoryClient("import-notes", data_dir=daemon.data_dir) as memory:
        assert memory.list().total == 2
