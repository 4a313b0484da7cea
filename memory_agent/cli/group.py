"""The root of the command line: find a command, import only its file, and report our errors in one line."""

from __future__ import annotations

import difflib
import errno
import importlib
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import click

from memory_agent.cli.command import COMMAND_KEY, Group, option_for
from memory_agent.cli.exit_codes import ExitCode
from memory_agent.cli.failure import JSON_KEY, USED_KEY, Failure, Misuse, note
from memory_agent.errors import InvalidInputError, MemoryAgentError
from memory_agent.layout import ANOTHER_FOLDER, default_data_dir
from relay import RelayError


class Verb(NamedTuple):
    """A command's module in this package, the function in that module, and the help line."""

    module: str
    function: str
    short_help: str


SECTIONS = {
    "First steps": {
        "tour": Verb("tour", "tour", "Try recall on your own past sessions, step by step."),
        "doctor": Verb("setup", "doctor", "Check this machine and give advice."),
        "model": Verb("setup", "model", "The embedding model: status, fetch."),
        "completion": Verb("completion", "completion", "Complete commands with Tab in bash, zsh and fish."),
        "man": Verb("manual", "man", "Show the manual page of a command."),
    },
    "Memories": {
        "recall": Verb("recall", "recall", "Find memories that resemble a text, best first."),
        "remember": Verb("recall", "remember", "Store or replace a memory."),
        "list": Verb("recall", "list_memories", "List memories by time."),
        "get": Verb("recall", "get", "Show one memory in full."),
        "sessions": Verb("recall", "sessions", "List sessions, newest first."),
        "map": Verb("recall", "map_memories", "Place memories in a plane, by similarity."),
        "open": Verb("page", "open_page", "Show a memory in the browser."),
        "blocks": Verb("blocks", "blocks", "Follow the blocks that the daemon publishes for a role."),
        "forget": Verb("forget", "forget", "Erase memories, a session or a user, completely."),
        "stats": Verb("daemon", "stats", "Show statistics of a memory and of the daemon."),
    },
    "Events and imports": {
        "publish": Verb("publish", "publish", "Send events, as JSON Lines, through the relay."),
        "import": Verb("transfer", "import_memories", "Import exported memories, plain JSON or Markdown."),
        "import-sessions": Verb("sessions", "import_sessions", "Import past sessions of coding agents and chats."),
        "index": Verb("transfer", "index_documents", "Store the sections of Markdown documents."),
        "export": Verb("transfer", "export_memories", "Write a user's memories as JSON Lines."),
        "quarantine": Verb("quarantine", "quarantine", "Quarantined events: list, retry, drop."),
    },
    "Coding agents": {
        "connect": Verb("connect", "connect", "Connect a coding agent by editing its settings."),
        "disconnect": Verb("connect", "disconnect", "Remove what `connect` added."),
        "mcp": Verb("mcp", "mcp", "Serve tools to a coding agent (MCP)."),
        "hook": Verb("hook", "hook", "Answer a coding agent's hook."),
    },
    "Runs, learning and sharing": {
        "trajectory": Verb("trajectory", "trajectory", "Runs: begin, step, end, list, similar, show."),
        "feedback": Verb("trajectory", "feedback", "Report which memories helped, and the outcome."),
        "sona": Verb("sona", "sona", "Learned ranking: status, reset, export, import."),
        "shared": Verb("shared", "shared", "Shared items: publish, search, rate, unpublish."),
        "eval": Verb("evaluate", "evaluate", "Measure recall on real inputs; compare measurements."),
    },
    "Daemon and cluster": {
        "serve": Verb("serve", "serve", "Run the daemon: relay, embedder, hosts, gateway."),
        "stop": Verb("service", "stop", "Stop the running daemon."),
        "service": Verb("service", "service", "Run the daemon at every login: install, remove."),
        "status": Verb("daemon", "status", "Show the state of the daemon."),
        "join": Verb("node", "join", "Join a daemon's cluster, to host users here."),
        "leave": Verb("node", "leave", "Remove a machine from the cluster."),
        "cells": Verb("cells", "cells", "Divide users among daemons: list, take, drop."),
        "keys": Verb("keys", "keys", "Access keys: create, list, rotate, revoke."),
    },
    "Data folder": {
        "verify": Verb("care", "verify", "Check every checksum and index (read-only)."),
        "rebuild": Verb("care", "rebuild", "Rebuild recall's search columns from the records."),
        "compact": Verb("care", "compact", "Reclaim the disk space of deleted memories."),
        "backup": Verb("care", "backup", "Make a consistent copy, even while the daemon runs."),
        "restore": Verb("care", "restore", "Restore a backup, here or on another machine."),
        "migrate": Verb("care", "migrate", "Move vectors to another index, such as pgvector."),
        "encryption": Verb("encryption", "encryption", "Encryption at rest: status, destroy a key."),
        "encrypt": Verb("encryption", "encrypt", "Encrypt an unencrypted data folder."),
    },
}
"""The commands under each heading of the help, in the order in which they are shown."""
VERBS = {name: verb for verbs in SECTIONS.values() for name, verb in verbs.items()}

_QUOTES = "Put quotes around the text"
_TEXTS = ("text", "query", "objective")
_UNWRITABLE = (errno.EACCES, errno.EPERM, errno.EROFS)


class FailureGroup(Group):
    """A command group that reports errors as one line on standard error, never as a traceback."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        # If parsing fails, only the raw arguments show whether --json was given; the parsed option overrides this.
        ctx.meta.setdefault(JSON_KEY, "--json" in itertools.takewhile(lambda word: word != "--", args))
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as error:
            raise _refusal(error, ctx) from error
        except OSError as error:  # the help or the version could not be printed
            raise _failure(error) from error

    def invoke(self, ctx: click.Context) -> object:
        try:
            result = super().invoke(ctx)
            if (used := ctx.meta.pop(USED_KEY, None)) is not None:
                note(used)
            return result
        except (MemoryAgentError, RelayError) as error:
            raise Failure(error.code, _message(error, ctx), error.retryable) from error
        except click.UsageError as error:
            raise _refusal(error, ctx) from error
        except OSError as error:
            raise _failure(error) from error
        except (KeyboardInterrupt, click.Abort):
            return ctx.exit(ExitCode.INTERRUPTED)


def _message(error: Exception, ctx: click.Context) -> str:
    """Return the error's text, with the field's name replaced by the option that was given."""
    if not isinstance(error, InvalidInputError) or COMMAND_KEY not in ctx.meta:
        return str(error)
    return str(InvalidInputError(option_for(ctx.meta[COMMAND_KEY], error.field), error.reason))


def _failure(error: OSError) -> Exception:
    if isinstance(error, BrokenPipeError):
        return error  # click exits quietly when the reader has closed the pipe
    reason = error.strerror or str(error)
    if error.filename is None:
        return Failure("io", reason)
    if error.errno in _UNWRITABLE and Path(str(error.filename)).is_relative_to(default_data_dir()):
        reason += f"; {ANOTHER_FOLDER}"
    return Failure("io", f"{error.filename}: {reason}")


def _refusal(error: click.UsageError, ctx: click.Context) -> click.ClickException:
    """Return the error to raise: a JSON document with --json, otherwise click's own error, with the usage."""
    hinted = _with_hint(error)
    return Misuse("usage", hinted.format_message()) if ctx.meta[JSON_KEY] else hinted


def _with_hint(error: click.UsageError) -> click.UsageError:
    """Return the error, with a hint if the mistake is a common one."""
    context = error.ctx
    if context is None:
        return error
    takes_text = any(isinstance(one, click.Argument) and one.name in _TEXTS for one in context.command.params)
    if context.parent is None and isinstance(error, click.NoSuchOption):
        hint = f"Options follow the verb: memory-agent VERB {error.option_name} ..."
    elif takes_text and "unexpected extra argument" in error.message and _QUOTES not in error.message:
        hint = f'{_QUOTES}: memory-agent {context.command_path.partition(" ")[2]} "several words"'
    else:
        return error
    return click.UsageError(f"{error.format_message().rstrip('.')}. {hint}", context)


class VerbGroup(FailureGroup):
    """The commands, each imported on first use."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in VERBS:
            return None
        named = VERBS[cmd_name]
        verb = getattr(importlib.import_module(f"memory_agent.cli.{named.module}"), named.function)
        assert isinstance(verb, click.Command)
        verb.short_help = named.short_help
        return verb

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        widest = max(map(len, VERBS))
        for title, verbs in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(widest), verb.short_help) for name, verb in verbs.items()])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in VERBS and not args[0].startswith("-"):
            close = difflib.get_close_matches(args[0], VERBS, 1)
            hint = f"did you mean {close[0]}?" if close else f"commands: {', '.join(VERBS)}"
            raise click.UsageError(f"no such command: {args[0]}; {hint}", ctx)
        return super().resolve_command(ctx, args)


@click.group(cls=VerbGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="memory-agent")
def cli() -> None:
    """Episodic memory for agents: stores their events, and recalls memories that resemble new input.

    \b
    Examples:
      memory-agent remember "The deploy needs the VPN" --kind finding
      memory-agent recall "why does the deploy hang?"
      memory-agent tour

    Every verb takes --user, --data-dir, --config, --set and --json. Flags override MEMORY_AGENT_… variables, which
    override the TOML file passed with --config.
    """


def all_commands() -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Yield every command and group with its words, such as `("trajectory", "begin")`; groups precede their commands.

    Imports the files of all commands.
    """
    context = click.Context(cli)
    for name in VERBS:
        command = cli.get_command(context, name)
        assert command is not None
        yield (name,), command
        if isinstance(command, click.Group):
            yield from (((name, part), inner) for part, inner in command.commands.items())
