"""Open the LMDB environments of the memory, with its errors, and locate a user's records."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from memory_agent.errors import (
    DeadlineExceededError,
    FencedError,
    StoreDamagedError,
    StoreEncryptedError,
    StoreError,
    StoreFullError,
    StoreNotEncryptedError,
    StoreOwnedElsewhereError,
)
from memory_agent.settings import StoreSettings
from memory_agent.storage.folders import data_dir_of
from memory_agent.storage.snapshot import DATABASES, FORMS
from memory_agent.storage.user_key import UserKey, require_plain
from relay.crypto import Encryption
from relay.disk import DATA_FILE, Environment, ErrorFamily, OwnerLock, Role, WriterLock, opening
from relay.disk import last_epoch as epoch_of_last_owner

RECORDS_FOLDER = "records"
_PURPOSE = "records"
STORE_ERRORS = ErrorFamily(
    failed=StoreError,
    full=StoreFullError,
    damaged=StoreDamagedError,
    in_use=StoreOwnedElsewhereError,
    fenced=FencedError,
    is_encrypted=StoreEncryptedError,
    not_encrypted=StoreNotEncryptedError,
)


def open_environment(
    path: Path,
    map_size_bytes: int,
    databases: Sequence[str] = (),
    *,
    readonly: bool = False,
    encryption: Encryption | None = None,
    lock: WriterLock | None = None,
) -> Environment:
    """Open an environment as `Environment.open` does.

    Raises `StoreDamagedError`, `StoreFullError`, `StoreError`, `StoreEncryptedError`, `StoreNotEncryptedError`,
    `EncryptionKeyMissingError`.
    """
    return Environment.open(
        path, map_size_bytes, databases, STORE_ERRORS, readonly=readonly, encryption=encryption, lock=lock
    )


def compact(environment: Environment) -> None:
    """Compact an environment (`Environment.compact`).

    Raises `StoreFullError`, `StoreDamagedError`, `DeadlineExceededError` when a read does not end, `FencedError`.
    """
    try:
        environment.compact()
    except TimeoutError as error:
        raise DeadlineExceededError(str(error)) from error


def own(folder: Path, role: Role, takeover_after_s: float = 5.0) -> OwnerLock:
    """Become the owner of a user's folder (`OwnerLock.acquire`). Raises `StoreOwnedElsewhereError`, `StoreError`."""
    return OwnerLock.acquire(folder, role, STORE_ERRORS, takeover_after_s)


def last_epoch(folder: Path) -> int:
    """Return the epoch of the last owner of a user's folder, 0 before the first. Raises `StoreError`."""
    return epoch_of_last_owner(folder, STORE_ERRORS)


def has_records(folder: Path) -> bool:
    """Whether a user's folder holds records."""
    return (folder / RECORDS_FOLDER / DATA_FILE).exists()


def settle_key(folder: Path, key: UserKey | None) -> None:
    """Create the key of a user without records, before anything else is created.

    Raises `EncryptionKeyMissingError` where the folder of keys is away, `StoreEncryptedError` without a `key` in an
    encrypted data folder, `StoreError`.
    """
    if has_records(folder):
        return
    if key is not None:
        key.cipher(_PURPOSE, create=True)
    elif (data_dir := data_dir_of(folder)) is not None:
        require_plain(data_dir)


def own_records(
    folder: Path, settings: StoreSettings, key: UserKey | None, lock: OwnerLock | None = None
) -> Environment:
    """Open the records in a user's folder, or create them, encrypted with `key` if there is one.

    The caller owns the folder; `lock` is then released by `close`. Raises as `Store.open`.
    """
    return records_at(folder / RECORDS_FOLDER, settings, key, lock)


def records_at(path: Path, settings: StoreSettings, key: UserKey | None, lock: OwnerLock | None = None) -> Environment:
    """Open records that lie in `path`, as `own_records` does."""
    return open_environment(path, settings.map_size_bytes, DATABASES, encryption=_encryption(key), lock=lock)


def open_records(folder: Path, settings: StoreSettings, key: UserKey | None = None) -> Environment:
    """Open the records for reading, beside their owner. Raises as `Store.open`, except for another owner."""
    path = folder / RECORDS_FOLDER
    with opening(folder):
        return open_environment(path, settings.map_size_bytes, DATABASES, readonly=True, encryption=_encryption(key))


def _encryption(key: UserKey | None) -> Encryption | None:
    return None if key is None else Encryption(key, _PURPOSE, FORMS)
