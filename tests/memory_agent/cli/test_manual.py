"""Test the manual pages: their content, and that mandoc and man-db report no problems."""

from __future__ import annotations

import os
import pty
import re
import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from memory_agent.cli.group import VERBS, all_commands, cli
from memory_agent.cli.manual import manual_pages

PATIENCE_S = 60.0


@pytest.fixture(scope="module")
def pages() -> dict[str, str]:
    return manual_pages()


def called(*words: str) -> Result:
    return CliRunner().invoke(cli, ["man", *words])


def program(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(f"{name} is not installed")
    return str(found)


def plain(page: str) -> str:
    """Return a page's text on one line, with the escapes resolved."""
    for escape, character in {r"\-": "-", r"\(ga": "`", r"\(aq": "'", r"\(dq": '"', r"\(ti": "~", r"\&": ""}.items():
        page = page.replace(escape, character)
    return " ".join(page.split())


def test_there_is_a_page_for_each_command_and_the_program_names_them(pages: dict[str, str]) -> None:
    assert list(pages) == ["memory-agent", *(f"memory-agent-{name}" for name in VERBS)]
    assert all(
        f".BR memory\\-agent\\-{name.replace('-', chr(92) + '-')} (1)" in pages["memory-agent"] for name in VERBS
    )


def test_a_page_has_the_options_their_help_and_the_examples_of_the_command(pages: dict[str, str]) -> None:
    for words, command in all_commands():
        shown = plain(pages[f"memory-agent-{words[0]}"])
        for option in (one for one in command.params if isinstance(one, click.Option) and not one.hidden):
            assert all(name in shown for name in option.opts), (words, option.name)
            assert " ".join((option.help or "").split())[:40].partition("$")[0].strip() in shown, (words, option.name)
        example = re.search(rf"^ *(memory-agent {' '.join(words)}\b.*)$", command.help or "", re.MULTILINE)
        assert example is not None
        assert " ".join(example[1].split()) in shown


def test_a_page_does_not_name_the_folders_of_its_writer(pages: dict[str, str]) -> None:
    assert [name for name, page in pages.items() if str(Path.home()) in plain(page)] == []


def test_mandoc_has_no_warning(pages: dict[str, str], tmp_path: Path) -> None:
    mandoc = program("mandoc")
    files = []
    for name, page in pages.items():
        files.append(tmp_path / f"{name}.1")
        files[-1].write_text(page)
    done = subprocess.run([mandoc, "-T", "lint", "-W", "warning", *files], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")


def test_man_formats_the_pages_without_warnings(pages: dict[str, str]) -> None:
    man = program("man")
    for name in ("memory-agent", "memory-agent-recall", "memory-agent-trajectory"):
        command = [man, "--warnings", "-E", "UTF-8", "-l", "-"]
        done = subprocess.run(command, input=pages[name].encode(), capture_output=True, timeout=PATIENCE_S)
        assert (done.returncode, done.stderr) == (0, b"")
        assert name.upper().encode() in done.stdout


def test_pages_written_into_a_folder_are_found_by_man(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1764288000")
    folder = tmp_path / "man" / "man1"
    first, again = called("--out", str(folder)), called("--out", str(folder))
    assert first.stdout == f"{len(VERBS) + 1} pages of {len(VERBS) + 1} written into {folder}\n"
    assert again.stdout == f"0 pages of {len(VERBS) + 1} written into {folder}\n"
    found = subprocess.run(
        [program("man"), "-w", "memory-agent-recall"],
        env=os.environ | {"MANPATH": str(folder.parent)},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert found.stdout.strip() == str(folder / "memory-agent-recall.1")


def test_a_reproducible_build_sets_the_date(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1764288000")
    assert ".TH MEMORY-AGENT-RECALL 1 2025-11-28 " in called("recall").stdout


def test_a_terminal_gets_the_formatted_page() -> None:
    program("man")
    controller, terminal = pty.openpty()
    command = [sys.executable, "-m", "memory_agent", "man", "recall"]
    try:
        environment = os.environ | {"MANPAGER": "head -n 3", "TERM": "dumb"}
        subprocess.run(command, env=environment, stdout=terminal, timeout=PATIENCE_S, check=True)
        assert b"MEMORY-AGENT-RECALL(1)" in os.read(controller, 1 << 16)
    finally:
        os.close(controller)
        os.close(terminal)


def test_an_unknown_command_and_a_file_of_another_program_are_refused(tmp_path: Path) -> None:
    unknown = called("recal")
    assert (unknown.exit_code, "no such command: recal" in unknown.stderr) == (2, True)
    path = tmp_path / "memory-agent.1"
    path.write_text("somebody else's page")
    refused = called("--out", str(tmp_path))
    assert (refused.exit_code, path.read_text()) == (1, "somebody else's page")
    assert "was not written by memory-agent" in refused.stderr
