"""Whether a journal is encrypted, which is said once for all of it.

An encrypted journal notes the system's key. So a folder of keys that is away, or another one, is told from users' keys
that were destroyed: nothing is read or written then, and no keys are made in its stead.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from relay.config import JournalSettings
from relay.crypto import KeyRing
from relay.disk import Environment, Transaction
from relay.entries import DATABASES, Counters
from relay.errors import EncryptionKeyMissingError, EncryptionMismatchError
from relay.sealing import PURPOSE
from relay.validation import SYSTEM_USER

_MARK = b"encrypted"


def require_mode(environment: Environment, keys: KeyRing | None, *, readonly: bool) -> bytes | None:
    """Hold what a journal is against what it is opened as; a new one becomes what it is opened as.

    Returns the id of the system's key by which it is encrypted; None where it is plain, or new and only read.
    Raises `EncryptionMismatchError`, `EncryptionKeyMissingError`.
    """
    with environment.read() as transaction:
        mark, is_new = _mark(environment, transaction), _is_new(environment, transaction)
    if keys is None:
        if mark is not None:
            raise EncryptionMismatchError(str(environment.path), True)
    elif mark is not None:
        if keys.cipher(SYSTEM_USER, PURPOSE).key_id != mark:
            raise EncryptionKeyMissingError(SYSTEM_USER, str(keys.folder))
        if not readonly:
            keys.claim()
    elif not is_new:
        raise EncryptionMismatchError(str(environment.path), False)
    elif not readonly:
        with environment.write() as transaction:
            return set_mark(environment, transaction, keys)
    return mark


def set_mark(environment: Environment, transaction: Transaction, keys: KeyRing) -> bytes:
    """Note that a journal is encrypted, and by which ring; return the id of the system's key, made if need be."""
    keys.claim()
    key_id = keys.cipher(SYSTEM_USER, PURPOSE, create=True).key_id
    transaction.put(_MARK, key_id, db=environment.databases["counters"])
    return key_id


class Mark(NamedTuple):
    """Whether a journal is new, and the id of the system's key that it is encrypted with, None for a plain one."""

    is_new: bool
    key_id: bytes | None


def read_mark(folder: Path, settings: JournalSettings) -> Mark:
    """Return how the journal in `folder` is kept; where there is none, it is new. Raises `JournalError`."""
    if not folder.exists():
        return Mark(True, None)
    environment = Environment.open(folder, settings.map_size_bytes, DATABASES, readonly=True)
    try:
        with environment.read() as transaction:
            return Mark(_is_new(environment, transaction), _mark(environment, transaction))
    finally:
        environment.close()


def is_encrypted(folder: Path, settings: JournalSettings) -> bool | None:
    """Return whether the journal in `folder` is encrypted, None where it is new and plain. Raises `JournalError`."""
    mark = read_mark(folder, settings)
    return None if mark.is_new and mark.key_id is None else mark.key_id is not None


def _mark(environment: Environment, transaction: Transaction) -> bytes | None:
    mark: bytes | None = transaction.get(_MARK, db=environment.databases["counters"])
    return mark


def _is_new(environment: Environment, transaction: Transaction) -> bool:
    """Say whether nothing was ever written that is encrypted elsewhere."""
    counters = Counters(environment.databases)
    return not counters.get(transaction, "last_seq") and not counters.get(transaction, "quarantine_last_id")
