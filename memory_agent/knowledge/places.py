"""The names of the blobs beside shared items.

They are readable in an encrypted store. So they are digests, keyed with the secret of the store.
"""

from __future__ import annotations

import secrets
from hashlib import blake2b

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


def mark_removal(batch: Batch) -> None:
    """Note that bytes are left of what goes, for the next upkeep."""
    batch.set_blob(PURGE, secrets.token_bytes(8))
