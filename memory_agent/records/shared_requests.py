"""Requests to the store of shared items, the protocol of the store, and the changes that followers receive.

A request names its caller; the store keeps only a pseudonym of the caller. The structs are the wire format between two
processes of one daemon, which have one version. The events `global.published`, `global.unpublished` and
`global.rated` name no author, text or figure; a removed item is named by its fingerprint alone.
"""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime
from typing import Any, ClassVar, Literal, Protocol

import msgspec

from memory_agent.errors import MemoryAgentError, UnavailableError
from memory_agent.records.memories import MemoryFilter, Mode
from memory_agent.records.shared import (
    ContentType,
    FoundItem,
    GlobalRecord,
    OfferedPattern,
    QualityMetrics,
    SharedContent,
    SharedFile,
    UnpublishReceipt,
)
from relay import SHARED_USER, Erasable, JournalEntry, Principal, Scope
from relay.access import PUBLIC

ChangeKind = Literal["published", "unpublished", "rated"]
_PREFIX = "global."


class SharedChange(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What became of an item: a version was published, it went from those whom `access_policy` admits, or has a rating.

    `item` is the fingerprint of its id. `item_id`, `version` and `content_type` are None of one that is gone. `rated`:
    another rating was released, which counts five users at least; none says when a rating was withdrawn.
    """

    kind: ChangeKind
    item: str
    access_policy: str
    at: datetime
    item_id: str | None = None
    version: str | None = None
    content_type: ContentType | None = None

    def to_event(self, event_id: str) -> dict[str, Any]:
        """Return the event for those whom the policy admits. `quotes`: it is erased with the item."""
        quotes = {"quotes": [self.item]} if self.item_id is not None else {}
        return {
            "event_id": event_id,
            "event_type": _PREFIX + self.kind,
            "user_id": SHARED_USER,
            "actor_id": "memory",
            "audience": self.access_policy,
            "payload": msgspec.to_builtins(self) | quotes,
        }

    @classmethod
    def in_entry(cls, entry: JournalEntry) -> SharedChange | None:
        """Return the change in a journal entry, None if it tells of none."""
        if entry.user_id != SHARED_USER or not entry.event_type.startswith(_PREFIX):
            return None
        with suppress(msgspec.DecodeError, UnicodeDecodeError):
            return _decoder.decode(entry.data).payload
        return None


class Untold(msgspec.Struct, frozen=True, kw_only=True):
    """Changes that followers have not been told of, with the ids of their events; they end with entry `through`.

    `has_more`: there were further entries when these were read.
    """

    changes: tuple[tuple[str, SharedChange], ...] = ()
    through: int = 0
    has_more: bool = False

    @property
    def events(self) -> list[dict[str, Any]]:
        """The events to publish, in order, once `outdated` ones are erased."""
        return [change.to_event(event_id) for event_id, change in self.changes]

    @property
    def outdated(self) -> Erasable | None:
        """The journal's former events of items that went, None if none did.

        Without those of these changes: after a crash the journal may have them, and would not take them again.
        """
        gone = frozenset(change.item for _, change in self.changes if change.item_id is None)
        kept_ids = frozenset(event_id for event_id, _ in self.changes)
        return Erasable(user_id=SHARED_USER, quoted=gone, kept_ids=kept_ids) if gone else None


class _Event(msgspec.Struct):
    payload: SharedChange


_decoder = msgspec.msgpack.Decoder(_Event)


class Rights(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a caller's key says: its organisations and tier (`org:NAME`, `tier:NAME`), and whether it administers."""

    groups: tuple[str, ...] = ()
    is_admin: bool = False

    @property
    def policies(self) -> tuple[str, ...]:
        """The policies that admit the caller, which are those under which it may publish."""
        return (PUBLIC, *self.groups)


NO_RIGHTS = Rights()


def rights_of(principal: Principal) -> Rights:
    """Return what the holder of a key may see and do of shared items."""
    return Rights(groups=tuple(sorted(principal.groups)), is_admin=Scope.SHARED_ADMIN in principal.scopes)


class Caller(msgspec.Struct, frozen=True, kw_only=True):
    """The caller of a request, and the rights of its key."""

    user_id: str
    rights: Rights = NO_RIGHTS


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """A request of a caller."""

    result: ClassVar[Any]
    """The type of the answer."""


class Publish(Ask, frozen=True, kw_only=True, tag=True):
    """Publish an item, or the next version of one. `data` are the bytes of its attachment."""

    result = GlobalRecord

    content: SharedContent
    data: bytes | None = None


class Offer(Ask, frozen=True, kw_only=True, tag=True):
    """Offer a pattern, which is shown when enough others offer the same."""

    result = OfferedPattern

    content: SharedContent


class ListOffers(Ask, frozen=True, kw_only=True, tag=True):
    """List what the caller offers, newest first."""

    result = list[OfferedPattern]


class Unpublish(Ask, frozen=True, kw_only=True, tag=True):
    """Take an item away, or an offer back."""

    result = UnpublishReceipt

    item_id: str


class Rate(Ask, frozen=True, kw_only=True, tag=True):
    """Rate a version of an item, the present one without a name; None takes the caller's rating back."""

    result = QualityMetrics

    item_id: str
    rating: float | None
    version: str | None = None


class ListOwn(Ask, frozen=True, kw_only=True, tag=True):
    """List the caller's items, newest first."""

    result = list[GlobalRecord]


class ShowItem(Ask, frozen=True, kw_only=True, tag=True):
    """Return an item by its id, as its readers see it."""

    result = GlobalRecord

    item_id: str


class Fetch(Ask, frozen=True, kw_only=True, tag=True):
    """Fetch an item's attachment."""

    result = SharedFile

    item_id: str


class OwnName(Ask, frozen=True, kw_only=True, tag=True):
    """Return what others see as the author of the caller's items; None where there is no store."""

    result: ClassVar[Any] = str | None


class SetName(Ask, frozen=True, kw_only=True, tag=True):
    """Set the name that others see; None returns to the pseudonym. The answer is the name from now on."""

    result = str

    name: str | None


class SharedPart(msgspec.Struct, frozen=True, kw_only=True):
    """How much of what users share is one user's."""

    items: int = 0
    offers: int = 0
    ratings: int = 0


class ForgetUser(Ask, frozen=True, kw_only=True, tag=True):
    """Take away a user's items, offers, name, ratings and part in every figure, or only count them with `dry_run`."""

    result = SharedPart

    dry_run: bool = False


class SearchItems(Ask, frozen=True, kw_only=True, tag=True):
    """Search the items that the caller may see. Nothing of the request is kept.

    `filter` has only what an item has: kinds, tags, times, the least cosine. `of_others` leaves out the caller's own.
    Without `is_marked` the caller adds the highlights of the few items that it shows (`Query.is_marked`).
    """

    result = list[FoundItem]

    query: str
    top_k: int
    content_types: tuple[ContentType, ...] = ()
    filter: MemoryFilter | None = None
    mode: Mode | None = None
    min_relevance: float | None = None
    reference_time: datetime | None = None
    with_embedding: bool = False
    of_others: bool = False
    is_marked: bool = True


class ReportedItem(msgspec.Struct, frozen=True, kw_only=True):
    """What happened with one version since the last report: retrievals, uses, and the sum of the uses' qualities.

    A quality is 0 to 1 each, so `quality` is at most `uses`. Uses may exceed retrievals: a run may end, and so count,
    in a later report than its recall.
    """

    item_id: str
    version: str
    retrievals: int = 0
    uses: int = 0
    quality: float = 0.0


class Report(Ask, frozen=True, kw_only=True, tag=True):
    """One user's report: counts and sums. `number` is 1 or more and grows with each report of this user, gaps allowed.

    A report counts once, and not after one with a higher number. So a sender repeats a report, unchanged and under its
    number, until it is answered, before it sends the next. The answer is how many of the items counted.
    """

    result = int

    number: int
    items: tuple[ReportedItem, ...]


class ReadLog(Ask, frozen=True, kw_only=True, tag=True):
    """Drop the entries of the publish log up to number `told`, and return what the next ones are to tell followers.

    Only the daemon asks, by itself: the answer is for nobody's key.
    """

    result = Untold

    told: int = 0


AnyAsk = (
    Publish
    | Offer
    | ListOffers
    | Unpublish
    | Rate
    | ListOwn
    | ShowItem
    | Fetch
    | OwnName
    | SetName
    | ForgetUser
    | SearchItems
    | Report
    | ReadLog
)


class PendingItems(Protocol):
    """A search under way."""

    def result(self, timeout_s: float) -> list[FoundItem]:
        """Wait for the items. Raises `MemoryAgentError`."""
        ...


class SharedStore(Protocol):
    """The shared items of a deployment, as a user's memory reaches them."""

    def ask(self, caller: Caller, ask: AnyAsk, timeout_s: float) -> Any:
        """Return the answer, of the type `ask.result`. Raises `MemoryAgentError`."""
        ...

    def begin_search(self, caller: Caller, ask: SearchItems, timeout_s: float) -> PendingItems:
        """Begin a search, beside which the caller's own memory is searched."""
        ...


class _Failed:
    """A search that could not begin."""

    def __init__(self, error: MemoryAgentError) -> None:
        self._error = error

    def result(self, timeout_s: float) -> list[FoundItem]:
        """Raise the reason."""
        raise self._error


def begin_search(store: SharedStore | None, caller: Caller, ask: SearchItems, timeout_s: float) -> PendingItems:
    """Begin a search; one of a store that is away fails when its result is wanted."""
    if store is None:
        return _Failed(UnavailableError("this memory was opened without a store of shared items"))
    try:
        return store.begin_search(caller, ask, timeout_s)
    except MemoryAgentError as error:
        return _Failed(error)


LARGEST_REPORT = 20
"""Items that one report may name."""
LARGEST_COUNT = 10_000
"""Retrievals, and uses, of one version in one report."""
_OF_A_USER = ("session_id", "run_id", "channel_id", "agent_id", "type", "phase", "metadata", "sources", "provenance")


def filter_for_items(filter: MemoryFilter | None) -> tuple[bool, MemoryFilter | None]:
    """Return whether a shared item can match a filter of memories, and what of the filter is about items.

    What names a session, a run or an own label matches no item of others; and what it excludes is nobody's business.
    """
    if filter is None:
        return True, None
    if any(getattr(filter, name) for name in _OF_A_USER) or filter.min_quality is not None:
        return False, None
    return True, MemoryFilter(
        kinds=filter.kinds, since=filter.since, until=filter.until, tags=filter.tags, min_score=filter.min_score
    )
