"""Extensions to click: help in sections, repeated options, options passed as one struct, options shared by several
commands.

Imports only `layout` from the rest of the program, because every session of a coding agent starts `hook` and `mcp`.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from memory_agent.layout import DATA_DIR_VARIABLE, KEY_FILE_VARIABLE

Verb = Callable[..., Any]
COMMAND_KEY = "memory_agent.command"
"""Key of the running command in a click context's `meta`."""

data_dir_option = functools.partial(
    click.option,
    "--data-dir",
    type=click.Path(file_okay=False, path_type=Path),
    help=f"The data folder. Default: ${DATA_DIR_VARIABLE} or the platform default.",
)
config_option = functools.partial(
    click.option, "--config", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE"
)
set_option = functools.partial(click.option, "--set", "settings", multiple=True, metavar="NAME=VALUE")
start_option = functools.partial(
    click.option, "--start/--no-start", default=True, show_default=True, help="Start a daemon if none is running."
)
key_file_option = functools.partial(
    click.option,
    "--key-file",
    type=click.Path(dir_okay=False, path_type=Path),
    envvar=KEY_FILE_VARIABLE,
    metavar="FILE",
)

_CONNECTION = (
    *("--endpoint", "--url", "--relay", "--relay-feed", "--key-file"),
    *("--data-dir", "--config", "--set", "--start"),
)


def settings_words(config: Path | None, settings: Sequence[str]) -> list[str]:
    """Return the options --config (as an absolute path) and --set, to pass to another command."""
    words = ["--config", str(config.expanduser().absolute())] if config else []
    return words + [word for pair in settings for word in ("--set", pair)]


class Group(click.Group):
    """A group whose commands reject a repeated option that takes one value. Click would use the last value."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name, command, rest = super().resolve_command(ctx, args)
        if not (command is None or isinstance(command, click.Group) or ctx.resilient_parsing):
            ctx.meta[COMMAND_KEY] = command
            _check_repeated(click.Context(command, ctx, name), rest)
        return name, command, rest


def _check_repeated(context: click.Context, words: list[str]) -> None:
    _, _, given = context.command.make_parser(context).parse_args(list(words))
    for one, times in Counter(given).items():
        if times > 1 and isinstance(one, click.Option) and not (one.multiple or one.is_flag):
            raise click.UsageError(f"{_longest(one)} takes one value, but was given {times} times", context)


def option_for(command: click.Command, field: str) -> str:
    """Return the option or argument that sets a field of a request, or the field's name if there is none.

    >>> option_for(recall, "filter.exclude.sessions[1]"), option_for(recall, "filter.metadata.host")
    ('--exclude-session', '--metadata host')
    """
    path = field.removeprefix("filter.").replace("exclude.", "exclude_", 1)
    first, _, inner = path.partition(".")
    name = first.partition("[")[0]
    by_word = {word.lstrip("-").replace("-", "_"): one for one in command.params for word in _words(one)}
    by_name = by_word | {one.name: one for one in command.params}
    found = by_name.get(name) or by_name.get(name.removesuffix("_id")) or by_name.get(name.removesuffix("s"))
    return field if found is None else f"{_longest(found)} {inner}".rstrip()


def _words(parameter: click.Parameter) -> list[str]:
    return parameter.opts if isinstance(parameter, click.Option) else [parameter.human_readable_name.lower()]


def _longest(parameter: click.Parameter) -> str:
    return max(parameter.opts, key=len) if isinstance(parameter, click.Option) else parameter.human_readable_name


class SectionedCommand(click.Command):
    """A command whose help is divided into sections: first the options that are in no section, then each section."""

    def __init__(self, *arguments: Any, sections: Mapping[str, tuple[str, ...]] | None = None, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._sections = {**(sections or {}), "Daemon and settings": _CONNECTION}

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, definitions in self.option_rows(ctx).items():
            with formatter.section(title):
                formatter.write_dl(definitions)

    def option_rows(self, ctx: click.Context) -> dict[str, list[tuple[str, str]]]:
        options = [one for one in self.get_params(ctx) if isinstance(one, click.Option)]
        rows = {tuple(one.opts): row for one in options if (row := one.get_help_record(ctx)) is not None}
        in_sections = {option for names in self._sections.values() for option in names}
        return {"Options": [row for names, row in rows.items() if in_sections.isdisjoint(names)]} | {
            title: [row for own, row in rows.items() if not set(names).isdisjoint(own)]
            for title, names in self._sections.items()
        }


def with_options(command: Verb, options: Sequence[Callable[[Verb], Verb]]) -> Verb:
    """Add options to a command; the help lists them in this order."""
    for option in reversed(options):
        command = option(command)
    return command


def as_struct(name: str, struct: type[Any]) -> Callable[[Verb], Verb]:
    """Pass the options that are named after fields of `struct` to the command as a single argument, `name`."""

    def decorate(command: Verb) -> Verb:
        @functools.wraps(command)
        def with_struct(*arguments: Any, **options: Any) -> Any:
            fields = {field: options.pop(field) for field in struct.__annotations__}
            return command(*arguments, **{name: struct(**fields)}, **options)

        return with_struct

    return decorate
