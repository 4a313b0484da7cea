"""`completion`: print or install shell completion for commands, options and their values.

The scripts contain every possible completion, so that Tab starts no Python process, which would take .2 to .3 s.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import click

from memory_agent.cli.command import Group
from memory_agent.cli.completion_scripts import SCRIPTS, Command, Option, Tree, Values
from memory_agent.cli.group import all_commands, cli
from memory_agent.cli.options import UNUSED, Target, options_where_user
from memory_agent.cli.render import print_done
from memory_agent.integrations import completion_path, install_file, remove_file
from memory_agent.layout import platform_data_dir
from memory_agent.settings import setting_names
from memory_agent.version import VERSION

_SENTENCE_CHARS = 90
_ADVICE = {
    "bash": "new shells use it if the package bash-completion is installed; otherwise add to ~/.bashrc: source {path}",
    "zsh": "add to ~/.zshrc, before `compinit`, and open a new shell: fpath=({folder} $fpath)",
    "fish": "fish uses it immediately",
}


class _Place(NamedTuple):
    """A shell and its completion file."""

    shell: str
    path: Path


@click.group(cls=Group)
def completion() -> None:
    """Complete commands, options and their values with Tab.

    \b
    Examples:
      memory-agent completion install
      memory-agent completion show zsh > _memory-agent
    """


@completion.command(short_help="Install completion for a shell (bash, zsh or fish).")
@click.argument("shell", type=click.Choice(tuple(SCRIPTS)), required=False)
@options_where_user(UNUSED)
def install(target: Target, shell: str | None) -> None:
    """Install the completion for SHELL (default: from $SHELL), and print the remaining steps, if any.

    Writes one file in your home folder, in the place where the shell looks for completions. Repeat the command after an
    upgrade, because the file contains the commands and options of this version. A file that belongs to another program
    is not replaced.

    \b
    Examples:
      memory-agent completion install
      memory-agent completion install zsh
    """
    place = _place(shell)
    is_written = install_file(place.path, _script(place.shell))
    advice = _ADVICE[place.shell].format(path=place.path, folder=place.path.parent)
    document = {"shell": place.shell, "path": str(place.path), "is_written": is_written, "advice": advice}
    done = "installed" if is_written else "already installed:"
    print_done(target.as_json, document, f"{done} {place.path}\n{advice}")


@completion.command(short_help="Remove what `install` wrote.")
@click.argument("shell", type=click.Choice(tuple(SCRIPTS)), required=False)
@options_where_user(UNUSED)
def remove(target: Target, shell: str | None) -> None:
    """Remove the file that `completion install` wrote for SHELL (default: from $SHELL).

    \b
    Examples:
      memory-agent completion remove
      memory-agent completion remove fish
    """
    place = _place(shell)
    is_removed = remove_file(place.path)
    document = {"shell": place.shell, "path": str(place.path), "is_removed": is_removed}
    print_done(target.as_json, document, f"{'removed' if is_removed else 'not installed:'} {place.path}")


@completion.command(short_help="Print the completion script for a shell.")
@click.argument("shell", type=click.Choice(tuple(SCRIPTS)))
@options_where_user(UNUSED)
def show(target: Target, shell: str) -> None:
    """Print the completion script for SHELL.

    \b
    Examples:
      memory-agent completion show bash
      memory-agent completion show zsh > /usr/local/share/zsh/site-functions/_memory-agent
    """
    script = _script(shell)
    print_done(target.as_json, {"shell": shell, "script": script}, script.rstrip("\n"))


def _place(shell: str | None) -> _Place:
    """Raises `UsageError` if the shell is neither named nor recognised."""
    named = shell or Path(os.environ.get("SHELL", "")).name
    if named not in SCRIPTS:
        shells = ", ".join(SCRIPTS)
        raise click.UsageError(f"$SHELL is {os.environ.get('SHELL') or 'not set'}; specify one of: {shells}")
    return _Place(named, completion_path(named, Path.home(), os.environ))


def _script(shell: str) -> str:
    commands = [_command((), cli), *(_command(*found) for found in all_commands())]
    folder = str(platform_data_dir())
    return SCRIPTS[shell](Tree(VERSION, folder, tuple(setting_names()), {one.words: one for one in commands}))


def _command(words: tuple[str, ...], command: click.Command) -> Command:
    parameters = command.get_params(click.Context(command, **cli.context_settings))
    options = tuple(option for one in parameters if isinstance(one, click.Option) for option in _options(one))
    arguments = [one for one in parameters if isinstance(one, click.Argument)]
    return Command(
        words=words,
        help=_sentence(command.get_short_help_str(_SENTENCE_CHARS)),
        options=options,
        arguments=tuple((one.human_readable_name, _values(one)) for one in arguments),
        is_last_repeated=bool(arguments) and arguments[-1].nargs == -1,
        is_group=isinstance(command, click.Group),
    )


def _options(option: click.Option) -> Iterator[Option]:
    """Yield the option and, for a switch, `--no-x` as a separate option."""
    values = None if option.is_flag or option.count else _values(option)
    help_text = _sentence(option.help or "")
    is_repeated = option.multiple
    yield Option(tuple(option.opts), help_text, values, is_repeated)
    if option.secondary_opts:
        yield Option(tuple(option.secondary_opts), f"Not: {help_text}", None, is_repeated)


def _sentence(text: str) -> str:
    first = text.partition(". ")[0].rstrip(".")
    return first if len(first) <= _SENTENCE_CHARS else f"{first[: _SENTENCE_CHARS - 1]}…"


def _values(parameter: click.Parameter) -> Values:
    kind = parameter.type
    if isinstance(kind, click.Choice):
        return Values(tuple(map(str, kind.choices)))
    if isinstance(kind, click.File):
        return Values(what="files")
    if isinstance(kind, click.Path):
        return Values(what="files" if kind.file_okay else "folders")
    if parameter.name == "settings":
        return Values(what="settings")
    return Values(what="users" if parameter.opts == ["--user"] else "text")
