"""Encryption at rest: the ciphers of users, and the ring that keeps their keys."""

from relay.crypto.cipher import NAME_BYTES, SEAL_BYTES, Cipher
from relay.crypto.key_ring import KeyRing, open_key_ring, read_ring

__all__ = ["NAME_BYTES", "SEAL_BYTES", "Cipher", "KeyRing", "open_key_ring", "read_ring"]
