"""The root of the command line: finds a verb, loads only its file, and turns our errors into one line.

A verb's file is imported when the verb is named, so that `recall` does not pay for what `serve` needs.
"""

from __future__ import annotations

import difflib
import importlib

import click

from memory_agent.cli.failure import JSON_KEY, Failure, Misuse
from memory_agent.errors import MemoryAgentError
from memory_agent.version import VERSION
from relay import RelayError

VERBS = {
    "serve": "serve",
    "publish": "publish",
    "recall": "recall",
    "remember": "remember",
    "feedback": "feedback",
    "trajectory": "trajectory",
    "sona": "sona",
    "stats": "stats",
    "doctor": "doctor",
    "model": "model",
    "quarantine": "quarantine",
    "keys": "keys",
    "encryption": "encryption",
    "encrypt": "encrypt",
    "verify": "verify",
    "rebuild": "rebuild",
    "compact": "compact",
    "backup": "backup",
    "restore": "restore",
    "export": "exporting",
    "import": "importing",
    "forget": "forget",
    "eval": "evaluate",
}
"""Each verb and the file of this package that holds it, in the order in which a newcomer meets them."""

_INTERRUPTED = 130


class FailureGroup(click.Group):
    """A group of commands whose errors end as one line on standard error, never as a traceback."""

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except (MemoryAgentError, RelayError) as error:
            raise Failure(error.code, str(error), error.retryable) from error
        except click.UsageError as error:
            if not ctx.meta.get(JSON_KEY):
                raise  # click shows the usage too, for a person
            raise Misuse("usage", error.format_message()) from error
        except BrokenPipeError:
            raise  # click ends quietly where nobody reads on
        except OSError as error:
            raise Failure("io", str(error)) from error
        except (KeyboardInterrupt, click.Abort):
            return ctx.exit(_INTERRUPTED)


class VerbGroup(FailureGroup):
    """The verbs, loaded when they are named."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in VERBS:
            return None
        verb = getattr(importlib.import_module(f"memory_agent.cli.{VERBS[cmd_name]}"), VERBS[cmd_name])
        assert isinstance(verb, click.Command)
        return verb

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in VERBS and not args[0].startswith("-"):
            raise click.UsageError(_unknown(args[0]), ctx)
        return super().resolve_command(ctx, args)


def _unknown(name: str) -> str:
    close = difflib.get_close_matches(name, VERBS, 1)
    hint = f"did you mean {close[0]}?" if close else f"there are: {', '.join(VERBS)}"
    return f"no such command: {name}; {hint}"


@click.group(cls=VerbGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(VERSION, package_name="memory-agent")
def cli() -> None:
    """Episodic memory for agents: it listens to their events and recalls what resembles the new input.

    \b
    Try it:
      memory-agent serve &
      memory-agent remember "The deploy needs the VPN" --kind finding
      memory-agent recall "why does the deploy hang?"

    Every verb takes --user, --data-dir, --config, --set and --json. Settings come from their defaults, then the TOML
    file of --config, then MEMORY_AGENT_… variables, then flags.
    """
