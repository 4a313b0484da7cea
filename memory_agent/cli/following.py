"""What the commands that follow something share: their options, and when they end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

import click

from memory_agent.cli.options import Target
from relay import Endpoints, relay_endpoints

if TYPE_CHECKING:
    from memory_agent.client.following import Following

T = TypeVar("T")
_WAIT_S = 3_600.0


def following_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--count`, `--timeout`, `--relay` and `--relay-feed`."""
    for option in (
        click.option("--relay-feed", "feed", metavar="URL", help="The relay's feed. Default: that of the data folder."),
        click.option("--relay", "ingest", metavar="URL",
                     help="The relay's endpoint. Default: that of the data folder."),
        click.option("--timeout", "timeout_s", type=click.FloatRange(min=0), metavar="S",
                     help="End when nothing came for so long, with exit code 1."),
        click.option("--count", type=click.IntRange(min=1), help="End after so many. Default: follow until Ctrl-C."),
    ):  # fmt: skip
        command = option(command)
    return command


def named_relay(target: Target, ingest: str | None, feed: str | None) -> Endpoints | None:
    """Return the relay's endpoints, None where a daemon elsewhere is named without them."""
    here = relay_endpoints(target.data_dir)
    return Endpoints(ingest or here.ingest, feed or here.feed) if ingest or feed or target.endpoint is None else None


def each(following: Following[T], count: int | None, timeout_s: float | None) -> Iterator[T]:
    """Yield what comes. Ends the program with exit code 1 when nothing came within `timeout_s`."""
    shown = 0
    while count is None or shown < count:
        found = following.wait(_WAIT_S if timeout_s is None else timeout_s)
        if found is not None:
            shown += 1
            yield found
        elif timeout_s is not None:
            raise SystemExit(1)
