"""Values that a person types and the interface takes in another form: moments, and texts from standard input."""

from __future__ import annotations

import re
import sys
from datetime import UTC, datetime, timedelta
from typing import Any

import click

from memory_agent.errors import InvalidInputError

_AGO = re.compile(r"(\d{1,18})([mhdw])")
_UNITS = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


class Moment(click.ParamType[datetime]):
    """An ISO 8601 date or time (without a zone: UTC), or how long ago: 30m, 12h, 7d, 2w."""

    name = "WHEN"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        if isinstance(value, datetime):
            return value
        try:
            return parse_moment(value, datetime.now(UTC))
        except OverflowError:
            self.fail(f"{value!r} is longer ago than the calendar goes back", param, ctx)
        except ValueError:
            self.fail(f"{value!r} is neither an ISO date such as 2026-02-16 nor an age such as 7d or 12h", param, ctx)


def parse_moment(text: str, now: datetime) -> datetime:
    """Return the moment that `text` means. Raises `ValueError`, `OverflowError` for an age before the calendar."""
    ago = _AGO.fullmatch(text.strip())
    if ago is None:
        moment = datetime.fromisoformat(text.strip())
        return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    return now - timedelta(**{_UNITS[ago[2]]: int(ago[1])})


def read_text(text: str) -> str:
    """Return `text`, or what stands on standard input for `-`. Raises `InvalidInputError` where that is not UTF-8."""
    if text != "-":
        return text
    try:
        return sys.stdin.buffer.read().decode()
    except UnicodeDecodeError as error:
        raise InvalidInputError("text", f"standard input is not UTF-8 at byte {error.start}") from error
