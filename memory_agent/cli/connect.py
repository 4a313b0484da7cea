"""`connect`, `disconnect`: edit the settings of coding agents and editors so that they use this memory."""

from __future__ import annotations

import difflib
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import msgspec

from memory_agent.cli.command import (
    Verb,
    as_struct,
    config_option,
    data_dir_option,
    set_option,
    settings_words,
    with_options,
)
from memory_agent.cli.failure import confirm, note
from memory_agent.cli.options import UNUSED, configured_folder
from memory_agent.cli.render import plain, print_document
from memory_agent.integrations import (
    CLIENTS,
    Change,
    ChangedMeanwhileError,
    Command,
    Connection,
    Scope,
    hook_launcher,
    this_program,
)
from memory_agent.layout import connections_dir, default_data_dir
from relay import Masker

_ELLIPSIS = "…"
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|\s+|.', re.DOTALL)
_THIS_USER = ""
"""Value of --user when it is given without an id."""


class _How(msgspec.Struct, frozen=True):
    """The options common to `connect` and `disconnect`."""

    client: str
    project: bool
    dry_run: bool
    yes: bool
    as_json: bool

    @property
    def folder(self) -> Path | None:
        """The project's folder, or None for all of the user's sessions."""
        return Path.cwd() if self.project else None


class Edit(msgspec.Struct, kw_only=True):
    """A file and its changes. `diff` contains only the changed lines."""

    path: str
    diff: str
    backup: str | None = None


class Edits(msgspec.Struct, kw_only=True):
    """The changes to all files. `is_written` is true if they were written; `advice` tells the user what to do next."""

    client: str
    scope: str
    files: list[Edit]
    is_written: bool
    advice: tuple[str, ...] = ()


def _options(command: Verb) -> Verb:
    return with_options(
        as_struct("how", _How)(command),
        (
            click.argument("client", type=click.Choice(tuple(CLIENTS)), metavar="CLIENT"),
            click.option("--project", is_flag=True, help="Only sessions in this folder (project settings)."),
            click.option("--dry-run", is_flag=True, help="Show the change; write nothing."),
            click.option("--yes", is_flag=True, help="Do not ask for confirmation (the default without a terminal)."),
            click.option("--json", "as_json", is_flag=True, help="Print one JSON document on standard output."),
        ),
    )


def _print_plugin_folder(context: click.Context, _parameter: click.Parameter, value: bool) -> None:
    if value:
        from memory_agent.integrations import FOLDER

        click.echo(FOLDER)
        context.exit()


@click.command()
@_options
@click.option("--user", is_flag=False, flag_value=_THIS_USER, metavar="[ID]",
              help="All of this user's sessions (default). With ID: that user's memory. Follows CLIENT.")  # fmt: skip
@data_dir_option()
@config_option(help="TOML settings file for a daemon started by the client.")
@set_option(help="One setting for that daemon. May be repeated.")
@click.option("--plugin-folder", is_flag=True, is_eager=True, expose_value=False, callback=_print_plugin_folder,
              help="Print the folder of the plugin for Claude Code and Codex, and exit.")  # fmt: skip
def connect(how: _How, user: str | None, data_dir: Path | None, config: Path | None, settings: tuple[str, ...]) -> None:
    """Add the MCP server and, if CLIENT supports them, hooks to the settings of CLIENT.

    Hooks (Claude Code, Codex, Gemini CLI) add relevant project memories to each prompt, and remember prompts, answers
    and commands. With the server (also for Cursor, VS Code and Zed), the agent recalls and remembers on its own
    initiative. Shows the change and asks for confirmation. Everything else in the files, including comments and layout,
    is preserved, and the originals are backed up. Invalid files are not changed. Repeating the command changes nothing.

    CLIENT is claude-code, codex, gemini, cursor, vscode or zed. Configure any other MCP client to run `memory-agent
    mcp`.

    \b
    Examples:
      memory-agent connect claude-code
      memory-agent connect codex --user alice --yes
      memory-agent connect vscode --project --dry-run
    """
    if user == _THIS_USER and how.project:
        raise click.UsageError(
            "--user without an ID cannot be combined with --project; --user ID selects the user of the memory"
        )
    configured = configured_folder(config, settings)  # reject bad settings now: clients hide why a server exited
    shared = [
        *(("--user", user) if user else ()),
        *("--data-dir", str((data_dir or configured or default_data_dir()).expanduser().absolute())),
    ]
    every = (*shared, *settings_words(config, settings))
    command = Command(this_program(), every, tuple(shared), how.folder, hook_launcher())
    _edit(how, lambda connection: connection.connecting(command), is_connecting=True)


@click.command()
@_options
@click.option("--user", is_flag=False, flag_value=_THIS_USER, metavar="[ID]",
              help="All of this user's sessions (default).")  # fmt: skip
@click.option("--data-dir", metavar="DIRECTORY", expose_value=False, help=UNUSED)
@click.option("--config", metavar="FILE", expose_value=False, help=UNUSED)
@click.option("--set", multiple=True, metavar="NAME=VALUE", expose_value=False, help=UNUSED)
def disconnect(how: _How, user: str | None) -> None:
    """Remove what `connect` added to the settings of CLIENT, and nothing else.

    A file that has not been edited since then is restored byte for byte.

    \b
    Examples:
      memory-agent disconnect claude-code
      memory-agent disconnect vscode --project --yes
    """
    if user is not None and how.project:
        raise click.UsageError("--user cannot be combined with --project")
    _edit(how, Connection.disconnecting, is_connecting=False)


def _edit(how: _How, plan: Callable[[Connection], list[Change]], *, is_connecting: bool) -> None:
    scope = Scope(how.client, how.folder, Path.home())
    connection = Connection(scope, connections_dir())
    changes, files = _apply(how, connection, plan)
    for change, file in zip(changes, files, strict=True):
        backup = connection.backup(change.path)
        if is_connecting and not how.dry_run and backup.exists():
            file.backup = str(backup)
    edits = Edits(
        client=how.client,
        scope="project" if how.project else "user",
        files=files,
        is_written=not how.dry_run and any(file.diff for file in files),
        advice=scope.advice if is_connecting else (),
    )
    print_document(edits) if how.as_json else _print(edits, how, is_connecting)


def _apply(
    how: _How, connection: Connection, plan: Callable[[Connection], list[Change]]
) -> tuple[list[Change], list[Edit]]:
    """Show the changes, ask for confirmation, and write them unless this is a dry run. Starts over if a file has
    changed.
    """
    while True:
        changes = plan(connection)
        files = [_describe(change) for change in changes]
        if not how.as_json:
            for file in files:
                click.echo(file.diff or f"{plain(file.path)}: no change")
        if how.dry_run:
            return changes, files
        if any(file.diff for file in files) and not how.yes and sys.stdin.isatty():
            confirm("Write this?")
        try:
            connection.apply(changes)
            return changes, files
        except ChangedMeanwhileError as error:
            note(f"{error.path} has changed since it was read; starting over")


def _print(edits: Edits, how: _How, is_connecting: bool) -> None:
    title = CLIENTS[edits.client].title
    if edits.is_written:
        note(f"{title} is {'connected' if is_connecting else 'disconnected'}: restart its sessions")
        for file in edits.files:
            if file.diff and file.backup:
                note(f"original of {file.path}: {file.backup}")
        for line in edits.advice:
            note(line)
    elif how.dry_run and any(file.diff for file in edits.files):
        note("nothing is written: --dry-run")
    else:
        note(f"{title} {'is already connected' if is_connecting else 'was not connected'}")


def _describe(change: Change) -> Edit:
    path = str(change.path)
    if change.now == change.then:
        return Edit(path=path, diff="")
    old, new = (path if content is not None else "/dev/null" for content in (change.now, change.then))
    shown = [*_shown(*((content or b"").decode() for content in (change.now, change.then)))]
    if not shown:
        return Edit(path=path, diff=f"{path}: line ends")
    return Edit(path=path, diff=plain(Masker().text("\n".join((f"--- {old}", f"+++ {new}", *shown)))))


def _shown(now: str, then: str) -> Iterator[str]:
    """Yield the changed lines only: other lines may contain tokens in formats that no masker recognises."""
    lines, made = now.splitlines(), then.splitlines()
    for what, start, end, made_start, made_end in difflib.SequenceMatcher(None, lines, made).get_opcodes():
        if what == "equal":
            continue
        yield f"@@ -{start + 1},{end - start} +{made_start + 1},{made_end - made_start} @@"
        gone, come = _without_common("\n".join(lines[start:end]), "\n".join(made[made_start:made_end]))
        yield from (f"{sign}{line}" for sign, text in (("-", gone), ("+", come)) for line in text.splitlines())


def _without_common(gone: str, come: str) -> tuple[str, str]:
    """Return both texts with each common part replaced by an ellipsis, or "" for a text that has only common parts."""
    old, new = _TOKEN.findall(gone), _TOKEN.findall(come)
    before = _common(old, new)
    after = _common(old[before:][::-1], new[before:][::-1])
    inside = old[before : len(old) - after], new[before : len(new) - after]
    shown: tuple[list[str], list[str]] = ([], [])
    for what, start, end, new_start, new_end in difflib.SequenceMatcher(None, *inside).get_opcodes():
        for part, own in zip(shown, (inside[0][start:end], inside[1][new_start:new_end]), strict=True):
            part.append(_ELLIPSIS if what == "equal" else "".join(own))
    ends = _ELLIPSIS if before else "", _ELLIPSIS if after else ""
    texts = [f"{ends[0]}{''.join(part)}{ends[1]}" if any(part) else "" for part in shown]
    return (texts[0] if texts[0].strip(_ELLIPSIS) else ""), (texts[1] if texts[1].strip(_ELLIPSIS) else "")


def _common(one: list[str], other: list[str]) -> int:
    pairs = enumerate(zip(one, other, strict=False))
    return next((place for place, (own, its) in pairs if own != its), min(len(one), len(other)))
