"""Where a user's records lie, and how their environment is opened: by its owner, or by one who only looks."""

from __future__ import annotations

from pathlib import Path

from memory_agent.config import StoreSettings
from memory_agent.storage.encrypted import Encryption
from memory_agent.storage.environment import Environment
from memory_agent.storage.fence import opening
from memory_agent.storage.folders import data_dir_of
from memory_agent.storage.snapshot import DATABASES, FORMS
from memory_agent.storage.user_key import UserKey, require_plain
from relay.disk import DATA_FILE

RECORDS_FOLDER = "records"
_PURPOSE = "records"


def has_records(folder: Path) -> bool:
    """Whether a user's folder holds records."""
    return (folder / RECORDS_FOLDER / DATA_FILE).exists()


def settle_key(folder: Path, key: UserKey | None) -> None:
    """Make the key of a user of whom nothing is kept yet, so that nothing is made where none can be.

    Raises `EncryptionKeyMissingError` where the folder of keys is away, `StoreEncryptedError` where there is no key and
    others in the data folder have theirs, `StoreError`.
    """
    if has_records(folder):
        return
    if key is not None:
        key.cipher(_PURPOSE, create=True)
    elif (data_dir := data_dir_of(folder)) is not None:
        require_plain(data_dir)


def own_records(folder: Path, settings: StoreSettings, key: UserKey | None) -> Environment:
    """Open the records in a user's folder, or create them, encrypted where there is a `key`. Raises as `Store.open`."""
    return records_at(folder / RECORDS_FOLDER, settings, key)


def records_at(path: Path, settings: StoreSettings, key: UserKey | None) -> Environment:
    """As `own_records`, of records that lie elsewhere: in a copy of them that is being made."""
    return Environment.open(path, settings.map_size_bytes, DATABASES, encryption=_encryption(key))


def open_records(folder: Path, settings: StoreSettings, key: UserKey | None = None) -> Environment:
    """Open the records to be read, beside their owner. Raises as `Store.open`, except that nobody is in the way."""
    path = folder / RECORDS_FOLDER
    with opening(folder):
        return Environment.open(path, settings.map_size_bytes, DATABASES, readonly=True, encryption=_encryption(key))


def _encryption(key: UserKey | None) -> Encryption | None:
    return None if key is None else Encryption(key, _PURPOSE, FORMS)
