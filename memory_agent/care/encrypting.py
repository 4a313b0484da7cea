"""Encrypts a user's plain folder, and tells which stores of a data folder are encrypted.

Records are copied into a new file under the user's key, verified, and put in place whole. What is derived from them is
removed first and rebuilt afterwards, encrypted. Each step is idempotent. Backups, and what a restore put aside, stay as
they are.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import Literal

import msgspec

from memory_agent.config import StoreSettings
from memory_agent.erasure.ledger import encrypt_intent
from memory_agent.erasure.users import finish_removals
from memory_agent.errors import StoreEncryptedError
from memory_agent.layout import Layout
from memory_agent.learning.kept_learner import discard_learner
from memory_agent.settings import Settings
from memory_agent.storage.archive import Archive
from memory_agent.storage.derived import remove_files
from memory_agent.storage.environment import RECORDS_FOLDER, open_environment, own, own_records, records_at
from memory_agent.storage.folders import STAGE, known_users, user_folder
from memory_agent.storage.ownership import MAP_SIZE_BYTES
from memory_agent.storage.snapshot import DATABASES
from memory_agent.storage.user_key import UserKey
from relay import SYSTEM_USER, read_mark
from relay.crypto import KeyRing, Put, encrypt_in_place
from relay.disk import DATA_FILE, Report, Transaction, opening

EncryptionState = Literal["plain", "encrypted", "locked"]
"""`locked`: encrypted with a key that is not in the ring, or the settings name no ring."""


class StoreEncryption(msgspec.Struct, frozen=True, kw_only=True):
    """The encryption of one store: `user ID`, `owners` or `journal`."""

    part: str
    state: EncryptionState


class EncryptedUser(msgspec.Struct, frozen=True, kw_only=True):
    """What was encrypted of a user. `was_encrypted`: it was already."""

    user_id: str
    memories: int
    bytes_before: int
    bytes_after: int
    was_encrypted: bool = False


def encrypt_user(folder: Path, settings: StoreSettings, key: UserKey, report: Report) -> EncryptedUser:
    """Encrypt a user's folder with `key`, which is created if need be. Durable on return.

    Killed at any moment, it leaves plain records or encrypted ones; called again, it goes on. Needs room for a copy.
    Raises `StoreOwnedElsewhereError`, `StoreDamagedError`, `StoreFullError`, `StoreError`, `EncryptionKeyMissingError`.
    """
    was_encrypted = False
    with ExitStack() as stack:
        lock = own(folder, "library")
        stack.callback(lock.release)
        before = _size(folder)
        try:
            environment = stack.enter_context(closing(own_records(folder, settings, None, lock)))
        except StoreEncryptedError:
            was_encrypted = True
        else:
            remove_plain_caches(folder)
            encrypt_in_place(
                environment, lambda copy: records_at(copy, settings, key), _pairs, partial(report, "encrypting")
            )
        encrypt_intent(folder, key)
        after = _size(folder)
    with closing(Archive.open(folder, settings, "library", key)) as archive:  # rebuilds what is derived
        count = archive.store.count
    return EncryptedUser(
        user_id=key.user_id, memories=count, bytes_before=before, bytes_after=after, was_encrypted=was_encrypted
    )


def _pairs(transaction: Transaction) -> Iterator[Put]:
    return ((name, *pair) for name in DATABASES for pair in transaction.scan(name))


def remove_plain_caches(folder: Path) -> None:
    """Remove files that are derived from the records, and what was set aside of them: they hold words and vectors."""
    remove_files(folder)
    discard_learner(folder)


def remove_leftovers(data_dir: Path) -> None:
    """Remove what killed processes left of removed users and of a restore. Raises `StoreError`."""
    finish_removals(data_dir)
    shutil.rmtree(data_dir / STAGE, ignore_errors=True)


def _size(folder: Path) -> int:
    return (folder / RECORDS_FOLDER / DATA_FILE).stat().st_blocks * 512


def store_encryptions(data_dir: Path, settings: Settings, keys: KeyRing | None) -> Iterator[StoreEncryption]:
    """Yield the encryption of each store that is not empty. Raises `StoreError`, `JournalError`, `KeyFileError`."""
    layout = Layout(data_dir)
    for user_id in known_users(data_dir):
        folder = user_folder(data_dir, user_id)
        if (folder / RECORDS_FOLDER).exists():
            with opening(folder):
                key_id = _key_id(folder / RECORDS_FOLDER, settings.store.map_size_bytes)
            yield StoreEncryption(part=f"user {user_id}", state=_state(user_id, key_id, keys))
    if layout.owners.exists():
        yield StoreEncryption(part="owners", state=_state(SYSTEM_USER, _key_id(layout.owners, MAP_SIZE_BYTES), keys))
    mark = read_mark(layout.journal, settings.relay.journal)
    if not mark.is_new:
        yield StoreEncryption(part="journal", state=_state(SYSTEM_USER, mark.key_id, keys))


def _key_id(folder: Path, map_size_bytes: int) -> bytes | None:
    with closing(open_environment(folder, map_size_bytes, readonly=True)) as environment:
        return environment.key_id()


def _state(user_id: str, key_id: bytes | None, keys: KeyRing | None) -> EncryptionState:
    if key_id is None:
        return "plain"
    return "encrypted" if keys is not None and keys.fits(user_id, key_id) else "locked"
