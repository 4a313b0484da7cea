"""Pseudonyms of users, and blob names of shared items, keyed with the store's secret.

Blob names are readable even in an encrypted store, so they must not reveal an item or a user.
"""

from __future__ import annotations

import secrets
from hashlib import blake2b

import msgspec

from memory_agent.erasure.eraser import Erasure
from memory_agent.recall.query import check_now
from memory_agent.records.shared_content import PSEUDONYM_BYTES, pseudonym
from memory_agent.storage.archive import Archive
from memory_agent.storage.batch import Batch
from memory_agent.storage.snapshot import Snapshot

SECRET, PURGE, DUE = "shared:secret", "shared:purge", "shared:due"
FILE, FIGURES, PARTS = "shared:file:", "shared:standing:", "shared:part:"
RECORDED = "shared:recorded:"  # a user's contribution that counts later, or together with those of other users
VOTERS = "shared:voters"
NAME, USED = "shared:called:", "shared:used:"
OFFERS = "shared:offers:"  # the offers of one user
OFFERERS = "shared:offerers:"  # the offers that form an item of many users
ERASED = "shared:erased:"  # the pseudonyms of erased users
PLACE_CHARS = 32
_SUFFIX_CHARS = 6
_USER_BYTES = 10
_names = msgspec.msgpack.Decoder(tuple[str, str])


def place_of(snapshot: Snapshot, kind: str, name: str) -> str:
    """Return the name of a blob, which reveals nothing without the secret."""
    return kind + blake2b(name.encode(), key=secret_in(snapshot), digest_size=PLACE_CHARS // 2).hexdigest()


def part_of(key: bytes, place: str, user: bytes, kind: str = PARTS) -> str:
    """Return the blob name of a user's part in the figures of the item at `place`. Two names do not reveal whether they
    belong to the same user.
    """
    return f"{kind}{place}{blake2b(place.encode() + user, key=key, digest_size=_USER_BYTES).hexdigest()}"


def secret_in(snapshot: Snapshot) -> bytes:
    """Return a store's secret, which is empty if nothing has been stored yet."""
    known = snapshot.kept.get(SECRET) or snapshot.blob(SECRET)
    if known:
        snapshot.kept[SECRET] = known
    return known or b""


def ensured_secret(batch: Batch) -> bytes:
    known = batch.blob(SECRET)
    if known is None:
        known = secrets.token_bytes(32)
        batch.set_blob(SECRET, known)
    return known


def mark_removal(batch: Batch) -> None:
    """Record that the next upkeep must purge removed bytes from the files."""
    batch.set_blob(PURGE, secrets.token_bytes(8))


class Authors:
    """The pseudonyms and names of one store's users."""

    def __init__(self, archive: Archive, erasure: Erasure) -> None:
        self._archive = archive
        self._erasure = erasure

    def pseudonym(self, user_id: str) -> str:
        return self.pseudonyms(user_id)[-1]

    def pseudonyms(self, user_id: str) -> list[str]:
        """Return the pseudonyms of a user: one for each past erasure, then the current one.

        Erasures are read from the history of this data folder and, for a restored store, from the store.
        """
        with self._archive.store.snapshot() as snapshot:
            if secret_in(snapshot):
                return self.pseudonyms_in(snapshot, user_id)
        with self._archive.batch() as batch:
            ensured_secret(batch)
            return self.pseudonyms_in(batch, user_id)

    def pseudonyms_in(self, snapshot: Snapshot, user_id: str) -> list[str]:
        """Like `pseudonyms`, but in a snapshot. As long as the store has no secret, these names differ from those
        stored later.
        """
        names: list[str] = []
        user, key = user_id.encode(errors="surrogatepass"), secret_in(snapshot)
        while not names or self._is_erased(snapshot, names[-1]):
            salt = len(names).to_bytes(8, "big")
            names.append(pseudonym(blake2b(user, key=key, salt=salt, digest_size=PSEUDONYM_BYTES).digest()))
        return names

    def set_name(self, author: str, name: str | None) -> str:
        """Set or remove an author's name; return the name that others see."""
        with self._archive.batch() as batch:
            drop_name(batch, author)
            if name is not None:
                write_name(batch, author, name)
            return name_in(batch, author)

    def _is_erased(self, snapshot: Snapshot, author: str) -> bool:
        is_in_history = self._erasure.is_forgotten(author, check_now(None))
        return is_in_history or snapshot.blob(place_of(snapshot, ERASED, author)) is not None


def name_in(snapshot: Snapshot, pseudonym: str) -> str:
    """Return the name that others see: the chosen name with part of the pseudonym appended, or the pseudonym."""
    blob = snapshot.blob(place_of(snapshot, NAME, pseudonym))
    if blob is None:
        return pseudonym
    _, chosen = _names.decode(blob)
    return f"{chosen} #{pseudonym.removeprefix('user-')[:_SUFFIX_CHARS]}"


def write_name(batch: Batch, author: str, name: str) -> None:
    batch.set_blob(place_of(batch, NAME, author), msgspec.msgpack.encode((author, name)))


def authors_with_names(snapshot: Snapshot) -> list[str]:
    return [_names.decode(snapshot.blob(place) or b"")[0] for place in snapshot.blobs(NAME)]


def drop_name(batch: Batch, author: str) -> None:
    place = place_of(batch, NAME, author)
    if batch.blob(place) is not None:
        batch.set_blob(place, None)
        mark_removal(batch)
