"""One user's encryption key, as the files of its memory ask for it: in our terms, and anew each time.

Who asks for a cipher asks the ring, so a key that was destroyed ends the use of a store at its next transaction. What
this does not do: encrypt. That is `encrypted` for LMDB, and each file's own business.
"""

from __future__ import annotations

from pathlib import Path

from memory_agent.errors import EncryptionKeyMissingError, InvalidInputError, SettingsError, StoreError
from relay import errors
from relay.cipher import Cipher
from relay.config import EncryptionSettings, journal_folder
from relay.key_ring import KeyRing, open_key_ring
from relay.validation import SYSTEM_USER


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


def open_user_key(settings: EncryptionSettings, data_dir: Path, user_id: str) -> UserKey | None:
    """Return a user's key as the settings say, None where nothing is encrypted. Raises `SettingsError`.

    `data_dir` is the folder of a memory that lies in none.
    """
    try:
        ring = open_key_ring(settings, data_dir)
    except errors.RelaySettingsError as error:
        raise SettingsError(error.setting, error.reason) from error
    if ring is None:
        return None
    is_one_of_many = user_id != SYSTEM_USER and journal_folder(data_dir).exists()
    return UserKey(ring, user_id, is_one_of_many=is_one_of_many)
