"""Requests from a user's memory to the store of shared items, and the store's protocol.

A request names its caller, but the store records only the caller's pseudonym. The structs are the wire format between
two processes of one daemon. Both processes have the same `verbs.protocol.HOST_PROTOCOL`.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any, Generic, Protocol, TypeVar, get_args

import msgspec

from memory_agent.records.memories import MemoryFilter, Mode
from memory_agent.records.shared import (
    ContentType,
    FoundItem,
    GlobalRecord,
    OfferedPattern,
    QualityMetrics,
    SharedChange,
    SharedContent,
    SharedFile,
    UnpublishReceipt,
)
from relay import SHARED_USER, Erasable, Principal, Scope
from relay.access import PUBLIC

LARGEST_REPORT = 20
"""Maximum number of items in a report."""
LARGEST_COUNT = 10_000
"""Maximum number of retrievals, and maximum number of uses, of one version in a report."""

Answer = TypeVar("Answer")


class Rights(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The rights of a caller's key: its organisations and tier (`org:NAME`, `tier:NAME`), and any admin right."""

    groups: tuple[str, ...] = ()
    is_admin: bool = False

    @property
    def policies(self) -> tuple[str, ...]:
        return (PUBLIC, *self.groups)


NO_RIGHTS = Rights()


def rights_of(principal: Principal) -> Rights:
    return Rights(groups=tuple(sorted(principal.groups)), is_admin=Scope.SHARED_ADMIN in principal.scopes)


class Caller(msgspec.Struct, frozen=True, kw_only=True):
    """The caller of a request, and the rights of its key."""

    user_id: str
    rights: Rights = NO_RIGHTS


class SharedRequest(msgspec.Struct, Generic[Answer], frozen=True, kw_only=True):
    """A caller's request."""

    @property
    def result(self) -> Any:
        """The type of the answer, which is the argument of the generic type."""
        request: Any = type(self)
        return get_args(request.__orig_bases__[0])[0]


class Publish(SharedRequest[GlobalRecord], frozen=True, kw_only=True, tag=True):
    """Publish an item, or the next version of an item. `data` is its attachment."""

    content: SharedContent
    data: bytes | None = None


class Offer(SharedRequest[OfferedPattern], frozen=True, kw_only=True, tag=True):
    """Offer a pattern, which is published when enough other users offer the same pattern."""

    content: SharedContent


class ListOffers(SharedRequest[list[OfferedPattern]], frozen=True, kw_only=True, tag=True):
    """List the caller's offers, newest first."""


class Unpublish(SharedRequest[UnpublishReceipt], frozen=True, kw_only=True, tag=True):
    """Remove an item or withdraw an offer."""

    item_id: str


class Rate(SharedRequest[QualityMetrics], frozen=True, kw_only=True, tag=True):
    """Rate a version of an item, by default the current one. None removes the caller's rating."""

    item_id: str
    rating: float | None
    version: str | None = None


class ListOwn(SharedRequest[list[GlobalRecord]], frozen=True, kw_only=True, tag=True):
    """List the caller's items, newest first."""


class ShowItem(SharedRequest[GlobalRecord], frozen=True, kw_only=True, tag=True):
    """Return the public form of the item with this id."""

    item_id: str


class Fetch(SharedRequest[SharedFile], frozen=True, kw_only=True, tag=True):
    """Fetch an item's attachment."""

    item_id: str


class OwnName(SharedRequest[str | None], frozen=True, kw_only=True, tag=True):
    """Return the author name that others see on the caller's items, or None if there is no store."""


class SetName(SharedRequest[str], frozen=True, kw_only=True, tag=True):
    """Set the author name that others see; None restores the pseudonym. The result is the new name."""

    name: str | None


class SharedPart(msgspec.Struct, frozen=True, kw_only=True):
    """How many items, offers and ratings a user has in the store."""

    items: int = 0
    offers: int = 0
    ratings: int = 0


class ForgetUser(SharedRequest[SharedPart], frozen=True, kw_only=True, tag=True):
    """Remove a user's items, offers, name, ratings and statistics; with `dry_run`, only count them."""

    dry_run: bool = False


class SentVector(msgspec.Struct, frozen=True, kw_only=True):
    """The vectors of a query and of its words, as little-endian bytes (`recall.query_vector.QueryVector`)."""

    raw: bytes
    stamp: str
    words: tuple[str, ...] = ()
    word_vectors: bytes = b""
    words_stamp: str = ""


NO_VECTOR = SentVector(raw=b"", stamp="")
"""Sent if the embedder was late, so that the store searches by words without waiting for it again."""


class SearchItems(SharedRequest[list[FoundItem]], frozen=True, kw_only=True, tag=True):
    """Search the items that the caller may see. The request is not stored.

    `filter` contains only fields that items have. `of_others` excludes the caller's own items. Without `is_marked`, the
    caller adds highlights to the items that it shows. With a `vector`, the store embeds the query only if its items'
    vectors are from a different model.
    """

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
    vector: SentVector | None = None


class ReportedItem(msgspec.Struct, frozen=True, kw_only=True):
    """The use of one version since the last report: retrievals, uses, and the sum of the qualities (0 to 1) of these
    uses.

    Uses may exceed retrievals, because a run's end may be reported later than its recall.
    """

    item_id: str
    version: str
    retrievals: int = 0
    uses: int = 0
    quality: float = 0.0


class Report(SharedRequest[int], frozen=True, kw_only=True, tag=True):
    """One user's report on the use of items. `number` is at least 1, and increases with each of the user's reports.

    A report is counted once, and never after a report with a higher number. A sender therefore repeats an
    unacknowledged report unchanged before it sends the next report. The result is the number of items counted.
    """

    number: int
    items: tuple[ReportedItem, ...]


class PendingChanges(msgspec.Struct, frozen=True, kw_only=True):
    """The changes that followers have not received yet, each with the id of its event. `through` is the last entry's
    number.
    """

    changes: tuple[tuple[str, SharedChange], ...] = ()
    through: int = 0
    has_more: bool = False

    @property
    def events(self) -> list[dict[str, Any]]:
        """The events to publish, in order, after the `outdated` events are erased."""
        return [change.to_event(event_id) for event_id, change in self.changes]

    @property
    def outdated(self) -> Erasable | None:
        """The earlier journal events of removed items, or None. Excludes the events of `changes`, which the journal may
        already contain.
        """
        gone = frozenset(change.item for _, change in self.changes if change.item_id is None)
        kept_ids = frozenset(event_id for event_id, _ in self.changes)
        return Erasable(user_id=SHARED_USER, quoted=gone, kept_ids=kept_ids) if gone else None


class ReadLog(SharedRequest[PendingChanges], frozen=True, kw_only=True, tag=True):
    """Delete the entries of the publish log up to number `after`, and return the next changes for followers.

    Only the daemon can send this request.
    """

    after: int = 0


AnySharedRequest = (
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


PendingItems = Callable[[float], list[FoundItem]]
"""Returns the items of a search in progress; blocks for at most this many seconds. Raises `MemoryAgentError`."""


class SharedStore(Protocol):
    """The interface through which a user's memory accesses a deployment's shared items."""

    def ask(self, caller: Caller, ask: SharedRequest[Answer], timeout_s: float) -> Answer:
        """Return the answer to `ask`, of type `ask.result`. Raises `MemoryAgentError`."""

    def begin_search(self, caller: Caller, ask: SearchItems, timeout_s: float) -> PendingItems:
        """Start a search that runs while the caller searches its own memory."""
