"""Whose a run or a session is, as checked bytes: one pair of key and user. Pure.

A pair that was damaged is nobody's: with one flipped bit it would hand a user's work to another.
"""

from __future__ import annotations

import xxhash

PAIRS = "pairs"
ORDER = "order"
"""The two databases: key -> sealed user, and a number that grows -> the key that was learnt then."""
MAP_SIZE_BYTES = 2 << 30
NOBODY = b""
"""What stands for the owner of a key that two users claim."""
_CHECKSUM_BYTES = 8


def seal_owner(key: bytes, user: bytes) -> bytes:
    """Return what is kept of an owner: a checksum over both, and the user."""
    return xxhash.xxh3_64_digest(key + b"\0" + user) + user


def opened_owner(key: bytes, value: bytes) -> bytes | None:
    """Return the user of a kept pair; None when it does not match its checksum."""
    user = value[_CHECKSUM_BYTES:]
    return user if seal_owner(key, user) == value else None
