"""Encryption with one user's key: values with AES-256-GCM, names with AES-SIV.

A value is bound to its context, such as its database and key. Equal names encrypt to equal bytes. The keys are derived
from the user's key (HKDF-SHA256), separately for each purpose. Nonces are random (NIST SP 800-38D, 8.3). The package
`cryptography` is imported when the first key is used.
"""

from __future__ import annotations

import os
from hashlib import blake2b, sha256

from relay.errors import RelaySettingsError, UndecipherableError

KEY_BYTES = 32
SEAL_BYTES = 28  # bytes that encryption adds to a value: a 12-byte nonce and a 16-byte tag
NAME_BYTES = 16  # bytes that encryption adds to a name: a tag
_NONCE_BYTES = 12
_PRINT_BYTES = 16


class Cipher:
    """The cipher for one user and one purpose. Thread-safe."""

    def __init__(self, key: bytes, purpose: str) -> None:
        try:
            from cryptography.exceptions import InvalidTag
            from cryptography.hazmat.primitives.ciphers.aead import AESGCM, AESSIV
            from cryptography.hazmat.primitives.hashes import SHA256
            from cryptography.hazmat.primitives.kdf.hkdf import HKDF
        except ImportError as error:
            raise RelaySettingsError(
                "encryption.keys_folder", f"requires `pip install cryptography`: {error}"
            ) from error
        derived = HKDF(SHA256(), length=160, salt=None, info=b"memory-agent " + purpose.encode()).derive(key)
        self._refusals = (InvalidTag, ValueError)
        values, names, self.file_key, self._print_key = derived[:32], derived[32:96], derived[96:128], derived[128:]
        """`file_key` is a 32-byte key for an engine that encrypts its own files."""
        self._values, self._names = AESGCM(values), AESSIV(names)
        self.key_id = key_id(key)

    def seal(self, plain: bytes, about: bytes) -> bytes:
        """Encrypt `plain`; the result is `SEAL_BYTES` longer. `open` requires the same `about` (the context)."""
        nonce = os.urandom(_NONCE_BYTES)
        return nonce + self._values.encrypt(nonce, plain, about)

    def open(self, sealed: bytes, about: bytes) -> bytes:
        """Decrypt a value from `seal`. Raises `UndecipherableError` (wrong key or context, or damage)."""
        try:
            return self._values.decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], about)
        except self._refusals as error:
            raise UndecipherableError from error

    def name(self, plain: bytes) -> bytes:
        """Encrypt a name; the result is `NAME_BYTES` longer. Deterministic."""
        return self._names.encrypt(plain, None)

    def plain_name(self, encrypted: bytes) -> bytes:
        try:
            return self._names.decrypt(encrypted, None)
        except self._refusals as error:
            raise UndecipherableError from error

    def fingerprint(self, plain: bytes) -> bytes:
        """Return a keyed digest of 16 bytes, which identifies `plain` without revealing it."""
        return blake2b(plain, digest_size=_PRINT_BYTES, key=self._print_key).digest()


def key_id(key: bytes) -> bytes:
    """Return the id of a key: 8 bytes that do not reveal the key."""
    return sha256(b"memory-agent key id" + key).digest()[:8]
