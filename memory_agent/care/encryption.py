"""Encrypt a data folder or the staged files of a restore, list which stores are encrypted, and destroy a key.

A user's records are copied into a new file under the user's key, verified, and put in place atomically. Derived files
are removed first and rebuilt afterwards. Each step is idempotent.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import ExitStack, closing
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Literal

import msgspec

from memory_agent.archiving import fetch_home
from memory_agent.care.checkup import OnMissingKey, skipping_without_key
from memory_agent.care.offline import erase_events
from memory_agent.erasure.logs import encrypt_intent
from memory_agent.erasure.user_removal import finish_removals
from memory_agent.errors import EncryptionKeyMissingError, SettingsError, StoreEncryptedError
from memory_agent.indexes import encrypts
from memory_agent.layout import Layout
from memory_agent.learning import discard_learner
from memory_agent.settings import IndexSettings, Settings
from memory_agent.storage.archive import Archive
from memory_agent.storage.derived import remove_files
from memory_agent.storage.environment import (
    RECORDS_FOLDER,
    UserKey,
    has_records,
    open_environment,
    own,
    records_at,
)
from memory_agent.storage.folders import ASIDE, STAGE, known_users, user_folder
from memory_agent.storage.index_follower import engine_named
from memory_agent.storage.owners import MAP_SIZE_BYTES, encrypt_owners
from memory_agent.storage.snapshot import DATABASES, Snapshot
from relay import SYSTEM_USER, Erasable, encrypt_journal, journal_folder, open_key_ring, read_mark
from relay.crypto import KeyRing, encrypt_in_place
from relay.disk import DATA_FILE, Environment, Report, opening


class EncryptedFolder(msgspec.Struct, frozen=True, kw_only=True):
    """The users whose stores were encrypted. `plain_leftovers` are folders with older files, which remain
    unencrypted.
    """

    users: tuple[EncryptedUser, ...]
    plain_leftovers: tuple[str, ...]


class DestroyedKey(msgspec.Struct, frozen=True, kw_only=True):
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
    """Encrypt a data folder, or one user in it. Idempotent. Durable on return.

    After a crash each store is intact, either plain or encrypted. `on_missing_key` is as in `skipping_without_key`.
    Raises `SettingsError` if no key folder is set, or if a user's vectors would stay unencrypted in an index without
    `index.allow_plain`. Also raises `DaemonRunningError`, `StoreOwnedElsewhereError`, `StoreDamagedError`, `StoreError`
    and `JournalError`.
    """
    keys = open_key_ring(settings.encryption, data_dir)
    if keys is None:
        raise SettingsError("encryption.keys_folder", "is empty; set it to a folder for the keys")
    layout = Layout(data_dir)
    layout.create()
    with layout.hold(serves=False):
        users = []
        for one in list(known_users(data_dir)) if user_id is None else [user_id]:
            folder = user_folder(data_dir, one)
            fetch_home(data_dir, settings, one)
            if not has_records(folder):
                remove_plain_caches(folder)
                continue
            with skipping_without_key(on_missing_key):
                users.append(encrypt_user(folder, settings, UserKey(keys, one), report))
        if user_id is None:
            finish_removals(data_dir)
            shutil.rmtree(data_dir / STAGE, ignore_errors=True)  # left by a killed restore
            encrypt_owners(layout.owners, UserKey(keys, SYSTEM_USER))
            if layout.journal.exists():
                encrypt_journal(layout.journal, settings.relay.journal, keys, now)
    leftovers = tuple(folder.name for folder in sorted(data_dir.glob(f"{ASIDE}*/")))
    return EncryptedFolder(users=tuple(users), plain_leftovers=leftovers)


def encrypt_staged(stage: Path, data_dir: Path, settings: Settings, now: datetime, report: Report) -> None:
    """Encrypt the unencrypted stores staged for `data_dir`, if the settings name a key folder."""
    keys = open_key_ring(settings.encryption, data_dir)
    if keys is None:
        return
    states = {store.part: store.state for store in store_encryptions(stage, settings, keys)}
    plain = {part for part, state in states.items() if state == "plain"}
    if "encrypted" in states.values():
        keys.claim()
    for user_id in known_users(stage):
        if f"user {user_id}" in plain:
            encrypt_user(user_folder(stage, user_id), settings, UserKey(keys, user_id), report)
    if "owners" in plain:
        encrypt_owners(Layout(stage).owners, UserKey(keys, SYSTEM_USER))
    if "journal" in plain:
        encrypt_journal(journal_folder(stage), settings.relay.journal, keys, now)


def destroy_user_key(
    data_dir: Path, settings: Settings, user_id: str, now: datetime, *, is_served: bool
) -> DestroyedKey:
    """Destroy a user's key, so that no copy of the user's data can be read again. Durable on return.

    Also erases the events about the user's runs that conductors published as `system`, unless a daemon serves the
    folder (`is_served`) and therefore holds the journal. Raises `EncryptionKeyMissingError`, `SettingsError`,
    `KeyFileError`, `JournalError` and `StoreError`.
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
        left.append(f"{folder}, which can no longer be read")
    if is_served:
        left.append("events about the user's runs that conductors published as `system`, whose key can decrypt them")
    return DestroyedKey(user_id=user_id, destroyed=True, events_of_system=erased, left=tuple(left))


EncryptionState = Literal["plain", "encrypted", "locked"]
"""`locked`: the store is encrypted, but its key is not in the key ring, or the settings name no key ring."""


class StoreEncryption(msgspec.Struct, frozen=True, kw_only=True):
    """The encryption state of one store. `part` is `user ID`, `owners` or `journal`."""

    part: str
    state: EncryptionState


class EncryptedUser(msgspec.Struct, frozen=True, kw_only=True):
    """One encrypted user. `plain_index` is the index whose vectors stay unencrypted (`index.allow_plain`), or ""."""

    user_id: str
    memories: int
    bytes_before: int
    bytes_after: int
    was_encrypted: bool = False
    plain_index: str = ""


def encrypt_user(folder: Path, settings: Settings, key: UserKey, report: Report) -> EncryptedUser:
    """Encrypt a user's folder with `key`, creating the key if it does not exist. Durable on return. Idempotent after a
    crash.

    Requires disk space for a copy of the records. Raises `SettingsError` if vectors would stay unencrypted in an index.
    Also raises `StoreOwnedElsewhereError`, `StoreDamagedError`, `StoreFullError`, `StoreError` and
    `EncryptionKeyMissingError`.
    """
    was_encrypted, plain_index = False, ""
    with ExitStack() as stack:
        lock = own(folder, "library")
        stack.callback(lock.release)
        before = _size(folder)
        try:
            environment = stack.enter_context(closing(records_at(folder / RECORDS_FOLDER, settings.store, None, lock)))
        except StoreEncryptedError:
            was_encrypted = True
        else:
            plain_index = _plain_index(environment, key.user_id, settings.index)
            remove_plain_caches(folder)
            encrypt_in_place(
                environment,
                lambda copy: records_at(copy, settings.store, key),
                lambda transaction: ((name, *pair) for name in DATABASES for pair in transaction.scan(name)),
                partial(report, "encrypting"),
            )
        encrypt_intent(folder, key)
        after = _size(folder)
    with closing(Archive.open(folder, settings.store, "library", key)) as archive:  # opening rebuilds the derived files
        count = archive.store.counts().memories
    return EncryptedUser(
        user_id=key.user_id,
        memories=count,
        bytes_before=before,
        bytes_after=after,
        was_encrypted=was_encrypted,
        plain_index=plain_index,
    )


def _plain_index(environment: Environment, user_id: str, settings: IndexSettings) -> str:
    """Return a user's index if it stores vectors unencrypted, or "". Raises `SettingsError` if that is forbidden."""
    with environment.read() as transaction:
        engine = engine_named(Snapshot(transaction))
    if encrypts(engine):
        return ""
    if not settings.allow_plain:
        advice = "run: memory-agent migrate --to builtin --set encryption.keys_folder= (or set index.allow_plain)"
        raise SettingsError("index.engine", f"the vectors of {user_id} would stay unencrypted in {engine}; {advice}")
    return engine


def remove_plain_caches(folder: Path) -> None:
    """Remove derived files, including files set aside as damaged, because they contain words and vectors."""
    remove_files(folder)
    discard_learner(folder)


def _size(folder: Path) -> int:
    return (folder / RECORDS_FOLDER / DATA_FILE).stat().st_blocks * 512


def store_encryptions(data_dir: Path, settings: Settings, keys: KeyRing | None) -> Iterator[StoreEncryption]:
    """Yield the encryption state of each nonempty store. Raises `StoreError`, `JournalError` and `KeyFileError`."""
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
