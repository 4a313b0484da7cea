"""`mcp`: serve Model Context Protocol tools to one client, on standard input and output."""

from __future__ import annotations

import os
import sys
from functools import partial

import click

from memory_agent.cli.command import SectionedCommand
from memory_agent.cli.door import Daemon, door_options
from memory_agent.doors.mcp.introduction import TOOL_SETS, ToolSet
from memory_agent.doors.mcp.stdio import Bridge
from memory_agent.hooks.current_sessions import CurrentSessions
from memory_agent.sessions.events import channel_of

SESSION_VARIABLE = "CLAUDE_CODE_SESSION_ID"
"""Environment variable with Claude Code's session id, also set for hooks. Codex sends the id in requests
(`Message.session`).
"""


@click.command(cls=SectionedCommand)
@click.option(
    "--tools", type=click.Choice(TOOL_SETS), default="standard", show_default=True, help="Which tools to offer."
)
@click.option("--user", "user_id", metavar="ID", help="The user of the memory. Default: the key's user, or `default`.")
@click.option("--session", "session_id", metavar="ID",
              help="The client's session: memories belong to it, and recalls leave out its latest messages. "
              "Default: as reported by Claude Code or Codex.")  # fmt: skip
@click.option("--run", "run_id", metavar="ID", help="The client's run, used in the same way.")
@click.option("--agent", "agent_id", metavar="ID", help="The agent that stores memories.")
@click.option("--channel", "channel_id", metavar="ID", help="The channel that memories belong to.")
@click.option("--project", is_flag=True, help="Use the channel of the project in the current folder, as hooks do.")
@door_options
@click.option("--json", is_flag=True, expose_value=False, help="No effect: all output is JSON.")
def mcp(tools: ToolSet, project: bool, daemon: Daemon, **context: str | None) -> None:
    """Serve the Model Context Protocol to one client on standard input and output, until standard input ends.

    The tools are recall, remember, get, feedback, forget, timeline, search_shared, get_shared and rate_shared; with
    --tools classic, they are search_memory, extract_memory, vector_memory_search and vector_memory_write. The daemon
    handles the calls, as it does at /mcp over HTTP. If no daemon is running, one is started, and it outlives the
    session. `memory-agent connect` configures a client.

    \b
    Examples:
      memory-agent mcp --user alice --project
      memory-agent mcp --tools classic --session s-17
    """
    if project:
        if context["channel_id"] is not None:
            raise click.UsageError("--project cannot be combined with --channel")
        context["channel_id"] = channel_of(os.getcwd())
    is_given = context["session_id"] is not None
    context["session_id"] = context["session_id"] or os.environ.get(SESSION_VARIABLE) or None
    named = {"tools": tools, **{name: value for name, value in context.items() if value is not None}}
    sessions, agent = CurrentSessions(daemon.layout.agents), os.getppid()
    current = (lambda: None) if is_given else partial(sessions.get, agent)
    Bridge(daemon.finder(start_early=True), named, tools, sys.stdout.buffer, current).run(sys.stdin.buffer)
