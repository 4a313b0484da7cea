"""Encrypt a data folder at rest, in place or staged by a restore; destroy a user's key."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import msgspec

from memory_agent.care.encrypting import (
    EncryptedUser,
    encrypt_user,
    has_records,
    remove_leftovers,
    remove_plain_caches,
)
from memory_agent.care.encryption_look import look_at_stores
from memory_agent.care.findings import Report
from memory_agent.care.offline import erase_events
from memory_agent.errors import EncryptionKeyMissingError, SettingsError
from memory_agent.layout import Layout
from memory_agent.settings import Settings
from memory_agent.storage.folders import ASIDE, known_users, user_folder
from memory_agent.storage.owners import encrypt_owners
from memory_agent.storage.user_key import UserKey
from relay import SYSTEM_USER, Erasable, KeyRing, encrypt_journal, journal_folder, open_key_ring

OnMissingKey = Callable[[EncryptionKeyMissingError], None]
"""Receives the error of a user who is skipped because the key is missing."""


class EncryptedFolder(msgspec.Struct, frozen=True, kw_only=True):
    """The users that were encrypted. `plain_leftovers`: folders with older files that stay plain."""

    users: tuple[EncryptedUser, ...]
    plain_leftovers: tuple[str, ...]


class DestroyedKey(msgspec.Struct, frozen=True, kw_only=True):
    """What destroying a user's key left behind, in words, and how many events of `system` were erased with it."""

    user_id: str
    destroyed: bool
    events_of_system: int
    left: tuple[str, ...]


def encrypt_folder(
    data_dir: Path,
    settings: Settings,
    now: datetime,
    report: Report,
    user_id: str | None = None,
    on_missing_key: OnMissingKey | None = None,
) -> EncryptedFolder:
    """Encrypt a data folder, or one user of it; what is encrypted already stays as it is. Durable on return.

    Idempotent; a crash leaves each store plain or encrypted, whole. A user without the key is reported to
    `on_missing_key` and skipped; without that callback, `EncryptionKeyMissingError` is raised. Raises `SettingsError`
    when no folder of keys is set, `DaemonRunningError`, `StoreOwnedElsewhereError`, `StoreDamagedError`, `StoreError`,
    `JournalError`.
    """
    keys = open_key_ring(settings.encryption, data_dir)
    if keys is None:
        raise SettingsError("encryption.keys_folder", "is empty: name the folder for the keys")
    layout = Layout(data_dir)
    layout.create()
    with layout.hold():
        users = _encrypt_users(data_dir, settings, keys, report, user_id, on_missing_key)
        if user_id is None:
            remove_leftovers(data_dir)
            encrypt_owners(layout.owners, UserKey(keys, SYSTEM_USER))
            if layout.journal.exists():
                encrypt_journal(layout.journal, settings.relay.journal, keys, now)
    leftovers = tuple(folder.name for folder in sorted(data_dir.glob(f"{ASIDE}*/")))
    return EncryptedFolder(users=tuple(users), plain_leftovers=leftovers)


def _encrypt_users(
    data_dir: Path,
    settings: Settings,
    keys: KeyRing,
    report: Report,
    user_id: str | None,
    on_missing_key: OnMissingKey | None,
) -> list[EncryptedUser]:
    users = list(known_users(data_dir)) if user_id is None else [user_id]
    folders = {one: user_folder(data_dir, one) for one in users}
    encrypted = []
    for one, folder in folders.items():
        if not has_records(folder):
            remove_plain_caches(folder)
            continue
        try:
            encrypted.append(encrypt_user(folder, settings.store, UserKey(keys, one), report))
        except EncryptionKeyMissingError as error:
            if on_missing_key is None:
                raise
            on_missing_key(error)
    return encrypted


def encrypt_staged(stage: Path, data_dir: Path, settings: Settings, now: datetime, report: Report) -> None:
    """Encrypt the plain stores of files staged for `data_dir`, where the settings name a folder of keys.

    Where some of them are encrypted already, `data_dir` is bound to that folder of keys.
    """
    keys = open_key_ring(settings.encryption, data_dir)
    if keys is None:
        return
    states = {store.part: store.state for store in look_at_stores(stage, settings, keys)}
    plain = {part for part, state in states.items() if state == "plain"}
    if "encrypted" in states.values():
        keys.claim()
    for user_id in known_users(stage):
        if f"user {user_id}" in plain:
            encrypt_user(user_folder(stage, user_id), settings.store, UserKey(keys, user_id), report)
    if "owners" in plain:
        encrypt_owners(Layout(stage).owners, UserKey(keys, SYSTEM_USER))
    if "journal" in plain:
        encrypt_journal(journal_folder(stage), settings.relay.journal, keys, now)


def destroy_user_key(
    data_dir: Path, settings: Settings, user_id: str, now: datetime, *, is_served: bool
) -> DestroyedKey:
    """Destroy a user's key, so that no copy of the user's data can be read again. Durable on return.

    Events that conductors published as `system` about the user's runs have the key of `system`: they are erased too,
    unless a daemon serves the folder (`is_served`) and holds the journal. Raises `EncryptionKeyMissingError`,
    `SettingsError`, `KeyFileError`, `JournalError`, `StoreError`.
    """
    keys = open_key_ring(settings.encryption, data_dir)
    if keys is None:
        raise SettingsError("encryption.keys_folder", "is empty, so there is no key to destroy")
    if not keys.destroy(user_id):
        raise EncryptionKeyMissingError(user_id, str(keys.folder))
    erased = 0
    left = []
    if not is_served:
        wanted = Erasable(user_id=user_id)
        erased = len(erase_events(data_dir, settings, wanted, now, forget_owner=True).seqs)
    folder = user_folder(data_dir, user_id)
    if folder.exists():
        left.append(f"{folder}, which cannot be read")
    if is_served:
        left.append("what conductors published as system about the user's runs, which the key of system encrypts")
    return DestroyedKey(user_id=user_id, destroyed=True, events_of_system=erased, left=tuple(left))
