"""Edits TOML text in place: adds a table at the end, and removes it again.

`tomlkit` was rejected: it treats comments after a table as part of that table, and moves or removes them with it.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping
from typing import Any

from memory_agent.integrations.json_text import KeyPath, UneditableError

_HEADER = re.compile(r"[ \t]*\[")
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


class TomlText:
    """A TOML document and its text. Immutable.

    Example:
        >>> print(TomlText("").added(("servers",), "memory", {"command": "x"}).text, end="")
        [servers.memory]
        command = "x"
    """

    def __init__(self, text: str) -> None:
        """Parse. Raises `UneditableError` with line and column."""
        self.text = text
        try:
            self.value: dict[str, Any] = tomllib.loads(text, parse_float=str)  # as written: nan != nan
        except tomllib.TOMLDecodeError as error:
            raise UneditableError(str(error)) from error
        except RecursionError as error:
            raise UneditableError("nested too deeply") from error

    def find(self, path: KeyPath) -> Any:
        here: Any = self.value
        for name in path:
            here = here.get(name) if isinstance(here, Mapping) else None
        return here

    def added(self, path: KeyPath, key: str | None, value: Any) -> TomlText:
        """Append a table of strings, booleans and lists.

        Raises `UneditableError` if part of the path is already defined in a different way.
        """
        name = ".".join(_written_key(str(part)) for part in (*path, key))
        newline = "\r\n" if "\r\n" in self.text else "\n"
        lines = [f"[{name}]", *(f"{_written_key(own)} = {_written(said)}" for own, said in value.items()), ""]
        above = newline * (2 - self.text.endswith("\n")) if self.text else ""
        refusal = f"[{name}] cannot be added: {path[0]} is defined in a different way"
        try:
            made = TomlText(self.text + above + newline.join(lines))
        except UneditableError as error:
            raise UneditableError(refusal) from error
        own = (*path, str(key))
        if made.find(own) != value or _without(made.value, own) != _pruned(self.value, path):
            raise UneditableError(refusal)
        return made

    def removed(self, path: KeyPath) -> TomlText:
        """Remove a table and its subtables, each with the empty line above it. The inverse of `added`.

        Comments after it are kept. Raises `UneditableError` if it is not written as a separate table.
        """
        name = r"[ \t]*\.[ \t]*".join(_any_quotes(str(part)) for part in path)
        own = re.compile(rf"[ \t]*\[[ \t]*{name}[ \t]*(?:\.[^\]]*)?\][ \t]*(?:#.*)?$")
        kept: list[str] = []
        block: list[str] | None = None
        lines = self.text.splitlines(keepends=True)
        for place, line in enumerate(lines):
            is_own = own.match(line.rstrip("\r\n")) is not None
            if (is_own or (block is not None and _HEADER.match(line))) and _is_toml("".join(lines[:place])):
                kept += _below(block or [])
                block = [] if is_own else None
                if is_own and kept and not kept[-1].strip():
                    kept.pop()
            (kept if block is None else block).append(line)
        kept += _below(block or [])
        try:
            made = TomlText("".join(kept))
        except UneditableError as error:
            raise UneditableError(f"{'.'.join(map(str, path))} is not a separate table") from error
        if _pruned(made.value, path[:-1]) != _without(self.value, path):
            raise UneditableError(f"{'.'.join(map(str, path))} is not a separate table")
        return made


def _is_toml(text: str) -> bool:
    """Return whether `text` ends between statements, not within a multi-line list or string."""
    try:
        tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return False
    return True


def _below(block: list[str]) -> list[str]:
    end = len(block)
    while end and (not block[end - 1].strip() or block[end - 1].lstrip().startswith("#")):
        end -= 1
    return block[end:]


def _without(value: Mapping[str, Any], path: KeyPath) -> dict[str, Any]:
    """Return a copy without the value at a path, and without tables above it that become empty."""
    inside = dict(value)
    if len(path) == 1:
        inside.pop(str(path[0]), None)
    elif path[0] in inside:
        inside[str(path[0])] = _without(inside[str(path[0])], path[1:])
    return _pruned(inside, path[:-1])


def _pruned(value: Mapping[str, Any], path: KeyPath) -> dict[str, Any]:
    """Return a copy without the empty tables on a path."""
    inside = dict(value)
    if path and isinstance(inside.get(str(path[0])), Mapping):
        below = _pruned(inside.pop(str(path[0])), path[1:])
        if below:
            inside[str(path[0])] = below
    return inside


def _written_key(key: str) -> str:
    return key if _BARE_KEY.fullmatch(key) else json.dumps(key)


def _written(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_written, value))}]"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _any_quotes(key: str) -> str:
    plain = re.escape(key)
    return f"(?:{plain}|\"{plain}\"|'{plain}')"
