"""`man`: manual pages, one for the program and one for each command, written from the same source as `--help`."""

from __future__ import annotations

import inspect
import os
import re
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path

import click

from memory_agent import layout
from memory_agent.cli.command import SectionedCommand
from memory_agent.cli.group import SECTIONS, all_commands, cli
from memory_agent.cli.options import UNUSED, Target, options_where_user
from memory_agent.cli.render import counted, print_done
from memory_agent.integrations import install_file
from memory_agent.version import VERSION

_PROGRAM = "memory-agent"
_MARK = '.\\" Written by `memory-agent man`.'
_EXAMPLES = "Examples"
_LINE_CHARS = 72
_VARIABLES = {
    layout.DATA_DIR_VARIABLE: "The data folder.",
    layout.CONFIG_VARIABLE: "The TOML settings file.",
    layout.TOKEN_VARIABLE: "The token of a key, for a daemon at an endpoint or URL.",
    layout.KEY_FILE_VARIABLE: "The key file, instead of a token.",
    "MEMORY_AGENT_TABLE__NAME": "One setting, such as MEMORY_AGENT_RECALL__MODE=vector.",
}
_EXIT_CODES = {
    "0": "Everything was done. A recall or list that finds nothing also exits with 0.",
    "1": "The command failed, or some items were refused or could not be read.",
    "2": "The command line is invalid.",
    "3": "A check found a problem (`verify`, `backup`).",
    "130": "The command was interrupted.",
}
Rows = list[tuple[str, str]]


@click.command()
@click.argument("command", required=False, metavar="COMMAND")
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), metavar="DIRECTORY",
              help="Write all pages into this folder instead (for example, ~/.local/share/man/man1).")  # fmt: skip
@options_where_user(UNUSED)
def man(target: Target, command: str | None, out: Path | None) -> None:
    """Show the manual page of COMMAND, or of the program. Uses `man` on a terminal, and prints roff otherwise.

    `man memory-agent-recall` also finds the pages of an installed package if their folder is in the search path of
    `man`. `--out ~/.local/share/man/man1` installs the pages for one user.

    \b
    Examples:
      memory-agent man recall
      memory-agent man --out ~/.local/share/man/man1
      memory-agent man trajectory | man -l -
    """
    pages = manual_pages()
    if out is not None:
        folder = out.expanduser()
        written = sum(install_file(folder / f"{name}.1", page, _MARK) for name, page in pages.items())
        document = {"folder": str(folder), "pages": len(pages), "written": written}
        print_done(target.as_json, document, f"{counted(written, 'page')} of {len(pages)} written into {folder}")
        return
    name = _PROGRAM if command is None else f"{_PROGRAM}-{command}"
    if name not in pages:
        raise click.UsageError(f"no such command: {command}")
    if target.as_json:
        print_done(True, {"name": name, "page": pages[name]}, "")
    elif sys.stdout.isatty() and (viewer := shutil.which("man")):
        subprocess.run([viewer, "-l", "-"], input=pages[name].encode(), check=False)
    else:
        click.echo(pages[name], nl=False)


def manual_pages() -> dict[str, str]:
    """Return all pages by name: `memory-agent`, and `memory-agent-NAME` for each command.

    The page for a group contains its commands, as git's pages do.
    """
    commands = dict(all_commands())
    pages = {_PROGRAM: _page(_PROGRAM, _of_program())}
    for (name, *more), command in commands.items():
        if not more:
            pages[f"{_PROGRAM}-{name}"] = _page(f"{_PROGRAM}-{name}", _of_command(name, command))
    return pages


def _page(name: str, lines: Iterable[str]) -> str:
    epoch = os.environ.get("SOURCE_DATE_EPOCH", "")  # set by a reproducible build
    written_at = datetime.fromtimestamp(float(epoch), UTC) if epoch.isdigit() else datetime.now(UTC)
    title = f'.TH {name.upper()} 1 {written_at:%Y-%m-%d} "{_PROGRAM} {VERSION}" "Manual of {_PROGRAM}"'
    return "\n".join([_MARK, title, *lines]) + "\n"


def _of_program() -> Iterator[str]:
    yield from (".SH NAME", f"{_roff(_PROGRAM)} \\- episodic memory for agents")
    yield from (".SH SYNOPSIS", f".B {_roff(_PROGRAM)}", r"\fICOMMAND\fR [\fIOPTION\fR]... [\fIARGUMENT\fR]...")
    described, examples = _parts(cli)
    yield from (".SH DESCRIPTION", *described)
    yield ".SH COMMANDS"
    for title, verbs in SECTIONS.items():
        yield f".SS {_roff(title)}"
        for name, verb in verbs.items():
            yield from (".TP", f".BR {_roff(f'{_PROGRAM}-{name}')} (1)", *_text(verb.short_help))
    yield from (".SH ENVIRONMENT", *_rows(_VARIABLES.items()))
    yield from (".SH EXIT STATUS", *_rows(_EXIT_CODES.items()))
    yield from (".SH FILES", *_rows([(_default_folder(), "The default data folder.")]))
    yield from (".SH EXAMPLES", *examples)


def _of_command(name: str, command: click.Command) -> Iterator[str]:
    words = f"{_PROGRAM} {name}"
    short = command.short_help or ""
    yield from (".SH NAME", f"{_roff(f'{_PROGRAM}-{name}')} \\- {_roff(short[:1].lower() + short[1:].rstrip('.'))}")
    yield ".SH SYNOPSIS"
    inner: Mapping[str, click.Command] = command.commands if isinstance(command, click.Group) else {}
    if inner:
        for place, (one, sub) in enumerate(inner.items()):
            yield from ([".br"] if place else [])
            yield from _usage(f"{words} {one}", sub)
    else:
        yield from _usage(words, command)
    described, examples = _parts(command)
    yield from (".SH DESCRIPTION", *described)
    if inner:
        yield from _of_group(words, inner)
    else:
        yield ".SH OPTIONS"
        for title, rows in _sections(command).items():
            yield from (() if title == "Options" else (f".SS {_roff(title)}",))
            yield from _rows(rows)
    yield from (".SH EXAMPLES", *examples)
    yield from (".SH SEE ALSO", f".BR {_roff(_PROGRAM)} (1)")


def _of_group(words: str, inner: Mapping[str, click.Command]) -> Iterator[str]:
    """Yield the commands of a group. Options shared by all commands of the group appear only once."""
    rows = {one: [row for rows in _sections(command).values() for row in rows] for one, command in inner.items()}
    common = [row for row in next(iter(rows.values())) if all(row in own for own in rows.values())]
    yield ".SH COMMANDS"
    for one, command in inner.items():
        described, examples = _parts(command)
        yield from (f".SS {_roff(f'{words} {one}')}", *described)
        yield from _rows([row for row in rows[one] if row not in common])
        yield from ([".PP", *examples] if examples else [])
    yield from (".SH OPTIONS", "All commands accept:", *_rows(common))


def _usage(words: str, command: click.Command) -> Iterator[str]:
    yield f".B {_roff(words)}"
    yield _roff(" ".join(command.collect_usage_pieces(click.Context(command)))) or r"\&"


def _sections(command: click.Command) -> dict[str, Rows]:
    context = click.Context(command, **cli.context_settings)
    if isinstance(command, SectionedCommand):
        return command.option_rows(context)
    records = [one.get_help_record(context) for one in command.get_params(context) if isinstance(one, click.Option)]
    return {"Options": [row for row in records if row is not None]}


def _parts(command: click.Command) -> tuple[list[str], list[str]]:
    """Return a command's description and, separately, its examples. A paragraph after `\\b` keeps its line breaks."""
    described: list[str] = []
    examples: list[str] = []
    for paragraph in inspect.cleandoc(command.help or "").split("\n\n"):
        lines = paragraph.splitlines()
        if lines and lines[0].strip() == "\b":
            if lines[1].rstrip(":") == _EXAMPLES:
                examples += _verbatim(lines[2:])
            else:
                described += [*([".PP"] if described else []), *_verbatim(lines[1:])]
        elif lines:
            described += [*([".PP"] if described else []), *_text(" ".join(lines))]
    return described, examples


def _verbatim(lines: Iterable[str]) -> list[str]:
    return [".nf", *(_roff(line.rstrip()) for line in lines), ".fi"]


def _rows(rows: Iterable[tuple[str, str]]) -> Iterator[str]:
    for name, means in rows:
        yield from (".TP", f".B {_roff(name)}", *_text(means))


def _text(text: str) -> Iterator[str]:
    """Yield the text with each sentence on a new line, as roff expects."""
    text = text.replace(str(layout.platform_data_dir()), _default_folder())
    for sentence in re.split(r"(?<=[.:;]) +", " ".join(text.split())):
        yield from map(_roff, textwrap.wrap(sentence, _LINE_CHARS, break_long_words=False, break_on_hyphens=False))


def _default_folder() -> str:
    """Return the default data folder, with `~` for the home folder, so that no page contains a user's name."""
    return str(layout.platform_data_dir()).replace(str(Path.home()), "~", 1)


def _roff(text: str) -> str:
    """Escape the backslashes, quotes and hyphens in a line (hyphens so that they can be copied), and a control
    character at the start.
    """
    escaped = text.replace("\\", "\\e").replace("-", "\\-").replace("~", "\\(ti").replace("^", "\\(ha")
    escaped = escaped.replace("`", "\\(ga").replace("'", "\\(aq").replace('"', "\\(dq")
    return f"\\&{escaped}" if escaped.startswith((".", "\\(aq")) else escaped
