"""Asking before what cannot be undone: a person answers, a program says --yes."""

from __future__ import annotations

import sys

import click


def confirm(question: str) -> None:
    """Ask, and return when the answer is yes.

    Raises `click.Abort` where it is no, `click.UsageError` where nobody is there who could answer.
    """
    try:
        is_sure = click.confirm(question, err=True)
    except click.Abort as error:
        if sys.stdin.isatty():
            raise
        raise click.UsageError("nobody is there to answer; say --yes where no person is asked") from error
    if not is_sure:
        raise click.Abort
