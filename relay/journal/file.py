"""Opens a journal's file, copies it while it is in use, and moves consumers back.

A journal is encrypted from the start or not at all. An encrypted journal stores the id of the system key. If the keys
folder is missing or wrong, nothing is read or written, and no keys are created.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from relay import errors
from relay.config import JournalSettings
from relay.crypto import KeyRing
from relay.disk import Environment, ErrorFamily, OnCommit, Transaction, WriterLock, opening
from relay.journal.entries import COUNTERS, DATABASES, add_to_counter, counter, number, number_key
from relay.journal.sealing import PURPOSE
from relay.validation import SYSTEM_USER

MARK = b"encrypted"
_SKIPPED_NUMBERS = 1 << 24  # far more than the number of events that can be waiting to be copied
_ERRORS = ErrorFamily(
    failed=errors.JournalError,
    full=errors.JournalFullError,
    damaged=errors.JournalDamagedError,
    in_use=errors.JournalInUseError,
    fenced=lambda path, own, current: errors.JournalError(f"{path}: epoch {own} was superseded by {current}"),
    is_encrypted=lambda path: errors.EncryptionMismatchError(path, True),
    not_encrypted=lambda path: errors.EncryptionMismatchError(path, False),
)


def open_file(
    folder: Path, settings: JournalSettings, *, readonly: bool = False, on_commit: OnCommit | None = None
) -> Environment:
    """Open a journal's environment. A writer creates the environment if needed, and is its only writer. Raises
    `JournalError`s.
    """
    try:
        if readonly:
            with opening(folder, WriterLock):
                return Environment.open(folder, settings.map_size_bytes, DATABASES, errors=_ERRORS, readonly=True)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = WriterLock.take(folder, _ERRORS)
    except OSError as error:
        raise _ERRORS.of_system(error, folder, settings.map_size_bytes) from error
    try:
        return Environment.open(
            folder, settings.map_size_bytes, DATABASES, errors=_ERRORS, lock=lock, on_commit=on_commit
        )
    except BaseException:
        lock.release()
        raise


def open_copy(folder: Path, settings: JournalSettings) -> Environment:
    return Environment.open(folder, settings.map_size_bytes, DATABASES, errors=_ERRORS)


def skip_numbers(folder: Path, settings: JournalSettings) -> int:
    """Skip numbers in a journal that was restored from a copy, and return the last skipped number.

    The lost journal may have assigned these numbers to events that were read but not copied. A reader would mistake new
    events with these numbers for repeats. Durable on return. Raises `JournalError`.
    """
    with closing(open_file(folder, settings)) as environment, environment.write() as transaction:
        return add_to_counter(transaction, "last_seq", _SKIPPED_NUMBERS)


def require_unused(folder: Path) -> None:
    """Raise `JournalInUseError` while a process writes the journal in `folder`."""
    WriterLock.take(folder, _ERRORS).release()


def require_encryption(environment: Environment, keys: KeyRing | None, *, readonly: bool) -> bytes | None:
    """Check that a journal is encrypted with `keys`, or plain if `keys` is None. A new journal adopts the keys.

    Returns the id of the system key, or None if the journal is plain, or new and `readonly`. Raises
    `EncryptionMismatchError` and `EncryptionKeyMissingError`.
    """
    with environment.read() as transaction:
        mark, is_new = transaction.get(COUNTERS, MARK), _is_new(transaction)
    if keys is None:
        if mark is not None:
            raise errors.EncryptionMismatchError(str(environment.path), True)
    elif mark is not None:
        if keys.cipher(SYSTEM_USER, PURPOSE).key_id != mark:
            raise errors.EncryptionKeyMissingError(SYSTEM_USER, str(keys.folder))
        if not readonly:
            keys.claim()
    elif not is_new:
        raise errors.EncryptionMismatchError(str(environment.path), False)
    elif not readonly:
        mark = claim_ring(keys)
        with environment.write() as transaction:
            transaction.put(COUNTERS, MARK, mark)
    return mark


def claim_ring(keys: KeyRing) -> bytes:
    """Return the id of the system key, which marks a journal as encrypted. Creates a missing key."""
    keys.claim()
    return keys.cipher(SYSTEM_USER, PURPOSE, create=True).key_id


class Mark(NamedTuple):
    """Whether a journal is new, and the id of its system key (None for a plain journal)."""

    is_new: bool
    key_id: bytes | None


def read_mark(folder: Path, settings: JournalSettings) -> Mark:
    """Return the mark of the journal in `folder`. A missing journal is treated as new. Raises `JournalError`."""
    if not folder.exists():
        return Mark(True, None)
    with closing(open_file(folder, settings, readonly=True)) as environment, environment.read() as transaction:
        return Mark(_is_new(transaction), transaction.get(COUNTERS, MARK))


def _is_new(transaction: Transaction) -> bool:
    return not counter(transaction, "last_seq") and not counter(transaction, "quarantine_last_id")


def cursors(folder: Path, settings: JournalSettings) -> dict[str, int]:
    with closing(open_file(folder, settings, readonly=True)) as environment, environment.read() as transaction:
        return {name.decode(): number(seq) for name, seq in transaction.scan("consumers")}


def copy_journal(source: Path, target: Path, settings: JournalSettings) -> int:
    """Write a consistent copy of a journal, even one in use, into the empty folder `target`. Not fsynced.

    Returns the last number of the copy. Read the cursors of consumers before you copy their stores, and `rewind` the
    copied journal to these cursors. Consumers recognise events that they receive again. Raises `JournalError`.
    """
    with closing(open_file(source, settings, readonly=True)) as environment:
        environment.copy(target)
    with closing(open_file(target, settings, readonly=True)) as copy, copy.read() as transaction:
        return counter(transaction, "last_seq")


def rewind(folder: Path, settings: JournalSettings, to: Mapping[str, int], *, others: int | None = None) -> None:
    """Move consumers back to the cursors in `to`, never forward. Durable on return.

    `others` is the cursor for consumers that are not in `to`. Raises `JournalInUseError` and `JournalError`.
    """
    with closing(open_file(folder, settings)) as environment, environment.write() as transaction:
        for name, seq in list(transaction.scan("consumers")):
            wanted = to.get(name.decode(), others)
            if wanted is not None and wanted < number(seq):
                transaction.put("consumers", name, number_key(wanted))
