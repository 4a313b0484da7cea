"""Test that every command exits with a code from the table, and that some command exits with each code."""

from __future__ import annotations

import ast
import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from memory_agent.cli import exit_codes
from memory_agent.cli.exit_codes import ExitCode

CLI = Path(exit_codes.__file__).parent
PROGRAM = (sys.executable, "-m", "memory_agent")


def coded(*words: str, data_dir: Path, input: str = "") -> int:
    """Run a command as a process; return its exit code."""
    environment = {name: text for name, text in os.environ.items() if not name.startswith("MEMORY_AGENT_")}
    command = [*PROGRAM, *words, "--data-dir", str(data_dir)]
    return subprocess.run(command, input=input, capture_output=True, text=True, env=environment, check=False).returncode


def test_each_code_is_that_of_a_command(tmp_path: Path) -> None:
    lexical = ("--set", "recall.mode=lexical", "--set", "embedder.allow_download=false")
    assert coded("remember", "Staging needs the VPN", *lexical, data_dir=tmp_path) == ExitCode.DONE
    assert coded("recall", "staging", *lexical, data_dir=tmp_path) == ExitCode.DONE
    assert coded("stop", data_dir=tmp_path) == ExitCode.FAILED
    assert coded("import", "-", *lexical, data_dir=tmp_path, input="no JSON\n") == ExitCode.FAILED
    assert coded("recall", data_dir=tmp_path) == ExitCode.MISUSED
    assert coded("verify", data_dir=tmp_path) == ExitCode.DONE
    (records,) = tmp_path.glob("users/*/records/data.mdb")
    records.write_bytes(records.read_bytes().replace(b"Staging", b"Stag1ng"))
    assert coded("verify", data_dir=tmp_path) == ExitCode.FOUND


def test_an_interrupted_command_has_its_own_code(tmp_path: Path) -> None:
    command = [*PROGRAM, "recall", "-", "--data-dir", str(tmp_path)]
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),  # a background job ignores it
    ) as process:
        assert process.stdin is not None
        process.stdin.write(b"x" * (1 << 20))  # returns once most of the input has been read, so the command is running
        process.send_signal(signal.SIGINT)
        process.communicate()
    assert process.returncode == ExitCode.INTERRUPTED


def test_a_hook_with_invalid_settings_does_not_fail_and_starts_no_daemon(tmp_path: Path) -> None:
    said = '{"hook_event_name": "UserPromptSubmit", "session_id": "s-1", "prompt": "why does staging time out?"}'
    data_dir = tmp_path / "data"
    words = ("hook", "claude-code", "--set", "recall.mod=lexical", "--deadline-ms", "60000")
    assert coded(*words, data_dir=data_dir, input=said) == ExitCode.DONE
    assert [file.parent.name for file in data_dir.rglob("*") if file.is_file()] == ["hooks"]


def exits(tree: ast.AST) -> list[ast.expr]:
    """Return the exit codes that a module's code uses."""
    found: list[ast.expr] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in ("exit", "SystemExit", "Exit"):
            found += node.args
        elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "exit_code":
            found.append(node.value)
    return found


@pytest.mark.parametrize("file", [*CLI.glob("*.py"), CLI.parent / "__main__.py"], ids=lambda file: file.name)
def test_no_command_has_a_code_of_its_own(file: Path) -> None:
    numbers = [ast.unparse(code) for code in exits(ast.parse(file.read_text())) for one in ast.walk(code)
               if isinstance(one, ast.Constant) and isinstance(one.value, int)]  # fmt: skip
    assert numbers == []
