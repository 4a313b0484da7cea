"""Test that every command has help with examples and all options, shown without importing an engine."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from typing import get_args

import click
import msgspec
import pytest
from click.testing import CliRunner

from memory_agent.cli.fields import documented
from memory_agent.cli.group import SECTIONS, all_commands, cli
from memory_agent.records.arguments import MOST_SIMILAR_RUNS
from memory_agent.verbs.params import (
    FeedbackParams,
    ListParams,
    MapParams,
    QuarantineParams,
    RebuildParams,
    RecallParams,
    RememberParams,
    RunBeginParams,
    RunEndParams,
    RunListParams,
    RunSimilarParams,
    RunStepParams,
    SessionsParams,
)
from memory_agent.verbs.shared_params import PreviewParams, RateParams, SearchSharedParams

ENGINES = ("ray", "onnxruntime", "onnx", "tokenizers", "safetensors", "usearch")
COMMON = ("--user", "--data-dir", "--config", "--set", "--json", "--help")
PROBE = """
import json, sys
from memory_agent.cli.group import cli
cli(json.loads(sys.argv[1]), standalone_mode=False)
loaded = sorted(set(sys.modules) & set(json.loads(sys.argv[2])))
print("LOADED " + json.dumps(loaded))
"""


def commands() -> dict[tuple[str, ...], click.Command]:
    """Return every command that is not a group, keyed by the words that invoke it."""
    return {words: command for words, command in all_commands() if not isinstance(command, click.Group)}


def help_of(*words: str) -> str:
    result = CliRunner().invoke(cli, [*words, "--help"], terminal_width=100)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_the_help_of_user_depends_on_the_command() -> None:
    means = {words: " ".join(help_of(*words).partition("--user ID")[2].split())[:60] for words in commands()}
    assert means[("recall",)].startswith("The user of the memory. [default: default]")
    for words in (("backup",), ("serve",), ("keys", "rotate")):
        assert means[words].startswith("No effect here.")
    for words in (("encrypt",), ("restore",), ("verify",)):
        assert means[words].startswith("Only this user's data. Default: everything.")
    assert means[("keys", "create")].startswith("The user whose memory the key opens.")
    assert means[("encryption", "destroy")].startswith("Whose key.")


def test_every_verb_is_in_the_help() -> None:
    shown = help_of()
    for title, verbs in SECTIONS.items():
        section = shown.partition(f"\n\n{title}:\n")[2].partition("\n\n")[0]
        assert re.findall(r"^  (\S+)", section, re.MULTILINE) == list(verbs)
    for words in commands():
        assert words[-1] in help_of(*words[:-1])


@pytest.mark.parametrize("words", commands(), ids=" ".join)
def test_the_help_of_a_verb_has_an_example_and_every_option(words: tuple[str, ...]) -> None:
    command, shown = commands()[words], help_of(*words)
    assert f"memory-agent {' '.join(words)}" in shown.partition("Examples:")[2]
    options = [option for option in command.params if isinstance(option, click.Option)]
    assert {name for option in options for name in option.opts} >= set(COMMON) - {"--help"}
    for option in options:
        assert all(name in shown for name in option.opts)
        assert option.help, option.name
    assert all(name in shown for name in COMMON)


@pytest.mark.parametrize(
    "words", [(), ("model",), ("quarantine",), ("eval",), ("trajectory",), ("sona",)], ids=" ".join
)
def test_a_short_description_is_never_cut_off(words: tuple[str, ...]) -> None:
    result = CliRunner().invoke(cli, [*words, "--help"], terminal_width=80)
    assert "..." not in result.stdout.partition("\n\nOptions:\n")[2]


@pytest.mark.parametrize("words", commands(), ids=" ".join)
def test_options_and_usage_fit_into_80_columns(words: tuple[str, ...]) -> None:
    shown = CliRunner().invoke(cli, [*words, "--help"], terminal_width=80).stdout
    usage, _, rest = shown.partition("\n\n")
    lines = [*usage.splitlines(), *rest.partition("\nOptions:\n")[2].splitlines()]
    assert max(map(len, lines)) <= 80
    assert "-\n" not in usage


@pytest.mark.parametrize(
    "words", [(), ("serve",), ("recall",), ("doctor",), ("eval", "locomo"), ("sona", "status")], ids=" ".join
)
def test_help_loads_no_engine(words: tuple[str, ...]) -> None:
    arguments = json.dumps([*words, "--help"]), json.dumps(ENGINES)
    done = subprocess.run(
        [sys.executable, "-c", PROBE, *arguments], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.splitlines()[-1] == "LOADED []"


def test_the_help_of_recall_begins_with_the_ten_options_that_people_use_first() -> None:
    first, *sections = re.split(r"\n\n(?=\S.*:\n)", help_of("recall").partition("\nOptions:\n")[2])
    names = set(re.findall(r"^  (--\S+)", first, re.MULTILINE)) - {"--help"}
    assert len(names) == 10
    assert {"--top-k", "--kind", "--since", "--context", "--user", "--json"} <= names
    titles = [section.partition(":")[0] for section in sections]
    assert titles[:2] == ["Filters", "How to search"]
    assert titles[-1] == "Daemon and settings"


@pytest.mark.parametrize("words", commands(), ids=" ".join)
def test_a_command_with_more_than_a_dozen_options_shows_at_most_a_dozen_before_the_first_section(
    words: tuple[str, ...],
) -> None:
    first = re.split(r"\n\n(?=\S.*:\n)", help_of(*words).partition("\nOptions:\n")[2])[0]
    assert len(re.findall(r"^  (?:-\w, )?--", first, re.MULTILINE)) <= 12


STRUCTS: dict[tuple[str, ...], type[msgspec.Struct]] = {
    ("recall",): RecallParams,
    ("remember",): RememberParams,
    ("list",): ListParams,
    ("sessions",): SessionsParams,
    ("map",): MapParams,
    ("feedback",): FeedbackParams,
    ("rebuild",): RebuildParams,
    ("quarantine", "list"): QuarantineParams,
    ("trajectory", "begin"): RunBeginParams,
    ("trajectory", "step"): RunStepParams,
    ("trajectory", "end"): RunEndParams,
    ("trajectory", "list"): RunListParams,
    ("trajectory", "similar"): RunSimilarParams,
    ("shared", "preview"): PreviewParams,
    ("shared", "rate"): RateParams,
    ("shared", "search"): SearchSharedParams,
}
"""The parameters of the verb that each command calls. The remaining verbs take only ids or a selection."""


@pytest.mark.parametrize("words", STRUCTS, ids=" ".join)
def test_every_documented_parameter_of_a_verb_is_an_option_of_its_command(words: tuple[str, ...]) -> None:
    options = {one.name: one.help for one in commands()[words].params if isinstance(one, click.Option)}
    for name, field in documented(STRUCTS[words]).items():
        assert (options[name] or "").startswith(get_args(field.type)[1].description)


def test_an_option_has_the_help_the_bounds_and_the_default_of_its_field() -> None:
    options = {one.name: one for one in commands()[("trajectory", "similar")].params if isinstance(one, click.Option)}
    fields = {field.name: field for field in msgspec.structs.fields(RunSimilarParams)}
    bounds = options["top_k"].type
    assert isinstance(bounds, click.IntRange)
    assert (bounds.min, bounds.max, options["top_k"].default) == (1, MOST_SIMILAR_RUNS, fields["top_k"].default)
    assert options["top_k"].help == get_args(fields["top_k"].type)[1].description
