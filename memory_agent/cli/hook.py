"""`hook`: handle one hook call from a coding agent."""

from __future__ import annotations

from pathlib import Path

import click

from memory_agent.cli.command import as_struct, config_option, data_dir_option, set_option, start_option
from memory_agent.cli.failure import note
from memory_agent.errors import MemoryAgentError
from memory_agent.hooks.answering import Options
from memory_agent.hooks.deadline import LONGEST_MS, USUAL_MS
from memory_agent.hooks.inputs import LISTENED
from memory_agent.hooks.process import run_hook
from memory_agent.layout import CONFIG_VARIABLE, TOKEN_VARIABLE, Layout, default_data_dir


@click.command()
@click.argument("client", type=click.Choice(tuple(LISTENED)))
@data_dir_option("--data", metavar="DIR")
@click.option("--channel", metavar="ID", help="The channel of the events, and of the memories to recall. "
              "Default: project:FOLDER.")  # fmt: skip
@click.option("--user", metavar="ID", help="The user of the memory. Default: the key's user, or `default`.")
@click.option(
    "--url", metavar="URL", help=f"Use the daemon at http(s)://HOST:PORT, with the token in ${TOKEN_VARIABLE}."
)
@click.option("--deadline-ms", type=click.IntRange(1, LONGEST_MS), default=USUAL_MS, show_default=True,
              help="Time limit of a hook call.")  # fmt: skip
@config_option(
    envvar=CONFIG_VARIABLE, help=f"TOML settings file, which may set the data folder. Default: ${CONFIG_VARIABLE}."
)
@set_option(help="One setting, such as data_dir=DIR. May be repeated.")
@click.option("--json", is_flag=True, expose_value=False, help="No effect: all output is JSON.")
@start_option()
@as_struct("options", Options)
def hook(options: Options, config: Path | None, settings: tuple[str, ...]) -> None:
    """Handle one hook call from a coding agent, read as JSON from standard input. `memory-agent connect` configures the
    hooks.

    Prompts, results of commands and edits, failures and answers become events in the project's channel. The answer to a
    prompt, or to the start of a session, arrives within 0.3 s. It contains relevant project memories (at most 9,000
    characters), or is empty. Without a daemon, the events are kept for the next hook call, the answer is empty, and the
    exit code is 0. A daemon is then started with the options that `mcp` or `open` last used, or with the default
    settings if the folder is unused.

    \b
    Examples:
      memory-agent hook claude-code
      memory-agent hook codex --data-dir ~/memory --channel project:shop
    """
    if options.data_dir is None and (config is not None or settings):
        from memory_agent.cli.options import configured_folder  # imported late: most hooks read no settings

        options = options._replace(data_dir=configured_folder(config, settings))
    layout = Layout(options.data_dir or default_data_dir())
    if (config is not None or settings) and options.start and options.url is None and not layout.lock.exists():
        from memory_agent.cli.door import how_to_start  # late, as above
        from memory_agent.starting import record_start

        try:
            record_start(layout, how_to_start(config, settings))
        except (MemoryAgentError, OSError) as error:
            note(str(error))
            options = options._replace(start=False)
    run_hook(options)
