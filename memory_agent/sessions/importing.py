"""Import sessions: read their files one by one, yield the events, and count imported and skipped entries.

An import stores no state on disk: a second import reads everything again, and its events are recognised by their ids.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from memory_agent.sessions.entries import Bad, Entry, Left
from memory_agent.sessions.events import event_of, is_below
from memory_agent.sessions.finding import Places, Unread, open_transcript
from memory_agent.sessions.json_stream import BadPlace
from memory_agent.sessions.transcript import Placed, Transcript
from relay.disk import Report

MOST_NAMED = 1_000
"""Maximum number of unreadable places that the report lists; the others are only counted."""
_OTHER_PROJECT = "from a different project"
_TOO_OLD = "before --since"
_ONLY_BLOCKS = "injected context"
_REPORTED_BYTES = 1 << 20


class ImportCounts(msgspec.Struct, kw_only=True):
    """Counts of an import: sessions by client, imported entries by kind, and omitted entries and files by reason."""

    sessions: dict[str, int] = {}
    taken: dict[str, int] = {}
    left: dict[str, int] = {}
    skipped_files: dict[str, int] = {}
    bad: int = 0
    bad_places: list[BadPlace] = []


class Scope(NamedTuple):
    """What to import: the user, the earliest time of entries, and the project of the sessions (None for all)."""

    user_id: str
    since: datetime | None = None
    project: str | None = None


class SessionImport:
    """Imports sessions. To follow growing files, call `events` again.

    >>> imported = SessionImport(Places((Path("sessions"),)), Scope("alice"), report)
    >>> for event in imported.events():
    ...     publisher.publish(event)
    >>> imported.counts.taken
    {'user': 12, 'assistant': 40, 'command': 61, 'begin': 12, 'completed': 11}
    """

    def __init__(self, places: Places, scope: Scope, report: Report) -> None:
        self._places = places
        self._scope = scope
        self._report = report
        self._transcripts: dict[Path, Transcript] = {}
        self._skipped: dict[Path, tuple[int, int]] = {}
        self._sessions: dict[tuple[str, str], int] = {}
        self._taken: Counter[str] = Counter()
        self._left: Counter[str] = Counter()
        self._skipped_files: Counter[str] = Counter()
        self._bad = 0
        self._bad_places: list[BadPlace] = []

    @property
    def counts(self) -> ImportCounts:
        """The counts so far; they can be read during the import."""
        return ImportCounts(
            sessions=dict(Counter(client for client, _ in self._sessions)),
            taken=dict(self._taken),
            left=dict(self._left),
            skipped_files=dict(self._skipped_files),
            bad=self._bad,
            bad_places=self._bad_places,
        )

    def events(self, *, is_growing: bool = False) -> Iterator[dict[str, Any]]:
        """Yield the new events. With `is_growing`, incomplete ends of files are left for the next call."""
        self._find()
        todo = [one for one in self._transcripts.values() if one.has_news]
        total = sum(one.size_bytes for one in self._transcripts.values())
        done = total - sum(one.size_bytes for one in todo)
        reported = done
        for transcript in todo:
            if not self._is_recent(transcript):
                self._left[_TOO_OLD] += 1
                done += transcript.size_bytes
                continue
            for placed in transcript.read(is_growing=is_growing):
                if event := self._event(transcript, placed):
                    yield event
                if done + transcript.read_bytes - reported > _REPORTED_BYTES:
                    reported = done + transcript.read_bytes
                    self._report("sessions", reported, total)
            done += transcript.size_bytes
        if todo:
            self._report("sessions", total, total)

    def _find(self) -> None:
        self._transcripts = {path: one for path, one in self._transcripts.items() if path.exists()}
        for path in self._places.find():
            if path in self._transcripts or self._skipped.get(path) == _state(path):
                continue
            opened = open_transcript(path)
            if isinstance(opened, Unread):
                self._skipped[path] = _state(path)
                self._skip(opened)
            elif opened.session.client not in self._places.clients:
                self._skipped[path] = _state(path)
                self._skip(Unread(path, "from a different client"))
            else:
                self._transcripts[path] = opened

    def _skip(self, unread: Unread) -> None:
        if unread.path in self._places.paths:  # named by the caller, not found in a folder
            self._note_bad(unread.path, "", unread.reason)
        else:
            self._skipped_files[unread.reason] += 1

    def _is_recent(self, transcript: Transcript) -> bool:
        """Return whether a file may contain entries since the requested time."""
        since = self._scope.since
        return since is None or transcript.path.is_dir() or _written(transcript.path) >= since

    def _event(self, transcript: Transcript, placed: Placed) -> dict[str, Any] | None:
        found, session = placed.found, transcript.session
        if isinstance(found, Left):
            self._left[found.value] += 1
            return None
        if isinstance(found, Bad):
            self._note_bad(transcript.path, placed.place, found.reason)
            return None
        if reason := self._reason_against(found, session.folder):
            self._left[reason] += 1
            return None
        key = (session.client, session.id)
        number = self._sessions[key] = self._sessions.get(key, 0) + 1
        event = event_of(found, session, self._scope.user_id, number, _written(transcript.path))
        if event is None:
            self._left[_ONLY_BLOCKS] += 1
            return None
        self._taken[found.what] += 1
        return event

    def _reason_against(self, entry: Entry, folder: str | None) -> str | None:
        if self._scope.project is not None and not is_below(folder, self._scope.project):
            return _OTHER_PROJECT
        is_old = self._scope.since is not None and entry.at is not None and entry.at < self._scope.since
        return _TOO_OLD if is_old else None

    def _note_bad(self, path: Path, place: str, reason: str) -> None:
        self._bad += 1
        if len(self._bad_places) < MOST_NAMED:
            self._bad_places.append(BadPlace(file=str(path), place=place, reason=reason))


def _written(path: Path) -> datetime:
    try:
        return datetime.fromtimestamp(path.stat().st_mtime, UTC)
    except OSError:
        return datetime.fromtimestamp(0, UTC)


def _state(path: Path) -> tuple[int, int]:
    try:
        found = path.stat()
    except OSError:
        return (0, 0)
    return found.st_size, found.st_mtime_ns
