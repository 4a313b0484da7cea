"""What a store of shared items writes in place of names: pseudonyms of users, and keyed digests as names of blobs."""

from __future__ import annotations

import secrets
from hashlib import blake2b

import msgspec

from memory_agent.memory.namespaces import Erasure
from memory_agent.recall.query import check_now
from memory_agent.records.shared_content import PSEUDONYM_BYTES, pseudonym
from memory_agent.storage.archive import Archive
from memory_agent.storage.batch import Batch
from memory_agent.storage.snapshot import Snapshot

SECRET, PURGE, DUE = "shared:secret", "shared:purge", "shared:due"
FILE, FIGURES, PARTS = "shared:file:", "shared:standing:", "shared:part:"
NAME, USED = "shared:called:", "shared:used:"
OFFERS = "shared:offers:"  # of one user
OFFERERS = "shared:offerers:"  # of an item that many offered
ERASED = "shared:erased:"  # pseudonyms that are no more
PLACE_CHARS = 32
_USER_BYTES = 10


def place_of(snapshot: Snapshot, kind: str, name: str) -> str:
    """Return the name of a blob: without the secret it tells neither the item, the author nor the chosen name."""
    return kind + blake2b(name.encode(), key=secret_in(snapshot), digest_size=PLACE_CHARS // 2).hexdigest()


def part_of(key: bytes, place: str, user: bytes) -> str:
    """Return the name of a user's part in the item at a place; `key` is the secret.

    Without that it tells how many users an item has, but not that one user is behind two names.
    """
    return f"{PARTS}{place}{blake2b(place.encode() + user, key=key, digest_size=_USER_BYTES).hexdigest()}"


def secret_in(snapshot: Snapshot) -> bytes:
    """Return the secret of a store; empty before there is anything to keep."""
    known = snapshot.kept.get(SECRET) or snapshot.blob(SECRET)
    if known:
        snapshot.kept[SECRET] = known
    return known or b""


def ensured_secret(batch: Batch) -> bytes:
    """Return the secret of a store, creating it first if there is none."""
    known = batch.blob(SECRET)
    if known is None:
        known = secrets.token_bytes(32)
        batch.set_blob(SECRET, known)
    return known


def mark_removal(batch: Batch) -> None:
    """Note that bytes are left of what goes, for the next upkeep."""
    batch.set_blob(PURGE, secrets.token_bytes(8))


_FORMER_NAME = "shared:name:"
FORMER_NAMED = "shared:named:"  # of former versions, in which a name was one user's alone
_END_CHARS = 6
_names = msgspec.msgpack.Decoder(tuple[str, str])


class Authors:
    """The users of one store."""

    def __init__(self, archive: Archive, erasure: Erasure) -> None:
        self._archive = archive
        self._erasure = erasure

    def pseudonym(self, user_id: str) -> str:
        """Return what this store calls a user: nobody without its secret finds the user, or the same user elsewhere."""
        return self.pseudonyms(user_id)[-1]

    def pseudonyms(self, user_id: str) -> list[str]:
        """Return what this store called a user until each erasure of the user, and what it calls the user now.

        The history of erasures is that of this data folder; a store that was restored in another one knows by itself.
        """
        names: list[str] = []
        user, key = user_id.encode(errors="surrogatepass"), self._secret()
        with self._archive.store.snapshot() as snapshot:
            while not names or self._is_erased(snapshot, names[-1]):
                salt = len(names).to_bytes(8, "big")
                names.append(pseudonym(blake2b(user, key=key, salt=salt, digest_size=PSEUDONYM_BYTES).digest()))
        return names

    def set_name(self, author: str, name: str | None) -> str:
        """Set the name of an author, or drop it; return what others see."""
        with self._archive.batch() as batch:
            drop_name(batch, author)
            if name is not None:
                keep_name(batch, author, name)
            return name_in(batch, author)

    def _is_erased(self, snapshot: Snapshot, author: str) -> bool:
        is_noted = self._erasure.is_forgotten(author, check_now(None))
        return is_noted or snapshot.blob(place_of(snapshot, ERASED, author)) is not None

    def _secret(self) -> bytes:
        known = self._archive.store.blob(SECRET)
        if known is None:
            with self._archive.batch() as batch:
                known = ensured_secret(batch)
        return known


def name_in(snapshot: Snapshot, pseudonym: str) -> str:
    """Return the name that others see of an author: the chosen one with an end that nobody chooses, else the pseudonym.

    So no two authors look alike, and nobody learns that somebody else has a name.
    """
    blob = snapshot.blob(place_of(snapshot, NAME, pseudonym))
    if blob is None:
        return pseudonym
    _, chosen = _names.decode(blob)
    return f"{chosen} #{pseudonym.removeprefix('user-')[:_END_CHARS]}"


def keep_name(batch: Batch, author: str, name: str) -> None:
    """Store the name that an author chose."""
    batch.set_blob(place_of(batch, NAME, author), msgspec.msgpack.encode((author, name)))


def authors_with_names(snapshot: Snapshot) -> list[str]:
    """Return the authors who chose a name."""
    return [_names.decode(snapshot.blob(place) or b"")[0] for place in snapshot.blobs(NAME)]


def drop_name(batch: Batch, author: str) -> None:
    """Take away the name of an author."""
    place = place_of(batch, NAME, author)
    if batch.blob(place) is not None:
        batch.set_blob(place, None)
        mark_removal(batch)


def move_former_names(batch: Batch) -> None:
    """Store the names that former versions kept by author, beside a list of who has which, as they are kept now."""
    for place in batch.blobs(FORMER_NAMED):
        author = (batch.blob(place) or b"").decode()
        former = place_of(batch, _FORMER_NAME, author)
        name = batch.blob(former)
        if name is not None:
            keep_name(batch, author, name.decode())
        for gone in (place, former):
            batch.set_blob(gone, None)
    mark_removal(batch)
