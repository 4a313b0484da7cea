"""The stored form of a shared item: a memory record with a description in its metadata, and separate blobs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from datetime import datetime
from typing import NamedTuple

import msgspec

from memory_agent.errors import InvalidInputError
from memory_agent.knowledge.figures import Standing
from memory_agent.knowledge.pseudonyms import (
    FIGURES,
    FILE,
    NAME,
    OFFERERS,
    PARTS,
    RECORDED,
    USED,
    authors_with_names,
    name_in,
    place_of,
)
from memory_agent.knowledge.stored_figures import names_at, standings_at, versions_at
from memory_agent.records.memories import MemoryRecord
from memory_agent.records.shared import Attachment, ContentType, GlobalRecord, QualityMetrics, SharedContent
from memory_agent.records.shared_content import (
    attachment_of,
    author_of_many,
    check_content,
    digest_of,
    is_pseudonym,
    parts_of_text,
    text_of_item,
)
from memory_agent.storage.batch import Batch
from memory_agent.storage.snapshot import Snapshot
from relay import described

ABOUT = "shared"  # the metadata key of an item's description
_USERS_STEP = 5  # the displayed number is rounded, which hides individual users


class About(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What describes an item besides its text, title and tags. Stored as `shared` in the metadata of its record."""

    author: str
    version: str
    content_type: ContentType
    policy: str
    digest: str
    summary_chars: int
    reference: str | None = None
    attachment: Attachment | None = None


class Usage(NamedTuple):
    """How many items an author has published, and their total size."""

    items: int = 0
    size_bytes: int = 0

    def with_item(self, record: MemoryRecord, by: int = 1) -> Usage:
        return Usage(self.items + by, self.size_bytes + by * _size_of(record, about_of(record)))


class Offerers(msgspec.Struct, frozen=True, kw_only=True):
    """The offers from which an item offered by many users was created, keyed by pseudonym."""

    item_id: str
    offers: dict[str, str]


_about = described(About)  # built once, because each item of an answer is converted with it
_used = msgspec.msgpack.Decoder(described(Usage))
_offerers = msgspec.msgpack.Decoder(described(Offerers))


def usage_of(snapshot: Snapshot, author: str) -> Usage:
    blob = snapshot.blob(place_of(snapshot, USED, author))
    return _used.decode(blob) if blob else Usage()


def write_usage(batch: Batch, author: str, used: Usage) -> None:
    """Store an author's usage, or delete it if the author has no items."""
    batch.set_blob(place_of(batch, USED, author), msgspec.msgpack.encode(used) if used.items else None)


def usage_by_author(snapshot: Snapshot) -> dict[str, Usage]:
    found: defaultdict[str, Usage] = defaultdict(Usage)
    for _, record in snapshot.scan():
        author = about_of(record).author
        found[author] = found[author].with_item(record)
    return found


def shown_item(snapshot: Snapshot, record: MemoryRecord) -> GlobalRecord:
    return item_and_standing(snapshot, record)[0]


def item_and_standing(snapshot: Snapshot, record: MemoryRecord) -> tuple[GlobalRecord, Standing | None]:
    """Return the public form of an item, and the standing of its version."""
    about, place = about_of(record), place_in(snapshot, record.id)
    standing = standings_at(snapshot, place).get(about.version)
    summary, body = parts_of_text(record.text, about.summary_chars)
    users = len(_offerers_at(snapshot, place)) // _USERS_STEP * _USERS_STEP
    item = GlobalRecord(
        id=record.id,
        content_type=about.content_type,
        title=record.title or "",
        summary=summary,
        body=body,
        author_id=about.author,
        author=author_of_many(users) if users else name_in(snapshot, about.author),
        published_at=record.timestamp,
        version=about.version,
        access_policy=about.policy,
        tags=record.tags,
        reference=about.reference,
        attachment=about.attachment,
        quality_metrics=QualityMetrics() if standing is None else standing.metrics(),
        embedding=record.embedding,
        size_bytes=_size_of(record, about),
        offered_by=users,
    )
    return item, standing


def about_of(record: MemoryRecord) -> About:
    return msgspec.convert(record.metadata[ABOUT], _about)


def place_in(snapshot: Snapshot, item_id: str) -> str:
    return place_of(snapshot, "", item_id)


def offerers_of(snapshot: Snapshot, item_id: str) -> dict[str, str]:
    """Return the offers that form an item, by user; empty for an item that one user published."""
    return _offerers_at(snapshot, place_in(snapshot, item_id))


def _offerers_at(snapshot: Snapshot, place: str) -> dict[str, str]:
    blob = snapshot.blob(OFFERERS + place)
    return {} if blob is None else _offerers.decode(blob).offers


def all_offerers(snapshot: Snapshot) -> Iterator[Offerers]:
    for name in snapshot.blobs(OFFERERS):
        yield _offerers.decode(snapshot.blob(name) or b"")


def write_offerers(batch: Batch, offerers: Offerers) -> None:
    batch.set_blob(place_of(batch, OFFERERS, offerers.item_id), msgspec.msgpack.encode(offerers))


def item_in(snapshot: Snapshot, item_id: str) -> MemoryRecord | None:
    row = snapshot.row_of_id(item_id)
    return None if row is None else snapshot.record(row)


def is_repeat(known: MemoryRecord, record: MemoryRecord) -> bool:
    """Return whether `record` republishes the known item without changes."""
    former, about = about_of(known), about_of(record)
    return (former.author, former.version, former.digest) == (about.author, about.version, about.digest)


def file_of_item(snapshot: Snapshot, item_id: str) -> bytes | None:
    return snapshot.blob(place_of(snapshot, FILE, item_id))


def check_item(record: MemoryRecord, data: bytes | None) -> None:
    """Check an imported item and its attachment against the rules for new items. Raises `InvalidInputError`."""
    try:
        about = about_of(record)
    except (KeyError, msgspec.MsgspecError) as error:
        raise InvalidInputError("record", "is not a shared item") from error
    summary, body = parts_of_text(record.text, about.summary_chars)
    content = SharedContent(
        item_id=record.id,
        content_type=about.content_type,
        title=record.title or "",
        summary=summary,
        version=about.version,
        access_policy=about.policy,
        tags=record.tags,
        body=body,
        reference=about.reference,
        attachment=about.attachment,
    )
    check_content(content)
    file = content.attachment
    if file != attachment_of(data, None if file is None or data is None else file.name):
        raise InvalidInputError("attachment", "is not the file that the item names")
    if record != record_of(content, about.author, record.timestamp) or not is_pseudonym(about.author):
        raise InvalidInputError("record", "differs from the published item")


def _size_of(record: MemoryRecord, about: About) -> int:
    texts = (record.text, record.title or "", about.reference or "", *record.tags)
    file = about.attachment
    return sum(len(text.encode()) for text in texts) + (0 if file is None else file.size_bytes)


def record_of(content: SharedContent, author: str, now: datetime) -> MemoryRecord:
    about = About(
        author=author,
        version=content.version,
        content_type=content.content_type,
        policy=content.access_policy,
        digest=digest_of(content),
        summary_chars=len(content.summary),
        reference=content.reference,
        attachment=content.attachment,
    )
    return MemoryRecord(
        id=content.item_id,
        text=text_of_item(content.summary, content.body),
        source="worker_result",
        kind="pattern" if content.content_type == "pattern" else "finding",
        timestamp=now,
        title=content.title,
        tags=content.tags,
        metadata={ABOUT: msgspec.to_builtins(about)},
    )


def faults_of_items(snapshot: Snapshot) -> Iterator[str]:
    """Yield the inconsistencies between the items of a store and their blobs."""
    left = {name for kind in (FILE, FIGURES, OFFERERS, PARTS, RECORDED) for name in snapshot.blobs(kind)}
    described = True
    for _, record in snapshot.scan():
        place = place_in(snapshot, record.id)
        try:
            about, versions = about_of(record), versions_at(snapshot, place)
        except (KeyError, msgspec.MsgspecError):
            yield "an item has no description"
            described = False
            continue
        file, data = about.attachment, snapshot.blob(place_of(snapshot, FILE, record.id))
        if file != attachment_of(data, None if file is None or data is None else file.name):
            yield "an attachment does not match its item"
        if about.version not in versions:
            yield "an item has no figures"
        if not all(versions.values()):
            yield "figures do not match their users' reports"
        beside = (kind + place for kind in (FILE, FIGURES, OFFERERS))
        left.difference_update(beside, names_at(snapshot, place))
    yield from ("a blob belongs to no item" for _ in left)
    if described:
        counted = {place_of(snapshot, USED, author): one for author, one in usage_by_author(snapshot).items()}
        if counted != {name: _used.decode(snapshot.blob(name) or b"") for name in snapshot.blobs(USED)}:
            yield "an author's usage does not match the items"
    if {place_of(snapshot, NAME, author) for author in authors_with_names(snapshot)} != set(snapshot.blobs(NAME)):
        yield "a name is stored for the wrong user"
