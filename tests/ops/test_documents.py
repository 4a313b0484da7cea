"""Test that the documents match the code: settings, error codes and commands are documented, and examples work."""

from __future__ import annotations

import re
import shlex
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import click
import msgspec
import pytest

import memory_agent.errors
import relay.errors
from memory_agent.cli.group import VERBS, cli
from memory_agent.doors.mcp.tools import BY_SET
from memory_agent.doors.mcp.tools import Scope as ToolScope
from memory_agent.hooks.inputs import LISTENED, Input
from memory_agent.integrations import CLIENTS, Hooks, Scope
from memory_agent.settings import Settings, load_settings, setting_names
from ops.documents.__main__ import make_pages

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
REFERENCE = (ROOT / "ops" / "REFERENCE.md").read_text(encoding="utf-8")
DEPLOY = ROOT / "ops" / "deploy"
PAGES = [ROOT / "README.md", ROOT / "ops" / "REFERENCE.md", DEPLOY / "README.md"]
PROSE = [*PAGES, DEPLOY / "memory-agent.service"]
REMAKE = "run `python -m ops.documents`; a new entry needs its words in ops/documents/meanings.toml"


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README + REFERENCE, re.DOTALL)


def command_names(command: click.Command, *path: str) -> Iterator[tuple[str, ...]]:
    if not isinstance(command, click.Group):
        yield path
        return
    context = click.Context(command)
    for name in command.list_commands(context):
        inner = command.get_command(context, name)
        assert inner is not None
        yield from command_names(inner, *path, name)


def example_commands() -> list[str]:
    lines = "\n".join(file.read_text(encoding="utf-8") for file in PROSE)
    found = re.findall(r"^(?:ExecStart=\S*/)?(memory-agent .*)$", lines, re.MULTILINE)
    found += re.findall(r"`(memory-agent [^`]*)`", lines)
    found += re.findall(r"^ExecStart=\S*/(memory-agent .*)$", lines, re.MULTILINE)
    return sorted({line.partition("#")[0].strip().removesuffix("&").strip() for line in found})


@pytest.mark.parametrize("page", list(make_pages()), ids=lambda page: page.name)
def test_the_generated_pages_are_current(page: Path) -> None:
    assert page.read_text(encoding="utf-8") == make_pages()[page], REMAKE


@pytest.mark.parametrize("name", list(setting_names()))
def test_every_setting_is_documented(name: str) -> None:
    table, _, setting = name.rpartition(".")
    page = (ROOT / "ops" / "SETTINGS.md").read_text(encoding="utf-8")
    section = page.partition(f"## `[{table}]`" if table else "## At the top")[2].partition("\n## ")[0]
    assert f"| `{setting}` |" in section, REMAKE


@pytest.mark.parametrize("codes", [memory_agent.errors.ERRORS, relay.errors.ERRORS], ids=["memory_agent", "relay"])
def test_every_error_code_is_documented(codes: dict[str, Any]) -> None:
    page = (ROOT / "ops" / "ERRORS.md").read_text(encoding="utf-8")
    section = page.partition("## `memory_agent`" if "internal" in codes else "## `relay`")[2].partition("\n## ")[0]
    assert [code for code in codes if f"| `{code}` |" not in section] == [], REMAKE


def test_meanings_exist_only_for_existing_names() -> None:
    meanings = tomllib.loads((ROOT / "ops/documents/meanings.toml").read_text(encoding="utf-8"))
    assert set(meanings["errors"]["memory_agent"]) == set(memory_agent.errors.ERRORS)
    assert set(meanings["errors"]["relay"]) == set(relay.errors.ERRORS)
    assert {name for name in meanings["settings"] if "[]" not in name} == set(setting_names())


@pytest.mark.parametrize("path", list(command_names(cli)), ids=" ".join)
def test_every_command_is_in_the_reference(path: tuple[str, ...]) -> None:
    verbs = REFERENCE.partition("## Command line")[2].splitlines()
    row = next((line for line in verbs if line.startswith(f"| `{path[0]}` |")), "")
    assert row, f"{path[0]} has no row in the table of verbs"
    assert all(word in row for word in path)


@pytest.mark.parametrize("line", example_commands())
def test_every_command_that_is_shown_can_be_typed(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    words = shlex.split(line)[1:]
    if not words or words[0] == "…":
        pytest.skip("names the program, no verb")
    command: click.Command = cli
    context = click.Context(cli, info_name="memory-agent")
    while isinstance(command, click.Group):
        found = command.get_command(context, words[0]) if words else None
        if found is None:
            assert words == [] or words[0] not in VERBS, line
            return
        command, words = found, words[1:]
    for parameter in command.params:
        if isinstance(parameter.type, click.File | click.Path):
            monkeypatch.setattr(parameter, "type", click.STRING)  # the example's files do not exist
    command.make_context(command.name, words, parent=context)


def test_the_settings_in_the_reference_exist_with_these_defaults() -> None:
    rows = re.findall(r"^\| `([a-z_.]+)` \| ([^|]*) \| `(MEMORY_AGENT_[A-Z_]+)` \|", REFERENCE, re.MULTILINE)
    assert len(rows) >= 8
    for name, default, variable in rows:
        assert variable == "MEMORY_AGENT_" + name.upper().replace(".", "__")
        value: Any = Settings()
        for part in name.split("."):
            value = getattr(value, part)
        shown = default.split(" (")[0].strip("` ")
        assert shown == (f"{value:g}" if isinstance(value, int | float) else value) or not value, name


@pytest.mark.parametrize("text", blocks("toml"))
def test_settings_that_are_shown_as_a_file_are_accepted(text: str, tmp_path: Path) -> None:
    file = tmp_path / "settings.toml"
    file.write_text(text, encoding="utf-8")
    assert load_settings(file, environment={}) != Settings()


@pytest.mark.parametrize("file", PAGES, ids=lambda file: f"{file.parent.name}-{file.stem}")
def test_no_link_leads_nowhere(file: Path) -> None:
    for link, anchor in re.findall(r"\]\((?!http)([^)#]*)#?([^)]*)\)", file.read_text(encoding="utf-8")):
        target = file.parent / link if link else file
        assert target.exists(), link
        if anchor:
            headings = re.findall(r"^#+ (.*)$", target.read_text(encoding="utf-8"), re.MULTILINE)
            assert anchor in {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}, anchor


def test_the_targets_that_the_readme_names_are_in_the_makefile() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    named = set(re.findall(r"`?make ([a-z]+)", README))
    assert {"demo", "test"} <= named
    assert [target for target in named if not re.search(rf"^{target}:", makefile, re.MULTILINE)] == []


def test_the_fields_that_the_reference_names_are_read_for_their_events() -> None:
    signals = tomllib.loads((ROOT / "memory_agent" / "signals" / "signals.toml").read_text())["signal"].values()
    rows = REFERENCE.partition("| event type |")[2].partition("\n\n")[0].splitlines()[2:]
    named = {
        event: re.findall("`([^`]+)`", row.split("|")[2])
        for row in rows
        for event in re.findall("`([^`]+)`", row.split("|")[1])
    }
    assert set(named) == {event for signal in signals for event in signal["events"]}
    for signal in signals:
        places = {place.rpartition(": ")[2].strip("+ ") for part in signal["text"] for place in part.split("|")}
        for event in signal["events"]:
            assert set(named[event]) <= places, event
            assert named[event][0] == signal["text"][0].split("|")[0].rpartition(": ")[2].strip("+ "), event


def section_rows(heading: str) -> dict[str, list[list[str]]]:
    """Return the names in the cells of each table row in a section of the reference, keyed by the row's first cell."""
    section = REFERENCE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    rows = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("| `")]
    return {first.strip("`"): [re.findall("`([^`]+)`", cell) for cell in others] for first, *others in rows}


def test_the_hooks_that_the_reference_names_are_those_that_are_read_and_answered() -> None:
    rows = section_rows("Hooks")
    assert {client: tuple(heard) for client, (heard, _) in rows.items()} == LISTENED
    for client, (heard, answered) in rows.items():
        said = {name: Input(client, {"hook_event_name": name, "prompt": "fix the login"}).content() for name in heard}
        assert answered == [name for name in heard if said[name].prompt or said[name].starts]


def test_the_tools_that_the_reference_names_have_these_verbs_and_parameters() -> None:
    rows = section_rows("MCP")
    tools = BY_SET["standard"] | BY_SET["classic"]
    assert {name: calls for name, (calls, _) in rows.items()} == {name: [tools[name].verb.name] for name in tools}
    for name, (_, parameters) in rows.items():
        fields = {field.name for field in msgspec.structs.fields(tools[name].input)}
        assert set(parameters) - set(get_args(ToolScope)) == fields, name


@pytest.mark.skipif(sys.platform == "darwin", reason="the reference names Linux's folders")
def test_the_files_that_the_reference_names_are_those_that_connect_writes() -> None:
    rows = section_rows("Connecting coding agents")
    assert rows.keys() == CLIENTS.keys()
    for client, (user, project, *hooks) in rows.items():
        assert user == [str(path) for path, _ in Scope(client, None, Path("~"), {}).files()]
        assert project == [str(path) for path, _ in Scope(client, Path(), Path("~"), {}).files()]
        has_hooks = any(isinstance(entry, Hooks) for file in CLIENTS[client].user for entry in file.entries)
        assert bool(hooks) == has_hooks == (client in LISTENED)
