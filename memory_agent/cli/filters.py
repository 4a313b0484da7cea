"""The options of a filter, and metadata as KEY=VALUE, for every command that selects or describes memories."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import click
import msgspec

from memory_agent.cli.options import Moment, Verb, with_options
from memory_agent.records.memories import KINDS, PROVENANCES, SOURCES, Exclusion, MemoryFilter

Pair = tuple[str, Any]


class MetadataPair(click.ParamType[Pair]):
    """KEY=VALUE; a VALUE that is JSON is read as such, anything else is text."""

    name = "KEY=VALUE"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Pair:
        if isinstance(value, tuple):
            return value
        key, equals, text = value.partition("=")
        if not equals:
            self.fail(f"{value!r} is not KEY=VALUE, as in host=staging", param, ctx)
        try:
            return key, msgspec.json.decode(text)
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            return key, text


_SESSION = click.option("--session", "session_id", metavar="ID", help="Of this session.")
_OPTIONS: tuple[Callable[[Verb], Verb], ...] = (
    click.option("--kind", "kinds", multiple=True, type=click.Choice(KINDS), help="Of this kind. May be repeated."),
    click.option(
        "--source",
        "sources",
        multiple=True,
        type=click.Choice(SOURCES),
        metavar="SOURCE",
        help=f"From this source: {', '.join(SOURCES)}. May be repeated.",
    ),
    click.option("--since", type=Moment(), help="Since then: 2026-02-16, 2026-02-16T10:00:00Z, or an age: 7d, 12h."),
    click.option("--until", type=Moment(), help="Before then."),
    click.option("--run", "run_id", metavar="ID", help="Of this run."),
    click.option("--channel", "channel_id", metavar="ID", help="Of this channel."),
    click.option("--in-channel", metavar="ID", help="Of this channel, or of none."),
    click.option("--agent", "agent_id", metavar="ID", help="Of this agent."),
    click.option("--type", "type", metavar="NAME", help="Of this type: an event type, or what the caller named it."),
    click.option("--phase", metavar="NAME", help="Of this phase."),
    click.option("--tag", "tags", multiple=True, help="With this tag; of several, at least one."),
    click.option(
        "--metadata",
        multiple=True,
        type=MetadataPair(),
        help="With this value of metadata, at a path such as report.status. Of one path repeated, any value; of "
        "several paths, all.",
    ),
    click.option(
        "--provenance", multiple=True, type=click.Choice(PROVENANCES), help="Of this provenance. May be repeated."
    ),
    click.option("--min-quality", type=click.FloatRange(0, 1), help="With at least this known quality."),
    click.option("--exclude-session", multiple=True, metavar="ID", help="Not of this session. May be repeated."),
    click.option("--exclude-run", multiple=True, metavar="ID", help="Not of this run. May be repeated."),
    click.option("--exclude-event", multiple=True, metavar="ID", help="Not from this event. May be repeated."),
    click.option("--exclude-record", multiple=True, metavar="ID", help="Not this memory. May be repeated."),
    click.option("--exclude-since", type=Moment(), help="Nothing of then or later."),
)
_FIELDS = (
    *("kinds", "sources", "since", "until", "run_id", "channel_id", "in_channel", "agent_id", "type", "phase", "tags"),
    *("provenance", "min_quality"),
)
_EXCLUDED = {
    "events": "exclude_event",
    "records": "exclude_record",
    "sessions": "exclude_session",
    "runs": "exclude_run",
    "since": "exclude_since",
}


def filter_options(command: Verb) -> Verb:
    """Add the options of a filter, and pass them as a `MemoryFilter` named `filter`."""

    @functools.wraps(command)
    def with_session(*arguments: Any, filter: MemoryFilter, session_id: str | None, **named: Any) -> Any:
        return command(*arguments, filter=msgspec.structs.replace(filter, session_id=session_id), **named)

    return _SESSION(selection_options(with_session))


def selection_options(command: Verb) -> Verb:
    """As `filter_options` without --session, for a command to which a session is more than its memories."""

    @functools.wraps(command)
    def with_filter(*arguments: Any, metadata: Sequence[Pair], **named: Any) -> Any:
        own = {name: named.pop(name) for name in _FIELDS}
        exclude = Exclusion(**{field: named.pop(option) for field, option in _EXCLUDED.items()})
        wanted: dict[str, Any] = {}
        for path, value in metadata:
            wanted[path] = (*wanted.get(path, ()), value)
        return command(
            *arguments,
            filter=MemoryFilter(metadata=wanted, exclude=None if exclude == Exclusion() else exclude, **own),
            **named,
        )

    return with_options(with_filter, _OPTIONS)
