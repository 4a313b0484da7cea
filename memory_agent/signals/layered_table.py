"""Tables of rows in TOML: the package's own, and a user's file laid over it. An error names the row, field and line."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from memory_agent.errors import SettingsError

T = TypeVar("T")

_HEADER = re.compile(r"^\s*\[\s*([^\[\]]+?)\s*\]")


class LayeredTable:
    """Two layers of tables. `rows` names the table of the rows; `remove = ["name"]` of the user's file removes rows.

    A row or table of the user's file overrides the fields that it sets in the one of the same name.
    """

    def __init__(self, default: bytes, own_file: str, *, setting: str, rows: str) -> None:
        """Read the layers; `setting` is the one that names `own_file` ("": none). Raises `SettingsError`."""
        self._setting = setting
        self._own_file = own_file
        self.rows = rows
        """The name of the table of rows."""
        data = _read_file(own_file, setting) if own_file else b""
        self._lines = data.decode(errors="replace").splitlines()
        own = self._parsed(data)
        self.own_rows = frozenset(self._section(own, rows))
        """The names of the rows that the user's file sets."""
        self.merged = self._overlay(self._parsed(default), own)

    def row_structs(self, row_type: type[T]) -> dict[str, T]:
        """Return the rows by name. Raises `SettingsError` for an unknown field or an invalid value."""
        converted = {}
        for name, row in self.merged[self.rows].items():
            try:
                converted[name] = msgspec.convert(row, row_type)
            except msgspec.ValidationError as error:
                reason, _, path = str(error).partition(" - at `")
                raise self.error(f"{self.rows}.{name}{path.rstrip('`').removeprefix('$')}", reason) from error
        return converted

    def tables(self, table_type: type[T]) -> T:
        """Return the other tables. Raises `SettingsError`."""
        rest = {name: table for name, table in self.merged.items() if name != self.rows}
        try:
            return msgspec.convert(rest, table_type)
        except msgspec.ValidationError as error:
            reason, _, path = str(error).partition(" - at `")
            raise self.error(path.rstrip("`").removeprefix("$."), reason) from error

    def require_tables(self) -> None:
        """Raise `SettingsError` if there is a table besides that of the rows."""
        for name in self.merged.keys() - {self.rows}:
            raise self.error(name, "there is no such table")

    def error(self, place: str, reason: str) -> SettingsError:
        """Return the error of a place such as `signal.NAME.field`, with the user's file and the line in it."""
        unknown = re.search(r"unknown field `([^`]+)`", reason)
        line = self._line_of(place if unknown is None else f"{place}.{unknown[1]}".removeprefix("."))
        return SettingsError(place or self._setting, self._in_own(reason if line is None else f"line {line}: {reason}"))

    def _in_own(self, reason: str) -> str:
        return f"{self._own_file}: {reason}" if self._own_file else reason

    def _line_of(self, place: str) -> int | None:
        """Return the line of the field, else of its table, else None."""
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
