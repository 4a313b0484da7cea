"""What the commands that follow something share: their options, and when they end."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import click

from memory_agent.cli.options import Target
from relay import Endpoints, relay_endpoints

if TYPE_CHECKING:
    from memory_agent.client.following import Following

T = TypeVar("T")
_WAIT_S = 3_600.0


@dataclass(frozen=True)
class Followed:
    """The values of the options of a command that follows something."""

    count: int | None
    timeout_s: float | None
    ingest: str | None
    feed: str | None

    def relay(self, target: Target) -> Endpoints | None:
        """Return the relay's endpoints, None where a daemon elsewhere is named without them."""
        here = relay_endpoints(target.data_dir)
        is_named = self.ingest or self.feed or target.endpoint is None
        return Endpoints(self.ingest or here.ingest, self.feed or here.feed) if is_named else None

    def each(self, following: Following[T]) -> Iterator[T]:
        """Yield what comes. Ends the program with exit code 1 when nothing came within `timeout_s`."""
        shown = 0
        while self.count is None or shown < self.count:
            found = following.wait(_WAIT_S if self.timeout_s is None else self.timeout_s)
            if found is not None:
                shown += 1
                yield found
            elif self.timeout_s is not None:
                raise SystemExit(1)


def following_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--count`, `--timeout`, `--relay` and `--relay-feed`, and pass them as a `Followed` named `followed`."""

    @functools.wraps(command)
    def with_followed(
        *arguments: Any, count: int | None, timeout_s: float | None, ingest: str | None, feed: str | None, **named: Any
    ) -> Any:
        return command(*arguments, followed=Followed(count, timeout_s, ingest, feed), **named)

    decorated: Callable[..., Any] = with_followed
    for option in (
        click.option("--relay-feed", "feed", metavar="URL", help="The relay's feed. Default: that of the data folder."),
        click.option("--relay", "ingest", metavar="URL",
                     help="The relay's endpoint. Default: that of the data folder."),
        click.option("--timeout", "timeout_s", type=click.FloatRange(min=0), metavar="S",
                     help="End when nothing came for so long, with exit code 1."),
        click.option("--count", type=click.IntRange(min=1), help="End after so many. Default: follow until Ctrl-C."),
    ):  # fmt: skip
        decorated = option(decorated)
    return decorated
