"""Find session files where each client stores them, and recognise their formats."""

from __future__ import annotations

import os
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from memory_agent.sessions import atif, chatgpt, claude_ai, claude_code, codex, gemini, openhands, swe_agent
from memory_agent.sessions.json_stream import NotJsonError, lines, members, mended
from memory_agent.sessions.transcript import (
    DocumentTranscript,
    FolderTranscript,
    LineTranscript,
    Transcript,
    open_document,
)
from relay import described

NAMES = (
    *(claude_code.NAME, codex.NAME, gemini.NAME, openhands.NAME, swe_agent.NAME, swe_agent.MINI),
    *(chatgpt.NAME, claude_ai.NAME, atif.NAME),
)
_MARKS = ({"trajectory", "info"}, {"messages", "info"}, {"sessionId", "projectHash"})
"""Sets of members that identify a document's format, so that the rest need not be read."""
_EVENTS = "event-*.json"
_SUFFIXES = (".jsonl", ".json", ".traj", ".zip")
_LOOKED_AT = 20  # lines
_SNIFFED_BYTES = 1 << 20


class Unread(NamedTuple):
    """A file that was not read as a session, and the reason."""

    path: Path
    reason: str


class _Home(NamedTuple):
    variable: str
    folder: str
    patterns: tuple[str, ...]


_HOMES: Mapping[str, _Home] = {
    claude_code.NAME: _Home("CLAUDE_CONFIG_DIR", ".claude", ("projects/**/*.jsonl",)),
    codex.NAME: _Home("CODEX_HOME", ".codex", ("sessions/**/rollout-*.jsonl", "archived_sessions/rollout-*.jsonl")),
    gemini.NAME: _Home("", ".gemini", ("tmp/*/chats/session-*.json*", "tmp/*/chats/*/*.jsonl")),
    openhands.NAME: _Home("", ".openhands", ("conversations/*/events",)),
    swe_agent.MINI: _Home("MSWEA_GLOBAL_CONFIG_DIR", ".config/mini-swe-agent", ("*.traj.json",)),
}


class Places(NamedTuple):
    """Where to look for sessions: in `paths` or, if that is empty, in each client's folder (`home`, `variables`)."""

    paths: tuple[Path, ...] = ()
    home: Path = Path("~")
    variables: Mapping[str, str] = {}
    clients: tuple[str, ...] = NAMES

    def find(self) -> Iterator[Path]:
        if self.paths:
            yield from _find_below(self.paths)
            return
        for folder, pattern in self._homes():
            yield from sorted(folder.glob(pattern))

    def names(self) -> list[str]:
        """Return the files, folders and patterns that `find` searches."""
        if not self.paths:
            return [str(folder / pattern) for folder, pattern in self._homes()]
        below = "**/*{" + ",".join(_SUFFIXES) + "}"
        return [str(path / below if path.is_dir() else path) for path in self.paths]

    def _homes(self) -> Iterator[tuple[Path, str]]:
        for client in self.clients:
            place = _HOMES.get(client)
            if place is not None:
                named = self.variables.get(place.variable, "") if place.variable else ""
                folder = Path(named) if named else self.home.expanduser() / place.folder
                yield from ((folder, pattern) for pattern in place.patterns)


def _find_below(paths: Iterable[Path]) -> Iterator[Path]:
    for path in paths:
        if not path.is_dir():
            yield path
            continue
        for folder, names, files in os.walk(path):
            names.sort()
            here = Path(folder)
            if here.name == "events" and any(here.glob(_EVENTS)):
                yield here
            else:
                yield from (here / name for name in sorted(files) if name.endswith(_SUFFIXES))


def open_transcript(path: Path) -> Transcript | Unread:
    """Open a file or folder of any format; return its transcript, or the reason why it has none."""
    if path.is_dir():
        conversation = path.parent if path.name == "events" else path
        return FolderTranscript(path, _EVENTS, partial(openhands.OpenHandsReader, conversation.name))
    try:
        with open_document(path) as stream:
            start = stream.read(_SNIFFED_BYTES)
    except OSError as error:
        return Unread(path, f"cannot be read: {error.strerror}")
    except (KeyError, RuntimeError):  # the member is missing or encrypted, or the compression is unknown
        return Unread(path, "not a chat export")
    except (zipfile.BadZipFile, zlib.error):
        return Unread(path, "damaged archive")
    if not start.strip():
        return Unread(path, "empty")
    opened = _of_lines(path) if path.suffix == ".jsonl" else _of_document(path)
    return Unread(path, "binary") if isinstance(opened, Unread) and b"\0" in start else opened


class _Sniffed(msgspec.Struct, frozen=True, rename="camel"):
    type: str = ""
    session_id: str | None = None
    project_hash: str | None = None
    uuid: str | None = None
    payload: Any = None


_sniffed = msgspec.json.Decoder(described(_Sniffed))


def _of_lines(path: Path) -> Transcript | Unread:
    with path.open("rb") as stream:
        for line in lines(stream):
            if line.number > _LOOKED_AT:
                break
            try:
                line_type = _sniffed.decode(mended(line.data or b""))
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                continue
            if line_type.payload is not None and line_type.type:
                return LineTranscript(path, codex.CodexReader)
            if line_type.project_hash is not None:
                return LineTranscript(path, gemini.GeminiReader)
            if line_type.session_id is not None or (line_type.uuid is not None and line_type.type):
                return LineTranscript(path, claude_code.ClaudeCodeReader)
    return Unread(path, "unknown format")


def _of_document(path: Path) -> Transcript | Unread:
    names: set[str] = set()
    try:
        with open_document(path) as stream:
            for name, number, data in members(stream):
                names.add(name)
                if not name and number:
                    return _of_list(path, data or b"")
                if name == "schema_version" or any(marks <= names for marks in _MARKS):
                    break
    except NotJsonError as error:
        if not names:
            return Unread(path, f"not JSON: {error}")
    if "schema_version" in names:
        return DocumentTranscript(path, partial(atif.AtifReader, path))
    if {"sessionId", "projectHash"} <= names:
        return DocumentTranscript(path, gemini.GeminiReader)
    if path.name.endswith((".traj", ".traj.json")) and names & {"trajectory", "messages", "info"}:
        return DocumentTranscript(path, partial(swe_agent.SweAgentReader, path))
    return Unread(path, "unknown format")


def _of_list(path: Path, first: bytes) -> Transcript | Unread:
    try:
        fields = msgspec.json.decode(mended(first), type=described(dict[str, msgspec.Raw]))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return Unread(path, "unknown format")
    if "mapping" in fields:
        return DocumentTranscript(path, chatgpt.ChatGptReader)
    if "chat_messages" in fields:
        return DocumentTranscript(path, claude_ai.ClaudeAiReader)
    return Unread(path, "unknown format")
