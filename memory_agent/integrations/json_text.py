"""Edits JSON text in place: all other bytes are preserved, including comments and layout.

The parser records positions. It accepts only the syntax that the client accepts. `json-five` rewrites the whole
document in its own layout, `jsonc-edit` needs Node.js, and `json5-document` requires Python 3.12.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any, NamedTuple

KeyPath = tuple[str | int, ...]
"""Object keys and array indices, from the root down."""

_TOKEN = re.compile(
    r"""(?P<space>[ \t\r\n]+)|(?P<comment>//[^\r\n]*|/\*.*?\*/)"""
    r"""|(?P<string>"[^"\\\x00-\x1f]*(?:\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})[^"\\\x00-\x1f]*)*")"""
    r"""|(?P<number>-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)|(?P<word>true|false|null)"""
    r"""|(?P<mark>[{}\[\],:])""",
    re.DOTALL,
)
_COMMENT_ON_LINE = re.compile(r"(?:[ \t]*(?:/\*[^\r\n]*?\*/|//[^\r\n]*))+")
_NOTHING_MORE = re.compile(r"[ \t]*(?://|[\r\n]|$)")
_MAX_DEPTH = 200
_DEFAULT_INDENT = "  "


class Syntax(NamedTuple):
    """Which JSON extensions a client accepts."""

    comments: bool = False
    trailing_commas: bool = False


class UneditableError(ValueError):
    """Text that its client cannot read, or that has something else where an object, a table or a list is expected."""


class Number(NamedTuple):
    """A number as written, of any size and precision."""

    text: str


@dataclass(slots=True)
class Item:
    """A member of an object or an element of an array. `before` is the end of the previous token or comment."""

    key: str | None
    start: int
    before: int
    is_below_comment: bool
    node: Node
    comma: int | None = None


@dataclass(slots=True)
class Node:
    """A value and its positions. `inner` is the end of the last token before its closing bracket."""

    start: int
    end: int
    value: Any
    items: list[Item] = field(default_factory=list)
    inner: int = 0

    def item(self, name: str | int) -> Item | None:
        """If a key is repeated, the last item with this key is returned."""
        if isinstance(name, int):
            return self.items[name] if isinstance(self.value, list) and name < len(self.items) else None
        found = [item for item in self.items if item.key == name]
        return found[-1] if found else None


class JsonText:
    """A JSON document and its text. Immutable.

    Example:
        >>> print(JsonText('{"a": 1}').added((), "b", [True]).text)
        {"a": 1, "b": [true]}
    """

    def __init__(self, text: str, syntax: Syntax = Syntax()) -> None:  # noqa: B008
        """Parse. Raises `UneditableError` with line and column."""
        self.text = text
        self.syntax = syntax
        self.root = _Parser(text, syntax).document()

    @property
    def value(self) -> Any:
        """The value of the document; numbers are `Number` objects."""
        return self.root.value

    def find(self, path: KeyPath) -> Any:
        node = self.node(path)
        return None if node is None else node.value

    def node(self, path: KeyPath) -> Node | None:
        here = self.root
        for name in path:
            item = here.item(name)
            if item is None:
                return None
            here = item.node
        return here

    def added(self, path: KeyPath, key: str | None, value: Any) -> JsonText:
        """Append a member to the object at `path`. Without a key, append an element to the array at `path`.

        Creates missing containers. Raises `UneditableError` if the path leads to a value of a different kind.
        """
        there, missing = self.root, len(path)
        for depth, name in enumerate(path):
            item = there.item(name)
            if item is None:
                missing = depth
                break
            there = item.node
        else:
            return self._with_item(path, there, key, value)
        for name in reversed(path[missing + 1 :]):
            value, key = ({key: value} if key is not None else [value]), str(name)
        whole = {key: value} if key is not None else [value]
        return self._with_item(path[:missing], there, str(path[missing]), whole)

    def _with_item(self, path: KeyPath, there: Node, key: str | None, value: Any) -> JsonText:
        if not isinstance(there.value, list if key is None else dict):
            kind = "a list" if key is None else "an object"
            raise UneditableError(f"{'.'.join(map(str, path)) or 'the document'} is not {kind}")
        layout = self._layout(there)
        name = "" if key is None else f"{json.dumps(key, ensure_ascii=False)}:{layout.gap}"
        return JsonText(self._inserted(there, layout, f"{name}{layout.rendered(value)}"), self.syntax)

    def _inserted(self, there: Node, layout: _Layout, item: str) -> str:
        text = self.text
        if not there.items:
            closing = text[there.inner : there.end - 1]
            after = "" if layout.is_line or "\n" in closing else layout.outer
            return f"{text[: there.inner]}{layout.inner}{item}{after}{text[there.inner :]}"
        last = there.items[-1]
        if last.comma is not None:
            at = self._end_of_line_comment(last.comma + 1)
            return f"{text[:at]}{layout.inner or ' '}{item},{text[at:]}"
        at = self._end_of_line_comment(last.node.end) if not layout.is_line else last.node.end
        return f"{text[: last.node.end]},{text[last.node.end : at]}{layout.inner or layout.gap}{item}{text[at:]}"

    def _end_of_line_comment(self, at: int) -> int:
        found = _COMMENT_ON_LINE.match(self.text, at) if self.syntax.comments else None
        return at if found is None else found.end()

    def _layout(self, there: Node) -> _Layout:
        text = self.text
        newline = "\r\n" if "\r\n" in text else "\n"
        own = _indent_of_line(text, there.start)
        unit = self._unit()
        if there.items:
            first = _indent_at(text, there.items[-1].start)
            if first is not None:
                return _Layout(newline, first, own, unit, is_line=False)
        is_line = "\n" not in text[there.start : there.end] if there.items else bool(self.root.items) and (
            "\n" not in text[self.root.start : self.root.end]
        )  # fmt: skip
        return _Layout(newline, own + unit, own, unit, is_line, "" if is_line and re.search(r'":\S', text) else " ")

    def _unit(self) -> str:
        for item in self.root.items:
            indent = _indent_at(self.text, item.start)
            if indent:
                return indent
        return _DEFAULT_INDENT

    def removed(self, path: KeyPath) -> JsonText:
        """Remove a member or an element with its comma. The inverse of `added`."""
        there = self.node(path[:-1])
        item = there.item(path[-1]) if there is not None else None
        assert there is not None
        assert item is not None
        text, start = self.text, item.before
        end = item.node.end if item.comma is None else item.comma + 1
        if item.is_below_comment and not _NOTHING_MORE.match(text, end):
            start = item.start  # the rest of this line must not become part of the comment
        place = there.items.index(item)
        if item.comma is not None or place == 0:
            return JsonText(text[:start] + text[end:], self.syntax)
        comma = there.items[place - 1].comma
        assert comma is not None
        return JsonText(text[:comma] + text[comma + 1 : start] + text[end:], self.syntax)

    def with_inside(self, path: KeyPath, inside: str) -> JsonText:
        """Replace the text between the brackets of a value."""
        node = self.node(path)
        assert node is not None
        return JsonText(self.text[: node.start + 1] + inside + self.text[node.end - 1 :], self.syntax)

    def inside(self, path: KeyPath) -> str:
        node = self.node(path)
        assert node is not None
        return self.text[node.start + 1 : node.end - 1]


class _Layout(NamedTuple):
    """The layout of a container; `is_line` means that it is on one line."""

    newline: str
    indent: str
    own: str
    unit: str
    is_line: bool
    gap: str = " "

    @property
    def inner(self) -> str:
        return "" if self.is_line else f"{self.newline}{self.indent}"

    @property
    def outer(self) -> str:
        return f"{self.newline}{self.own}"

    def rendered(self, value: Any) -> str:
        if self.is_line:
            return json.dumps(value, ensure_ascii=False, separators=(f",{self.gap}", f":{self.gap}"))
        return json.dumps(value, ensure_ascii=False, indent=self.unit).replace("\n", f"{self.newline}{self.indent}")


def _indent_of_line(text: str, at: int) -> str:
    line = text[text.rfind("\n", 0, at) + 1 : at]
    return line[: len(line) - len(line.lstrip(" \t"))]


def _indent_at(text: str, at: int) -> str | None:
    """Return the indentation before a position, or None if something else precedes it on its line."""
    before = text[text.rfind("\n", 0, at) + 1 : at]
    return before if not before.strip(" \t") and "\n" in text[:at] else None


class _Parser:
    def __init__(self, text: str, syntax: Syntax) -> None:
        self._text = text
        self._syntax = syntax
        self._at = 0
        self._before = 0
        self._is_below_comment = False
        self._kind = ""
        self._token = ""
        self._next()

    def document(self) -> Node:
        node = self._value(0)
        if self._kind:
            raise self._error("unexpected text after the end")
        return node

    def _next(self) -> None:
        """Advance to the next token, skipping spaces and comments; set `_before` to the end of the last skipped
        comment."""
        self._at += len(self._token)
        self._before = self._at
        self._is_below_comment = False
        while True:
            found = _TOKEN.match(self._text, self._at)
            if found is None:
                self._kind = self._token = ""
                if self._at < len(self._text):
                    raise self._error("not JSON")
                return
            kind, token = str(found.lastgroup), found.group()
            if kind == "comment":
                if not self._syntax.comments:
                    raise self._error("this client does not support comments")
                self._before = found.end()
                self._is_below_comment = token.startswith("//")
            elif kind != "space":
                self._kind, self._token = kind, token
                return
            self._at = found.end()

    def _error(self, reason: str) -> UneditableError:
        line = self._text.count("\n", 0, self._at) + 1
        column = self._at - self._text.rfind("\n", 0, self._at)
        return UneditableError(f"line {line}, column {column}: {reason}")

    def _value(self, depth: int) -> Node:
        if depth > _MAX_DEPTH:
            raise self._error("nested too deeply")
        start, token, kind = self._at, self._token, self._kind
        if token in ("{", "["):
            return self._container(depth, is_object=token == "{")
        if kind not in ("string", "number", "word"):
            raise self._error("unexpected end" if not kind else f"expected a value, not {token!r}")
        self._next()
        value = Number(token) if kind == "number" else json.loads(token)
        return Node(start, start + len(token), value)

    def _container(self, depth: int, *, is_object: bool) -> Node:
        closing = "}" if is_object else "]"
        node = Node(self._at, 0, {} if is_object else [])
        self._next()
        while self._token != closing:
            if node.items and node.items[-1].comma is None:
                raise self._error(f"expected ',' or {closing!r}" if self._kind else "unexpected end")
            node.items.append(self._item(node, depth, is_object=is_object))
            if self._token == ",":
                node.items[-1].comma = self._at
                self._next()
                if self._token == closing and not self._syntax.trailing_commas:
                    raise self._error(f"unexpected {closing!r} after a comma")
        node.inner, node.end = self._before, self._at + 1
        self._next()
        return node

    def _item(self, there: Node, depth: int, *, is_object: bool) -> Item:
        start, before, is_below_comment, key = self._at, self._before, self._is_below_comment, None
        if is_object:
            if self._kind != "string":
                raise self._error("unexpected end" if not self._kind else f"expected a key, not {self._token!r}")
            key = str(json.loads(self._token))
            self._next()
            if self._token != ":":
                raise self._error("expected ':'")
            self._next()
        node = self._value(depth + 1)
        if key is None:
            there.value.append(node.value)
        else:
            there.value[key] = node.value
        return Item(key, start, before, is_below_comment, node)
