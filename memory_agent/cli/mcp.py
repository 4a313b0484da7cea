"""`mcp`: serve Model Context Protocol tools to one client, on standard input and output."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import click

from memory_agent.cli.command import SectionedCommand, as_struct
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
"""Environment variable with Claude Code's session id, also set for hooks. Codex sends the id in requests
(`Message.session`).
"""


class _Daemon(NamedTuple):
    """Which daemon to use, and how to start it."""

    data_dir: Path | None
    url: str | None
    key_file: Path | None
    config: Path | None
    settings: tuple[str, ...]
    start: bool

    def finder(self) -> Callable[[float], Door]:
        """Return a function that finds the daemon's door. Tries to start a daemon if none is running."""
        token = self._token()
        if self.url is not None:
            if not _is_address(self.url):
                raise click.UsageError(f"--url must be http(s)://HOST:PORT, not {self.url!r}")
            door = Door(self.url, token or "")
            return lambda _: door
        own = ["--config", str(self.config.absolute())] if self.config else []
        own += [word for pair in self.settings for word in ("--set", pair)]
        folder = self.data_dir or self._configured_folder() or default_data_dir()
        local = LocalDoor(Layout(folder), token, note, own if self.start else None)
        try:
            local.start()  # start early, while the client lists the tools
        except UnavailableError as error:
            note(str(error))
        return local.find

    def _token(self) -> str | None:
        if self.key_file is None:
            return os.environ.get(TOKEN_VARIABLE) or None
        from relay import identity_of, read_key_file  # late: most clients use the data folder's own key

        return identity_of(read_key_file(self.key_file.expanduser())).token

    def _configured_folder(self) -> Path | None:
        if self.config is None and not self.settings:
            return None
        from memory_agent.cli.options import configured_folder  # late: 6 MB that few clients need

        return configured_folder(self.config, self.settings)


@click.command(cls=SectionedCommand)
@click.option(
    "--tools", type=click.Choice(TOOL_SETS), default="standard", show_default=True, help="Which tools to offer."
)
@click.option("--user", "user_id", metavar="ID", help="Whose memory. Default: the key's user, or `default`.")
@click.option("--session", "session_id", metavar="ID",
              help="The client's session: memories belong to it, and recalls leave out its words. Default: as reported "
              "by Claude Code or Codex.")  # fmt: skip
@click.option("--run", "run_id", metavar="ID", help="The client's run, used in the same way.")
@click.option("--agent", "agent_id", metavar="ID", help="The agent that stores memories.")
@click.option("--channel", "channel_id", metavar="ID", help="The channel that memories belong to.")
@click.option("--project", is_flag=True, help="Use the channel of the project in the current folder, as hooks do.")
@click.option("--data-dir", type=click.Path(file_okay=False, path_type=Path),
              help=f"The data folder. Default: ${DATA_DIR_VARIABLE} or the platform default.")  # fmt: skip
@click.option(
    "--url", metavar="URL", help=f"Use the daemon at http(s)://HOST:PORT (with its token in ${TOKEN_VARIABLE}) instead."
)
@click.option("--key-file", type=click.Path(dir_okay=False, path_type=Path), envvar=KEY_FILE_VARIABLE, metavar="FILE",
              help=f"Use this key file, written by `keys create --out`. Default: ${KEY_FILE_VARIABLE}.")  # fmt: skip
@click.option("--config", type=click.Path(dir_okay=False, path_type=Path), envvar=CONFIG_VARIABLE, metavar="FILE",
              help=f"TOML settings file for a daemon that this starts. Default: ${CONFIG_VARIABLE}.")  # fmt: skip
@click.option(
    "--set", "settings", multiple=True, metavar="NAME=VALUE", help="One setting for that daemon. May be repeated."
)
@click.option("--start/--no-start", default=True, show_default=True, help="Start a daemon if none is running.")
@click.option("--json", is_flag=True, expose_value=False, help="No effect: all output is JSON.")
@as_struct("daemon", _Daemon)
def mcp(tools: ToolSet, project: bool, daemon: _Daemon, **context: str | None) -> None:
    """Serve the Model Context Protocol to one client on standard input and output, until standard input ends.

    The tools are recall, remember, get, feedback, forget, timeline, search_shared, get_shared and rate_shared; with
    --tools classic, they are search_memory, extract_memory, vector_memory_search and vector_memory_write. The daemon
    handles the calls, as it does at /mcp over HTTP. If no daemon is running, one is started and keeps running.
    `memory-agent connect` configures a client.

    \b
    Examples:
      memory-agent mcp --user alice --project
      memory-agent mcp --tools classic --session s-17
    """
    if project:
        if context["channel_id"] is not None:
            raise click.UsageError("--project cannot be combined with --channel")
        context["channel_id"] = channel_of(os.getcwd())
    context["session_id"] = context["session_id"] or os.environ.get(SESSION_VARIABLE) or None
    named = {"tools": tools, **{name: value for name, value in context.items() if value is not None}}
    Bridge(daemon.finder(), named, tools, sys.stdout.buffer).run(sys.stdin.buffer)


def _is_address(url: str) -> bool:
    try:
        place = urlsplit(url)
        return place.scheme in ("http", "https") and bool(place.hostname) and place.port != 0
    except ValueError:  # not a port number
        return False
