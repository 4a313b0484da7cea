"""Test `import` of plain memories and documents, and `index`, without a daemon."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import Result

from memory_agent.memory import Memory
from memory_agent.storage.folders import user_folder

Run = Callable[..., Result]
RunJson = Callable[..., Any]

PLAIN = '{"entries": [{"text": "Staging needs the VPN", "id": "vpn"}, {"text": "Use uv here."}]}'


def test_plain_memories_are_imported_once_from_a_file_or_standard_input(
    run: Run, run_json: RunJson, tmp_path: Path
) -> None:
    (tmp_path / "notes.json").write_text(PLAIN)
    first = run_json("import", str(tmp_path / "notes.json"))
    assert (first["added"], first["unchanged"], first["bad"]) == (2, 0, 0)
    again = run("import", "-", input=PLAIN)
    assert (again.exit_code, again.stdout) == (0, "0 added, 0 replaced, 0 removed, 2 unchanged\n")
    assert run_json("recall", "what does staging need?")["memories"][0]["record"]["id"] == "vpn"


def test_a_bad_entry_is_named_and_the_others_are_imported(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "notes.jsonl"
    path.write_text('{"text": "Use uv here."}\n{broken\n{"text": "x", "kind": "hunch"}\n')
    result = run("import", str(path))
    assert result.exit_code == 1, result.output
    assert result.stdout == "1 added, 0 replaced, 0 removed, 0 unchanged\n"
    assert f"left out: {path}: line 2: is not JSON\n" in result.stderr
    assert f"left out: {path}: line 3: kind: must be one of" in result.stderr


@pytest.mark.parametrize("name", ["GEMINI.md", "CLAUDE.md", "AGENTS.md", "MEMORY.md"])
def test_the_memory_files_of_agents_are_imported_item_by_item(
    run: Run, run_json: RunJson, tmp_path: Path, name: str
) -> None:
    path = tmp_path / name
    path.write_text("# Notes\n- Staging needs the VPN.\n- Use uv here.\n")
    assert run_json("import", str(path))["added"] == 2
    path.write_text("# Notes\n- Staging needs the VPN.\n")
    changed = run_json("import", str(path))
    assert (changed["removed"], changed["unchanged"]) == (1, 1)
    (memory,) = run_json("list", "--metadata", f"file={path}")["records"]
    assert (memory["text"], memory["metadata"]["heading"]) == ("Staging needs the VPN.", "Notes")


def test_a_folder_is_indexed_and_its_sections_are_recalled_with_file_and_heading(
    run: Run, run_json: RunJson, tmp_path: Path
) -> None:
    docs = tmp_path / "docs"
    docs.mkdir()
    (docs / "release.md").write_text("# Release\n## Steps\nTag the commit, then push the tag.\n")
    (docs / "broken.md").write_bytes(b"\xff\xfe")
    result = run("index", str(docs))
    assert result.exit_code == 1, result.output
    assert f"left out: {docs / 'broken.md'}: is UTF-16 or UTF-32; convert it to UTF-8" in result.stderr
    assert "1 added, 0 replaced, 0 removed, 0 unchanged" in result.stdout
    (found,) = run_json("recall", "how do we release?", "--type", "document.section", "--min-relevance", "0")[
        "memories"
    ]
    assert found["record"]["title"] == "Release > Steps"
    assert found["record"]["metadata"]["file"] == str(docs / "release.md")
    shown = run("recall", "how do we release?", "--min-relevance", "0").stdout
    assert f"of {docs / 'release.md'}" in "".join(line.strip() for line in shown.splitlines())
    (docs / "release.md").unlink()
    (docs / "broken.md").unlink()
    nothing = run("index", str(docs))
    assert (nothing.exit_code, nothing.stdout) == (0, "0 added, 0 replaced, 1 removed, 0 unchanged\n")
    assert f"no documents in {docs}: looked for file names ending in .md or .markdown" in nothing.stderr


def test_a_document_that_is_not_there_is_named(run: Run, tmp_path: Path) -> None:
    result = run("import", str(tmp_path / "absent.md"))
    assert (result.exit_code, "Traceback" in result.output) == (1, False)
    assert "absent.md: No such file or directory" in result.stderr


def test_index_watches_a_folder_until_it_is_interrupted(tmp_path: Path) -> None:
    docs = tmp_path / "docs"
    docs.mkdir()
    (docs / "release.md").write_text("# Release\nTag, then push.")
    options = ["--data-dir", str(tmp_path / "data"), "--set", "embedder.folder=/nowhere"]
    command = [sys.executable, "-u", "-m", "memory_agent", "index", str(docs), "--watch", *options]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a background job ignores SIGINT
    ) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "1 added, 0 replaced, 0 removed, 0 unchanged\n"
            (docs / "release.md").rename(docs / "steps.md")
            assert process.stdout.readline() == "1 added, 0 replaced, 1 removed, 0 unchanged\n"
            process.send_signal(signal.SIGINT)
            _, said = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 0
    assert said.startswith("note: no longer watching\n")


def test_a_watch_waits_for_the_memory_and_for_the_folder(
    run: Run, data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    docs, away = tmp_path / "docs", tmp_path / "away"
    docs.mkdir()
    (docs / "release.md").write_text("# Release\nTag, then push.")
    held = Memory.open(user_folder(data_dir, "default"))

    def come_back() -> None:
        held.close()
        away.rename(docs)

    steps = iter([lambda: docs.rename(away), come_back, lambda: signal.raise_signal(signal.SIGINT)])
    monkeypatch.setattr("memory_agent.cli.transfer.time", SimpleNamespace(sleep=lambda _: next(steps)()))
    former = signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job ignores SIGINT
    try:
        result = run("index", str(docs), "--watch")
    finally:
        signal.signal(signal.SIGINT, former)
    assert (result.exit_code, result.stdout) == (0, "1 added, 0 replaced, 0 removed, 0 unchanged\n")
