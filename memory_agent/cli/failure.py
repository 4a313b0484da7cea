"""Messages on standard error: failures, notes and questions.

A failure is reported as one line and an exit code, never as a traceback; with --json, as a JSON document.
"""

from __future__ import annotations

import json
import sys
from typing import IO, Any

import click

from memory_agent.cli.exit_codes import ExitCode

JSON_KEY = "memory_agent.json"
"""Key in a click context's `meta`: whether --json was given."""
USED_KEY = "memory_agent.used"
"""Key in a click context's `meta`: the note about what a command used, printed when the command ends."""


class Failure(click.ClickException):
    """A command's failure, with the underlying error's `code` and `retryable`."""

    exit_code = ExitCode.FAILED

    def __init__(self, code: str, message: str, retryable: bool = False) -> None:
        super().__init__(" ".join(message.split()))
        self._fields = {"code": code, "message": self.message, "retryable": retryable}
        context = click.get_current_context(silent=True)
        self._as_json = bool(context and context.meta.get(JSON_KEY))

    def show(self, file: IO[Any] | None = None) -> None:
        line = json.dumps({"error": self._fields}, ensure_ascii=False) if self._as_json else f"error: {self.message}"
        click.echo(line, file=file, err=file is None)


class Misuse(Failure):
    """A usage error, printed as one line or as JSON without the command's usage."""

    exit_code = ExitCode.MISUSED


def note(message: str) -> None:
    click.echo(f"note: {message}", err=True)


def confirm(question: str) -> None:
    """Ask the user for confirmation. Programs pass --yes instead.

    Raises `click.Abort` if the answer is no, and `Misuse` if standard input ends and is not a terminal.
    """
    try:
        is_sure = click.confirm(question, err=True)
    except click.Abort as error:
        if sys.stdin.isatty():
            raise
        click.echo(err=True)  # ends the prompt's line
        raise Misuse("usage", "standard input is not a terminal; use --yes to confirm") from error
    if not is_sure:
        note("nothing was done")
        raise click.Abort
