"""The root of the command line: find a command, import only its file, and turn our errors into one line.

A command's file is imported when the command is named, so that `recall` does not pay for what `serve` needs.
"""

from __future__ import annotations

import difflib
import importlib
import itertools

import click

from memory_agent.cli.failure import JSON_KEY, Failure, Misuse
from memory_agent.errors import MemoryAgentError
from memory_agent.version import VERSION
from relay import RelayError

VERBS = {
    "serve": ("daemon", "serve"),
    "publish": ("publish", "publish"),
    "recall": ("recall", "recall"),
    "blocks": ("blocks", "blocks"),
    "remember": ("recall", "remember"),
    "list": ("recall", "list_memories"),
    "feedback": ("trajectory", "feedback"),
    "trajectory": ("trajectory", "trajectory"),
    "sona": ("sona", "sona"),
    "stats": ("daemon", "stats"),
    "status": ("daemon", "status"),
    "doctor": ("setup", "doctor"),
    "model": ("setup", "model"),
    "quarantine": ("quarantine", "quarantine"),
    "keys": ("keys", "keys"),
    "encryption": ("encryption", "encryption"),
    "encrypt": ("encryption", "encrypt"),
    "verify": ("care", "verify"),
    "rebuild": ("care", "rebuild"),
    "compact": ("care", "compact"),
    "backup": ("care", "backup"),
    "restore": ("care", "restore"),
    "export": ("transfer", "export_memories"),
    "import": ("transfer", "import_memories"),
    "forget": ("forget", "forget"),
    "eval": ("evaluate", "evaluate"),
}
"""Each command with the file of this package and the function that holds it, in the order of the help."""

_INTERRUPTED = 130


class FailureGroup(click.Group):
    """A group of commands whose errors end as one line on standard error, never as a traceback."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        # Where parsing fails, --json is known from the raw arguments alone; the parsed option overrides this.
        ctx.meta.setdefault(JSON_KEY, "--json" in itertools.takewhile(lambda word: word != "--", args))
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as error:
            _raise_as_document(error, ctx)
            raise  # click shows the usage too, for a person

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except (MemoryAgentError, RelayError) as error:
            raise Failure(error.code, str(error), error.retryable) from error
        except click.UsageError as error:
            _raise_as_document(error, ctx)
            raise  # click shows the usage too, for a person
        except BrokenPipeError:
            raise  # click exits quietly when the reader has gone
        except OSError as error:
            raise Failure("io", _reason(error)) from error
        except (KeyboardInterrupt, click.Abort):
            return ctx.exit(_INTERRUPTED)


def _reason(error: OSError) -> str:
    reason = error.strerror or str(error)
    return reason if error.filename is None else f"{error.filename}: {reason}"


def _raise_as_document(error: click.UsageError, ctx: click.Context) -> None:
    """Raise `Misuse` if the command was called with --json."""
    if ctx.meta[JSON_KEY]:
        raise Misuse("usage", error.format_message()) from error


class VerbGroup(FailureGroup):
    """The commands, imported when they are named."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in VERBS:
            return None
        module, function = VERBS[cmd_name]
        verb = getattr(importlib.import_module(f"memory_agent.cli.{module}"), function)
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
