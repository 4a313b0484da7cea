"""`connect`, `disconnect`: coding agents and editors, by their own settings."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import msgspec

from memory_agent.cli.failure import confirm, note
from memory_agent.cli.options import UNUSED, configured_folder
from memory_agent.cli.render import plain, print_document
from memory_agent.integrations.clients import CLIENTS, Command, Scope, this_program
from memory_agent.integrations.connection import Change, ChangedMeanwhileError, Connection
from memory_agent.layout import DATA_DIR_VARIABLE, connections_dir, default_data_dir
from relay import Masker

_THIS_USER = ""
"""What --user says without an id."""


class Edit(msgspec.Struct, kw_only=True):
    """A file and what changes in it: `diff` is empty where nothing does; secrets in it are masked."""

    path: str
    diff: str
    backup: str | None = None


class Edits(msgspec.Struct, kw_only=True):
    """What was done, or with --dry-run would be: `is_written`. `advice`: what the user does next."""

    client: str
    scope: str
    files: list[Edit]
    is_written: bool
    advice: tuple[str, ...] = ()


def _options(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in reversed(
        (
            click.argument("client", type=click.Choice(tuple(CLIENTS)), metavar="CLIENT"),
            click.option("--project", is_flag=True, help="Only sessions in this folder: the settings of the project."),
            click.option("--dry-run", is_flag=True, help="Show the change; write nothing."),
            click.option("--yes", is_flag=True, help="Do not ask. Nobody is asked where there is no terminal."),
            click.option("--json", "as_json", is_flag=True, help="Print one JSON document on standard output."),
        )
    ):
        command = option(command)
    return command


def _print_plugin_folder(context: click.Context, _parameter: click.Parameter, value: bool) -> None:
    if value:
        from memory_agent.integrations.plugin import FOLDER

        click.echo(FOLDER)
        context.exit()


@click.command()
@_options
@click.option("--user", is_flag=False, flag_value=_THIS_USER, metavar="[ID]",
              help="All sessions of this user, the default; with ID: whose memory. After the client.")  # fmt: skip
@click.option("--data-dir", type=click.Path(file_okay=False, path_type=Path),
              help=f"The data folder. Default: ${DATA_DIR_VARIABLE}, else the platform's.")  # fmt: skip
@click.option("--config", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
              help="Settings as TOML, for a daemon that the client starts.")  # fmt: skip
@click.option("--set", "settings", multiple=True, metavar="NAME=VALUE", help="One setting, likewise. May be repeated.")
@click.option("--plugin-folder", is_flag=True, is_eager=True, expose_value=False, callback=_print_plugin_folder,
              help="Print the folder of the plugin for Claude Code and Codex, and exit.")  # fmt: skip
def connect(
    client: str,
    project: bool,
    dry_run: bool,
    yes: bool,
    as_json: bool,
    user: str | None,
    data_dir: Path | None,
    config: Path | None,
    settings: tuple[str, ...],
) -> None:
    """Write the MCP server and, where CLIENT has them, hooks into the settings of CLIENT.

    With hooks each prompt brings the memories that bear on it, and what is said and run is remembered: Claude Code,
    Codex, Gemini CLI. With the server the agent asks and remembers by itself: these, Cursor, VS Code and Zed. Shows the
    change and asks. What else is in the files stays, comments and layout included, and a backup is kept. A file that is
    not valid is left alone. Repeating it changes nothing.

    CLIENT is claude-code, codex, gemini, cursor, vscode or zed. Any other MCP client can be told to run `memory-agent
    mcp`.

    \b
    Examples:
      memory-agent connect claude-code
      memory-agent connect codex --user alice --yes
      memory-agent connect vscode --project --dry-run
    """
    if user == _THIS_USER and project:
        raise click.UsageError("--user and --project exclude each other; --user ID says whose memory")
    configured = configured_folder(config, settings)  # refuses bad settings: a client hides why its server ends
    shared = [
        *(("--user", user) if user else ()),
        *("--data-dir", str((data_dir or configured or default_data_dir()).expanduser().absolute())),
    ]
    own = [
        *(("--config", str(config.expanduser().absolute())) if config else ()),
        *(word for pair in settings for word in ("--set", pair)),
    ]
    command = Command(this_program(), (*shared, *own), tuple(shared), Path.cwd() if project else None)
    _edit(client, project, dry_run, yes, as_json, lambda connection: connection.connecting(command), is_connecting=True)


@click.command()
@_options
@click.option("--user", is_flag=False, flag_value=_THIS_USER, metavar="[ID]",
              help="All sessions of this user, the default.")  # fmt: skip
@click.option("--data-dir", type=click.Path(path_type=Path), help=UNUSED)
@click.option("--config", type=click.Path(path_type=Path), help=UNUSED)
@click.option("--set", "settings", multiple=True, help=UNUSED)
def disconnect(
    client: str, project: bool, dry_run: bool, yes: bool, as_json: bool, user: str | None, **_unused: object
) -> None:
    """Take out of the settings of CLIENT what `connect` wrote there, and nothing else.

    A file that nobody edited since has the same bytes again as before.

    \b
    Examples:
      memory-agent disconnect claude-code
      memory-agent disconnect vscode --project --yes
    """
    if user is not None and project:
        raise click.UsageError("--user and --project exclude each other")
    _edit(client, project, dry_run, yes, as_json, Connection.disconnecting, is_connecting=False)


def _edit(
    client: str,
    project: bool,
    dry_run: bool,
    yes: bool,
    as_json: bool,
    plan: Callable[[Connection], list[Change]],
    *,
    is_connecting: bool,
) -> None:
    scope = Scope(client, Path.cwd() if project else None, Path.home())
    connection = Connection(scope, connections_dir())
    while True:
        changes = plan(connection)
        files = [_describe(change) for change in changes]
        is_changing = any(file.diff for file in files)
        if not as_json:
            for file in files:
                click.echo(file.diff or f"{plain(file.path)}: no change")
        if is_changing and not dry_run and not yes and sys.stdin.isatty():
            confirm("Write this?")
        try:
            if not dry_run:
                connection.apply(changes)
            break
        except ChangedMeanwhileError as error:
            note(f"{error.path} has changed meanwhile: looking again")
    is_written = is_changing and not dry_run
    for change, file in zip(changes, files, strict=True):
        backup = connection.backup(change.path)
        if is_connecting and not dry_run and backup.exists():
            file.backup = str(backup)
    advice = scope.advice if is_connecting else ()
    if as_json:
        named = "project" if project else "user"
        print_document(Edits(client=client, scope=named, files=files, is_written=is_written, advice=advice))
        return
    title = CLIENTS[client].title
    if is_written:
        note(f"{title} is {'connected' if is_connecting else 'disconnected'}: restart its sessions")
        for file in files:
            if file.diff and file.backup:
                note(f"{file.path} as it was: {file.backup}")
        for line in advice:
            note(line)
    elif dry_run and is_changing:
        note("nothing is written: --dry-run")
    elif not is_changing:
        note(f"{title} {'is connected already' if is_connecting else 'was not connected'}")


def _describe(change: Change) -> Edit:
    def lines(content: bytes | None) -> list[str]:
        return [] if content is None else content.decode().splitlines()

    path = str(change.path)
    if change.now == change.then:
        return Edit(path=path, diff="")
    old, new = (path if content is not None else "/dev/null" for content in (change.now, change.then))
    shown = "\n".join(difflib.unified_diff(lines(change.now), lines(change.then), old, new, lineterm=""))
    return Edit(path=path, diff=plain(Masker().text(shown)) or f"{path}: line ends")
