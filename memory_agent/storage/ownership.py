"""The stored form of the owner of a run or session: a pair of key and user, with a checksum. Pure.

In an encrypted map a key is a digest made with the system's key: it recognises an id without revealing it. A damaged
pair has no owner, so that a flipped bit never gives a user's work to another.
"""

from __future__ import annotations

from collections.abc import Iterable

import xxhash

from memory_agent.storage.user_key import UserKey
from relay.crypto import Encryption, Form

PAIRS = "pairs"
ORDER = "order"
"""The two databases: key to user with a checksum, and a growing number to the key that was learnt then."""
UNCHECKED = "owners"
"""The database of a map from before pairs had a checksum."""
MAP_SIZE_BYTES = 2 << 30
NOBODY = b""
"""The owner of a key that two users claim."""
_CHECKSUM_BYTES = 8
_PURPOSE = "owners"
_AS_IT_IS = Form(None, is_sealed=False)


def encode_owner(key: bytes, user: bytes) -> bytes:
    """Return the stored form of an owner: a checksum over key and user, then the user."""
    return xxhash.xxh3_64_digest(key + b"\0" + user) + user


def decode_owner(key: bytes, value: bytes) -> bytes | None:
    """Return the user of a stored pair; None for a damaged one, also if it was damaged before it got its checksum."""
    user = value[_CHECKSUM_BYTES:]
    try:
        user.decode()
    except UnicodeDecodeError:
        return None
    return user if encode_owner(key, user) == value else None


def owners_encryption(key: UserKey | None) -> Encryption | None:
    """Return the encryption of the map with the system's key: its keys are digests, users stay readable."""
    return None if key is None else Encryption(key, _PURPOSE, dict.fromkeys((PAIRS, ORDER, UNCHECKED), _AS_IT_IS))


def kept_keys(plain: Iterable[bytes], key: UserKey | None) -> list[bytes]:
    """Return the stored form of the keys of runs and sessions. Raises `EncryptionKeyMissingError`."""
    if key is None:
        return list(plain)
    cipher = key.cipher(_PURPOSE)
    return [cipher.fingerprint(one) for one in plain]
