"""What a store of shared items calls its users: pseudonyms, and the names that they choose."""

from __future__ import annotations

import secrets
from hashlib import blake2b

from memory_agent.knowledge.items import FORMER_NAMED, keep_name, name_in
from memory_agent.knowledge.places import ERASED, NAME, SECRET, mark_removal, place_of
from memory_agent.memory.namespaces import Erasure
from memory_agent.recall.query import check_now
from memory_agent.records.shared_content import PSEUDONYM_BYTES, pseudonym
from memory_agent.storage.archive import Archive
from memory_agent.storage.batch import Batch
from memory_agent.storage.snapshot import Snapshot

_FORMER_NAME = "shared:name:"


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
                known = batch.blob(SECRET)
                if known is None:
                    known = secrets.token_bytes(32)
                    batch.set_blob(SECRET, known)
        return known


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
