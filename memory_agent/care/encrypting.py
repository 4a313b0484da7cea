"""One user's folder that is not encrypted, turned into one that is; nobody may have it open.

Records are copied value by value into a new file under the user's key, compared, and put in place whole. What is
derived from them is removed before, and built anew afterwards, encrypted. Each step may be done again.
What this does not do: overwrite the blocks that plain files leave on the disk, or touch backups and what a restore put
aside. Rejected: encrypting in place, which leaves a mixture when it is broken off.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import closing
from itertools import islice
from pathlib import Path

import msgspec

from memory_agent.care.findings import Report
from memory_agent.config import StoreSettings
from memory_agent.erasure.intent_log import encrypt_intent
from memory_agent.erasure.user_removal import finish_removals
from memory_agent.errors import StoreDamagedError, StoreEncryptedError
from memory_agent.learning.learner_file import discard_learner
from memory_agent.storage.archive import Archive
from memory_agent.storage.derived import remove_files
from memory_agent.storage.environment import Environment
from memory_agent.storage.fence import OwnerLock
from memory_agent.storage.folders import STAGE
from memory_agent.storage.records_file import RECORDS_FOLDER, own_records, records_at
from memory_agent.storage.snapshot import DATABASES
from memory_agent.storage.user_key import UserKey
from relay.disk import DATA_FILE, discard_copy, flush_copy, replace_by_copy, room_for_copy

_PAGE = 10_000

Put = tuple[str, bytes, bytes]
"""A database, a key and a value."""


class EncryptedUser(msgspec.Struct, frozen=True, kw_only=True):
    """What was encrypted of a user. `was_encrypted`: it had been before."""

    user_id: str
    memories: int
    bytes_before: int
    bytes_after: int
    was_encrypted: bool = False


def has_records(folder: Path) -> bool:
    """Say whether there is anything of a user in a folder."""
    return (folder / RECORDS_FOLDER / DATA_FILE).exists()


def encrypt_user(folder: Path, settings: StoreSettings, key: UserKey, report: Report) -> EncryptedUser:
    """Encrypt what is in a user's folder with `key`, which is made where there is none. Durable on return.

    Killed at any moment, it leaves a folder that is plain, or one that is encrypted; said again, it goes on. Needs room
    for a copy. Raises `StoreOwnedElsewhereError`, `StoreDamagedError`, `StoreFullError`, `StoreError`,
    `EncryptionKeyMissingError`.
    """
    lock = OwnerLock.acquire(folder, "library")
    try:
        before = _size(folder)
        was_encrypted = not _encrypt_records(folder, settings, key, lock, report)
        encrypt_intent(folder, key)
        after = _size(folder)
    finally:
        lock.release()
    with closing(Archive.open(folder, settings, "library", key)) as archive:  # what is derived is built here
        count = archive.store.count
    return EncryptedUser(
        user_id=key.user_id, memories=count, bytes_before=before, bytes_after=after, was_encrypted=was_encrypted
    )


def _encrypt_records(folder: Path, settings: StoreSettings, key: UserKey, lock: OwnerLock, report: Report) -> bool:
    """Return False where they are encrypted already."""
    try:
        environment = own_records(folder, settings, None)
    except StoreEncryptedError:
        return False
    with closing(environment):
        remove_plain_caches(folder)
        copy = room_for_copy(folder / RECORDS_FOLDER)
        try:
            _write_copy(environment, copy, settings, key, report)
            flush_copy(copy)
            with lock.swapping():
                environment.close()
                replace_by_copy(copy)
        finally:
            discard_copy(copy)
    return True


def _write_copy(source: Environment, copy: Path, settings: StoreSettings, key: UserKey, report: Report) -> None:
    with closing(records_at(copy, settings, key)) as target, source.read() as ours:
        total = sum(ours.count(name) for name in DATABASES)
        puts: Iterator[Put] = ((name, *pair) for name in DATABASES for pair in ours.scan(name))
        done = 0
        while page := list(islice(puts, _PAGE)):
            report("encrypting", done, total)
            with target.write() as writing:
                for name, plain_key, value in page:
                    writing.put(name, plain_key, value, append=True)
            done += len(page)
        report("encrypting", total, total)
        with target.read() as theirs:
            for name in DATABASES:
                is_equal = all(theirs.get(name, plain_key) == value for plain_key, value in ours.scan(name))
                if not is_equal or theirs.count(name) != ours.count(name):
                    raise StoreDamagedError(f"{copy}: the copy of {name} is not equal")


def remove_plain_caches(folder: Path) -> None:
    """Remove what is derived from the records, and what was set aside of it: words and vectors lie in it."""
    remove_files(folder)
    discard_learner(folder)


def remove_leftovers(data_dir: Path) -> None:
    """Remove what killed processes left: of users that were removed, and what a restore had copied. `StoreError`."""
    finish_removals(data_dir)
    shutil.rmtree(data_dir / STAGE, ignore_errors=True)


def _size(folder: Path) -> int:
    return (folder / RECORDS_FOLDER / DATA_FILE).stat().st_blocks * 512
