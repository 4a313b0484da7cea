"""Public data types for shared items: items, their released statistics, the steps of publishing, and events.

They are serialised as MessagePack or JSON with field names: add new fields last with defaults, and never change the
type of a field.
"""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, get_args

import msgspec

from relay import SHARED_USER, described

if TYPE_CHECKING:
    from relay import JournalEntry

ContentType = Literal["document", "agent", "app", "pattern"]
MentionKind = Literal["person", "account", "email", "path", "address", "phone", "card", "iban"]
ChangeKind = Literal["published", "unpublished", "rated"]
CONTENT_TYPES: tuple[ContentType, ...] = get_args(ContentType)
_PREFIX = "global."


class QualityMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """The released statistics of one version of an item. They are empty until enough users contribute.

    `avg_trajectory_score` is the mean quality of the runs that used the version, shrunk towards the prior.
    `usage_count` counts retrievals, `used_count` counts uses, and `distinct_users` counts the users who used the
    version.
    """

    avg_trajectory_score: float | None = None
    usage_count: int = 0
    used_count: int = 0
    distinct_users: int = 0
    user_rating: float | None = None
    raters: int = 0


class Attachment(msgspec.Struct, frozen=True, kw_only=True):
    """The description of an item's file, without its bytes."""

    name: str
    size_bytes: int
    sha256: str


class GlobalRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The public form of a shared item.

    `author_id` is a pseudonym, stable in this deployment. `author` is the name that the author chose, with a part of
    `author_id` appended, or else `author_id`. `access_policy` is `public`, `org:NAME` or `tier:NAME`. `embedding` is a
    unit vector (d,), or None if it was not requested. `size_bytes` counts towards the author's quota
    (`shared.bytes_per_author`). `offered_by` is a lower bound on the number of users who offered the item, or 0 if one
    user published it.
    """

    id: str
    content_type: ContentType
    title: str
    summary: str
    author_id: str
    author: str
    published_at: datetime
    version: str
    access_policy: str = "public"
    tags: tuple[str, ...] = ()
    body: str | None = None
    reference: str | None = None
    attachment: Attachment | None = None
    quality_metrics: QualityMetrics = QualityMetrics()
    embedding: list[float] | None = None
    size_bytes: int = 0
    offered_by: int = 0


class SharedOrigin(msgspec.Struct, frozen=True, kw_only=True):
    """The author and the released statistics of a shared memory in an answer.

    `is_proven`: whether enough different users used the item in runs that succeeded more often than average.
    `is_worse`: whether the released mean quality of these runs is below the usual mean. If the memory is the user's own
    and has the same text as a shared item, `item_id` is the id of that item.
    """

    author: str
    version: str
    content_type: ContentType
    access_policy: str
    published_at: datetime
    metrics: QualityMetrics = QualityMetrics()
    is_proven: bool = False
    is_worse: bool = False
    item_id: str = ""
    reference: str | None = None
    attachment: Attachment | None = None


class FoundItem(msgspec.Struct, frozen=True, kw_only=True):
    """A shared item in an answer.

    The scores are as in `RetrievedMemory`, and `is_proven` and `is_worse` are as in `SharedOrigin`. `passage_at` is the
    offset of the `highlights` in the text that consists of the summary, a blank line and the body. `boost` is the part
    of `sona_score` that past use adds.
    """

    item: GlobalRecord
    score: float | None
    sona_score: float
    relevance: float | None = None
    highlights: tuple[str, ...] = ()
    is_proven: bool = False
    is_worse: bool = False
    passage_at: int = 0
    boost: float = 0.0


class Mention(msgspec.Struct, frozen=True, kw_only=True):
    """Words in a preview that may disclose more than the author intends, such as a person, a place or a machine."""

    kind: MentionKind
    text: str
    field: str


class SharedContent(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that leaves a user's memory when an item is published, except the bytes of the attachment."""

    item_id: str
    content_type: ContentType
    title: str
    summary: str
    version: str
    access_policy: str = "public"
    tags: tuple[str, ...] = ()
    body: str | None = None
    reference: str | None = None
    attachment: Attachment | None = None


class FormerVersion(msgspec.Struct, frozen=True):
    """The version and title that an item's next version replaces."""

    version: str
    title: str


class PublishPreview(msgspec.Struct, frozen=True, kw_only=True):
    """The exact content that `confirm` would send. `masked` counts the masked secrets of each kind.

    `mentions` are words to review before publishing. `memory_state` is a digest of the memory `memory_id`; if the
    memory changes, a new preview is required. `digest` is the SHA-256 of the content and its user. With `is_offer`, the
    preview is for `offer`. `replaces` is the version that was published at the time of the preview. Only `user_id` can
    confirm the preview.
    """

    content: SharedContent
    digest: str
    made_at: datetime
    masked: dict[str, int] = {}
    mentions: tuple[Mention, ...] = ()
    memory_id: str | None = None
    memory_state: str | None = None
    is_offer: bool = False
    replaces: FormerVersion | None = None
    user_id: str = ""


class OfferedPattern(msgspec.Struct, frozen=True, kw_only=True):
    """A pattern that this user offers. Nobody else can see it. Its id, for `unpublish`, is `content.item_id`.

    `proposed_as` is the id of the item created from this offer and other users' matching offers, if any.
    """

    content: SharedContent
    offered_at: datetime
    proposed_as: str | None = None


class UnpublishReceipt(msgspec.Struct, frozen=True, kw_only=True):
    """The result of `unpublish`. `found` is false if the caller has no such item, even if another user does.

    Answers no longer contain the item; the next upkeep removes its bytes from the files.
    """

    item_id: str
    found: bool
    at: datetime
    versions: tuple[str, ...] = ()


class SharedFile(msgspec.Struct, frozen=True, kw_only=True):
    """An item's attachment with its bytes."""

    attachment: Attachment
    data: bytes


class SharedChange(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A change to an item: a version was published or rated, or the item was removed for the readers of
    `access_policy`.

    `item` is the fingerprint of the item's id. `item_id`, `version` and `content_type` are None if the item was
    removed. `rated` means that a new rating was released.
    """

    kind: ChangeKind
    item: str
    access_policy: str
    at: datetime
    item_id: str | None = None
    version: str | None = None
    content_type: ContentType | None = None

    def to_event(self, event_id: str) -> dict[str, Any]:
        """Return the event for readers that the policy admits. Because of its `quotes`, it is erased with the item."""
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
        if entry.user_id != SHARED_USER or not entry.event_type.startswith(_PREFIX):
            return None
        with suppress(msgspec.DecodeError, UnicodeDecodeError):
            return _decoder.decode(entry.data).payload
        return None


class _Event(msgspec.Struct):
    payload: SharedChange


_decoder = msgspec.msgpack.Decoder(described(_Event))
