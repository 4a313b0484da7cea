"""Encryption at rest: per-user ciphers, the key ring, and encrypted LMDB environments.

Read `key_ring` first, then `cipher` and `encryption` (the encrypted form of a database).
"""

from relay.crypto.cipher import NAME_BYTES, SEAL_BYTES, Cipher
from relay.crypto.encrypt_in_place import Put, encrypt_in_place
from relay.crypto.encryption import NAMES, OURS, PLACES, ROWS, ROWS_OF_NAMES, Encryption, Form
from relay.crypto.key_ring import KeyRing, open_key_ring, read_ring, ring_file

__all__ = [
    "NAMES",
    "NAME_BYTES",
    "OURS",
    "PLACES",
    "ROWS",
    "ROWS_OF_NAMES",
    "SEAL_BYTES",
    "Cipher",
    "Encryption",
    "Form",
    "KeyRing",
    "Put",
    "encrypt_in_place",
    "open_key_ring",
    "read_ring",
    "ring_file",
]
