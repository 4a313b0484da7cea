"""How a failure reaches whoever typed the command: one line on standard error and an exit code, never a traceback.

With --json the line is a JSON document, so that a program can tell failures apart by `code`.
"""

from __future__ import annotations

import json
from typing import IO, Any

import click

JSON_KEY = "memory_agent.json"
"""Where the options note in a click context's `meta` that --json was given."""


class Failure(click.ClickException):
    """What a verb could not do. `code` and `retryable` are those of the error behind it."""

    exit_code = 1

    def __init__(self, code: str, message: str, retryable: bool = False) -> None:
        super().__init__(" ".join(message.split()))
        self._fields = {"code": code, "message": self.message, "retryable": retryable}
        context = click.get_current_context(silent=True)
        self._as_json = bool(context and context.meta.get(JSON_KEY))

    def show(self, file: IO[Any] | None = None) -> None:
        """Print the line."""
        line = json.dumps({"error": self._fields}, ensure_ascii=False) if self._as_json else f"error: {self.message}"
        click.echo(line, file=file, err=file is None)


class Misuse(Failure):
    """What was typed wrongly, for a program that asked for JSON."""

    exit_code = 2


def note(message: str) -> None:
    """Tell something on standard error that is no failure."""
    click.echo(f"note: {message}", err=True)
