"""A copy of a data folder that belongs together, made while a daemon works on the folder.

Each part is one snapshot of LMDB. Users are copied before the journal, so no store knows of an event that the copied
journal does not hold; the consumers of the copied journal stand where they stood before the first user was copied, so
whatever came in between is given to the stores again, which recognise it. What is derived is left out; so are tokens
and keys. Each copy is gone through before it counts, and the folder has its name only when all of it is on the disk.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from memory_agent.care.checkup import check_user
from memory_agent.care.manifest import FORMAT, Manifest, Part, describe, write_manifest
from memory_agent.errors import EncryptionKeyMissingError, InvalidInputError, StoreDamagedError
from memory_agent.settings import Settings
from memory_agent.storage.environment import RECORDS_FOLDER, has_records, open_environment
from memory_agent.storage.folders import known_users, user_folder
from memory_agent.storage.user_key import open_user_key
from memory_agent.version import VERSION
from relay import copy_journal, cursors, journal_folder, rewind
from relay.disk import DATA_FILE, Report, flush, flush_tree, opening

OWNERS = "owners"
JOURNAL = "journal"


def make_backup(data_dir: Path, target: Path, settings: Settings, now: datetime, report: Report) -> Manifest:
    """Copy everything below `data_dir` that is no cache into `target`, which must not exist; durable on return.

    Raises `InvalidInputError`, `StoreError`, `JournalError`, `OSError`; nothing is left behind then.
    """
    if target.exists():
        raise InvalidInputError("directory", f"{target} exists already; name one that does not")
    target.absolute().parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f".{target.name}.partial-{os.getpid()}")
    try:
        partial.mkdir(mode=0o700)
        manifest = _Copying(data_dir, partial, settings, report).run(now)
        write_manifest(partial, manifest)
        flush_tree(partial)
        partial.rename(target)
        flush(target.absolute().parent)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    return manifest


class _Copying:
    def __init__(self, data_dir: Path, folder: Path, settings: Settings, report: Report) -> None:
        self._data_dir = data_dir
        self._folder = folder
        self._settings = settings
        self._report = report

    def run(self, now: datetime) -> Manifest:
        journal = journal_folder(self._data_dir)
        has_journal = (journal / DATA_FILE).exists()
        known = cursors(journal, self._settings.relay.journal) if has_journal else {}
        users = (user for user in known_users(self._data_dir) if has_records(user_folder(self._data_dir, user)))
        parts, left_out = self._users(list(users))
        parts += self._owners()
        if has_journal:
            parts.append(self._journal(journal, known))
        return Manifest(format=FORMAT, version=VERSION, made_at=now, parts=tuple(parts), left_out=tuple(left_out))

    def _users(self, users: Sequence[str]) -> tuple[list[Part], list[str]]:
        parts, left_out = [], []
        for done, user_id in enumerate(users):
            self._report("users", done, len(users))
            try:
                parts.append(self._user(user_id))
            except (StoreDamagedError, EncryptionKeyMissingError):
                shutil.rmtree(self._of(user_id), ignore_errors=True)
                left_out.append(user_id)
        self._report("users", len(users), len(users))
        return parts, left_out

    def _user(self, user_id: str) -> Part:
        target = self._of(user_id) / RECORDS_FOLDER
        target.mkdir(mode=0o700, parents=True)
        _copy(user_folder(self._data_dir, user_id) / RECORDS_FOLDER, target, self._settings.store.map_size_bytes)
        key = open_user_key(self._settings.encryption, self._data_dir, user_id)
        checked = check_user(target.parent, user_id, self._settings.store, lambda *_: None, key, is_copy=True)
        if checked.findings:
            raise StoreDamagedError(f"user {user_id}: {checked.findings[0].place}: {checked.findings[0].fault}")
        return self._described(target, f"user {user_id}", checked.entries)

    def _owners(self) -> list[Part]:
        if not (self._data_dir / OWNERS / DATA_FILE).exists():
            return []
        target = self._folder / OWNERS
        target.mkdir(mode=0o700)
        _copy(self._data_dir / OWNERS, target, self._settings.store.map_size_bytes)
        return [self._described(target, OWNERS, 0)]

    def _journal(self, journal: Path, known: dict[str, int]) -> Part:
        self._report(JOURNAL, 0, 1)
        target = self._folder / JOURNAL
        target.mkdir(mode=0o700)
        last_seq = copy_journal(journal, target, self._settings.relay.journal)
        rewind(target, self._settings.relay.journal, known, others=0)
        self._report(JOURNAL, 1, 1)
        return self._described(target, JOURNAL, last_seq)

    def _of(self, user_id: str) -> Path:
        return user_folder(self._folder, user_id)

    def _described(self, folder: Path, part: str, entries: int) -> Part:
        """Leave nothing but the data in the folder, and say what it is."""
        for path in folder.iterdir():
            if path.name != DATA_FILE:
                path.unlink()
        return describe(self._folder, folder / DATA_FILE, part, entries)


def _copy(source: Path, target: Path, map_size_bytes: int) -> None:
    with opening(source.parent):
        environment = open_environment(source, map_size_bytes, readonly=True)
    try:
        environment.copy(target)
    finally:
        environment.close()
