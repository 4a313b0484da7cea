"""Public data types of what users share: items, what is known of their worth, and the steps of publishing one.

They are serialised as MessagePack or JSON with field names: add new fields last with defaults, and never change the
type of a field.
"""

from __future__ import annotations

from datetime import datetime
from typing import Literal, get_args

import msgspec

ContentType = Literal["document", "agent", "app", "pattern"]
MentionKind = Literal["person", "account", "email", "path", "address"]
CONTENT_TYPES: tuple[ContentType, ...] = get_args(ContentType)


class QualityMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """The released figures of one version of an item: nothing before enough different users stand behind them.

    `avg_trajectory_score` is the mean quality of the runs that used it, shrunk to the prior. `usage_count` counts
    retrievals, `used_count` uses, `distinct_users` who used it. `user_rating` is the mean of explicit ratings.
    """

    avg_trajectory_score: float | None = None
    usage_count: int = 0
    used_count: int = 0
    distinct_users: int = 0
    user_rating: float | None = None
    raters: int = 0


class Attachment(msgspec.Struct, frozen=True, kw_only=True):
    """The file of an item, without its bytes."""

    name: str
    size_bytes: int
    sha256: str


class GlobalRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A shared item as its readers see it.

    `author` is the name that the author chose, with a part of `author_id` at its end, else `author_id`: a pseudonym,
    stable in this deployment. Neither is the user's id. `access_policy` is `public`, `org:NAME` or `tier:NAME`.
    `embedding` is a unit vector (d,), None unless requested. `size_bytes` counts towards what the author may publish
    (`shared.bytes_per_author`). `offered_by`: how many users offered it, at least, where many did ("5 users" is their
    `author` then); 0 for what one user published.
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
    """Who shared a memory of an answer, and what is known of its worth.

    `is_proven`: enough different users used it, and the runs of theirs went better than runs usually do. `is_worse`:
    the released mean of theirs is below what is usual. `item_id` is what `shared.item` and `shared.attachment` take: of
    a memory of one's own that says the same, the id of the item.
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
    """A shared item in an answer. The scores and `relevance` mean what they mean for a memory (`RetrievedMemory`),
    `is_proven` and `is_worse` what they mean in `SharedOrigin`.

    `passage_at` is where its `highlights` begin in the summary and the body, with an empty line between the two.
    `boost` is the part of `sona_score` that past use adds.
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
    """Words of a preview that may tell more than its author means to: who, where or on which machine."""

    kind: MentionKind
    text: str
    field: str


class SharedContent(msgspec.Struct, frozen=True, kw_only=True):
    """All that leaves a user when an item is published, and nothing else does; the bytes of the attachment aside."""

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
    """The version of an item, and its title, that a next one replaces."""

    version: str
    title: str


class PublishPreview(msgspec.Struct, frozen=True, kw_only=True):
    """What `confirm` would send, word for word, with secrets masked: how many of each kind in `masked`.

    `mentions` are words to look at before. `memory_id` is the memory that it was made of, and `memory_state` a digest
    of it: a memory that changed since is previewed again. `digest` is that of the content. `is_offer`: it is for
    `offer`, and not for `confirm`. `replaces` is the version of a next one's item as it was when this was previewed.
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


class OfferedPattern(msgspec.Struct, frozen=True, kw_only=True):
    """A pattern that this user offers, which nobody else sees. Its id, for `unpublish`, is `content.item_id`.

    `proposed_as`: the item that was made of it and of the same words of others, if there is one.
    """

    content: SharedContent
    offered_at: datetime
    proposed_as: str | None = None


class UnpublishReceipt(msgspec.Struct, frozen=True, kw_only=True):
    """What `unpublish` removed. `found` is false if the caller has no such item, even if another user has.

    It is gone from every answer; its bytes leave the files within the next upkeep.
    """

    item_id: str
    found: bool
    at: datetime
    versions: tuple[str, ...] = ()


class SharedFile(msgspec.Struct, frozen=True, kw_only=True):
    """An item's attachment with its bytes."""

    attachment: Attachment
    data: bytes
