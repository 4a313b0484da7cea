"""What is encrypted with one user's key: values with AES-256-GCM, names with AES-SIV.

A value is sealed under what it is about (its database and key, say), so that it cannot be put in another place. A name
has to be found again, so equal names give equal bytes: who reads the disk sees that two are the same, and how long they
are. Both keys are derived from the user's (HKDF-SHA256), apart for each purpose. Nonces are random: 2^32 values with
one key are safe (NIST SP 800-38D, 8.3). Rejected: Fernet, which encodes in base 64 and costs a third more room.
"""

from __future__ import annotations

import os

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM, AESSIV
from cryptography.hazmat.primitives.hashes import SHA256, Hash
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from relay.errors import UndecipherableError

KEY_BYTES = 32
SEAL_BYTES = 28
"""By how much a sealed value is longer: a nonce of 12 bytes, and a tag of 16."""
NAME_BYTES = 16
"""By how much an encrypted name is longer: its tag."""
_NONCE_BYTES = 12
_VALUE_KEY_BYTES, _NAME_KEY_BYTES = 32, 64


class Cipher:
    """Encrypts for one user and one purpose. Threads may share it."""

    def __init__(self, key: bytes, purpose: str) -> None:
        derived = HKDF(
            SHA256(), length=_VALUE_KEY_BYTES + _NAME_KEY_BYTES, salt=None, info=b"memory-agent " + purpose.encode()
        ).derive(key)
        self._values = AESGCM(derived[:_VALUE_KEY_BYTES])
        self._names = AESSIV(derived[_VALUE_KEY_BYTES:])
        self.key_id = key_id(key)

    def seal(self, plain: bytes, about: bytes) -> bytes:
        """Return `plain` encrypted, `SEAL_BYTES` longer; only `open` with the same `about` reads it."""
        nonce = os.urandom(_NONCE_BYTES)
        return nonce + self._values.encrypt(nonce, plain, about)

    def open(self, sealed: bytes, about: bytes) -> bytes:
        """Return what was sealed. Raises `UndecipherableError`: another key or place, or damaged."""
        try:
            return self._values.decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], about)
        except (InvalidTag, ValueError) as error:
            raise UndecipherableError from error

    def name(self, plain: bytes) -> bytes:
        """Return a name encrypted, the same bytes each time, `NAME_BYTES` longer."""
        return self._names.encrypt(plain, None)

    def plain_name(self, encrypted: bytes) -> bytes:
        """Return the name that `name` encrypted. Raises `UndecipherableError`."""
        try:
            return self._names.decrypt(encrypted, None)
        except (InvalidTag, ValueError) as error:
            raise UndecipherableError from error


def key_id(key: bytes) -> bytes:
    """Return 8 bytes that tell keys apart and say nothing about them."""
    digest = Hash(SHA256())
    digest.update(b"memory-agent key id" + key)
    return digest.finalize()[:8]
