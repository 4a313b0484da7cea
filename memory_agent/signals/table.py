"""The signal table defines which event types become which memories, where their text is, and which events are noise.

The table is `signals.toml` next to this file, overlaid by the user's own file (`LayeredTable`).
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from hashlib import sha256
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol, TypeVar

import msgspec

from memory_agent.errors import SettingsError
from memory_agent.records.memories import Kind, Provenance, Source
from memory_agent.records.trajectories import RunRole
from memory_agent.settings import Fraction
from memory_agent.signals.payloads import Part, parse_part
from relay import described

T = TypeVar("T")

_HEADER = re.compile(r"^\s*\[\s*([^\[\]]+?)\s*\]")
_NOISE_TEXT_CHARS = 200


class _HasEvents(Protocol):
    @property
    def events(self) -> tuple[str, ...]: ...


Row = TypeVar("Row", bound=_HasEvents)


class Signal(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A row: the event types that it matches, and the kind of memory that they become. `signals.toml` documents the
    fields.
    """

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
        signals, rest = layers.row_structs(Signal), layers.tables(_Rest)
        self._by_type = rows_by_type(signals, layers)
        self._noise_words = {word: reason for reason, noise in rest.noise.items() for word in noise.words}
        self._noise_texts = {
            reason: _compile(layers, f"noise.{reason}.text", noise.text)
            for reason, noise in rest.noise.items()
            if noise.text
        }
        rows = signals.items()
        self.parts = {row: [layers.part(f"signal.{name}.text", line) for line in row.text] for name, row in rows}
        self._names = {row: name for name, row in rows}
        self.titles = {row: layers.part(f"signal.{name}.title", row.title) for name, row in rows}
        self.fallback = layers.part("fallback.text", rest.fallback.text)
        self.outcomes = rest.outcomes

    @staticmethod
    def load(own_file: str = "") -> SignalTable:
        """Return the built-in table (cached), merged with `own_file`. Raises `SettingsError` with the row and line."""
        return SignalTable(_layers(own_file)) if own_file else _built_in()

    def match(self, event_type: str) -> Signal | None:
        return None if is_own(event_type) else row_of_type(self._by_type, event_type)

    @property
    def names(self) -> frozenset[str]:
        return frozenset(self._names.values())

    @property
    def digest(self) -> str:
        return sha256(msgspec.json.encode(sorted((name, row.events) for row, name in self._names.items()))).hexdigest()

    def name_of(self, event_type: str) -> str | None:
        row = self.match(event_type)
        return None if row is None else self._names[row]

    def noise_of_word(self, word: str) -> str | None:
        """Return the reason why an event marked with `word` is noise, or None."""
        return self._noise_words.get(word.lower())

    def noise_of_text(self, text: str) -> str | None:
        if len(text) > _NOISE_TEXT_CHARS:
            return None
        return next((reason for reason, form in self._noise_texts.items() if form.fullmatch(text)), None)


@functools.cache
def _built_in() -> SignalTable:
    return SignalTable(_layers(""))


def _layers(own_file: str) -> LayeredTable:
    default = files("memory_agent.signals").joinpath("signals.toml").read_bytes()
    return LayeredTable(default, own_file, setting="ingest.signals", rows="signal")


def is_own(event_type: str) -> bool:
    """Return whether the daemon publishes this event type. Such events never become memories or belong to runs."""
    return event_type.startswith("memory.")


def rows_by_type(rows: Mapping[str, Row], layers: LayeredTable) -> dict[str, Row]:
    """Map event types to rows. Raises `SettingsError` if two rows of one file have the same type."""
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
    """Return the row for the type itself, else the longest matching `x.*`, else `*`; None if no row matches."""
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


def _compile(layers: LayeredTable, setting: str, pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern, re.IGNORECASE | re.DOTALL)
    except re.error as error:
        raise layers.error(setting, str(error)) from error


class LayeredTable:
    """The built-in TOML file, overlaid by a user's file. Errors name the row, field and line.

    A row or table in the user's file overrides the fields that it sets. `remove = ["name"]` in that file removes rows.
    """

    def __init__(self, default: bytes, own_file: str, *, setting: str, rows: str) -> None:
        """`own_file`: path in the setting `setting`; `rows`: name of the table of rows. Raises `SettingsError`."""
        self._setting = setting
        self._own_file = own_file
        self.rows = rows
        data = _read_file(own_file, setting) if own_file else b""
        self._lines = data.decode(errors="replace").splitlines()
        own = self._parsed(data)
        self.own_rows = frozenset(self._section(own, rows))
        self.merged = self._overlay(self._parsed(default), own)

    def row_structs(self, row_type: type[T]) -> dict[str, T]:
        """Return the rows by name. Raises `SettingsError`."""
        converted = {}
        for name, row in self.merged[self.rows].items():
            try:
                converted[name] = msgspec.convert(row, described(row_type))
            except msgspec.ValidationError as error:
                reason, _, path = str(error).partition(" - at `")
                raise self.error(f"{self.rows}.{name}{path.rstrip('`').removeprefix('$')}", reason) from error
        return converted

    def tables(self, table_type: type[T]) -> T:
        """Return all tables except the table of rows. Raises `SettingsError`."""
        rest = {name: table for name, table in self.merged.items() if name != self.rows}
        try:
            return msgspec.convert(rest, described(table_type))
        except msgspec.ValidationError as error:
            reason, _, path = str(error).partition(" - at `")
            raise self.error(path.rstrip("`").removeprefix("$."), reason) from error

    def part(self, place: str, line: str) -> Part:
        """Parse the definition of a part of a text (`parse_part`). Raises `SettingsError`."""
        try:
            return parse_part(line)
        except ValueError as error:
            raise self.error(place, str(error)) from error

    def require_tables(self) -> None:
        for name in self.merged.keys() - {self.rows}:
            raise self.error(name, "is not a known table")

    def error(self, place: str, reason: str) -> SettingsError:
        """Return the error for a place such as `signal.NAME.field`, with the line in the user's file."""
        unknown = re.search(r"unknown field `([^`]+)`", reason)
        line = self._line_of(place if unknown is None else f"{place}.{unknown[1]}".removeprefix("."))
        return SettingsError(place or self._setting, self._in_own(reason if line is None else f"line {line}: {reason}"))

    def _in_own(self, reason: str) -> str:
        return f"{self._own_file}: {reason}" if self._own_file else reason

    def _line_of(self, place: str) -> int | None:
        steps = [step.partition("[")[0] for step in place.split(".") if step]
        best, found, header = 0, None, ""
        for number, line in enumerate(self._lines, 1):
            begun = _HEADER.match(line)
            if begun is not None:
                header = begun[1]
            key = "" if begun is not None else line.partition("=")[0]
            here = [step.strip().strip("'\"") for step in [*header.split("."), *key.split(".")] if step.strip()]
            if len(here) > best and here == steps[: len(here)]:
                best, found = len(here), number
        return found

    def _overlay(self, default: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
        merged = {**default, **{name: value for name, value in own.items() if name not in (*default, "remove")}}
        for section in default:
            rows, mine = default[section], self._section(own, section)
            merged[section] = rows | {
                name: rows[name] | row if isinstance(row, dict) and isinstance(rows.get(name), dict) else row
                for name, row in mine.items()
            }
        for name in self._removed(own):
            if merged[self.rows].pop(name, None) is None:
                raise self.error("remove", f"there is no {self.rows} {name}")
        return merged

    def _removed(self, own: Mapping[str, Any]) -> list[str]:
        try:
            return msgspec.convert(own.get("remove", []), list[str])
        except msgspec.ValidationError as error:
            raise self.error("remove", str(error)) from error

    def _section(self, table: Mapping[str, Any], name: str) -> dict[str, Any]:
        section = table.get(name, {})
        if not isinstance(section, dict):
            raise self.error(name, "not a table")
        return section

    def _parsed(self, data: bytes) -> dict[str, Any]:
        try:
            return msgspec.toml.decode(data, type=dict[str, Any])
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise SettingsError(self._setting, self._in_own(str(error))) from error


def _read_file(path: str, setting: str) -> bytes:
    try:
        return Path(path).expanduser().read_bytes()
    except OSError as error:
        raise SettingsError(setting, f"cannot read {path}: {error.strerror}") from error
