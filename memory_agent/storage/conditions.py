"""A `MemoryFilter` as an SQL condition over the lexicon's columns. Pure: values only ever travel as parameters."""

from __future__ import annotations

from datetime import datetime

from memory_agent.records import MemoryFilter
from memory_agent.storage.codec import microseconds

Condition = tuple[str, list[object]]

_NAMED = "(SELECT id FROM names WHERE name IN ({places}))"


def condition(chosen: MemoryFilter | None) -> Condition:
    """Return a condition on `memories` and its parameters, true for exactly the memories that `chosen` lets through.

    `min_score` is not among the columns and is left to the caller. Raises `InvalidInputError` for a time without zone.
    """
    parts = [] if chosen is None else [part for part in _parts(chosen) if part is not None]
    return " AND ".join(part for part, _ in parts) or "1", [value for _, values in parts for value in values]


def _parts(chosen: MemoryFilter) -> list[Condition | None]:
    return [
        _any_of("memories.kind", chosen.kinds),
        _any_of("memories.source", chosen.sources),
        _any_of("memories.provenance", chosen.provenance),
        _equal("memories.session", chosen.session_id),
        _equal("memories.run", chosen.run_id),
        _equal("memories.channel", chosen.channel_id),
        _equal("memories.agent", chosen.agent_id),
        _tagged(chosen.tags),
        _timed("memories.timestamp >= ?", chosen.since, "since"),
        _timed("memories.timestamp < ?", chosen.until, "until"),
        _compared("memories.quality >= ?", chosen.min_quality),
    ]


def _timed(comparison: str, time: datetime | None, field: str) -> Condition | None:
    return None if time is None else (comparison, [microseconds(time, field)])


def _compared(comparison: str, value: float | None) -> Condition | None:
    return None if value is None else (comparison, [value])


def _any_of(column: str, names: tuple[str, ...]) -> Condition | None:
    if not names:
        return None
    return f"{column} IN {_NAMED.format(places=_places(names))}", [_storable(name) for name in names]


def _equal(column: str, name: str | None) -> Condition | None:
    return None if name is None else (f"{column} = (SELECT id FROM names WHERE name = ?)", [_storable(name)])


def _tagged(tags: tuple[str, ...]) -> Condition | None:
    if not tags:
        return None
    named = _NAMED.format(places=_places(tags))
    return f"memories.row IN (SELECT row FROM tags WHERE name IN {named})", [_storable(tag) for tag in tags]


def _places(names: tuple[str, ...]) -> str:
    return ", ".join("?" * len(names))


def _storable(name: str) -> str | None:
    """Names that are not valid Unicode match nothing, since none can be stored; NULL matches nothing either."""
    return None if any("\ud800" <= character <= "\udfff" for character in name) else name
