"""Test repeated options, and the names of options in errors, over all commands."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from memory_agent.cli.command import Group, option_for
from memory_agent.cli.fields import documented
from memory_agent.cli.group import all_commands, cli
from memory_agent.records.memories import Exclusion, MemoryFilter

Run = Callable[..., Result]

NOT_UNICODE = "\udcff"
REQUIRED = {
    ("feedback",): ("--quality", "1"),
    ("forget",): ("--session", "y", "--yes"),
    ("shared", "attachment"): ("--out", "out"),
    ("shared", "preview"): ("--title", "y", "--summary", "y"),
    ("shared", "rate"): ("1",),
    ("sona", "reset"): ("--yes",),
}
"""Options and values that these commands require in addition to their arguments."""
OF_A_MEMORY = {
    *(("recall",), ("remember",), ("list",), ("get",), ("sessions",), ("map",), ("stats",), ("forget",), ("export",)),
    *(("trajectory", name) for name in ("begin", "step", "end", "list", "similar", "show")),
    *(("shared", name) for name in ("preview", "offered", "unpublish", "rate", "published", "search", "show", "name")),
    *(("feedback",), ("shared", "attachment"), ("sona", "status"), ("sona", "reset")),
}
CONNECTION = ("--endpoint", "--set")
CHECKED_LATER = {
    ("feedback",): (*CONNECTION, "--event-id", "--comment"),
    ("trajectory", "step"): (*CONNECTION, "TEXT", "--event-id"),
    ("trajectory", "end"): (*CONNECTION, "--summary", "--event-id"),
    ("shared", "preview"): (*CONNECTION, "--text", "--item"),
    ("shared", "search"): (*CONNECTION, "--tag"),
}
"""Parameters that are checked only after the run, recall or store is found, or that contain other parameters."""


def commands() -> Iterator[tuple[tuple[str, ...], click.Command]]:
    return ((words, one) for words, one in all_commands() if not isinstance(one, click.Group))


def options_of(command: click.Command) -> list[click.Option]:
    return [one for one in command.params if isinstance(one, click.Option)]


def name_of(parameter: click.Parameter) -> str:
    return max(parameter.opts, key=len) if isinstance(parameter, click.Option) else parameter.human_readable_name


def test_an_option_that_takes_one_value_is_refused_if_it_is_repeated_in_every_command() -> None:
    assert all(isinstance(one, Group) for _, one in all_commands() if isinstance(one, click.Group))
    seen = 0
    for words, command in commands():
        for one in options_of(command):
            values = ["1"] * one.nargs
            twice = [] if one.is_flag else [one.opts[0], *values, one.opts[-1], *values]
            if one.multiple or not twice:
                continue
            result = CliRunner().invoke(cli, [*words, *twice])
            assert result.exit_code == 2, (words, one.name)
            assert f"{name_of(one)} takes one value, but was given 2 times" in " ".join(result.stderr.split())
            seen += 1
    assert seen > 300


def test_flags_and_options_of_several_values_may_be_repeated(run: Run, tmp_path: Path) -> None:
    both = run("recall", "x", "--tier", "local", "--tier", "global", "--json", "--json")
    assert both.exit_code == 0, both.output
    again = run("recall", "x", "--session", "--user", "--tag=--user")  # values, not options
    assert again.exit_code == 0, again.output


@pytest.mark.parametrize(
    ("field", "option"),
    [
        *((f"filter.{name}", name) for name in documented(MemoryFilter)),
        *((f"filter.exclude.{name}", f"exclude_{name}") for name in documented(Exclusion)),
    ],
)
def test_every_command_with_filters_names_the_option_of_a_filter_field(field: str, option: str) -> None:
    found = set()
    for _, command in commands():
        [*named] = [one for one in options_of(command) if one.name == option]
        if any(one.name == "exclude_sessions" for one in command.params) and named:
            assert option_for(command, field) == option_for(command, f"{field}[3]") == name_of(named[0])
            assert option_for(command, f"{field}.a.b") == f"{name_of(named[0])} a.b"
            found.add(name_of(named[0]))
    assert len(found) == 1


def test_an_error_names_the_option_or_argument_whose_text_is_invalid_in_every_command(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    seen = 0
    for words, command in commands():
        more = REQUIRED.get(words, ())
        arguments = [one for one in command.params if isinstance(one, click.Argument) and one.required]
        for one in command.params if words in OF_A_MEMORY else ():
            if (
                one.type is not click.STRING
                or one.opts[0] in more
                or name_of(one) in CHECKED_LATER.get(words, CONNECTION)
            ):
                continue
            given = [NOT_UNICODE if each is one else "y" for each in arguments]
            own = [] if one in arguments else [one.opts[0], NOT_UNICODE][isinstance(one, click.Argument) :]
            result = run(*words, *given, *own, *more)
            assert result.exit_code == 1, (words, one.name, result.output)
            assert result.stderr.startswith(f"error: {name_of(one)}: "), (words, one.name, result.stderr)
            seen += 1
    assert seen > 100


def test_a_field_that_no_option_sets_keeps_its_name() -> None:
    command = next(command for words, command in commands() if words == ("recall",))
    assert option_for(command, "line 3") == "line 3"
    assert option_for(command, "record.kind") == "record.kind"
