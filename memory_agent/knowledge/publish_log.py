"""The publish log: changes to shared items for followers, written in the same transaction as the change.

It is a transactional outbox. Entries are numbered, and deleted after the relay acknowledges their events. Without a
daemon, the latest 10,000 entries of new versions and ratings are retained. An entry contains no id, text or title: an
addition refers to the item's row, and a removal contains the item's fingerprint.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from datetime import datetime

import msgspec

from memory_agent.erasure.logs import fingerprint
from memory_agent.knowledge.items import about_of, place_in, usage_of, write_usage
from memory_agent.knowledge.pseudonyms import FILE, ensured_secret
from memory_agent.knowledge.stored_figures import begin_figures
from memory_agent.records.memories import MemoryRecord
from memory_agent.records.shared import SharedChange
from memory_agent.records.shared_requests import PendingChanges
from memory_agent.storage.batch import Batch
from memory_agent.storage.snapshot import Snapshot
from relay import SHARED_USER, described
from relay.log import log

_LAST = "shared:log"
_ENTRY = "shared:log:"
_MOST = 10_000
_AT_ONCE = 2_000


class _Added(msgspec.Struct, frozen=True, array_like=True, tag="came"):
    """A version was published or, if the random `token` is set, rated.

    `mark` identifies the version. The tag is stored.
    """

    row: int
    mark: str
    at: datetime
    token: str = ""


class _Removed(msgspec.Struct, frozen=True, array_like=True, tag="went"):
    """An item was removed for the readers that `policy` admits. `mark` identifies the last version visible to them."""

    item: str
    mark: str
    policy: str
    at: datetime


_entries = msgspec.msgpack.Decoder(described(_Added | _Removed))


def add_published(
    batch: Batch, record: MemoryRecord, attachment: bytes | None = None, former: MemoryRecord | None = None
) -> None:
    """Store a new version's attachment, empty figures and log entry, and update the author's usage.

    If the policy changes, also log that the previous version was removed for its readers.
    """
    ensured_secret(batch)
    about, place = about_of(record), place_in(batch, record.id)
    batch.set_blob(FILE + place, attachment)
    begin_figures(batch, place, about.version, about.author)
    used = usage_of(batch, about.author)
    write_usage(batch, about.author, (used if former is None else used.with_item(former, -1)).with_item(record))
    if former is not None and about_of(former).policy != about.policy:
        log_removed(batch, former, record.timestamp)
    _append(batch, _Added(_row(batch, record), _mark(record), record.timestamp))


def log_rated(batch: Batch, record: MemoryRecord, now: datetime) -> None:
    _append(batch, _Added(_row(batch, record), _mark(record), now, secrets.token_hex(4)))


def log_removed(batch: Batch, record: MemoryRecord, now: datetime) -> None:
    _append(batch, _Removed(_item(record), _mark(record), about_of(record).policy, now))


def pending_changes(snapshot: Snapshot) -> PendingChanges:
    """Return the changes of the oldest entries, in order, omitting changes of removed versions."""
    found = list(_kept(snapshot, _AT_ONCE + 1))
    entries = found[:_AT_ONCE]
    changes = filter(None, (_change_of(snapshot, entry) for _, entry in entries))
    through = entries[-1][0] if entries else 0
    return PendingChanges(changes=tuple(changes), through=through, has_more=len(found) > len(entries))


def drop_sent(batch: Batch, through: int) -> None:
    """Delete the entries up to number `through`, whose events the relay has acknowledged."""
    while names := [name for name in batch.blobs(_ENTRY, _AT_ONCE) if _number(name) <= through]:
        for name in names:
            batch.set_blob(name, None)


def faults_of_log(snapshot: Snapshot) -> Iterator[str]:
    last = _last(snapshot)
    try:
        numbers = [number for number, _ in _kept(snapshot)]
    except (msgspec.MsgspecError, ValueError):
        yield "an entry of the publish log cannot be read"
        return
    kept = [number for number in numbers if number > last - _MOST]  # older additions are dropped
    if kept and kept != list(range(last - len(kept) + 1, last + 1)):
        yield "the publish log is missing entries"


def _change_of(snapshot: Snapshot, entry: _Added | _Removed) -> tuple[str, SharedChange] | None:
    if isinstance(entry, _Removed):
        change = SharedChange(kind="unpublished", item=entry.item, access_policy=entry.policy, at=entry.at)
        return f"unpublished-{entry.mark}", change
    record = snapshot.record(entry.row)
    if record is None or _mark(record) != entry.mark:
        return None
    about = about_of(record)
    change = SharedChange(
        kind="rated" if entry.token else "published",
        item=_item(record),
        access_policy=about.policy,
        at=entry.at,
        item_id=record.id,
        version=about.version,
        content_type=about.content_type,
    )
    return "-".join(filter(None, (change.kind, entry.mark, entry.token))), change


def _append(batch: Batch, entry: _Added | _Removed) -> None:
    number = _last(batch) + 1
    batch.set_blob(_LAST, number.to_bytes(8, "big"))
    batch.set_blob(_name(number), msgspec.msgpack.encode(entry))
    oldest = _name(max(number - _MOST, 0))
    kept = batch.blob(oldest)
    if kept is not None and isinstance(_entries.decode(kept), _Added):  # a removal must reach the journal
        batch.set_blob(oldest, None)
        if number % _MOST == 1:
            log.warning("publish_log.entries_dropped", number=number - _MOST)


def _kept(snapshot: Snapshot, limit: int | None = None) -> Iterator[tuple[int, _Added | _Removed]]:
    for name in snapshot.blobs(_ENTRY, limit):
        yield _number(name), _entries.decode(snapshot.blob(name) or b"")


def _last(snapshot: Snapshot) -> int:
    return int.from_bytes(snapshot.blob(_LAST) or b"", "big")


def _name(number: int) -> str:
    return f"{_ENTRY}{number:016x}"


def _number(name: str) -> int:
    return int(name.removeprefix(_ENTRY), 16)


def _row(batch: Batch, record: MemoryRecord) -> int:
    row = batch.row_of_id(record.id)
    assert row is not None
    return row


def _item(record: MemoryRecord) -> str:
    return fingerprint(SHARED_USER, record.id)


def _mark(record: MemoryRecord) -> str:
    """Return a fingerprint of a version, for use in event ids. A version is never published twice."""
    return fingerprint(SHARED_USER, f"{record.id} {about_of(record).version}")
