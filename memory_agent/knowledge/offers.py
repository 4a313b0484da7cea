"""Patterns shared by many users: offers stay hidden until enough different users offer the same words.

An offer is a pattern that its user confirmed word for word. It is not a record, so no search finds it. When
`offers_together` users offer the same words for the same readers, upkeep creates one item. The item has the most
frequent exact wording and no names. Offers match if they differ only in spacing, in the case of a line's first letter,
and in the punctuation at a line's end (decision 0025). An item is removed when too few offers are left, or when no
offer has exactly the item's words.

One blob per user stores the user's offers, and one blob per item stores the users who offered it.
"""

from __future__ import annotations

import secrets
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import NamedTuple

import msgspec
from ulid import ULID

from memory_agent.errors import InvalidInputError
from memory_agent.knowledge.items import (
    Offerers,
    about_of,
    all_offerers,
    item_in,
    place_in,
    record_of,
    write_offerers,
)
from memory_agent.knowledge.pseudonyms import OFFERS, place_of
from memory_agent.knowledge.publish_log import add_published
from memory_agent.knowledge.stored_figures import Voter, erase_user
from memory_agent.records.embedded import Embedded, Embedding
from memory_agent.records.memories import MemoryRecord
from memory_agent.records.shared import OfferedPattern, SharedContent
from memory_agent.records.shared_content import PSEUDONYM_BYTES, parts_of_text, pseudonym
from memory_agent.storage.batch import Batch
from memory_agent.storage.snapshot import Snapshot
from relay import described

CHANGED = "shared:offers-changed"
MOST_OFFERS = 100
"""Maximum number of offers per user. A user's offers are stored as one value, which each new offer rewrites."""
_ENDS = ".,;:!…"

MatchKey = tuple[str, ...]


class Offer(msgspec.Struct, frozen=True, kw_only=True):
    """An offer's content and time."""

    content: SharedContent
    at: datetime


class _Offers(msgspec.Struct, frozen=True, kw_only=True):
    """The offers of one user, by id."""

    author: str
    offers: dict[str, Offer] = {}


class Proposal(NamedTuple):
    """A new item whose words are offered by enough users, and the offer of each of these users."""

    record: MemoryRecord
    offerers: dict[str, str]


_decoder = msgspec.msgpack.Decoder(described(_Offers))


def write_offer(batch: Batch, author: str, content: SharedContent, now: datetime) -> OfferedPattern:
    """Store and return an offer. Idempotent. Raises `InvalidInputError` if this user may not offer it."""
    own = _offers_of(batch, author)
    known = own.get(content.item_id)
    if known is not None:
        if known.content != content:
            raise InvalidInputError("item_id", "is the id of a different offer by this user; preview a new one")
        return _shown(known, items_offered_by(batch, author))
    if len(own) >= MOST_OFFERS:
        raise InvalidInputError(
            "item_id", f"exceeds the limit of {MOST_OFFERS} offers per user; withdraw an offer first"
        )
    if item_in(batch, content.item_id) is not None:
        raise InvalidInputError("item_id", "is the id of a published item; preview a new one")
    key = match_key(content)
    if any(match_key(offer.content) == key for offer in own.values()):
        raise InvalidInputError("preview", "has the same words as an existing offer by this user")
    offer = Offer(content=content, at=now)
    _keep(batch, author, own | {content.item_id: offer})
    batch.set_blob(CHANGED, secrets.token_bytes(8))
    return _shown(offer, {})


def offers_by(snapshot: Snapshot, author: str) -> list[OfferedPattern]:
    items = items_offered_by(snapshot, author)
    found = [_shown(offer, items) for offer in _offers_of(snapshot, author).values()]
    return sorted(found, key=lambda one: (one.offered_at, one.content.item_id), reverse=True)


def version_of_offer(snapshot: Snapshot, author: str, offer_id: str) -> str | None:
    offer = _offers_of(snapshot, author).get(offer_id)
    return None if offer is None else offer.content.version


def items_offered_by(snapshot: Snapshot, author: str) -> dict[str, MemoryRecord]:
    if not _offers_of(snapshot, author):
        return {}
    behind = (
        (one.offers[author], item_in(snapshot, one.item_id)) for one in all_offerers(snapshot) if author in one.offers
    )
    return {offer_id: record for offer_id, record in behind if record is not None}


def authors_with_offers(snapshot: Snapshot, among: Iterable[str] | None = None) -> list[str]:
    if among is not None:
        return [author for author in among if _offers_of(snapshot, author)]
    return [author for author, _ in _all_offers(snapshot)]


def unsupported_without(snapshot: Snapshot, is_gone: Callable[[str], bool], least: int) -> list[str]:
    """Return the ids of the items that, after a removal, have too few offers or no offer with exactly the item's words.
    `is_gone` takes an offer id or an author.
    """
    unsupported = []
    for record, offerers in _items_of_many(snapshot):
        left = [author for author, id_ in offerers.items() if not (is_gone(author) or is_gone(id_))]
        if len(left) == len(offerers):
            continue
        offers = (_offers_of(snapshot, author).get(offerers[author]) for author in left)
        written = [(one.content.title, one.content.summary, one.content.body) for one in offers if one is not None]
        if len(written) < least or _words_of(record) not in written:
            unsupported.append(record.id)
    return unsupported


def drop_offers(batch: Batch, is_gone: Callable[[str], bool], authors: Iterable[str]) -> None:
    """Delete these users' removed offers, and remove the users from the offerers of the items concerned.

    `is_gone` takes an id or an author.
    """
    changed = False
    for author in authors:
        own = _offers_of(batch, author)
        left = {} if is_gone(author) else {id_: offer for id_, offer in own.items() if not is_gone(id_)}
        if len(left) < len(own):
            _keep(batch, author, left)
            changed = True
    if not changed:
        return
    batch.set_blob(CHANGED, secrets.token_bytes(8))
    for one in list(all_offerers(batch)):
        kept = {author: id_ for author, id_ in one.offers.items() if not (is_gone(author) or is_gone(id_))}
        if len(kept) < len(one.offers):
            write_offerers(batch, Offerers(item_id=one.item_id, offers=kept))


def proposals(
    snapshot: Snapshot, least: int, now: datetime, voter_of: Callable[[bytes], Voter | None]
) -> list[Proposal]:
    """Return items for words that at least `least` voters offer for the same readers, if no item has these words
    yet."""
    groups = _groups(snapshot)
    for record, _ in _items_of_many(snapshot):
        groups.pop(_match_key_of_item(record), None)
    return [_proposal(group, now) for _, group in sorted(groups.items()) if _voters(group, voter_of) >= least]


def write_proposals(batch: Batch, found: Sequence[tuple[Proposal, Embedded | Embedding | None]]) -> None:
    """Store new items, unless an offer has been withdrawn or an item already has the same words."""
    known = {_match_key_of_item(record) for record, _ in _items_of_many(batch)}
    for (record, offerers), vector in found:
        is_offered = all(id_ in _offers_of(batch, author) for author, id_ in offerers.items())
        if is_offered and _match_key_of_item(record) not in known:
            batch.upsert(record, vector)
            write_offerers(batch, Offerers(item_id=record.id, offers=offerers))
            add_published(batch, record)


def add_offerers(batch: Batch) -> None:
    """Add later offerers to the items with the same words, and remove the offerers' reports from these items'
    figures."""
    groups = _groups(batch)
    for record, offerers in list(_items_of_many(batch)):
        group = groups.get(_match_key_of_item(record), {})
        joined = {author: offer.content.item_id for author, offer in group.items() if author not in offerers}
        if joined:
            write_offerers(batch, Offerers(item_id=record.id, offers=offerers | joined))
            place = place_in(batch, record.id)
            for author in joined:
                erase_user(batch, place, author.encode())


def match_key(content: SharedContent) -> MatchKey:
    """Return a key that is the same for all offers of the same words to the same readers.

    >>> content = SharedContent(item_id="", content_type="pattern", title="Deploys", summary="They fail.", version="1")
    >>> match_key(content) == match_key(msgspec.structs.replace(content, summary="they  fail"))
    True
    >>> match_key(content) == match_key(msgspec.structs.replace(content, summary="They succeed."))
    False
    """
    return _match_key(content.access_policy, content.title, content.summary, content.body)


def faults_of_offers(snapshot: Snapshot) -> Iterator[str]:
    """Yield the inconsistencies between offers, their users and the items created from them."""
    try:
        offers = dict(_all_offers(snapshot))
        items = list(_items_of_many(snapshot))
    except (KeyError, msgspec.MsgspecError):
        yield "an offer cannot be read"
        return
    if {place_of(snapshot, OFFERS, author) for author in offers} != set(snapshot.blobs(OFFERS)):
        yield "an offer is stored for the wrong user"
    for record, offerers in items:
        key = _match_key_of_item(record)
        behind = (offers.get(author, {}).get(id_) for author, id_ in offerers.items())
        if any(offer is None or match_key(offer.content) != key for offer in behind):
            yield "an item refers to an offer that is missing or has different words"


def _groups(snapshot: Snapshot) -> dict[MatchKey, dict[str, Offer]]:
    groups: dict[MatchKey, dict[str, Offer]] = defaultdict(dict)
    for author, own in _all_offers(snapshot):
        for offer in own.values():
            groups[match_key(offer.content)][author] = offer
    return groups


def _voters(group: Iterable[str], voter_of: Callable[[bytes], Voter | None]) -> int:
    voters = (voter_of(author.encode()) or Voter(author.encode(), counts=True) for author in group)
    return len({voter.name for voter in voters if voter.counts})


def _proposal(group: dict[str, Offer], now: datetime) -> Proposal:
    """Return an item with the most frequent wording of the offers, the tags that all offers share, and a random
    pseudonym."""
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
    author = pseudonym(secrets.token_bytes(PSEUDONYM_BYTES))
    return Proposal(record_of(content, author, now), {author: one.content.item_id for author, one in group.items()})


def _match_key(policy: str, title: str, summary: str, body: str | None) -> MatchKey:
    lines = [map(_normalised, text.split("\n")) for text in (title, summary, body or "")]
    return (policy, *("\n".join(filter(None, one)) for one in lines))


def _normalised(line: str) -> str:
    plain = " ".join(unicodedata.normalize("NFC", line).split()).rstrip(_ENDS).rstrip()
    return plain[:1].casefold() + plain[1:]


def _match_key_of_item(record: MemoryRecord) -> MatchKey:
    return _match_key(about_of(record).policy, *_words_of(record))


def _words_of(record: MemoryRecord) -> tuple[str, str, str | None]:
    return record.title or "", *parts_of_text(record.text, about_of(record).summary_chars)


def _items_of_many(snapshot: Snapshot) -> Iterator[tuple[MemoryRecord, dict[str, str]]]:
    for one in all_offerers(snapshot):
        record = item_in(snapshot, one.item_id)
        if record is not None:
            yield record, one.offers


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


def _shown(offer: Offer, items: Mapping[str, MemoryRecord]) -> OfferedPattern:
    record = items.get(offer.content.item_id)
    return OfferedPattern(content=offer.content, offered_at=offer.at, proposed_as=None if record is None else record.id)
