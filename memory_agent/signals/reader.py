"""Converts an event to a memory record, or drops it as noise with a reason. Pure."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any
from unicodedata import combining

import msgspec
from ulid import ULID

from memory_agent.errors import UnhandledEventError
from memory_agent.records.memories import STATED_PROVENANCES, MemoryRecord, Provenance, parted_provenance
from memory_agent.settings import IngestSettings
from memory_agent.signals import payloads
from memory_agent.signals.table import Signal, SignalTable
from memory_agent.signals.verdicts import verdict
from relay import Event

_MARKS = ("type", "kind", "phase")
_TITLE_CHARS = 200
_MAX_TAGS = 32
_TAG_CHARS = 64
_JOINER = "\u200d"

Objects = Sequence[Mapping[str, Any]]


class Dropped(msgspec.Struct, frozen=True):
    reason: str


class EventReader:
    """Reads events according to a signal table. Immutable and thread-safe."""

    def __init__(self, table: SignalTable, settings: IngestSettings | None = None) -> None:
        self.table = table
        self._settings = settings or IngestSettings()

    def read(self, event: Event) -> MemoryRecord | Dropped:
        """Return the memory of `event`, or the reason why it is dropped. Raises `UnhandledEventError`."""
        signal = self.table.match(event.event_type)
        if signal is not None:
            return self.to_record(event, signal)
        return Dropped(self.table.noise_of_word(event.event_type.rpartition(".")[2]) or "not_high_signal")

    def to_record(self, event: Event, signal: Signal) -> MemoryRecord | Dropped:
        """Return the memory made from `event` according to the row `signal`, or the reason why `event` is dropped.

        Raises `UnhandledEventError`.
        """
        if not isinstance(event.payload, dict):
            raise UnhandledEventError(event.event_id, "payload: not an object")
        try:
            return self._to_record(event, signal, payloads.roots(event.payload))
        except payloads.NotTextError as error:
            raise UnhandledEventError(event.event_id, f"{error}: not valid Unicode text") from error

    def words(self, event: Event) -> tuple[str, list[str]]:
        """Return the title and the unlabelled parts of an event's text. Noise and unreadable text have no parts."""
        if not isinstance(event.payload, dict):
            return "", []
        objects, signal = payloads.roots(event.payload), self.table.match(event.event_type)
        try:
            return self._words(objects, signal)
        except payloads.NotTextError:
            return "", []

    def _words(self, objects: Objects, signal: Signal | None) -> tuple[str, list[str]]:
        if self._marked_as_noise(objects):
            return "", []
        title, parts = "", []
        if signal is not None:
            title = _one_line(payloads.read_part(objects, self.table.titles[signal])) or ""
            parts = [payloads.read_part(objects, part) for part in self.table.parts[signal] if not part.accompanies]
        found = list(filter(None, parts)) or list(filter(None, [self._fallback_words(objects, ())]))
        return ("", []) if self._noise_of("\n".join(found)) else (title, found)

    def _to_record(self, event: Event, signal: Signal, objects: Objects) -> MemoryRecord | Dropped:
        if reason := self._marked_as_noise(objects):
            return Dropped(reason)
        parts = self._read_parts(signal, objects)
        text = "\n".join(parts.values())
        if reason := self._noise_of(text):
            return Dropped(reason)
        if signal.lead:
            text = f"{signal.lead}: {text}"
        kept = truncate(text, self._settings.max_text_chars)
        provenance, cached_from = _provenance(objects)
        stated = verdict(objects, self.table.outcomes) if signal.outcome else None
        return MemoryRecord(
            id=_record_id(event),
            text=kept,
            source=signal.source,
            kind=signal.kind,
            timestamp=utc(event),
            quality_score=signal.quality if stated is None else stated.quality,
            session_id=id_of(event, "session_id", objects),
            metadata=_metadata(event, objects, frozenset(parts), len(text) if kept != text else None),
            title=_one_line(payloads.read_part(objects, self.table.titles[signal])),
            tags=_tags(objects),
            provenance=provenance or signal.provenance,
            cached_from=cached_from,
            run_id=run_id_of(event, objects),
            channel_id=id_of(event, "channel_id", objects),
            agent_id=id_of(event, "agent_id", objects),
            event_id=event.event_id,
            type=payloads.clean(event.event_type, "event_type"),
            phase=payloads.read_name(objects, "phase"),
        )

    def _read_parts(self, signal: Signal, objects: Objects) -> dict[str, str]:
        found = [(part, payloads.read_part(objects, part)) for part in self.table.parts[signal]]
        if not any(words for part, words in found if not part.accompanies):
            words = self._fallback_words(objects, {words for _, words in found})
            if not words:
                return {}
            found.insert(0, (self.table.fallback, words))
        labelled: dict[str, str] = {}
        for part, words in found:
            if words:
                labelled.setdefault(words, f"{part.label} {words}".lstrip())
        return labelled

    def _fallback_words(self, objects: Objects, without: Container[str]) -> str:
        words = payloads.read_part(objects, self.table.fallback)
        return words if any(map(str.isalpha, words)) else payloads.read_unknown(objects[0], without) or words

    def _marked_as_noise(self, objects: Objects) -> str | None:
        marks = (payloads.read_value(objects, name) for name in _MARKS)
        reasons = (self.table.noise_of_word(mark) for mark in marks if isinstance(mark, str))
        return next((reason for reason in reasons if reason), None)

    def _noise_of(self, text: str) -> str | None:
        if reason := self.table.noise_of_text(text):
            return reason
        if not any(map(str.isalpha, text)):
            return "no_text"
        return "too_short" if len(text) < self._settings.min_text_chars else None


def _record_id(event: Event) -> str:
    """Return a ULID derived from the event's time and id, so that a replay yields the same ULID."""
    milliseconds = max(0, int(utc(event).timestamp() * 1000)) & ((1 << 48) - 1)
    digest = sha256(event.event_id.encode(errors="surrogatepass")).digest()
    return str(ULID.from_bytes(milliseconds.to_bytes(6, "big") + digest[:10]))


def utc(event: Event) -> datetime:
    """Return the event's time in UTC. Raises `UnhandledEventError` if `datetime` cannot represent it."""
    try:
        return event.timestamp.astimezone(UTC)
    except OverflowError as error:
        raise UnhandledEventError(event.event_id, "timestamp: out of range") from error


def truncate(text: str, limit: int) -> str:
    """Truncate `text` to at most `limit` characters, never between a character and its combining marks."""
    while 0 < limit < len(text) and (combining(text[limit]) or _JOINER in text[limit - 1 : limit + 1]):
        limit -= 1
    return text[:limit]


def _metadata(event: Event, objects: Objects, without: frozenset[str], chars: int | None) -> dict[str, Any]:
    own = {
        "event_type": event.event_type,
        "actor_id": event.actor_id,
        "thread_id": event.thread_id,
        "correlation_id": event.correlation_id,
        "truncated_from_chars": chars,
    }
    for name, value in own.items():
        if isinstance(value, str):
            payloads.clean(value, name)
    return payloads.small_fields(objects, without) | {name: value for name, value in own.items() if value is not None}


def id_of(event: Event, name: str, objects: Objects) -> str | None:
    """Return the id in the field `name` of the event or its payload. Raises `NotTextError`."""
    own = getattr(event, name)
    return payloads.clean(own, name) or None if own is not None else payloads.read_name(objects, name)


def run_id_of(event: Event, objects: Objects) -> str | None:
    """Return the run id from the payload, or from an actor such as `conductor:run_7`. Raises `NotTextError`."""
    actor, colon, run_id = (event.actor_id or "").partition(":")
    of_actor = run_id if colon and actor == "conductor" else ""
    return payloads.read_name(objects, "run_id") or payloads.clean(of_actor, "actor_id") or None


def _one_line(title: str) -> str | None:
    return " ".join(title.split())[:_TITLE_CHARS] or None


def _tags(objects: Objects) -> tuple[str, ...]:
    tags = payloads.read_value(objects, "tags")
    if not isinstance(tags, list):
        return ()
    texts = (payloads.clean(tag, "tags")[:_TAG_CHARS] for tag in tags if isinstance(tag, str))
    return tuple(dict.fromkeys(tag for tag in texts if tag))[:_MAX_TAGS]


def _provenance(objects: Objects) -> tuple[Provenance | None, Provenance | None]:
    stated = payloads.read_value(objects, "provenance")
    said = stated.lower() if isinstance(stated, str) else None
    return parted_provenance(next((provenance for provenance in STATED_PROVENANCES if provenance == said), None))
