"""The checksum in front of what a store keeps: over the bytes, and the number that they are kept under."""

from __future__ import annotations

import xxhash

CHECKSUM_BYTES = 8


def checksum(number: int, body: bytes) -> bytes:
    """Return the checksum of `body` where it is kept under `number`; elsewhere it is another one."""
    return xxhash.xxh3_64_digest(body, seed=number)
