"""`hook`: what a coding agent reports becomes events, and what is remembered goes into its prompt."""

from __future__ import annotations

from pathlib import Path

import click

from memory_agent.hooks.answering import Options
from memory_agent.hooks.deadline import LONGEST_MS, USUAL_MS
from memory_agent.hooks.inputs import LISTENED
from memory_agent.hooks.process import CONFIG_VARIABLE, run_hook


@click.command()
@click.argument("client", type=click.Choice(tuple(LISTENED)))
@click.option("--data-dir", "--data", type=click.Path(file_okay=False, path_type=Path), metavar="DIR",
              help="The data folder. Default: $MEMORY_AGENT_DATA_DIR, else the platform's.")  # fmt: skip
@click.option("--channel", metavar="ID", help="What the memories belong to, and are recalled from. Default: "
              "project:FOLDER.")  # fmt: skip
@click.option("--user", metavar="ID", help="Whose memory. Default: the key's user, else default.")
@click.option("--url", metavar="URL", help="Use the daemon at http(s)://HOST:PORT (its token in $MEMORY_AGENT_TOKEN).")
@click.option("--deadline-ms", type=click.IntRange(1, LONGEST_MS), default=USUAL_MS, show_default=True,
              help="End after that time, for a slow machine.")  # fmt: skip
@click.option("--config", type=click.Path(dir_okay=False, path_type=Path), envvar=CONFIG_VARIABLE, metavar="FILE",
              help=f"Settings as TOML, which may name the data folder. Default: ${CONFIG_VARIABLE}.")  # fmt: skip
@click.option("--set", "settings", multiple=True, metavar="NAME=VALUE", help="One setting, likewise. May be repeated.")
@click.option("--json", "as_json", is_flag=True, help="Changes nothing here: all output is JSON.")
def hook(
    client: str,
    data_dir: Path | None,
    channel: str | None,
    user: str | None,
    url: str | None,
    deadline_ms: int,
    config: Path | None,
    settings: tuple[str, ...],
    as_json: bool,
) -> None:
    """Answer one hook of a coding agent, whose JSON is on standard input. `memory-agent connect` sets it up.

    Prompts, results of commands and edits, failures and answers become events of the project's channel. The answer to a
    prompt, and to the start of a session, is what is remembered of it: at most 9,000 characters, or nothing. It comes
    within .3 s. Where no daemon runs there is none, the exit code is 0, and the events wait for the next hook.

    \b
    Examples:
      memory-agent hook claude-code
      memory-agent hook codex --data-dir ~/memory --channel project:shop
    """
    if data_dir is None and (config is not None or settings):
        from memory_agent.cli.options import configured_folder  # late: for those who configure

        data_dir = configured_folder(config, settings)
    run_hook(Options(client, data_dir, channel, user, url, deadline_ms))
