"""Patterns of many: what users offer, held unseen until enough different users offer the same words.

An offer is a pattern that its user saw and confirmed word for word. It is no record, so no search finds it, and nobody
but its user is shown it. Where `offers_together` users offer the same words for the same readers, upkeep makes one item
of them, which names a number of users and none of them. The words are those that most of them wrote: nothing is
generated. Offers say the same where they differ in nothing but spaces, the case of a line's first letter and the
punctuation at its end; closeness, which takes "succeeded" for "failed", has no say (decision 0057). So an item shows
nothing that only one of them wrote.

An item stands while it has enough offerers, one of whom wrote exactly its words; else it is taken away, and upkeep may
make a new one of the offers that are left. What the offerers' own runs say of it never counts.

Offers lie in one blob for each user, the offerers of an item in one beside it.
"""

from __future__ import annotations

import secrets
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from typing import NamedTuple

import msgspec
from ulid import ULID

from memory_agent.embedded import Embedded, Embedding
from memory_agent.errors import InvalidInputError
from memory_agent.knowledge.items import (
    OFFERERS,
    About,
    Offerers,
    about_of,
    figures_in,
    item_in,
    keep_beside,
    keep_figures,
    keep_offerers,
    offerers_at,
    place_of,
    record_of,
)
from memory_agent.records import MemoryRecord
from memory_agent.shared_content import PSEUDONYM_BYTES, digest_of, parts_of_text, pseudonym
from memory_agent.shared_records import OfferedPattern, SharedContent
from memory_agent.storage.batch import Batch
from memory_agent.storage.snapshot import Snapshot

OFFERS, CHANGED = "shared:offers:", "shared:offers-changed"
MOST_OFFERS = 100
"""Offers of one user: they are one value, which is rewritten with each."""
_ENDS = ".,;:!…"

Said = tuple[str, ...]


class Offer(msgspec.Struct, frozen=True, kw_only=True):
    """What a user offers, and since when."""

    content: SharedContent
    at: datetime


class _Offers(msgspec.Struct, frozen=True, kw_only=True):
    """The offers of one user, by their ids."""

    author: str
    offers: dict[str, Offer] = {}


class Proposal(NamedTuple):
    """An item of the words that enough users offer, and the offer of each of them."""

    record: MemoryRecord
    offerers: dict[str, str]


_decoder = msgspec.msgpack.Decoder(_Offers)


def keep_offer(batch: Batch, author: str, content: SharedContent, now: datetime) -> OfferedPattern:
    """Store an offer, once; return it. Raises `InvalidInputError` where this user may not offer it."""
    own = _offers_of(batch, author)
    known = own.get(content.item_id)
    if known is not None:
        if known.content != content:
            raise InvalidInputError("item_id", "is that of another offer of this user: preview a new one")
        return _shown(known, _items_with(batch, author))
    if len(own) >= MOST_OFFERS:
        raise InvalidInputError("item_id", "is one offer too many of this user: take others back first")
    if item_in(batch, content.item_id) is not None:
        raise InvalidInputError("item_id", "is that of an item that is published: preview a new one")
    said = said_by(content)
    if any(said_by(offer.content) == said for offer in own.values()):
        raise InvalidInputError("preview", "says what this user offers already")
    offer = Offer(content=content, at=now)
    _keep(batch, author, own | {content.item_id: offer})
    batch.set_blob(CHANGED, content.item_id.encode())
    return _shown(offer, {})


def offers_by(snapshot: Snapshot, author: str) -> list[OfferedPattern]:
    """Return what a user offers, newest first."""
    items = _items_with(snapshot, author)
    found = [_shown(offer, items) for offer in _offers_of(snapshot, author).values()]
    return sorted(found, key=lambda one: (one.offered_at, one.content.item_id), reverse=True)


def version_of_offer(snapshot: Snapshot, author: str, offer_id: str) -> str | None:
    """Return the version that an offer of this user names; None without such an offer."""
    offer = _offers_of(snapshot, author).get(offer_id)
    return None if offer is None else offer.content.version


def fallen_without(snapshot: Snapshot, is_gone: Callable[[str], bool], least: int) -> list[str]:
    """Return the ids of the items that do not stand without the offers that are gone, by their id or their author."""
    fallen = []
    offers = dict(_all_offers(snapshot))
    for record, offerers in _items_of_many(snapshot):
        left = {author: id_ for author, id_ in offerers.items() if not (is_gone(author) or is_gone(id_))}
        words = _words_of(record)
        contents = (offers[author][id_].content for author, id_ in left.items() if id_ in offers.get(author, {}))
        written = [(one.title, one.summary, one.body) for one in contents]
        if len(written) < least or words not in written:
            fallen.append(record.id)
    return fallen


def drop_offers(batch: Batch, is_gone: Callable[[str], bool]) -> None:
    """Delete the offers that are gone, by their id or their author, also from the offerers of items."""
    changed = False
    for author, own in list(_all_offers(batch)):
        left = {} if is_gone(author) else {id_: offer for id_, offer in own.items() if not is_gone(id_)}
        if len(left) < len(own):
            _keep(batch, author, left)
            changed = True
    for record, offerers in list(_items_of_many(batch)):
        standing = {author: id_ for author, id_ in offerers.items() if not (is_gone(author) or is_gone(id_))}
        if len(standing) < len(offerers):
            keep_offerers(batch, Offerers(item_id=record.id, offers=standing))
    if changed:
        batch.set_blob(CHANGED, b"dropped")


def proposals(snapshot: Snapshot, least: int, now: datetime) -> list[Proposal]:
    """Return items of what at least `least` users offer and no item says yet, for the same readers."""
    groups = _groups(snapshot)
    for record, _ in _items_of_many(snapshot):
        groups.pop(_said_by_item(record), None)
    return [_proposal(group, now) for _, group in sorted(groups.items()) if len(group) >= least]


def keep_proposal(batch: Batch, proposal: Proposal, vector: Embedded | Embedding | None) -> None:
    """Store a new item of many, with figures that begin anew."""
    record = proposal.record
    batch.upsert(record, vector)
    keep_beside(batch, record.id, about_of(record), None)
    keep_offerers(batch, Offerers(item_id=record.id, offers=proposal.offerers))


def join_offerers(batch: Batch) -> None:
    """Add to the items of many the users who offer what they say since; what they reported of them counts no more."""
    groups = _groups(batch)
    for record, offerers in list(_items_of_many(batch)):
        group = groups.get(_said_by_item(record), {})
        joined = {author: offer.content.item_id for author, offer in group.items() if author not in offerers}
        if not joined:
            continue
        keep_offerers(batch, Offerers(item_id=record.id, offers=offerers | joined))
        versions = figures_in(batch, record.id)
        if [figures.erase(author.encode()) for figures in versions.values() for author in joined]:
            keep_figures(batch, record.id, versions)


def said_by(content: SharedContent) -> Said:
    """Return what is equal for offers that say the same to the same readers.

    >>> content = SharedContent(item_id="", content_type="pattern", title="Deploys", summary="They fail.", version="1")
    >>> said_by(content) == said_by(msgspec.structs.replace(content, summary="they  fail"))
    True
    >>> said_by(content) == said_by(msgspec.structs.replace(content, summary="They succeed."))
    False
    """
    return _said(content.access_policy, content.title, content.summary, content.body)


def faults_of_offers(snapshot: Snapshot) -> Iterator[str]:
    """Yield what is wrong with the offers of a store, and with those who stand behind its items."""
    try:
        offers = dict(_all_offers(snapshot))
        items = list(_items_of_many(snapshot))
    except (KeyError, msgspec.MsgspecError):
        yield "an offer cannot be read"
        return
    if {place_of(snapshot, OFFERS, author) for author in offers} != set(snapshot.blobs(OFFERS)):
        yield "an offer is not that of its user"
    for record, offerers in items:
        said = _said_by_item(record)
        behind = (offers.get(author, {}).get(id_) for author, id_ in offerers.items())
        if any(offer is None or said_by(offer.content) != said for offer in behind):
            yield "an item names an offer that says something else"


def _groups(snapshot: Snapshot) -> dict[Said, dict[str, Offer]]:
    """Return the offers that say the same, by their users."""
    groups: dict[Said, dict[str, Offer]] = defaultdict(dict)
    for author, own in _all_offers(snapshot):
        for offer in own.values():
            groups[said_by(offer.content)][author] = offer
    return groups


def _proposal(group: dict[str, Offer], now: datetime) -> Proposal:
    """Return an item of what most of these offers say word for word, of equals the first in order.

    Its tags are those of all, and its author a pseudonym that is nobody's.
    """
    contents = [offer.content for offer in group.values()]
    counts = Counter((one.title, one.summary, one.body or "") for one in contents)
    title, summary, body = min(counts, key=lambda words: (-counts[words], words))
    content = SharedContent(
        item_id=str(ULID()),
        content_type="pattern",
        title=title,
        summary=summary,
        version="1",
        access_policy=contents[0].access_policy,
        tags=tuple(sorted(set.intersection(*(set(one.tags) for one in contents)))),
        body=body or None,
    )
    about = About(
        author=pseudonym(secrets.token_bytes(PSEUDONYM_BYTES)),
        version=content.version,
        content_type=content.content_type,
        policy=content.access_policy,
        digest=digest_of(content),
        summary_chars=len(content.summary),
    )
    return Proposal(record_of(content, about, now), {author: one.content.item_id for author, one in group.items()})


def _said(policy: str, title: str, summary: str, body: str | None) -> Said:
    lines = [map(_said_in, text.split("\n")) for text in (title, summary, body or "")]
    return (policy, *("\n".join(filter(None, one)) for one in lines))


def _said_in(line: str) -> str:
    plain = " ".join(unicodedata.normalize("NFC", line).split()).rstrip(_ENDS).rstrip()
    return plain[:1].casefold() + plain[1:]


def _said_by_item(record: MemoryRecord) -> Said:
    return _said(about_of(record).policy, *_words_of(record))


def _words_of(record: MemoryRecord) -> tuple[str, str, str | None]:
    return record.title or "", *parts_of_text(record.text, about_of(record).summary_chars)


def _items_of_many(snapshot: Snapshot) -> Iterator[tuple[MemoryRecord, dict[str, str]]]:
    """Yield the items that many offered, and their offers by their users."""
    for name in snapshot.blobs(OFFERERS):
        found = offerers_at(snapshot, name)
        record = item_in(snapshot, found.item_id)
        if record is not None:
            yield record, found.offers


def _offers_of(snapshot: Snapshot, author: str) -> dict[str, Offer]:
    blob = snapshot.blob(place_of(snapshot, OFFERS, author))
    return {} if blob is None else _decoder.decode(blob).offers


def _all_offers(snapshot: Snapshot) -> Iterator[tuple[str, dict[str, Offer]]]:
    for name in snapshot.blobs(OFFERS):
        found = _decoder.decode(snapshot.blob(name) or b"")
        yield found.author, found.offers


def _keep(batch: Batch, author: str, offers: dict[str, Offer]) -> None:
    kept = msgspec.msgpack.encode(_Offers(author=author, offers=offers)) if offers else None
    batch.set_blob(place_of(batch, OFFERS, author), kept)


def _items_with(snapshot: Snapshot, author: str) -> dict[str, str]:
    """Return the items that stand on offers of a user, by the ids of these."""
    return {offerers[author]: record.id for record, offerers in _items_of_many(snapshot) if author in offerers}


def _shown(offer: Offer, items: Mapping[str, str]) -> OfferedPattern:
    return OfferedPattern(content=offer.content, offered_at=offer.at, proposed_as=items.get(offer.content.item_id))
