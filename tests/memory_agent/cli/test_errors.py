"""Test that errors are one line on standard error, with a nonzero exit code."""

from __future__ import annotations

import errno
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from memory_agent.cli.group import cli

Run = Callable[..., Result]

MORE_THAN_A_PIPE_HOLDS = 1 << 21
FULL_DEVICE = Path("/dev/full")


@pytest.mark.parametrize(
    ("words", "exit_code", "named"),
    [
        (["recal", "x"], 2, "did you mean recall?"),
        (["frobnicate"], 2, "no such command: frobnicate"),
        (["recall"], 2, "TEXT"),
        (["recall", "x", "--bogus"], 2, "--bogus"),
        (["recall", "x", "--kind", "idea"], 2, "'idea' is not one of"),
        (["recall", "x", "--mode", "magic"], 2, "--mode"),
        (["recall", "x", "--top-k", "0"], 2, "--top-k"),
        (["recall", "x", "--top-k", "1001"], 2, "--top-k"),
        (["recall", "x", "--max-tokens", "300"], 2, "--max-tokens requires --context"),
        (["recall", "x", "--with-embedding"], 2, "--with-embedding requires --json"),
        (["recall", "x", "--with-embedding", "--context"], 2, "--with-embedding requires --json"),
        (["recall", "x", "--explain", "--context"], 2, "--explain cannot be combined with --context"),
        (["recall", "x", "--since", "yesterday"], 2, "--since"),
        (["recall", "x", "--since", "99999999d"], 2, "'99999999d' is too far in the past to be a date"),
        (["recall", "x", "--min-quality", "7"], 2, "--min-quality"),
        (["recall", "why", "so?"], 2, 'Put quotes around the text: memory-agent recall "several words"'),
        (["trajectory", "begin", "Fix", "it"], 2, 'memory-agent trajectory begin "several words"'),
        (["--user", "alice", "recall", "x"], 2, "Options follow the verb: memory-agent VERB --user ..."),
        (["recall", "x", "--set", "recall.vector_weight"], 2, "NAME=VALUE"),
        (["recall", "x", "--set", "recall.alpah=1"], 1, "setting recall.alpah: no such setting"),
        (["recall", "x", "--set", "recall.vector_weight=3"], 1, "setting recall.vector_weight"),
        (["recall", "x", "--config", "absent.toml"], 1, "absent.toml"),
        (
            ["recall", "x", "--user", "../x"],
            1,
            "--user: '../x' is unsafe: ASCII letters, digits and ._:@+- are allowed",
        ),
        (["stats", "--user", ""], 1, "--user: is missing"),
        (["remember", "x", "--user", "u" * 300], 1, "--user: has 300 characters"),
        (["remember", " "], 1, "TEXT: "),
        (["recall", "x", "--endpoint", "tcp://127.0.0.1:1"], 1, "no daemon listens at tcp://127.0.0.1:1"),
        (
            ["recall", "x", "--endpoint", "http://127.0.0.1:1"],
            1,
            "(ipc:///PATH, tcp://HOST:PORT or curve+tcp://HOST:PORT)",
        ),
        (["publish", "absent.jsonl"], 2, "absent.jsonl"),
        (["publish"], 1, "start one with: memory-agent serve --data-dir"),
        (["publish", "--wait"], 1, "start one with: memory-agent serve --data-dir"),
        (["quarantine", "retry", "--all"], 1, "start one with: memory-agent serve --data-dir"),
        (["quarantine", "drop"], 2, "--all"),
        (["quarantine", "drop", "3", "--all"], 2, "--all"),
        (["quarantine", "drop", "three"], 2, "three"),
        (["trajectory", "begin"], 2, "OBJECTIVE"),
        (["trajectory", "begin", " "], 1, "OBJECTIVE: "),
        (["trajectory", "end", "r", "--outcome", "won"], 2, "'won' is not one of"),
        (["trajectory", "end", "r", "--quality", "7"], 2, "--quality"),
        (["trajectory", "list", "--limit", "0"], 2, "--limit"),
        (["trajectory", "show", "r-404"], 1, "RUN: r-404 is not known"),
        (["feedback", "r-404"], 2, "specify --used, --quality or --comment"),
        (["feedback", "r-404", "--quality", "2"], 2, "--quality"),
        (["feedback", "r-404", "--quality", "1"], 1, "RECALL_ID: "),
        (["sona", "export", "-", "--json"], 2, "specify a file"),
        (["sona", "import", "absent.sona"], 1, "error: absent.sona: No such file or directory"),
        (["import", "absent.jsonl"], 1, "error: absent.jsonl: No such file or directory"),
        (["eval", "locomo", "absent.json"], 1, "absent.json: cannot be read"),
        (["model", "fetch", "--folder", "."], 1, "does not contain model.safetensors"),
    ],
)
def test_bad_input_is_reported_in_one_line(
    run: Run, words: list[str], exit_code: int, named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = run(*words)
    assert result.exit_code == exit_code, result.output
    assert named in " ".join(result.stderr.split())
    assert result.stdout == ""
    assert "Traceback" not in result.output
    if exit_code == 1:
        assert result.stderr.startswith("error: ")
        assert len(result.stderr.splitlines()) == 1


def test_with_json_the_error_is_a_document_with_a_stable_code(run: Run) -> None:
    result = run("recall", "x", "--user", "../x", "--json")
    assert result.exit_code == 1
    assert result.stdout == ""
    fault = json.loads(result.stderr)["error"]
    assert (fault["code"], fault["retryable"]) == ("invalid_input", False)
    assert fault["message"].startswith("--user: ")


def test_explain_and_json_exclude_each_other(run: Run) -> None:
    result = run("recall", "x", "--explain", "--json")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "--json, which includes every explanation" in result.stderr


def test_a_bad_request_leaves_no_folder_behind(run: Run, data_dir: Path) -> None:
    run("recall", "x", "--user", "../x")
    assert not data_dir.exists()


def test_ctrl_c_exits_with_130_and_without_a_traceback(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "memory_agent", "remember", "-", "--data-dir", str(tmp_path)]
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a background job ignores SIGINT
    ) as process:
        assert process.stdin is not None
        process.stdin.write("x" * MORE_THAN_A_PIPE_HOLDS)
        process.stdin.flush()  # returns once the process has begun to read
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=60)
    assert (process.returncode, output) == (130, ""), errors
    assert "Traceback" not in errors


@pytest.mark.skipif(not FULL_DEVICE.exists(), reason="this system has no /dev/full")
@pytest.mark.parametrize("words", ["keys list", "keys list --json", "--help", "recall --help", "--version"])
def test_output_that_cannot_be_written_is_one_line_and_no_traceback(tmp_path: Path, words: str) -> None:
    command = [sys.executable, "-m", "memory_agent", *words.split()]
    environment = os.environ | {"MEMORY_AGENT_DATA_DIR": str(tmp_path)}
    with FULL_DEVICE.open("wb") as full:
        done = subprocess.run(command, env=environment, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 1
    assert "No space left on device" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_usage_errors_are_documents_too_with_json(run: Run) -> None:
    result = run("recall", "anything", "--json", "--since", "zz")
    assert (result.exit_code, result.stdout) == (2, "")
    error = json.loads(result.stderr)["error"]
    assert (error["code"], error["retryable"]) == ("usage", False)
    assert "'zz' is neither an ISO date" in error["message"]


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["recal", "x", "--json"], "no such command: recal; did you mean recall?"),
        (["--json", "recall", "x"], "--json"),
        (["--bad", "--json"], "--bad"),
        (["trajectory", "lst", "--json"], "lst"),
        (["trajectory", "--json", "list"], "--json"),
        (["eval", "sona", "--json"], "sona"),
        (["recall", "x", "--bad", "--json"], "--bad"),
        (["recall", "x", "--json", "--bad"], "--bad"),
        (["trajectory", "show", "--bad", "--json"], "--bad"),
        (["recall", "--json"], "TEXT"),
        (["recall", "x", "y", "--json"], "y"),
    ],
)
def test_a_command_line_that_cannot_be_parsed_is_a_document_too_with_json(words: list[str], named: str) -> None:
    result = CliRunner().invoke(cli, words)
    assert (result.exit_code, result.stdout) == (2, "")
    error = json.loads(result.stderr)["error"]
    assert (error["code"], error["retryable"]) == ("usage", False)
    assert named in error["message"]


@pytest.mark.parametrize(
    "words",
    [
        ["recal", "--", "--json"],
        ["recall", "--", "--json", "--json"],
        ["recall", "x", "--session", "--json", "--since", "zz"],
    ],
)
def test_json_as_a_text_or_a_value_asks_for_no_document(words: list[str]) -> None:
    result = CliRunner().invoke(cli, words)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("Usage: ")


def test_only_settings_of_the_command_line_are_noted_as_unused_by_a_daemon(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "settings.toml"
    config.write_text("[recall]\nvector_weight = 0.5\n")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as silent:
        silent.bind(str(tmp_path / "s"))
        silent.listen()
        asked = ("recall", "anything", "--deadline-ms", "50", "--endpoint", f"ipc://{tmp_path / 's'}")
        typed = run(*asked, "--config", str(config))
        monkeypatch.setenv("MEMORY_AGENT_CONFIG", str(config))
        around = run(*asked)
    assert "the daemon keeps its own settings" in typed.stderr
    assert "the daemon keeps its own settings" not in around.stderr
    assert typed.exit_code == around.exit_code == 1


def test_the_doctors_last_line_mentions_warnings(run: Run) -> None:
    shown = run("doctor").stdout
    warned = sum(line.startswith("warn") for line in shown.splitlines())
    last = shown.splitlines()[-1]
    assert last == "no check failed" + (f", with {warned} warnings (see above)" if warned else ""), shown


def test_what_the_doctor_says_wraps_below_its_beginning(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    piped = run("doctor").stdout.splitlines()
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "80")
    lines = run("doctor").stdout.splitlines()
    place = piped[0].index("Python")
    assert max(map(len, lines)) <= 80
    assert lines[1].startswith(" " * place)
    assert lines[1][place] != " "


def test_a_home_folder_that_is_read_only_is_refused_with_what_to_set() -> None:
    environment = {name: text for name, text in os.environ.items() if not name.startswith("MEMORY_AGENT_")}
    done = subprocess.run(
        [sys.executable, "-m", "memory_agent", "remember", "Staging needs the VPN"],
        env=environment | {"XDG_DATA_HOME": "/sys/none"},  # not even root may create a folder there
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 1
    assert "/sys/none/memory-agent cannot be used" in done.stderr
    assert done.stderr.endswith("; choose another data folder with --data-dir or MEMORY_AGENT_DATA_DIR\n")


def test_a_data_folder_that_became_read_only_is_refused_with_what_to_set(
    run: Run, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Simulates a read-only mount, because root can write to every folder of a writable mount."""
    monkeypatch.setenv("MEMORY_AGENT_DATA_DIR", str(data_dir))
    failed = OSError(errno.EROFS, os.strerror(errno.EROFS), str(data_dir / "users"))
    monkeypatch.setattr("memory_agent.cli.recall.open_memory", lambda *_, **__: (_ for _ in ()).throw(failed))
    result = run("remember", "x")
    assert (result.exit_code, "--data-dir or MEMORY_AGENT_DATA_DIR" in result.stderr) == (1, True)


def test_a_command_says_that_it_used_the_files(data_dir: Path) -> None:
    def stderr_of(*words: str) -> str:
        return CliRunner().invoke(cli, [*words, "--data-dir", str(data_dir)]).stderr

    used = f"note: no daemon serves {data_dir}; the files were used directly\n"
    assert stderr_of("remember", "Staging needs the VPN") == used
    for words in (("recall", "staging needs the VPN"), ("list",), ("sona", "status")):
        assert stderr_of(*words) == used, words
        assert stderr_of(*words, "--json") == "", words
    assert used not in stderr_of("trajectory", "show", "r-404"), "a failure is one line"
