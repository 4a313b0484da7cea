"""The options of a filter, for every command that selects memories."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import click
import msgspec

from memory_agent.cli.fields import Pair, field_options
from memory_agent.cli.options import Verb
from memory_agent.records.memories import Exclusion, MemoryFilter

_FIELDS = (
    *("kinds", "sources", "since", "until", "run_id", "channel_id", "in_channel", "agent_id", "type", "phase", "tags"),
    *("metadata", "provenance", "min_quality"),
)
_EXCLUDED = ("sessions", "runs", "events", "records", "since")
_PREFIX = "exclude_"


def filter_options(command: Verb) -> Verb:
    """Add the options of a filter, and pass them as a `MemoryFilter` named `filter`."""

    @functools.wraps(command)
    def with_session(*arguments: Any, filter: MemoryFilter, session_id: str | None, **named: Any) -> Any:
        return command(*arguments, filter=msgspec.structs.replace(filter, session_id=session_id), **named)

    return field_options(MemoryFilter, ("session_id",))(selection_options(with_session))


def selection_options(command: Verb) -> Verb:
    """As `filter_options` without --session, for a command to which a session is more than its memories."""

    @functools.wraps(command)
    def with_filter(*arguments: Any, **named: Any) -> Any:
        own = {name: named.pop(name) for name in _FIELDS}
        exclude = Exclusion(**{name: named.pop(_PREFIX + name) for name in _EXCLUDED})
        own["metadata"] = _by_path(own["metadata"])
        chosen = MemoryFilter(exclude=None if exclude == Exclusion() else exclude, **own)
        return command(*arguments, filter=chosen, **named)

    excluding = field_options(Exclusion, _EXCLUDED, _PREFIX)(with_filter)
    return field_options(MemoryFilter, _FIELDS)(excluding)


def _by_path(metadata: Sequence[Pair]) -> dict[str, Any]:
    wanted: dict[str, Any] = {}
    for path, value in metadata:
        wanted[path] = (*wanted.get(path, ()), value)
    return wanted


def _names_of_filter() -> tuple[str, ...]:
    command = click.command()(filter_options(lambda: None))
    return tuple(option for one in command.params for option in one.opts)


FILTERS = _names_of_filter()
"""The options of a filter: a section of the help."""
