"""The data types of an erasure: the requested selection, the planned intent, and the receipt. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from hashlib import sha256
from itertools import chain
from typing import TYPE_CHECKING, Any, Self

import msgspec

from memory_agent.errors import InvalidInputError
from memory_agent.recall.query import check_filter
from memory_agent.records.arguments import check_not_blank, check_text, converted
from memory_agent.records.memories import Exclusion, MemoryFilter, MemoryRecord, is_of_provenance
from memory_agent.records.metadata import matches
from memory_agent.records.shared_requests import SharedPart
from relay import Erasable, Erased

if TYPE_CHECKING:
    from memory_agent.storage.snapshot import Snapshot  # imports numpy and more

NOT_COVERED = (
    "backups and exports that are not named above (a restore here repeats the erasure), files moved aside "
    "(replaced-*), and files on cluster machines that are down, until those machines join again",
    "unsent events in the spools and windows of publishers, and of hooks on other machines",
    "quarantined bytes that are not an event and name no user",
    "the ids of events, sessions and runs, which are needed to recognise duplicates and owners",
    "items published from these memories: `shared unpublish` or erasing the user removes them; the next "
    "upkeep removes their bytes from the files",
)
_OF_USER = "the user's id in logs, and the user's keys, which remain valid until `keys revoke`"


class Selection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The memories to erase: by id, by session, or by filter.

    `expired` selects expired memories, and `everything` selects all of the user's data. Neither can be combined with
    another field.
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
        """Build a selection from the arguments of `Erasure.erase`. Raises `InvalidInputError`."""
        if isinstance(record_ids, str):
            raise InvalidInputError("ids", "must be a list of ids")
        if isinstance(filter, Mapping):
            filter = converted("filter", filter, MemoryFilter)
        return cls(ids=tuple(record_ids), session_id=session_id, filter=filter)

    def check(self) -> None:
        """Raise `InvalidInputError` for a selection that is empty or would accidentally match everything."""
        if self.expired or self.everything:
            if self not in (Selection(expired=True), Selection(everything=True)):
                raise InvalidInputError("selection", "neither expired nor everything can be combined with other fields")
            return
        for record_id in self.ids:
            check_text("ids", record_id)
        if self.session_id is not None:
            check_not_blank("session_id", self.session_id)
        if self.filter is not None:
            _check(self.filter)
        if not self.ids and self.session_id is None and self.filter is None:
            raise InvalidInputError("selection", "names nothing to erase")

    def includes(self, record: MemoryRecord) -> bool:
        """Whether the selection includes a memory; ignores `expired`."""
        return (
            self.everything
            or record.id in self.ids
            or (self.session_id is not None and record.session_id == self.session_id)
            or (self.filter is not None and passes(record, self.filter))
        )


def _check(filter: MemoryFilter) -> None:
    """Raise `InvalidInputError` for a filter that matches everything or contains an empty name. Recall ignores empty
    names.
    """
    for place, part in (("filter", filter), ("filter.exclude", filter.exclude or Exclusion())):
        for field, value in msgspec.structs.asdict(part).items():
            if value == "" or (isinstance(value, tuple) and "" in value):
                raise InvalidInputError(f"{place}.{field}", "contains an empty name")
    if check_filter(filter) == MemoryFilter():
        raise InvalidInputError("filter", "is empty, which would erase everything")
    if filter.min_score is not None:
        raise InvalidInputError("filter", "min_score cannot be used here, because an erasure has no query")


def with_excluded_memories(filter: MemoryFilter, snapshot: Snapshot) -> MemoryFilter:
    """Return the filter with each excluded event replaced by the id of its memory. This is needed because a record
    names only the memory's first event.
    """
    exclude = filter.exclude
    if exclude is None or not exclude.events:
        return filter
    rows = [row for row in map(snapshot.row_of_event, exclude.events) if row is not None]
    ids = [record.id for record in map(snapshot.record, rows) if record is not None]
    return msgspec.structs.replace(filter, exclude=msgspec.structs.replace(exclude, records=(*exclude.records, *ids)))


def passes(record: MemoryRecord, wanted: MemoryFilter) -> bool:
    """Whether a memory matches a filter, by the rules of recall; ignores `min_score`."""
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
        and (not wanted.provenance or is_of_provenance(record.stated_provenance, wanted.provenance))
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


class Intent(msgspec.Struct, frozen=True, kw_only=True):
    """A planned erasure: the memories and the session to erase, and the memories' events.

    `expired` contains the ids of expired memories by retention rule. With `everything`, the whole user is erased. With
    `with_journal`, the process that owns the journal must still erase the events from it.
    """

    started_at: datetime
    record_ids: tuple[str, ...] = ()
    event_ids: tuple[str, ...] = ()
    session_id: str | None = None
    run_ids: tuple[str, ...] = ()
    with_journal: bool = False
    expired: dict[str, tuple[str, ...]] = {}
    everything: bool = False

    @property
    def all_ids(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((*self.record_ids, *chain.from_iterable(self.expired.values()))))

    def joined_with(self, later: Intent) -> Intent:
        return Intent(
            started_at=self.started_at,
            record_ids=_union(self.record_ids, later.record_ids),
            event_ids=_union(self.event_ids, later.event_ids),
            session_id=later.session_id or self.session_id,
            run_ids=_union(self.run_ids, later.run_ids),
            with_journal=self.with_journal or later.with_journal,
            expired={
                rule: _union(self.expired.get(rule, ()), later.expired.get(rule, ()))
                for rule in self.expired | later.expired
            },
            everything=self.everything or later.everything,
        )

    def without(self, record_id: str) -> Intent:
        expired = {rule: tuple(one for one in ids if one != record_id) for rule, ids in self.expired.items()}
        record_ids = tuple(one for one in self.record_ids if one != record_id)
        return msgspec.structs.replace(self, record_ids=record_ids, expired=expired)

    def covers_journal_of(self, joined: Intent) -> bool:
        """Whether this intent contains all journal events of `joined`, a union of intents."""
        return not joined.with_journal or (
            self.with_journal
            and self.everything == joined.everything
            and set(joined.event_ids) <= set(self.event_ids)
            and set(joined.run_ids) <= set(self.run_ids)
            and joined.session_id in (None, self.session_id)
        )


def _union(some: Iterable[str], more: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*some, *more)))


def intent_for_absent_user(selection: Selection, now: datetime) -> Intent:
    """Return the intent for a user without a store: the session's journal events. Raises `InvalidInputError`."""
    selection.check()
    return Intent(started_at=now, session_id=selection.session_id)


def erasable(user_id: str, intent: Intent) -> Erasable:
    """Return the events to erase from the journal: the events of the memories, of the session and of its runs, and all
    events that quote one of the memories.
    """
    return Erasable(
        user_id=user_id,
        everything=intent.everything,
        event_ids=frozenset(intent.event_ids),
        session_ids=frozenset() if intent.session_id is None else frozenset({intent.session_id}),
        run_ids=frozenset(intent.run_ids),
        quoted=frozenset(intent.all_ids),
    )


class ErasureReceipt(msgspec.Struct, frozen=True, kw_only=True):
    """What was erased, as counts and a hash, without text. If `complete`, no file contains the erased data.

    Otherwise, `reason` states what remains; the remaining data is removed when the store is next opened, or at the next
    upkeep. `ids_sha256` is the SHA-256 of the sorted ids, one per line. `by_rule` counts expired memories by retention
    rule. `unknown_ids` are requested ids without a memory. `unpublished` counts the items that the user had shared.
    `offers` counts the patterns that the user offered. `ratings` counts the versions of others' items that the user
    rated.
    """

    user_id: str
    erased_at: datetime
    dry_run: bool
    complete: bool
    memories: int
    ids_sha256: str
    events: int = 0
    quarantined: int = 0
    published: int = 0
    not_covered: tuple[str, ...] = NOT_COVERED
    reason: str | None = None
    by_rule: dict[str, int] = {}
    unknown_ids: tuple[str, ...] = ()
    unpublished: int = 0
    offers: int = 0
    ratings: int = 0

    def of_ids(self, asked: Iterable[str], known: Collection[str]) -> ErasureReceipt:
        return msgspec.structs.replace(self, unknown_ids=tuple(sorted(set(asked).difference(known))))

    @classmethod
    def of(
        cls,
        user_id: str,
        record_ids: Collection[str],
        now: datetime,
        *,
        dry_run: bool = False,
        reason: str | None = None,
        expired: Mapping[str, Collection[str]] | None = None,
    ) -> ErasureReceipt:
        """Return the receipt for these memories; it is incomplete if there is a `reason`."""
        return cls(
            user_id=user_id,
            erased_at=now,
            dry_run=dry_run,
            complete=not dry_run and reason is None,
            memories=len(record_ids),
            ids_sha256=digest_of(record_ids),
            reason=reason,
            by_rule={rule: len(ids) for rule, ids in (expired or {}).items()},
        )


def with_journal(receipt: ErasureReceipt, erased: Erased, *, is_compact: bool) -> ErasureReceipt:
    """Return the receipt with the count of erased journal events. The receipt is incomplete until the journal is
    compacted."""
    is_waiting = not receipt.dry_run and not is_compact
    return msgspec.structs.replace(
        receipt,
        events=len(erased.seqs),
        quarantined=erased.quarantined,
        complete=receipt.complete and not is_waiting,
        reason=receipt.reason or ("the relay's next upkeep compacts the journal file" if is_waiting else None),
    )


def with_shared(receipt: ErasureReceipt, part: SharedPart) -> ErasureReceipt:
    return msgspec.structs.replace(
        receipt,
        unpublished=part.items,
        offers=part.offers,
        ratings=part.ratings,
        not_covered=(*NOT_COVERED[:-1], _OF_USER),
    )


def left_shared(code: str) -> str:
    """Return the reason for an incomplete receipt if the store of shared items failed with this error code."""
    return f"some files still contain the user's shared items ({code}); fix this, then erase the user again"


def left_in_journal(code: str) -> str:
    """Return the reason for an incomplete receipt if the journal failed with this error code and still has events that
    refer to the user's shared items.
    """
    return (
        f"the journal still contains events that refer to the user's shared items ({code}); "
        "a daemon removes them when it starts or at its next upkeep"
    )


def digest_of(record_ids: Iterable[str]) -> str:
    return sha256("".join(f"{record_id}\n" for record_id in sorted(record_ids)).encode()).hexdigest()
