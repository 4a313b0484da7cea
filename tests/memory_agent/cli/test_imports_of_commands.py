"""Test that commands only present results; public calls to lower packages make all decisions and change all files."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import memory_agent.cli

FILES = sorted(Path(memory_agent.cli.__file__).parent.glob("*.py"))
JOURNAL = {"Journal", "Erasable", "encrypt_journal", "journal_folder", "read_event", "read_mark"}
"""The names in `relay` that open, find or change a journal."""
CHANGES = {"rename", "rmtree", "unlink", "rmdir", "mkdir", "write_bytes", "write_text", "fsync"}
"""Methods and functions that change files. Only evaluations may use these, to write their results."""


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_command_opens_no_journal_and_no_store(file: Path) -> None:
    imported = [
        node for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))) if isinstance(node, ast.ImportFrom)
    ]
    names = {(node.module or "", alias.name) for node in imported for alias in node.names}
    assert {name for module, name in names if module.partition(".")[0] == "relay"} & JOURNAL == set()
    assert {module for module, _ in names if module.startswith("memory_agent.storage")} <= {
        "memory_agent.storage.folders"
    }


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_command_changes_no_files_itself(file: Path) -> None:
    if file.stem.startswith("evaluate"):
        return
    tree = ast.parse(file.read_text(encoding="utf-8"))
    assert {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)} & CHANGES == set()


ROOT = {f"memory_agent.cli.{name}" for name in ("__init__", "group", "command", "failure", "exit_codes")}
HEAVY = {"asyncio", "numpy", "structlog", "rich", "zmq", "relay.broker", "memory_agent.memory.memory"}
BRIDGE = {"ssl", "http.client", "importlib.metadata", "subprocess", "memory_agent.settings", "memory_agent.verbs.table"}
"""Modules that the MCP bridge must not import, because every client session starts a bridge. `open` needs none."""


@pytest.mark.parametrize(
    ("arguments", "heavy"),
    [
        (["--help"], HEAVY | {f"memory_agent.cli.{file.stem}" for file in FILES} - ROOT),
        (["recall", "--help"], HEAVY - {"rich"}),
        (["mcp", "--help"], HEAVY | BRIDGE),
        (["mcp", "--no-start", "--data-dir", "none"], HEAVY | BRIDGE),
        (["open", "--help"], HEAVY | BRIDGE | {"webbrowser"}),
        (["remember", "--help"], HEAVY - {"rich"}),
        (["serve", "--help"], HEAVY),
        (["join", "--help"], HEAVY),
        (["import", "--help"], HEAVY - {"rich"}),
        (["import-sessions", "--help"], HEAVY - {"asyncio", "rich", "zmq"}),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_command_imports_only_what_it_needs(arguments: list[str], heavy: set[str]) -> None:
    script = (
        "import sys; from memory_agent.cli.group import cli; cli(sys.argv[1:], standalone_mode=False); "
        "print(*sys.modules)"
    )
    shown = subprocess.run(
        [sys.executable, "-c", script, *arguments], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True
    )
    assert heavy & set(shown.stdout.splitlines()[-1].split()) == set()
