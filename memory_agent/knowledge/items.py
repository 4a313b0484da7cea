"""The stored form of shared items: a record with what describes it, and what is kept beside it.

The names of blobs are readable in an encrypted store. So they are digests, keyed with the secret of the store.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Iterator
from datetime import datetime
from hashlib import blake2b

import msgspec

from memory_agent.errors import InvalidInputError
from memory_agent.knowledge.figures import KEY_BYTES, Figures
from memory_agent.records import MemoryRecord
from memory_agent.shared_content import (
    attachment_of,
    check_content,
    digest_of,
    is_pseudonym,
    parts_of_text,
    text_of_item,
)
from memory_agent.shared_records import Attachment, ContentType, GlobalRecord, QualityMetrics, SharedContent
from memory_agent.storage.batch import Batch
from memory_agent.storage.snapshot import Snapshot

ABOUT = "shared"  # the metadata of a record that make it an item
SECRET, PURGE, DUE = "shared:secret", "shared:purge", "shared:due"
FILE, FIGURES, NAME, NAMED = "shared:file:", "shared:figures:", "shared:name:", "shared:named:"
OFFERERS = "shared:offerers:"  # of an item that many offered
ERASED = "shared:erased:"  # pseudonyms that are no more
_ids = msgspec.msgpack.Decoder(list[str])
_versions = msgspec.msgpack.Decoder(dict[str, Figures])
OF_ITEMS = (FILE, FIGURES, OFFERERS)
_PLACE_BYTES = 16
_USERS_STEP = 5  # of the number that is shown, so that nobody sees one user come or go


class About(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a record says of its item beside text, title and tags: its metadata under `shared`."""

    author: str
    version: str
    content_type: ContentType
    policy: str
    digest: str
    summary_chars: int
    reference: str | None = None
    attachment: Attachment | None = None


class Offerers(msgspec.Struct, frozen=True, kw_only=True):
    """Who stands behind an item that many offered: the offer of each, by pseudonyms."""

    item_id: str
    offers: dict[str, str]


_offerers = msgspec.msgpack.Decoder(Offerers)


def shown_item(snapshot: Snapshot, record: MemoryRecord, figures: Figures | None) -> GlobalRecord:
    """Return an item as its readers see it, with the figures of its version."""
    about = about_of(record)
    summary, body = parts_of_text(record.text, about.summary_chars)
    users = len(offerers_of(snapshot, record.id)) // _USERS_STEP * _USERS_STEP
    return GlobalRecord(
        id=record.id,
        content_type=about.content_type,
        title=record.title or "",
        summary=summary,
        body=body,
        author_id=about.author,
        author=f"{users} users" if users else name_in(snapshot, about.author),
        published_at=record.timestamp,
        version=about.version,
        access_policy=about.policy,
        tags=record.tags,
        reference=about.reference,
        attachment=about.attachment,
        quality_metrics=QualityMetrics() if figures is None else figures.metrics(),
        embedding=record.embedding,
        offered_by=users,
    )


def about_of(record: MemoryRecord) -> About:
    """Return what describes the item of a record."""
    return msgspec.convert(record.metadata[ABOUT], About)


def place_of(snapshot: Snapshot, kind: str, name: str) -> str:
    """Return the name of a blob: without the secret it tells neither the item, the author nor the chosen name."""
    key = snapshot.blob(SECRET) or b""
    return kind + blake2b(name.encode(), key=key, digest_size=_PLACE_BYTES).hexdigest()


def mark_removal(batch: Batch) -> None:
    """Note that bytes are left of what goes, for the next upkeep."""
    batch.set_blob(PURGE, secrets.token_bytes(8))


def figures_in(snapshot: Snapshot, item_id: str) -> dict[str, Figures]:
    """Return the figures of each version of an item that was ever published."""
    return versions_of(snapshot.blob(place_of(snapshot, FIGURES, item_id)))


def present_figures(snapshot: Snapshot, record: MemoryRecord) -> Figures | None:
    """Return the figures of an item's present version. Reads every contribution: once for each item shown."""
    return figures_in(snapshot, record.id).get(about_of(record).version)


def versions_of(blob: bytes | None) -> dict[str, Figures]:
    """Return the figures in the blob of an item, by version."""
    return _versions.decode(blob) if blob else {}


def keep_figures(batch: Batch, item_id: str, versions: dict[str, Figures]) -> None:
    """Store the figures of an item, by version."""
    batch.set_blob(place_of(batch, FIGURES, item_id), msgspec.msgpack.encode(versions))


def due_in(snapshot: Snapshot) -> list[str]:
    """Return the items whose figures changed since the last release."""
    blob = snapshot.blob(DUE)
    return _ids.decode(blob) if blob else []


def keep_due(batch: Batch, item_ids: Collection[str]) -> None:
    """Store which items have figures that changed since the last release."""
    batch.set_blob(DUE, msgspec.msgpack.encode(sorted(item_ids)) if item_ids else None)


def offerers_of(snapshot: Snapshot, item_id: str) -> dict[str, str]:
    """Return the offers behind an item, by their users; none of an item that one user published."""
    name = place_of(snapshot, OFFERERS, item_id)
    return {} if snapshot.blob(name) is None else offerers_at(snapshot, name).offers


def ids_of_many(snapshot: Snapshot) -> set[str]:
    """Return the ids of the items that many offered."""
    return {offerers_at(snapshot, name).item_id for name in snapshot.blobs(OFFERERS)}


def offerers_at(snapshot: Snapshot, name: str) -> Offerers:
    """Return what is stored under one of the names of `OFFERERS`."""
    return _offerers.decode(snapshot.blob(name) or b"")


def keep_offerers(batch: Batch, offerers: Offerers) -> None:
    """Store who stands behind an item."""
    batch.set_blob(place_of(batch, OFFERERS, offerers.item_id), msgspec.msgpack.encode(offerers))


def item_in(snapshot: Snapshot, item_id: str) -> MemoryRecord | None:
    """Return the record of an item, or None."""
    row = snapshot.row_of_id(item_id)
    return None if row is None else snapshot.record(row)


def is_repeat(known: MemoryRecord, about: About) -> bool:
    """Return whether an item is published again as it is."""
    former = about_of(known)
    return (former.author, former.version, former.digest) == (about.author, about.version, about.digest)


def name_in(snapshot: Snapshot, pseudonym: str) -> str:
    """Return the name that others see of an author: the chosen one, else the pseudonym."""
    chosen = snapshot.blob(place_of(snapshot, NAME, pseudonym))
    return pseudonym if chosen is None else chosen.decode()


def file_of_item(snapshot: Snapshot, item_id: str) -> bytes | None:
    """Return the bytes of an item's attachment."""
    return snapshot.blob(place_of(snapshot, FILE, item_id))


def check_item(record: MemoryRecord, data: bytes | None) -> None:
    """Check an item that another store held, with its attachment, as if it were published. `InvalidInputError`."""
    try:
        about = about_of(record)
    except (KeyError, msgspec.MsgspecError) as error:
        raise InvalidInputError("record", "is no item that a user shared") from error
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
    is_whole = record == record_of(content, about, record.timestamp) and about.digest == digest_of(content)
    if not is_whole or not is_pseudonym(about.author):
        raise InvalidInputError("record", "is not as its item was published")


def keep_item(batch: Batch, record: MemoryRecord, data: bytes | None) -> None:
    """Store the attachment of a checked item, and reset its figures."""
    if batch.blob(SECRET) is None:
        batch.set_blob(SECRET, secrets.token_bytes(32))
    keep_beside(batch, record.id, about_of(record), data)


def record_of(content: SharedContent, about: About, now: datetime) -> MemoryRecord:
    """Return the record of an item."""
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


def keep_beside(batch: Batch, item_id: str, about: About, data: bytes | None) -> None:
    """Store an attachment, and begin the figures of a version."""
    batch.set_blob(place_of(batch, FILE, item_id), data)
    versions = figures_in(batch, item_id)
    versions.setdefault(about.version, Figures.create(secrets.token_bytes(KEY_BYTES), about.author.encode()))
    keep_figures(batch, item_id, versions)


def faults_of_items(snapshot: Snapshot) -> Iterator[str]:
    """Yield what is wrong with the items of a store whose values can be read: with each what is kept beside it."""
    beside = {kind: set(snapshot.blobs(kind)) for kind in OF_ITEMS}
    for _, record in snapshot.scan():
        try:
            about, versions = about_of(record), figures_in(snapshot, record.id)
        except (KeyError, msgspec.MsgspecError):
            yield "an item is not described"
            continue
        file, data = about.attachment, snapshot.blob(place_of(snapshot, FILE, record.id))
        if file != attachment_of(data, None if file is None or data is None else file.name):
            yield "an attachment is not that of its item"
        if about.version not in versions:
            yield "an item has no figures"
        for kind, names in beside.items():
            names.discard(place_of(snapshot, kind, record.id))
    yield from ("what was kept of an item is left" for names in beside.values() for _ in names)
    named = {snapshot.blob(name) for name in snapshot.blobs(NAMED)}
    chosen = {place_of(snapshot, NAME, author.decode()) for author in named if author is not None}
    if chosen != set(snapshot.blobs(NAME)):
        yield "a name is not that of one user"
