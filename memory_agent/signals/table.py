"""The table of signals: which event types become which memories, where their text is, and what is noise.

It is data, `signals.toml` beside this file merged with a user's own file, so that operators can add rows without code.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from hashlib import sha256
from importlib.resources import files
from typing import Annotated, Literal, Protocol, Self, TypeVar

import msgspec

from memory_agent.records.memories import Kind, Provenance, Source
from memory_agent.records.trajectories import RunRole
from memory_agent.settings import Fraction
from memory_agent.signals.layered_table import LayeredTable
from memory_agent.signals.payloads import Part, parse_part

_NOISE_TEXT_CHARS = 200


class _HasEvents(Protocol):
    @property
    def events(self) -> tuple[str, ...]: ...


Row = TypeVar("Row", bound=_HasEvents)


class Signal(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A row: the events it matches and the memories they become. `signals.toml` documents the fields."""

    events: Annotated[tuple[str, ...], msgspec.Meta(min_length=1)]
    source: Source
    kind: Kind
    text: tuple[str, ...] = ()
    lead: str = ""
    title: str = "title"
    provenance: Provenance | None = None
    quality: Fraction | None = None
    outcome: bool = False
    progress: bool = False
    run: RunRole | Literal["cancel"] | None = None


class _Fallback(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    text: str


class _Noise(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    words: tuple[str, ...] = ()
    text: str = ""


class _Rest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    fallback: _Fallback
    noise: dict[str, _Noise] = {}
    outcomes: dict[str, Fraction] = {}


class SignalTable:
    """Maps events to memories. Immutable and thread-safe."""

    def __init__(self, layers: LayeredTable) -> None:
        """Raises `SettingsError`."""
        signals, rest = layers.row_structs(Signal), layers.tables(_Rest)
        self._by_type = rows_by_type(signals, layers)
        self._noise_words = {word: reason for reason, noise in rest.noise.items() for word in noise.words}
        self._noise_texts = {
            reason: _compile(layers, f"noise.{reason}.text", noise.text)
            for reason, noise in rest.noise.items()
            if noise.text
        }
        rows = signals.items()
        self.parts = {row: [_parse(layers, f"signal.{name}.text", line) for line in row.text] for name, row in rows}
        self._names = {row: name for name, row in rows}
        self.titles = {row: _parse(layers, f"signal.{name}.title", row.title) for name, row in rows}
        self.fallback = _parse(layers, "fallback.text", rest.fallback.text)
        self.outcomes = rest.outcomes

    @classmethod
    def load(cls, own_file: str = "") -> Self:
        """Return the package's table, merged with `own_file` if given.

        Raises `SettingsError` (with row, field and line) for an unknown field or an invalid value.
        """
        default = files("memory_agent.signals").joinpath("signals.toml").read_bytes()
        return cls(LayeredTable(default, own_file, setting="ingest.signals", rows="signal"))

    def match(self, event_type: str) -> Signal | None:
        """Return the row that keeps this event type, or None."""
        return None if is_own(event_type) else row_of_type(self._by_type, event_type)

    @property
    def names(self) -> frozenset[str]:
        """The names of the rows."""
        return frozenset(self._names.values())

    @property
    def digest(self) -> str:
        """A hash of the rows and the event types that each keeps."""
        return sha256(msgspec.json.encode(sorted((name, row.events) for row, name in self._names.items()))).hexdigest()

    def name_of(self, event_type: str) -> str | None:
        """Return the name of the row that keeps this event type, or None."""
        row = self.match(event_type)
        return None if row is None else self._names[row]

    def noise_of_word(self, word: str) -> str | None:
        """Return the reason why an event marked with `word` is noise, or None."""
        return self._noise_words.get(word.lower())

    def noise_of_text(self, text: str) -> str | None:
        """Return the reason why this text is noise, or None."""
        if len(text) > _NOISE_TEXT_CHARS:
            return None
        return next((reason for reason, form in self._noise_texts.items() if form.fullmatch(text)), None)


def is_own(event_type: str) -> bool:
    """Whether memory itself publishes events of this type: they never become memories, and say nothing of a run."""
    return event_type.startswith("memory.")


def rows_by_type(rows: Mapping[str, Row], layers: LayeredTable) -> dict[str, Row]:
    """Return rows by event type. Raises `SettingsError` when two rows of one file claim the same type."""
    section, own_rows = layers.rows, layers.own_rows
    by_type: dict[str, Row] = {}
    for own in (False, True):
        claims: dict[str, str] = {}
        for name, row in rows.items():
            if (name in own_rows) is not own:
                continue
            for pattern in row.events:
                if pattern in claims:
                    reason = f"{pattern} is also in {section}.{claims[pattern]}"
                    raise layers.error(f"{section}.{name}.events", reason)
                claims[pattern] = name
                by_type[pattern] = row
    return by_type


def row_of_type(by_type: Mapping[str, Row], event_type: str) -> Row | None:
    """Return the row for an event type: of the type itself, else of the longest `x.*`, else of `*`, else None."""
    exact = by_type.get(event_type)
    if exact is not None:
        return exact
    stem = event_type
    while "." in stem:
        stem = stem.rpartition(".")[0]
        row = by_type.get(f"{stem}.*")
        if row is not None:
            return row
    return by_type.get("*")


def _parse(layers: LayeredTable, setting: str, line: str) -> Part:
    try:
        return parse_part(line)
    except ValueError as error:
        raise layers.error(setting, str(error)) from error


def _compile(layers: LayeredTable, setting: str, pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern, re.IGNORECASE | re.DOTALL)
    except re.error as error:
        raise layers.error(setting, str(error)) from error
