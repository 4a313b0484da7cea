"""Open LMDB environments, users' records and encryption keys, raising the errors in `memory_agent.errors`."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import relay
from memory_agent import errors
from memory_agent.settings import StoreSettings
from memory_agent.storage.folders import data_dir_of
from memory_agent.storage.snapshot import DATABASES, FORMS
from relay import SYSTEM_USER, EncryptionSettings, journal_folder
from relay.crypto import Cipher, Encryption, KeyRing, open_key_ring, read_ring, ring_file
from relay.disk import DATA_FILE, Environment, ErrorFamily, OnCommit, OwnerLock, Role, opening
from relay.disk import last_epoch as epoch_of_last_owner

RECORDS_FOLDER = "records"
_PURPOSE = "records"
STORE_ERRORS = ErrorFamily(
    failed=errors.StoreError,
    full=errors.StoreFullError,
    damaged=errors.StoreDamagedError,
    in_use=errors.StoreOwnedElsewhereError,
    fenced=errors.FencedError,
    is_encrypted=errors.StoreEncryptedError,
    not_encrypted=errors.StoreNotEncryptedError,
)


open_environment = partial(Environment.open, errors=STORE_ERRORS)


def compact(environment: Environment) -> None:
    """Run `Environment.compact`. Raises `DeadlineExceededError` if a reader does not finish, and `StoreError`s."""
    try:
        environment.compact()
    except TimeoutError as error:
        raise errors.DeadlineExceededError(str(error)) from error


def own(folder: Path, role: Role, takeover_after_s: float = 5.0) -> OwnerLock:
    """Become the owner of a user's folder (`OwnerLock.acquire`). Raises `StoreOwnedElsewhereError` and `StoreError`."""
    return OwnerLock.acquire(folder, role, STORE_ERRORS, takeover_after_s)


def last_epoch(folder: Path) -> int:
    """Return the epoch of the last owner of a user's folder, or 0. Raises `StoreError`."""
    return epoch_of_last_owner(folder, STORE_ERRORS)


def has_records(folder: Path) -> bool:
    return (folder / RECORDS_FOLDER / DATA_FILE).exists()


def settle_key(folder: Path, key: UserKey | None) -> None:
    """Create the key of a user without records, before any other file of the user.

    Raises `EncryptionKeyMissingError` if the key folder is missing, `StoreEncryptedError` if the data folder is
    encrypted and `key` is None, and `StoreError`.
    """
    if has_records(folder):
        return
    if key is not None:
        key.cipher(_PURPOSE, create=True)
    elif (data_dir := data_dir_of(folder)) is not None:
        require_plain(data_dir)


def records_at(
    path: Path,
    settings: StoreSettings,
    key: UserKey | None,
    lock: OwnerLock | None = None,
    on_commit: OnCommit | None = None,
) -> Environment:
    """Open or create the records in `path`, for the owner of the user's folder. Raises as `Store.open`."""
    return open_environment(
        path, settings.map_size_bytes, DATABASES, encryption=_encryption(key), lock=lock, on_commit=on_commit
    )


def open_records(folder: Path, settings: StoreSettings, key: UserKey | None = None) -> Environment:
    """Open the records for reading, even while their owner writes. Raises as `Store.open`."""
    path = folder / RECORDS_FOLDER
    with opening(folder):
        return open_environment(path, settings.map_size_bytes, DATABASES, readonly=True, encryption=_encryption(key))


def _encryption(key: UserKey | None) -> Encryption | None:
    return None if key is None else Encryption(key, _PURPOSE, FORMS)


class UserKey:
    """A user's key. Each call looks it up in a key ring, and the key need not exist yet. Thread-safe."""

    def __init__(self, ring: KeyRing, user_id: str, *, is_one_of_many: bool = False) -> None:
        """With `is_one_of_many`, a relay also uses the ring, and a key is created only if `system` has a key."""
        self.user_id = user_id
        self._ring = ring
        self._is_one_of_many = is_one_of_many

    def cipher(self, purpose: str, *, create: bool = False) -> Cipher:
        """Return the cipher for a purpose. Raises `StoreError`, `EncryptionKeyMissingError` and `InvalidInputError`."""
        try:
            if create and self._is_one_of_many and not self._ring.has(self.user_id):
                self._ring.cipher(SYSTEM_USER, purpose)  # raises if the key folder is missing
            return self._ring.cipher(self.user_id, purpose, create=create)
        except relay.EncryptionKeyMissingError as error:
            raise errors.EncryptionKeyMissingError(error.user_id, error.folder) from error
        except relay.KeyFileError as error:
            raise errors.StoreError(str(error)) from error
        except relay.MalformedEventError as error:
            raise errors.InvalidInputError("user_id", error.reason) from error

    def missing(self) -> errors.EncryptionKeyMissingError:
        """Return the error for a store that is encrypted with a different key."""
        return errors.EncryptionKeyMissingError(self.user_id, str(self._ring.folder))


def open_user_key(
    settings: EncryptionSettings, data_dir: Path, user_id: str, *, is_shared: bool = True
) -> UserKey | None:
    """Return a user's key, or None if encryption is off. Raises `SettingsError`. See `open_key_ring`."""
    try:
        ring = open_key_ring(settings, data_dir, is_shared=is_shared)
    except relay.RelaySettingsError as error:
        raise errors.SettingsError(error.setting, error.reason) from error
    if ring is None:
        return None
    is_one_of_many = user_id != SYSTEM_USER and (journal_folder(data_dir).exists() or ring_file(data_dir).exists())
    return UserKey(ring, user_id, is_one_of_many=is_one_of_many)


def open_key_of(settings: EncryptionSettings, folder: Path, user_id: str) -> UserKey | None:
    """Return the key of the memory in `folder`, which is a user's folder or that of a standalone memory."""
    data_dir = data_dir_of(folder)
    return open_user_key(settings, data_dir or folder, user_id, is_shared=data_dir is not None)


def require_plain(data_dir: Path) -> None:
    """Raise `StoreEncryptedError` if the data folder is encrypted, and `StoreError` if this cannot be determined."""
    try:
        if read_ring(data_dir) is not None:
            raise errors.StoreEncryptedError(str(data_dir))
    except relay.KeyFileError as error:
        raise errors.StoreError(str(error)) from error


def require_keys(settings: EncryptionSettings, data_dir: Path) -> None:
    """Raise `StoreEncryptedError` or `EncryptionKeyMissingError` unless the settings name the data folder's ring."""
    if open_user_key(settings, data_dir, SYSTEM_USER) is None:
        require_plain(data_dir)
        return
    ring = open_key_ring(settings, data_dir)
    try:
        if ring is not None and ring.is_away():
            raise errors.EncryptionKeyMissingError(SYSTEM_USER, str(ring.folder))
    except relay.KeyFileError as error:
        raise errors.StoreError(str(error)) from error
