"""The stored form of keys and values in an encrypted LMDB environment. Does not import LMDB.

Values are encrypted with their LMDB key as associated data, and empty values stay empty. Names are encrypted
deterministically. Numbers and times in keys stay plain, including the first ten characters of a ULID, so that entries
can be read in the order of their keys. A row's checksum is removed before encryption, because the tag replaces it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from typing import NamedTuple, Protocol

from relay.crypto.cipher import Cipher
from relay.disk import CHECKSUM_BYTES, ErrorFamily, checksum
from relay.errors import UndecipherableError

_ULID = re.compile(rb"[0-7][0-9A-HJKMNP-TV-Z]{25}")
_TIME = re.compile(rb"[0-7][0-9A-HJKMNP-TV-Z]{9}")
_TIME_BYTES = 10
_LONGEST_PLACE = 9


class Form(NamedTuple):
    """How a database is stored: the first `plain_bytes` of each key stay plain (None: the whole key). `is_checked`: see
    `ROWS`.
    """

    plain_bytes: int | None
    is_sealed: bool = True
    is_checked: bool = False


ROWS = Form(None, is_checked=True)  # a checksum covers the numeric key
OURS = Form(None)  # the keys are names that the program defines
NAMES = Form(0)
PLACES = Form(_LONGEST_PLACE)  # a letter, eight bytes with a time, number or row, and then a name
ROWS_OF_NAMES = Form(0, is_sealed=False)


class Key(Protocol):
    def cipher(self, purpose: str, *, create: bool = False) -> Cipher:
        """Return the cipher for a purpose. Raises if there is no key and `create` is False."""

    def missing(self) -> Exception: ...


class TransactionCipher:
    """Encrypts and decrypts the keys and values of one transaction."""

    def __init__(self, cipher: Cipher, forms: Mapping[str, Form], damaged: type[Exception]) -> None:
        """`damaged` is raised, with a message, for bytes that cannot be decrypted or do not match their checksum."""
        self._cipher = cipher
        self._forms = forms
        self._damaged = damaged

    def key(self, database: str, key: bytes) -> bytes:
        """Return the stored form of a key. A key prefix that ends before the name stays plain, so it can bound a
        scan.
        """
        start = self._forms[database].plain_bytes
        if start is None or len(key) <= start:
            return key
        name = key[start:]
        if _ULID.fullmatch(name):
            start += _TIME_BYTES
        return key[:start] + self._cipher.name(key[start:])

    def plain_key(self, database: str, stored: bytes) -> bytes:
        start = self._forms[database].plain_bytes
        if start is None or len(stored) <= start:
            return stored
        begins = (start + _TIME_BYTES, start) if _TIME.match(stored, start) else (start,)
        for begin in begins:
            with suppress(UndecipherableError):
                return stored[:begin] + self._cipher.plain_name(stored[begin:])
        raise self._damaged(f"{database}: a key cannot be decrypted")

    def seal(self, database: str, stored: bytes, value: bytes) -> bytes:
        """Return the stored form of a value; `stored` is the stored form of its key."""
        form = self._forms[database]
        if not value or not form.is_sealed:
            return value
        if form.is_checked:
            value = self._without_checksum(database, stored, value)
        return self._cipher.seal(value, _context(database, stored))

    def open(self, database: str, stored: bytes, sealed: bytes) -> bytes:
        form = self._forms[database]
        if not sealed or not form.is_sealed:
            return sealed
        try:
            value = self._cipher.open(sealed, _context(database, stored))
        except UndecipherableError as error:
            raise self._damaged(f"{database}: a value cannot be decrypted") from error
        return checksum(_number(stored), value) + value if form.is_checked else value

    def _without_checksum(self, database: str, stored: bytes, value: bytes) -> bytes:
        """Verify and remove a value's checksum; without this check, the new checksum from `open` would hide damage."""
        body = value[CHECKSUM_BYTES:]
        if checksum(_number(stored), body) != value[:CHECKSUM_BYTES]:
            raise self._damaged(f"{database} {_number(stored)} does not match its checksum")
        return body


class Encryption:
    """The key of an encrypted environment, and the forms of its databases."""

    def __init__(self, key: Key, purpose: str, forms: Mapping[str, Form]) -> None:
        self._key = key
        self._purpose = purpose
        self._forms = forms
        self._key_id: bytes | None = None

    def begin(self, errors: ErrorFamily) -> TransactionCipher:
        """Return the cipher for a transaction. Raises if the key was destroyed or replaced."""
        cipher = self._key.cipher(self._purpose)
        if self._key_id not in (None, cipher.key_id):
            raise self._key.missing()
        return TransactionCipher(cipher, self._forms, errors.damaged)

    def settle(self, key_id: bytes | None, *, may_create: bool) -> bytes:
        """Return the id of the key. Raises if `key_id` is not None and differs from this id."""
        found = self._key.cipher(self._purpose, create=key_id is None and may_create).key_id
        if key_id not in (None, found):
            raise self._key.missing()
        self._key_id = found
        return found


def _number(key: bytes) -> int:
    return int.from_bytes(key, "big")


def _context(database: str, stored: bytes) -> bytes:
    return database.encode() + b"\0" + stored
