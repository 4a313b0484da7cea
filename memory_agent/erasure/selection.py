"""The selection of memories to erase: by id, session or filter, what expired, or everything. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Self

import msgspec

from memory_agent.erasure.intent_log import Intent
from memory_agent.errors import InvalidInputError
from memory_agent.recall.query import check_filter
from memory_agent.records.arguments import check_text, located
from memory_agent.records.memories import Exclusion, MemoryFilter, MemoryRecord
from memory_agent.records.metadata import matches

if TYPE_CHECKING:
    from memory_agent.storage.snapshot import Snapshot  # imports the engines


class Selection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Memories to erase: with these ids, of this session, or matching the filter; their union.

    Or, alone: `expired`, what a retention rule says has expired; `everything`, the whole user.
    """

    ids: tuple[str, ...] = ()
    session_id: str | None = None
    filter: MemoryFilter | None = None
    expired: bool = False
    everything: bool = False

    @classmethod
    def of(
        cls,
        record_ids: Sequence[str] = (),
        session_id: str | None = None,
        filter: MemoryFilter | Mapping[str, Any] | None = None,
    ) -> Self:
        """Build from the arguments of `Erasure.erase`. Raises `InvalidInputError`."""
        if isinstance(record_ids, str):
            raise InvalidInputError("ids", "must be a list of ids")
        if isinstance(filter, Mapping):
            try:
                filter = msgspec.convert(filter, MemoryFilter)
            except msgspec.ValidationError as error:
                field, reason = located(str(error), MemoryFilter)
                raise InvalidInputError(f"filter.{field}".rstrip("."), reason) from error
        return cls(ids=tuple(record_ids), session_id=session_id, filter=filter)

    def check(self) -> None:
        """Raise `InvalidInputError` for a selection of nothing, or of everything by accident."""
        if self.expired or self.everything:
            if self not in (Selection(expired=True), Selection(everything=True)):
                raise InvalidInputError("selection", "combines expired or everything with something else")
            return
        for record_id in self.ids:
            check_text("ids", record_id)
        if self.session_id is not None:
            check_text("session_id", self.session_id)
            if not self.session_id.strip():
                raise InvalidInputError("session_id", "is empty")
        if self.filter is not None:
            _check(self.filter)
        if not self.ids and self.session_id is None and self.filter is None:
            raise InvalidInputError("selection", "names nothing to erase")

    def takes(self, record: MemoryRecord) -> bool:
        """Whether a memory is selected; `expired` aside."""
        return (
            self.everything
            or record.id in self.ids
            or (self.session_id is not None and record.session_id == self.session_id)
            or (self.filter is not None and passes(record, self.filter))
        )


def _check(filter: MemoryFilter) -> None:
    """Raise `InvalidInputError` for a filter of everything, or with an empty name, which a recall ignores."""
    for place, part in (("filter", filter), ("filter.exclude", filter.exclude or Exclusion())):
        for field, value in msgspec.structs.asdict(part).items():
            if value == "" or (isinstance(value, tuple) and "" in value):
                raise InvalidInputError(f"{place}.{field}", "has an empty name")
    if check_filter(filter) == MemoryFilter():
        raise InvalidInputError("filter", "is empty, and would erase everything")
    if filter.min_score is not None:
        raise InvalidInputError("filter", "min_score asks for a query, and an erasure has none")


def intent_for_absent_user(selection: Selection, now: datetime) -> Intent:
    """Return the intent for a user without a store: the session's events in the journal. Raises `InvalidInputError`."""
    selection.check()
    return Intent(started_at=now, session_id=selection.session_id)


def with_excluded_memories(filter: MemoryFilter, snapshot: Snapshot) -> MemoryFilter:
    """Return the filter with the memories that its excluded events lead to excluded by id, for `passes`.

    Several events may lead to one memory, which names the first alone.
    """
    exclude = filter.exclude
    if exclude is None or not exclude.events:
        return filter
    rows = [row for row in map(snapshot.row_of_event, exclude.events) if row is not None]
    ids = [record.id for record in map(snapshot.record, rows) if record is not None]
    return msgspec.structs.replace(filter, exclude=msgspec.structs.replace(exclude, records=(*exclude.records, *ids)))


def passes(record: MemoryRecord, wanted: MemoryFilter) -> bool:
    """Whether a memory matches a filter as in a recall, `min_score` aside."""
    if wanted.exclude is not None and _is_excluded(record, wanted.exclude):
        return False
    names = ("session_id", "run_id", "channel_id", "agent_id", "type", "phase")
    return (
        (not wanted.kinds or record.kind in wanted.kinds)
        and (not wanted.sources or record.source in wanted.sources)
        and (wanted.since is None or record.timestamp >= wanted.since)
        and (wanted.until is None or record.timestamp < wanted.until)
        and all(getattr(wanted, one) in (None, getattr(record, one)) for one in names)
        and (wanted.in_channel is None or record.channel_id in (wanted.in_channel, None))
        and (not wanted.tags or not set(wanted.tags).isdisjoint(record.tags))
        and (not wanted.provenance or record.provenance in wanted.provenance)
        and (
            wanted.min_quality is None
            or (record.quality_score is not None and record.quality_score >= wanted.min_quality)
        )
        and matches(record.metadata, wanted.metadata)
    )


def _is_excluded(record: MemoryRecord, exclude: Exclusion) -> bool:
    return (
        record.id in exclude.records
        or record.event_id in exclude.events
        or record.session_id in exclude.sessions
        or record.run_id in exclude.runs
        or (exclude.since is not None and record.timestamp >= exclude.since)
    )
