"""Test the tour on a pseudo terminal, with sessions in a separate home folder: its questions, output and files."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

import psutil
import pytest
from click.testing import CliRunner, Result

from memory_agent.cli import tour
from memory_agent.cli.group import cli
from memory_agent.daemon.stopping import stop_daemon
from memory_agent.embedders.weights import cache_folder
from memory_agent.layout import Layout
from tests.memory_agent.sessions import samples
from tests.memory_agent.sessions.samples import PROMPT, write_lines
from tests.polling import wait_until

PATIENCE_S = 60.0
SECRET = "ghp_" + "aB3" * 12
IMPORT, ASK, QUESTION, PAGE = "Import them? [y/N]: ", "Ask a question? [Y/n]: ", "]: ", "Open the page? [y/N]: "
ASK_AGAIN, CONNECT = "Ask a question? [y/N]: ", "Show the change for Claude Code? [y/N]: "
CONNECT_CODEX, WRITE, EXAMPLE = (
    "Show the change for Codex? [y/N]: ",
    "Write this? [y/N]: ",
    "deleted afterwards? [y/N]: ",
)
CTRL_C = "Ctrl-C"


@pytest.fixture(autouse=True)
def home(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A home folder with a Claude Code session and a Codex session, at a path short enough for sockets."""
    monkeypatch.setenv("MEMORY_AGENT_MODEL_CACHE", str(cache_folder()))
    for name in ("XDG_DATA_HOME", "XDG_STATE_HOME", "XDG_CONFIG_HOME", "CLAUDE_CONFIG_DIR", "CODEX_HOME", "DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    for name in ("WAYLAND_DISPLAY", "BROWSER", "MSWEA_GLOBAL_CONFIG_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("TERM", "dumb")
    with tempfile.TemporaryDirectory(prefix="memory-test-") as name:
        home = Path(name)
        monkeypatch.setenv("HOME", name)
        monkeypatch.setenv("TMPDIR", name)
        write_lines(home / ".claude" / "projects" / "shop" / "s.jsonl", samples.claude_session())
        write_lines(home / ".codex" / "sessions" / "rollout-1.jsonl", samples.codex_session())
        yield home


def content(folder: Path) -> dict[str, bytes | None]:
    return {str(path): path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


def data_of(home: Path) -> Path:
    return home / ".local" / "share" / "memory-agent"


class Tour:
    """A tour on a pseudo terminal."""

    def __init__(self, *words: str) -> None:
        self._terminal, its = pty.openpty()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "memory_agent", "tour", *words],
            stdin=its,
            stdout=its,
            stderr=its,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a background job ignores it
        )
        os.close(its)
        self.shown = ""

    def answer(self, question: str, keys: str) -> str:
        """Wait for a question, answer it, and return what was shown before it."""
        before = len(self.shown)
        while not self.shown[before:].endswith(question):
            assert self._read(), f"{question!r} was not asked: {self.shown[before:]}"
        if keys == CTRL_C:
            # A signal that arrives just before `input` starts reading is not noticed until the next key is pressed.
            wait_until(lambda: psutil.Process(self._process.pid).status() == psutil.STATUS_SLEEPING)
            self._process.send_signal(signal.SIGINT)
        else:
            os.write(self._terminal, f"{keys}\n".encode())
        return self.shown[before:]

    def end(self) -> int:
        """Read the remaining output; return the exit code."""
        while self._read():
            pass
        return self._process.wait(PATIENCE_S)

    def close(self) -> None:
        """Close the terminal, and kill the process if it is still running after a failed assertion."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        os.close(self._terminal)

    def _read(self) -> bool:
        assert select.select([self._terminal], [], [], PATIENCE_S)[0], self.shown
        try:
            read = os.read(self._terminal, 1 << 16)
        except OSError:  # the process has closed its end
            return False
        self.shown += read.decode(errors="replace").replace("\r\n", "\n")
        return bool(read)


def played(answers: Sequence[tuple[str, str]], *words: str) -> tuple[int, str]:
    """Answer the questions of a tour; return its exit code and everything that it shows."""
    with closing(Tour(*words)) as played:
        for question, keys in answers:
            played.answer(question, keys)
        code = played.end()
        assert "Traceback" not in played.shown
        return code, played.shown


def called(*words: str) -> Result:
    return CliRunner().invoke(cli, ["tour", *words])


def test_a_tour_that_declines_everything_writes_nothing(home: Path) -> None:
    before = content(home)
    code, shown = played([(IMPORT, "n"), (CONNECT, "n"), (CONNECT_CODEX, "n")])
    assert (code, content(home)) == (0, before)
    assert re.search(r"claude-code +1 +12 +1 +2026-03-01 +2026-03-01\ncodex +1 +9 +1 +2026-03-02 +2026-03-02\n", shown)
    assert f"Stores 21 entries in {data_of(home)}, which is created." in shown
    assert "nothing was imported, so there is nothing to ask" in shown


@pytest.mark.parametrize(
    "answers",
    [
        [(IMPORT, CTRL_C)],
        [(IMPORT, "n"), (CONNECT, CTRL_C)],
        [(IMPORT, "n"), (CONNECT, "y"), (WRITE, CTRL_C)],
        [(IMPORT, "n"), (CONNECT, "y"), (WRITE, "n"), (CONNECT_CODEX, CTRL_C)],
    ],
    ids=["import", "connect", "write", "second agent"],
)
def test_ctrl_c_at_a_question_ends_the_tour_and_nothing_is_written(home: Path, answers: list[tuple[str, str]]) -> None:
    before = content(home)
    code, shown = played(answers)
    assert (code, content(home)) == (130, before)
    assert shown.endswith("note: the tour has ended; `memory-agent tour` continues it\n")


def test_an_import_a_question_and_a_connection_without_a_daemon(home: Path) -> None:
    with closing(Tour()) as first:
        first.answer(IMPORT, "y")
        assert "imported 20 new, 0 already present" in first.answer(ASK, "y")
        first.answer(QUESTION, "Who gets signed out at random?")
        answer = first.answer(ASK_AGAIN, "n")
        assert "$ memory-agent recall 'Who gets signed out at random?' --top-k 3 --unlogged\n" in answer
        assert answer.count(PROMPT) >= 1
        assert "score = fused + " in answer
        assert "keeps running" in first.answer(PAGE, "n")
        first.answer(CONNECT, "y")
        first.answer(WRITE, "y")
        first.answer(CONNECT_CODEX, "n")
        assert first.end() == 0
    assert not Layout(data_of(home)).daemon_runs()
    assert "memory-agent" in (home / ".claude.json").read_text()
    assert not (home / ".codex" / "config.toml").exists()
    again = [(IMPORT, "y"), (ASK, "n"), (PAGE, "n"), (CONNECT, "y"), (CONNECT_CODEX, "n")]
    code, shown = played(again)
    assert code == 0
    assert "imported 0 new, 20 already present" in shown
    assert "Claude Code is already connected" in shown


def test_the_page_starts_a_daemon_which_then_answers(home: Path) -> None:
    data = data_of(home)
    words = ("--user", "ann", "--set", "daemon.shared_hosts=1")
    try:
        with closing(Tour(*words)) as first:
            first.answer(IMPORT, "y")
            first.answer(ASK, "n")
            first.answer(PAGE, "y")
            shown = first.answer(CONNECT, CTRL_C)
            assert re.search(r"http://127\.0\.0\.1:\d+/page/#token=\w+", shown)
            assert first.end() == 130
        second = [(IMPORT, "y"), (ASK, "y"), (QUESTION, ""), (ASK_AGAIN, "n"), (PAGE, CTRL_C)]
        code, shown = played(second, *words)
        assert code == 130
        assert f"The daemon of {data} serves it." in shown
        assert "3 memories in " in shown
    finally:
        stop_daemon(Layout(data), 60)


@pytest.mark.parametrize("keys", ["n", CTRL_C])
def test_without_sessions_an_example_is_shown_and_erased(home: Path, keys: str, tmp_path: Path) -> None:
    for path in [*home.rglob("*.jsonl")]:
        path.unlink()
    before = content(home)
    declined, shown = played([(EXAMPLE, keys)])
    assert (declined, content(home)) == (0 if keys == "n" else 130, before)
    assert "no past sessions of coding agents were found" in shown
    answers = [(EXAMPLE, "y"), (ASK, "y"), (QUESTION, ""), (ASK_AGAIN, keys)]
    code, shown = played(answers)
    assert (code, content(home)) == (0 if keys == "n" else 130, before)
    assert shown.count("The staging deploy hangs because the build agent is outside the VPN") == 2  # listed and found


def test_without_a_terminal_only_a_dry_run_is_possible(home: Path) -> None:
    before = content(home)
    refused = called()
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert "the tour asks questions, and standard input is not a terminal; use --dry-run" in refused.stderr
    assert "--json requires --dry-run" in called("--json").stderr
    shown = called("--dry-run")
    assert shown.exit_code == 0, shown.output
    assert "\n  memory-agent import-sessions --wait\n" in shown.stdout
    assert content(home) == before


def test_a_dry_run_lists_the_commands_with_the_options_of_the_tour(home: Path) -> None:
    document = json.loads(called("--dry-run", "--json", "--user", "ann", "--data-dir", str(home / "data")).stdout)
    own = f"--user ann --data-dir {home}/data"
    assert document["sessions"] == {"claude-code": 1, "codex": 1}
    assert (document["entries"], document["data_dir"]) == (21, f"{home}/data")
    assert document["commands"] == [
        f"memory-agent import-sessions --wait {own}",
        f"memory-agent recall '{document['question']}' --top-k 3 --unlogged {own}",
        f"memory-agent recall '{document['question']}' --top-k 3 --unlogged --explain {own}",
        f"memory-agent open {own}",
        f"memory-agent connect claude-code {own}",
        f"memory-agent connect codex {own}",
    ]
    assert not (home / "data").exists()


def test_only_the_newest_of_many_entries_are_imported_and_asked_about(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tour, "_MOST_EVENTS", 9)
    document = json.loads(called("--dry-run", "--json").stdout)
    assert document["commands"][0].startswith("memory-agent import-sessions --since 2026-03-02T")
    assert document["question"] in {
        samples.text_of(event) for event in samples.stream(next(Path.home().rglob("rollout*")))
    }


def test_a_suggested_question_has_no_secret(home: Path) -> None:
    lines = [samples.claude_line(1, "user", f"Push it with the token {SECRET} please")]
    write_lines(home / ".claude" / "projects" / "shop" / "s.jsonl", lines)
    (home / ".codex" / "sessions" / "rollout-1.jsonl").unlink()
    document = json.loads(called("--dry-run", "--json").stdout)
    assert document["question"] == "Push it with the token [masked:github_token] please"
