"""Test `import-sessions` without a daemon, through a real relay, and with `--watch`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from memory_agent.cli.group import cli
from relay import Journal, journal_folder, read_event
from tests.memory_agent.sessions import samples
from tests.memory_agent.sessions.samples import PROMPT, write_lines

Run = Callable[..., Result]
RunJson = Callable[..., Any]

SECRET = "ghp_" + "aB3" * 12


@pytest.fixture
def sessions(tmp_path: Path) -> Path:
    """A folder with a Claude Code session and a Codex session."""
    folder = tmp_path / "sessions"
    write_lines(folder / "s.jsonl", samples.claude_session())
    write_lines(folder / "rollout-1.jsonl", samples.codex_session())
    return folder


def test_a_second_import_changes_nothing(run: Run, run_json: RunJson, sessions: Path) -> None:
    first = run_json("import-sessions", str(sessions))
    assert first["found"]["sessions"] == {"claude-code": 1, "codex": 1}
    assert (first["delivered"]["new"], first["delivered"]["known"]) == (20, 0)
    before = run_json("list", "--limit", "100")
    again = run_json("import-sessions", str(sessions))
    assert (again["delivered"]["new"], again["delivered"]["known"]) == (0, 20)
    assert again["found"] == first["found"]
    assert run_json("list", "--limit", "100") == before
    found = run_json("recall", "who gets signed out at random?", "--channel", "project:/home/ann/shop")
    assert PROMPT in [memory["record"]["text"] for memory in found["memories"]]


def test_forgotten_events_are_counted_apart_and_stay_forgotten(run: Run, run_json: RunJson, sessions: Path) -> None:
    run("import-sessions", str(sessions))
    session = min(one["session_id"] for one in run_json("list", "--limit", "100")["records"])
    assert run("forget", "--session", session, "--yes").exit_code == 0
    left = run_json("list", "--limit", "100")["total"]
    again = run_json("import-sessions", str(sessions))["delivered"]
    assert (again["new"], again["known"], again["forgotten"]) == (0, 20, 20 - left)
    told = run("import-sessions", str(sessions))
    assert f"imported 0 new, {left} already present, {20 - left} forgotten" in told.stdout
    assert "use `memory-agent import` with an earlier export" in told.stderr
    assert run_json("list", "--limit", "100")["total"] == left


def test_an_import_that_finds_nothing_names_where_it_looked(
    run: Run, run_json: RunJson, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("CODEX_HOME", str(tmp_path / "elsewhere"))
    nothing = run("import-sessions", "--client", "claude-code", "--client", "codex")
    assert (nothing.exit_code, nothing.stdout.splitlines()[0]) == (0, "sessions: none")
    for place in (".claude/projects/**/*.jsonl", "elsewhere/sessions/**/rollout-*.jsonl"):
        assert f"note: looked for sessions in {tmp_path / place}\n" in nothing.stderr
    assert run_json("import-sessions", str(tmp_path))["looked_in"] == [f"{tmp_path}/**/*{{.jsonl,.json,.traj,.zip}}"]
    assert "no folder was searched; specify files or folders" in run("import-sessions", "--client", "chatgpt").stderr


def test_a_dry_run_counts_and_imports_nothing(run: Run, run_json: RunJson, sessions: Path, data_dir: Path) -> None:
    result = run("import-sessions", str(sessions), "--dry-run")
    assert result.exit_code == 0, result.output
    assert "sessions: claude-code 1, codex 1\n" in result.stdout
    assert (
        "taken: assignment 1, assistant 3, begin 4, cancelled 2, command 2, completed 2, step 2, user 5"
        in result.stdout
    )
    assert not data_dir.exists()


def test_bad_places_are_named_and_the_rest_is_imported(run: Run, sessions: Path) -> None:
    path = sessions / "s.jsonl"
    path.write_text(path.read_text() + "{broken\n")
    result = run("import-sessions", str(sessions))
    assert result.exit_code == 1, result.output
    assert f"cannot be read: {path}: line 20: is not JSON" in result.stderr
    assert "imported 20 new, 0 already present" in result.stdout


def test_a_file_that_is_no_session_is_a_failure(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "picture.jsonl"
    path.write_bytes(b"\x00\x01" * 100)
    result = run("import-sessions", str(path))
    assert (result.exit_code, "Traceback" in result.output) == (1, False)
    assert f"cannot be read: {path}: binary" in result.stderr


def test_secrets_are_masked(run: Run, run_json: RunJson, tmp_path: Path) -> None:
    lines = [samples.claude_line(1, "user", f"Push it with the token {SECRET} please")]
    run_json("import-sessions", str(write_lines(tmp_path / "s.jsonl", lines)))
    text = json.dumps(run_json("list"))
    assert (SECRET in text, "[masked:github_token]" in text) == (False, True)


def test_options_that_contradict_each_other_are_refused(run: Run, sessions: Path) -> None:
    for words in (("--dry-run", "--watch"), ("--watch", "--wait")):
        result = run("import-sessions", str(sessions), *words)
        assert result.exit_code == 2, result.output


@pytest.fixture
def relay() -> Iterator[Path]:
    """The folder of a running relay, without a daemon."""
    with tempfile.TemporaryDirectory(prefix="memory-test-") as name:
        command = [sys.executable, "-m", "relay", "--data-dir", name, "--log-level", "error"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        process.stdout.readline()
        yield Path(name)
        process.terminate()
        process.communicate(timeout=60)


def journaled(folder: Path) -> list[tuple[str, str]]:
    with Journal.open(journal_folder(folder), readonly=True) as journal:
        events = [read_event(entry.data) for entry in journal.read(0, 10_000)]
    return [(event.user_id, event.event_id) for event in events]


def test_where_a_relay_runs_the_events_are_published_once(relay: Path, sessions: Path) -> None:
    words = ["import-sessions", str(sessions), "--user", "bob", "--data-dir", str(relay), "--json"]
    first = CliRunner().invoke(cli, words)
    assert first.exit_code == 0, first.output
    delivered = json.loads(first.stdout)["delivered"]
    assert (delivered["new"], delivered["known"], delivered["acked_through"]) == (21, 0, {"bob": 21})
    again = json.loads(CliRunner().invoke(cli, words).stdout)["delivered"]
    assert (again["new"], again["known"]) == (0, 21)
    written = journaled(relay)
    assert (len(written), len(set(written)), {user for user, _ in written}) == (21, 21, {"bob"})


def test_a_relay_that_is_named_and_away_is_an_error(run: Run, sessions: Path) -> None:
    result = run("import-sessions", str(sessions), "--relay", "tcp://127.0.0.1:1")
    assert (result.exit_code, "no relay listens at tcp://127.0.0.1:1" in result.stderr) == (1, True)


def test_watching_takes_new_lines_until_it_is_interrupted(relay: Path, tmp_path: Path) -> None:
    path = write_lines(tmp_path / "s.jsonl", [samples.claude_line(1, "user", PROMPT)])
    words = ["import-sessions", str(path), "--watch", "--data-dir", str(relay), "--json"]
    process = subprocess.Popen(
        [sys.executable, "-m", "memory_agent", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a background job ignores SIGINT
    )
    arrived = threading.Event()
    try:
        _await(lambda: len(journaled(relay)) == 2, arrived)
        with path.open("a") as stream:
            stream.write(json.dumps(samples.claude_line(2, "user", "Now write a test for it")) + "\n")
        _await(lambda: len(journaled(relay)) == 4, arrived)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    finally:
        if process.poll() is None:
            os.kill(process.pid, signal.SIGKILL)
            process.communicate()
    assert process.returncode == 0, err
    assert json.loads(out)["delivered"]["new"] == 4
    assert "no longer watching" in err


def _await(is_so: Callable[[], bool], pause: threading.Event) -> None:
    """Poll until `is_so()`, limited only by the test's timeout."""
    while not is_so():
        pause.wait(0.05)
