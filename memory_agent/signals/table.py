"""The table of signals: which event types become which memories, where their text is, and what is noise.

It is data, `signals.toml` beside this file merged with a user's own file, so that operators can add rows without code.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from hashlib import sha256
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import msgspec

from memory_agent.errors import SettingsError
from memory_agent.records import Kind, Provenance, Source
from memory_agent.settings import Fraction
from memory_agent.signals.payloads import Part, parse_part
from memory_agent.trajectory import RunRole

_NOISE_TEXT_CHARS = 200


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


class _Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    signal: dict[str, Signal]
    fallback: _Fallback
    noise: dict[str, _Noise] = {}
    outcomes: dict[str, Fraction] = {}


class SignalTable:
    """Maps events to memories. Immutable and thread-safe."""

    def __init__(self, table: _Table, own_rows: frozenset[str]) -> None:
        self._by_type = _index(table.signal, own_rows)
        self._noise_words = {word: reason for reason, noise in table.noise.items() for word in noise.words}
        self._noise_texts = {
            reason: _compile(f"noise.{reason}.text", noise.text) for reason, noise in table.noise.items() if noise.text
        }
        rows = table.signal.items()
        self.parts = {row: [_parse(f"signal.{name}.text", line) for line in row.text] for name, row in rows}
        self._names = {row: name for name, row in rows}
        self.titles = {row: _parse(f"signal.{name}.title", row.title) for name, row in rows}
        self.fallback = _parse("fallback.text", table.fallback.text)
        self.outcomes = table.outcomes

    @classmethod
    def load(cls, own_file: str = "") -> Self:
        """Return the package's table, merged with `own_file` if given.

        Raises `SettingsError` (with row and field) for an unknown field or an invalid value.
        """
        default = _read_toml(files("memory_agent.signals").joinpath("signals.toml").read_bytes())
        own = _read_toml(_read_file(own_file)) if own_file else {}
        own_rows = frozenset(_section(own, "signal"))
        try:
            table = msgspec.convert(_overlay(default, own), _Table)
        except msgspec.ValidationError as error:
            raise _settings_error(str(error)) from error
        return cls(table, own_rows)

    def match(self, event_type: str) -> Signal | None:
        """Return the row that keeps this event type, or None."""
        exact = self._by_type.get(event_type)
        if exact is not None:
            return exact
        stem = event_type
        while "." in stem:
            stem = stem.rpartition(".")[0]
            row = self._by_type.get(f"{stem}.*")
            if row is not None:
                return row
        return self._by_type.get("*")

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


def _index(rows: Mapping[str, Signal], own_rows: frozenset[str]) -> dict[str, Signal]:
    """Return rows by event type. Raises `SettingsError` when two rows of one file claim the same type."""
    by_type: dict[str, Signal] = {}
    for own in (False, True):
        claims: dict[str, str] = {}
        for name, row in rows.items():
            if (name in own_rows) is not own:
                continue
            for pattern in row.events:
                if pattern in claims:
                    raise SettingsError(f"signal.{name}.events", f"{pattern} is also in signal.{claims[pattern]}")
                claims[pattern] = name
                by_type[pattern] = row
    return by_type


def _overlay(default: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    merged = {**default, **{name: value for name, value in own.items() if name not in (*default, "remove")}}
    for section in default:
        rows, mine = default[section], _section(own, section)
        merged[section] = rows | {
            name: rows[name] | row if isinstance(row, dict) and isinstance(rows.get(name), dict) else row
            for name, row in mine.items()
        }
    for name in _removed(own):
        if merged["signal"].pop(name, None) is None:
            raise SettingsError("remove", f"there is no signal {name}")
    return merged


def _removed(own: Mapping[str, Any]) -> list[str]:
    try:
        return msgspec.convert(own.get("remove", []), list[str])
    except msgspec.ValidationError as error:
        raise SettingsError("remove", str(error)) from error


def _section(table: Mapping[str, Any], name: str) -> dict[str, Any]:
    section = table.get(name, {})
    if not isinstance(section, dict):
        raise SettingsError(name, "not a table")
    return section


def _read_file(path: str) -> bytes:
    try:
        return Path(path).expanduser().read_bytes()
    except OSError as error:
        raise SettingsError("ingest.signals", f"cannot read {path}: {error.strerror}") from error


def _read_toml(data: bytes) -> dict[str, Any]:
    try:
        return msgspec.toml.decode(data, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise SettingsError("ingest.signals", str(error)) from error


def _parse(setting: str, line: str) -> Part:
    try:
        return parse_part(line)
    except ValueError as error:
        raise SettingsError(setting, str(error)) from error


def _compile(setting: str, pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern, re.IGNORECASE | re.DOTALL)
    except re.error as error:
        raise SettingsError(setting, str(error)) from error


def _settings_error(message: str) -> SettingsError:
    reason, _, path = message.partition(" - at `")
    return SettingsError(path.rstrip("`").removeprefix("$.") or "ingest.signals", reason)
