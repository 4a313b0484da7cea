"""One user's encryption key, as the files of its memory ask for it: in our terms, and anew each time.

Who asks for a cipher asks the ring, so a key that was destroyed ends the use of a store at its next transaction. What
this does not do: encrypt. That is `encrypted` for LMDB, and each file's own business.
"""

from __future__ import annotations

from pathlib import Path

from memory_agent.errors import (
    EncryptionKeyMissingError,
    InvalidInputError,
    SettingsError,
    StoreEncryptedError,
    StoreError,
)
from memory_agent.storage.folders import data_dir_of
from relay import SYSTEM_USER, EncryptionSettings, errors, journal_folder
from relay.cipher import Cipher
from relay.key_ring import KeyRing, open_key_ring
from relay.ring_mark import read_ring


class UserKey:
    """The key of one user in a ring; it need not exist yet. Threads may share it."""

    def __init__(self, ring: KeyRing, user_id: str, *, is_one_of_many: bool = False) -> None:
        """`is_one_of_many`: a relay keeps keys in the ring too, and a new key is made only beside that of `system`."""
        self.user_id = user_id
        self._ring = ring
        self._is_one_of_many = is_one_of_many

    def cipher(self, purpose: str, *, create: bool = False) -> Cipher:
        """Return what encrypts for `purpose`; `create` makes the key where there is none. Costs 2 us.

        Raises `EncryptionKeyMissingError`, `StoreError` for a key that cannot be read, `InvalidInputError`.
        """
        try:
            if create and self._is_one_of_many and not self._ring.has(self.user_id):
                self._ring.cipher(SYSTEM_USER, purpose)  # else the folder of keys is away, and nobody finds it again
            return self._ring.cipher(self.user_id, purpose, create=create)
        except errors.EncryptionKeyMissingError as error:
            raise EncryptionKeyMissingError(error.user_id, error.folder) from error
        except errors.KeyFileError as error:
            raise StoreError(str(error)) from error
        except errors.MalformedEventError as error:
            raise InvalidInputError("user_id", error.reason) from error

    def missing(self) -> EncryptionKeyMissingError:
        """Return the error of a store that is encrypted with another key than this one."""
        return EncryptionKeyMissingError(self.user_id, str(self._ring.folder))


def open_user_key(
    settings: EncryptionSettings, data_dir: Path, user_id: str, *, is_shared: bool = True
) -> UserKey | None:
    """Return a user's key as the settings say, None where nothing is encrypted. Raises `SettingsError`.

    `is_shared`: as for `open_key_ring`.
    """
    try:
        ring = open_key_ring(settings, data_dir, is_shared=is_shared)
    except errors.RelaySettingsError as error:
        raise SettingsError(error.setting, error.reason) from error
    if ring is None:
        return None
    is_one_of_many = user_id != SYSTEM_USER and journal_folder(data_dir).exists()
    return UserKey(ring, user_id, is_one_of_many=is_one_of_many)


def open_key_of(settings: EncryptionSettings, folder: Path, user_id: str) -> UserKey | None:
    """As `open_user_key`, of the memory in `folder`, in a data folder or by itself."""
    data_dir = data_dir_of(folder)
    return open_user_key(settings, data_dir or folder, user_id, is_shared=data_dir is not None)


def require_plain(data_dir: Path) -> None:
    """Raise `StoreEncryptedError` where what is new is to be encrypted, since the data folder is; `StoreError`."""
    try:
        if read_ring(data_dir) is not None:
            raise StoreEncryptedError(str(data_dir))
    except errors.KeyFileError as error:
        raise StoreError(str(error)) from error


def require_keys(settings: EncryptionSettings, data_dir: Path) -> None:
    """Hold the settings against what the data folder is encrypted with, before anything is begun in it.

    Raises `SettingsError`, `StoreEncryptedError` where they name no folder of keys and some of it is encrypted,
    `EncryptionKeyMissingError` where the folder that they name is away or another one, `StoreError`.
    """
    if open_user_key(settings, data_dir, SYSTEM_USER) is None:
        require_plain(data_dir)
        return
    ring = open_key_ring(settings, data_dir)
    try:
        if ring is not None and ring.is_away():
            raise EncryptionKeyMissingError(SYSTEM_USER, str(ring.folder))
    except errors.KeyFileError as error:
        raise StoreError(str(error)) from error
