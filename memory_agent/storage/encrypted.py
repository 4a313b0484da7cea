"""How keys and values of an LMDB environment are kept when it is encrypted; knows no engine.

Values are sealed for their key. Of keys, numbers and places in time stay as they are, since the order of entries is
that of their keys; names are encrypted so that equal ones are found again, and no longer lie in their order. A name
that is a ULID keeps the ten letters that are its time in front: what is new goes to the end, where its page is warm,
and recalls are still pruned oldest first. An empty value says nothing, and is kept as it is. What carries a checksum
over its row is sealed without: the tag says more, and with both one vector less would fit on a page (-20 %).

A marker in the environment says with which key; so an encrypted store is never taken for a plain one, nor opened with
another key, nor begun anew.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from memory_agent.errors import StoreDamagedError, StoreEncryptedError, StoreNotEncryptedError
from memory_agent.storage.user_key import UserKey
from relay import UndecipherableError
from relay.crypto import Cipher
from relay.disk import CHECKSUM_BYTES, checksum

_ULID = re.compile(rb"[0-7][0-9A-HJKMNP-TV-Z]{25}")
_TIME = re.compile(rb"[0-7][0-9A-HJKMNP-TV-Z]{9}")
_TIME_BYTES = 10
_LONGEST_PLACE = 9
_MARK = b"1"  # the version of this form, before the id of the key


class Form(NamedTuple):
    """How a database is kept: the first `plain_bytes` of its keys stay (None: all), values are sealed or numbers.

    `is_checked`: values carry a checksum over their key, which is a number.
    """

    plain_bytes: int | None
    is_sealed: bool = True
    is_checked: bool = False


ROWS = Form(None, is_checked=True)
OURS = Form(None)
"""Keys that say nothing: names of the program's own."""
NAMES = Form(0)
PLACES = Form(_LONGEST_PLACE)
"""A letter and eight bytes of time, number or row, then a name."""
ROWS_OF_NAMES = Form(0, is_sealed=False)


class Encrypted:
    """One transaction's way from what is meant to what is kept, and back."""

    def __init__(self, cipher: Cipher, forms: Mapping[str, Form]) -> None:
        self._cipher = cipher
        self._forms = forms

    def key(self, database: str, key: bytes) -> bytes:
        """Return the key under which `key` is kept; also of the beginning of one, up to its name, as a scan asks."""
        start = self._forms[database].plain_bytes
        if start is None or len(key) <= start:
            return key
        name = key[start:]
        if _ULID.fullmatch(name):
            start += _TIME_BYTES
        return key[:start] + self._cipher.name(key[start:])

    def plain_key(self, database: str, kept: bytes) -> bytes:
        """Return the key that `key` made into this one. Raises `StoreDamagedError`."""
        start = self._forms[database].plain_bytes
        if start is None or len(kept) <= start:
            return kept
        begins = (start + _TIME_BYTES, start) if _TIME.match(kept, start) else (start,)
        for begin in begins:
            with suppress(UndecipherableError):
                return kept[:begin] + self._cipher.plain_name(kept[begin:])
        raise StoreDamagedError(f"{database}: a key cannot be deciphered")

    def seal(self, database: str, kept: bytes, value: bytes) -> bytes:
        """Return what is kept of a value under a kept key. Raises `StoreDamagedError` for a checksum that is wrong."""
        form = self._forms[database]
        if not value or not form.is_sealed:
            return value
        if form.is_checked:
            value = _unchecked(database, kept, value)
        return self._cipher.seal(value, _about(database, kept))

    def open(self, database: str, kept: bytes, sealed: bytes) -> bytes:
        """Return the value. Raises `StoreDamagedError`."""
        form = self._forms[database]
        if not sealed or not form.is_sealed:
            return sealed
        try:
            value = self._cipher.open(sealed, _about(database, kept))
        except UndecipherableError as error:
            raise StoreDamagedError(f"{database}: a value cannot be deciphered") from error
        return checksum(_number(kept), value) + value if form.is_checked else value


class Encryption:
    """With whose key, and how, an environment is encrypted."""

    def __init__(self, key: UserKey, purpose: str, forms: Mapping[str, Form]) -> None:
        self._key = key
        self._purpose = purpose
        self._forms = forms
        self._key_id: bytes | None = None

    def begin(self) -> Encrypted:
        """Return the way for a transaction.

        Raises `EncryptionKeyMissingError` once the key was destroyed, also where the user has another one since.
        """
        cipher = self._key.cipher(self._purpose)
        if self._key_id not in (None, cipher.key_id):
            raise self._key.missing()
        return Encrypted(cipher, self._forms)

    def mark(self, kept: bytes | None, *, may_create: bool) -> bytes:
        """Return the marker to keep: `kept` where there is one and the key fits. Raises `EncryptionKeyMissingError`."""
        key_id = self._key.cipher(self._purpose, create=kept is None and may_create).key_id
        marker = _MARK + key_id
        if kept not in (None, marker):
            raise self._key.missing()
        self._key_id = key_id
        return marker


def agreed_mark(
    encryption: Encryption | None, path: Path, kept: bytes | None, *, is_empty: bool, may_create: bool
) -> bytes | None:
    """Return the marker that belongs into an environment, None for a plain one.

    `kept` is the one that is there; `is_empty`, whether there is nothing else. Raises `StoreEncryptedError`,
    `StoreNotEncryptedError`, `EncryptionKeyMissingError`.
    """
    if encryption is None:
        if kept is not None:
            raise StoreEncryptedError(str(path))
        return None
    if kept is None and not is_empty:
        raise StoreNotEncryptedError(str(path))
    return encryption.mark(kept, may_create=may_create)


def marked_key(marker: bytes) -> bytes:
    """Return the id of the key that a marker speaks of."""
    return marker.removeprefix(_MARK)


def _unchecked(database: str, kept: bytes, value: bytes) -> bytes:
    """Return a value without its checksum; a wrong one would be right when it is opened, and the damage hidden."""
    body = value[CHECKSUM_BYTES:]
    if checksum(_number(kept), body) != value[:CHECKSUM_BYTES]:
        raise StoreDamagedError(f"{database} {_number(kept)} does not match its checksum")
    return body


def _number(key: bytes) -> int:
    return int.from_bytes(key, "big")


def _about(database: str, kept: bytes) -> bytes:
    return database.encode() + b"\0" + kept
