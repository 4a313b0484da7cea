"""`mcp`: serves one client its tools on standard input and output."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from urllib.parse import urlsplit

import click

from memory_agent.cli.failure import note
from memory_agent.doors.exchange import Door
from memory_agent.doors.mcp.introduction import TOOL_SETS, ToolSet
from memory_agent.doors.mcp.stdio import Bridge, LocalDoor
from memory_agent.errors import UnavailableError
from memory_agent.layout import (
    CONFIG_VARIABLE,
    DATA_DIR_VARIABLE,
    KEY_FILE_VARIABLE,
    TOKEN_VARIABLE,
    Layout,
    default_data_dir,
)
from memory_agent.sessions.events import channel_of

SESSION_VARIABLE = "CLAUDE_CODE_SESSION_ID"
"""Where Claude Code names its session, as in its hooks. Codex names it with each request (`Message.session`)."""


@click.command()
@click.option(
    "--tools", type=click.Choice(TOOL_SETS), default="standard", show_default=True, help="Which tools to offer."
)
@click.option("--user", metavar="ID", help="Whose memory. Default: the key's user, else default.")
@click.option("--session", metavar="ID",
              help="The client's session: memories belong to it, recalls leave out its words. Default: that which "
              "Claude Code or Codex names.")  # fmt: skip
@click.option("--run", metavar="ID", help="The run that the client carries out, likewise.")
@click.option("--agent", metavar="ID", help="The agent that remembers.")
@click.option("--channel", metavar="ID", help="The channel that memories belong to.")
@click.option("--project", is_flag=True, help="The channel of the project in the current folder, as hooks name it.")
@click.option("--data-dir", type=click.Path(file_okay=False, path_type=Path),
              help=f"The data folder. Default: ${DATA_DIR_VARIABLE}, else the platform's.")  # fmt: skip
@click.option(
    "--url", metavar="URL", help=f"Use the daemon at http(s)://HOST:PORT (its token in ${TOKEN_VARIABLE}) instead."
)
@click.option("--key-file", type=click.Path(dir_okay=False, path_type=Path), envvar=KEY_FILE_VARIABLE, metavar="FILE",
              help=f"Use this key, from `keys create --out`. Default: ${KEY_FILE_VARIABLE}.")  # fmt: skip
@click.option("--config", type=click.Path(dir_okay=False, path_type=Path), envvar=CONFIG_VARIABLE, metavar="FILE",
              help=f"Settings as TOML, for a daemon that this starts. Default: ${CONFIG_VARIABLE}.")  # fmt: skip
@click.option("--set", "settings", multiple=True, metavar="NAME=VALUE", help="One setting, likewise. May be repeated.")
@click.option("--start/--no-start", default=True, show_default=True, help="Start a daemon where none runs.")
@click.option("--json", is_flag=True, expose_value=False, help="Changes nothing here: all output is JSON.")
def mcp(
    tools: ToolSet,
    user: str | None,
    session: str | None,
    run: str | None,
    agent: str | None,
    channel: str | None,
    project: bool,
    data_dir: Path | None,
    url: str | None,
    key_file: Path | None,
    config: Path | None,
    settings: tuple[str, ...],
    start: bool,
) -> None:
    """Serve the Model Context Protocol on standard input and output, for one client, until standard input ends.

    The tools are recall, remember, get, feedback, forget, timeline, search_shared and rate_shared; with --tools classic
    search_memory, extract_memory, vector_memory_search and vector_memory_write. The daemon answers, as it does at /mcp
    over HTTP; where none runs, one is started, and keeps running. `memory-agent connect` sets a client up.

    \b
    Examples:
      memory-agent mcp --user alice --project
      memory-agent mcp --tools classic --session s-17
    """
    if project:
        if channel is not None:
            raise click.UsageError("--project and --channel exclude each other")
        channel = channel_of(os.getcwd())
    token = _token(key_file)
    if url is not None:
        if not _is_address(url):
            raise click.UsageError(f"--url {url!r} is not http(s)://HOST:PORT")
        door = Door(url, token or "")
        find = lambda _: door  # noqa: E731
    else:
        folder = data_dir or _configured(config, settings) or default_data_dir()
        own = ["--config", str(config.absolute())] if config else []
        own += [word for pair in settings for word in ("--set", pair)]
        local = LocalDoor(Layout(folder), token, note, own if start else None)
        find = local.find
        try:
            local.start()  # now, since clients list tools first and call one when it is up
        except UnavailableError as error:
            note(str(error))
    named = {
        "tools": tools,
        "user_id": user,
        "session_id": session or os.environ.get(SESSION_VARIABLE) or None,
        "run_id": run,
        "agent_id": agent,
        "channel_id": channel,
    }
    context = {name: value for name, value in named.items() if value is not None}
    Bridge(find, context, tools, sys.stdout.buffer).run(sys.stdin.buffer)


def _token(key_file: Path | None) -> str | None:
    if key_file is None:
        return os.environ.get(TOKEN_VARIABLE) or None
    from relay import identity_of, read_key_file  # late: most clients use the data folder's own key

    return identity_of(read_key_file(key_file.expanduser())).token


def _is_address(url: str) -> bool:
    try:
        place = urlsplit(url)
        return place.scheme in ("http", "https") and bool(place.hostname) and place.port != 0
    except ValueError:  # a port that is none
        return False


def _configured(config: Path | None, settings: tuple[str, ...]) -> Path | None:
    """Return the data folder that the settings name."""
    if config is None and not settings:
        return None
    from memory_agent.cli.options import configured_folder  # late: 6 MB, for those who configure

    return configured_folder(config, settings)
