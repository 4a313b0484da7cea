"""One user's encryption key, as the files of its memory ask for it: in our terms, and anew each time.

Who asks for a cipher asks the ring, so a key that was destroyed ends the use of a store at its next transaction. What
this does not do: encrypt. That is `encrypted` for LMDB, and each file's own business.
"""

from __future__ import annotations

from pathlib import Path

from memory_agent.errors import EncryptionKeyMissingError, InvalidInputError, SettingsError, StoreError
from relay import errors
from relay.cipher import Cipher
from relay.config import EncryptionSettings
from relay.key_ring import KeyRing, open_key_ring


class UserKey:
    """The key of one user in a ring; it need not exist yet. Threads may share it."""

    def __init__(self, ring: KeyRing, user_id: str) -> None:
        self.user_id = user_id
        self._ring = ring

    def cipher(self, purpose: str, *, create: bool = False) -> Cipher:
        """Return what encrypts for `purpose`; `create` makes the key where there is none. Costs 2 us.

        Raises `EncryptionKeyMissingError`, `StoreError` for a key that cannot be read, `InvalidInputError`.
        """
        try:
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
    """Return a user's key as the settings say, None where nothing is encrypted. Raises `SettingsError`."""
    try:
        ring = open_key_ring(settings, data_dir)
    except errors.RelaySettingsError as error:
        raise SettingsError(error.setting, error.reason) from error
    return None if ring is None else UserKey(ring, user_id)
