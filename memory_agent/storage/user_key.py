"""One user's encryption key, with the errors of the memory.

Each call looks the key up in the ring, so a destroyed key ends the use of a store at its next transaction.
"""

from __future__ import annotations

from pathlib import Path

import relay
from memory_agent.errors import (
    EncryptionKeyMissingError,
    InvalidInputError,
    SettingsError,
    StoreEncryptedError,
    StoreError,
)
from memory_agent.storage.folders import data_dir_of
from relay import SYSTEM_USER, EncryptionSettings, journal_folder
from relay.crypto import Cipher, KeyRing, open_key_ring, read_ring


class UserKey:
    """The key of one user in a ring. It need not exist yet. Threads may share it."""

    def __init__(self, ring: KeyRing, user_id: str, *, is_one_of_many: bool = False) -> None:
        """`is_one_of_many`: a relay uses the ring too, and a key is created only beside that of `system`."""
        self.user_id = user_id
        self._ring = ring
        self._is_one_of_many = is_one_of_many

    def cipher(self, purpose: str, *, create: bool = False) -> Cipher:
        """Return the cipher for a purpose. `create`: create the key if there is none. Takes 2 us.

        Raises `EncryptionKeyMissingError`, `StoreError` for an unreadable key, `InvalidInputError`.
        """
        try:
            if create and self._is_one_of_many and not self._ring.has(self.user_id):
                self._ring.cipher(SYSTEM_USER, purpose)  # raises when the folder of keys is away
            return self._ring.cipher(self.user_id, purpose, create=create)
        except relay.EncryptionKeyMissingError as error:
            raise EncryptionKeyMissingError(error.user_id, error.folder) from error
        except relay.KeyFileError as error:
            raise StoreError(str(error)) from error
        except relay.MalformedEventError as error:
            raise InvalidInputError("user_id", error.reason) from error

    def missing(self) -> EncryptionKeyMissingError:
        """Return the error for a store that is encrypted with another key."""
        return EncryptionKeyMissingError(self.user_id, str(self._ring.folder))


def open_user_key(
    settings: EncryptionSettings, data_dir: Path, user_id: str, *, is_shared: bool = True
) -> UserKey | None:
    """Return a user's key; None where the settings name no ring, and nothing is encrypted. Raises `SettingsError`.

    `is_shared`: as for `open_key_ring`.
    """
    try:
        ring = open_key_ring(settings, data_dir, is_shared=is_shared)
    except relay.RelaySettingsError as error:
        raise SettingsError(error.setting, error.reason) from error
    if ring is None:
        return None
    is_one_of_many = user_id != SYSTEM_USER and journal_folder(data_dir).exists()
    return UserKey(ring, user_id, is_one_of_many=is_one_of_many)


def open_key_of(settings: EncryptionSettings, folder: Path, user_id: str) -> UserKey | None:
    """Return the key of the memory in `folder`, in a data folder or standalone (`open_user_key`)."""
    data_dir = data_dir_of(folder)
    return open_user_key(settings, data_dir or folder, user_id, is_shared=data_dir is not None)


def require_plain(data_dir: Path) -> None:
    """Raise `StoreEncryptedError` if the data folder is encrypted, and `StoreError` if that cannot be read."""
    try:
        if read_ring(data_dir) is not None:
            raise StoreEncryptedError(str(data_dir))
    except relay.KeyFileError as error:
        raise StoreError(str(error)) from error


def require_keys(settings: EncryptionSettings, data_dir: Path) -> None:
    """Check that the settings name the ring of the data folder, before anything is begun in it.

    Raises `SettingsError`, `StoreEncryptedError` where they name none and the data folder has one,
    `EncryptionKeyMissingError` where they name another one, `StoreError`.
    """
    if open_user_key(settings, data_dir, SYSTEM_USER) is None:
        require_plain(data_dir)
        return
    ring = open_key_ring(settings, data_dir)
    try:
        if ring is not None and ring.is_away():
            raise EncryptionKeyMissingError(SYSTEM_USER, str(ring.folder))
    except relay.KeyFileError as error:
        raise StoreError(str(error)) from error
