"""Reads the table of triggers: which event types cause a recall, with which query, and for which role.

The table is `triggers.toml` beside this file, overlaid by the user's own file.
"""

from __future__ import annotations

from importlib.resources import files
from typing import Annotated, Literal, Self

import msgspec

from memory_agent import signals
from memory_agent.records.arguments import MOST_SIMILAR_RUNS
from memory_agent.records.memories import Kind, Profile
from relay import Event

_MOST_TOKENS = 100_000
_LONGEST_S = 86_400.0
_DOCUMENT_CHARS = 256


class Trigger(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A row of the table: event types, and the recall that they cause. `triggers.toml` documents the fields."""

    events: Annotated[tuple[str, ...], msgspec.Meta(min_length=1)]
    role: Annotated[str, msgspec.Meta(pattern=r"^[a-z][a-z0-9_-]{0,63}$")]
    heading: Annotated[str, msgspec.Meta(min_length=1, max_length=80, pattern=r"^[^\n\r<]*$")]
    query: Literal["text", "document"] = "text"
    profile: Profile | None = None
    top_k: Annotated[int, msgspec.Meta(ge=1, le=100)] | None = None
    kinds: tuple[Kind, ...] = ()
    runs: Annotated[int, msgspec.Meta(ge=0, le=MOST_SIMILAR_RUNS)] | None = None
    max_tokens: Annotated[int, msgspec.Meta(ge=64, le=_MOST_TOKENS)] = 256
    deadline_ms: Annotated[float, msgspec.Meta(gt=0.0, le=_LONGEST_S * 1000)] = 3_000.0
    debounce_s: Annotated[float, msgspec.Meta(ge=0.0, le=_LONGEST_S)] = 0.0
    debounce_by: str = ""
    enabled: bool = True


class TriggerTable:
    """Maps event types to triggers. Immutable and thread-safe."""

    def __init__(self, layers: signals.LayeredTable) -> None:
        rows = layers.row_structs(Trigger)
        layers.require_tables()
        for name, row in rows.items():
            if any(signals.is_own(event_type) for event_type in row.events):
                raise layers.error(f"trigger.{name}.events", "must not match memory.*, which triggers publish")
            if "*" in row.events:
                raise layers.error(f"trigger.{name}.events", "must not be *, which matches all events")
        self._by_type = signals.rows_by_type(rows, layers)
        self._names = {row: name for name, row in rows.items()}
        self.rows = rows
        self._documents = {
            name: layers.part(f"trigger.{name}.debounce_by", row.debounce_by)
            for name, row in rows.items()
            if row.debounce_by
        }

    @classmethod
    def load(cls, own_file: str = "") -> Self:
        """Return the package's table, merged with `own_file`. Raises `SettingsError` with the row, field and line."""
        default = files("memory_agent.triggers").joinpath("triggers.toml").read_bytes()
        return cls(signals.LayeredTable(default, own_file, setting="triggers.table", rows="trigger"))

    def name_of(self, event_type: str) -> str | None:
        row = None if signals.is_own(event_type) else signals.row_of_type(self._by_type, event_type)
        return self._names[row] if row is not None and row.enabled else None

    def document_of(self, cause: Event, trigger: str) -> str | None:
        """Return the id of an event's document (its name or session); None without an id or without `debounce_by`."""
        part = self._documents.get(trigger)
        if part is None or not isinstance(cause.payload, dict):
            return None
        try:
            name = signals.read_part(signals.roots(cause.payload), part)
        except signals.NotTextError:
            name = ""
        return (name or cause.session_id or "")[:_DOCUMENT_CHARS] or None
