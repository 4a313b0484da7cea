"""Make a consistent backup of a data folder, even while a daemon runs, and check a backup against its manifest.

Users are copied before the journal, so the copied journal contains every event of the copied stores. In the copied
journal, the cursors have the values that they had before the first user was copied. The stores recognise redelivered
events. Derived files, tokens and keys are not copied. Every copy is checked, and the backup gets its final name only
once all of its files are durable.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Sequence
from contextlib import closing, suppress
from datetime import datetime
from pathlib import Path
from typing import Annotated

import msgspec

from memory_agent.archiving import copy_archived, is_away
from memory_agent.care.checkup import PartReport, check_user
from memory_agent.erasure.copies import note_copy
from memory_agent.errors import BackupDamagedError, EncryptionKeyMissingError, InvalidInputError, StoreDamagedError
from memory_agent.settings import Settings
from memory_agent.storage.environment import RECORDS_FOLDER, has_records, open_environment, open_user_key, require_plain
from memory_agent.storage.folders import known_users, user_folder
from memory_agent.version import VERSION
from relay import copy_journal, cursors, described, journal_folder, rewind
from relay.disk import DATA_FILE, Finding, Report, flush, flush_tree, opening

OWNERS = "owners"
JOURNAL = "journal"
MANIFEST_FILE = "manifest.json"
FORMAT = 1


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """A file. `part` is `user ID`, `owners` or `journal`; `entries` is the memory count or the last sequence number."""

    part: str
    path: str
    bytes: int
    sha256: str
    entries: int = 0


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of a backup. `left_out`: users whose store is damaged or whose key is missing."""

    format: int
    version: str
    made_at: Annotated[datetime, msgspec.Meta(tz=True)]
    parts: tuple[Part, ...]
    left_out: tuple[str, ...] = ()


def make_backup(data_dir: Path, target: Path, settings: Settings, now: datetime, report: Report) -> Manifest:
    """Copy `data_dir`, without its caches, to `target`, which must not exist. Receipts of later erasures list the
    backup. Durable on return.

    Raises `StoreEncryptedError` if the folder is encrypted and `settings` name no keys. Also raises
    `InvalidInputError`, `StoreError`, `JournalError` and `OSError`. A failed backup leaves no files.
    """
    if not settings.encryption.keys_folder:
        require_plain(data_dir)
    if target.exists():
        raise InvalidInputError("directory", f"{target} already exists; choose a different folder")
    target.absolute().parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f".{target.name}.partial-{os.getpid()}")
    try:
        partial.mkdir(mode=0o700)
        manifest = _Copier(data_dir, partial, settings, report).run(now)
        with (partial / MANIFEST_FILE).open("xb") as file:
            file.write(msgspec.json.format(msgspec.json.encode(manifest), indent=2))
            file.flush()
            os.fsync(file.fileno())
        flush_tree(partial)
        partial.rename(target)
        flush(target.absolute().parent)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    with suppress(OSError):  # a read-only or full disk does not make the backup unusable
        note_copy(data_dir, "backup", target, None, now)
    return manifest


class _Copier:
    def __init__(self, data_dir: Path, folder: Path, settings: Settings, report: Report) -> None:
        self._data_dir = data_dir
        self._folder = folder
        self._settings = settings
        self._report = report

    def run(self, now: datetime) -> Manifest:
        journal = journal_folder(self._data_dir)
        has_journal = (journal / DATA_FILE).exists()
        known = cursors(journal, self._settings.relay.journal) if has_journal else {}
        folders = {user_id: user_folder(self._data_dir, user_id) for user_id in known_users(self._data_dir)}
        parts, left_out = self._users([user for user, own in folders.items() if has_records(own) or is_away(own)])
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
                shutil.rmtree(user_folder(self._folder, user_id), ignore_errors=True)
                left_out.append(user_id)
        self._report("users", len(users), len(users))
        return parts, left_out

    def _user(self, user_id: str) -> Part:
        target = user_folder(self._folder, user_id) / RECORDS_FOLDER
        folder = user_folder(self._data_dir, user_id)
        if has_records(folder):
            target.mkdir(mode=0o700, parents=True)
            _copy(folder / RECORDS_FOLDER, target, self._settings.store.map_size_bytes)
        else:
            copy_archived(self._data_dir, self._settings, user_id, target)
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

    def _described(self, folder: Path, part: str, entries: int) -> Part:
        """Remove all but the data file from the folder, and return the manifest entry of the data file."""
        for path in folder.iterdir():
            if path.name != DATA_FILE:
                path.unlink()
        return describe(self._folder, folder / DATA_FILE, part, entries)


def _copy(source: Path, target: Path, map_size_bytes: int) -> None:
    with opening(source.parent):
        environment = open_environment(source, map_size_bytes, readonly=True)
    with closing(environment):
        environment.copy(target)


def describe(folder: Path, file: Path, part: str, entries: int) -> Part:
    path = file.relative_to(folder).as_posix()
    return Part(part=part, path=path, bytes=file.stat().st_size, sha256=file_digest(file), entries=entries)


def file_digest(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def read_manifest(folder: Path) -> Manifest:
    """Check a backup's files against its manifest, and return the manifest. Raises `BackupDamagedError`."""
    try:
        manifest = msgspec.json.decode((folder / MANIFEST_FILE).read_bytes(), type=described(Manifest))
    except FileNotFoundError as error:
        raise BackupDamagedError(f"{folder} is not a backup: it has no {MANIFEST_FILE}") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        if "truncated" in str(error):
            raise BackupDamagedError(f"{folder}: the backup is damaged: its manifest is truncated") from error
        raise BackupDamagedError(f"{folder / MANIFEST_FILE}: {error}") from error
    if manifest.format > FORMAT:
        raise BackupDamagedError(f"{folder} has format {manifest.format}; this version supports up to {FORMAT}")
    folders = {Path(part.path).parent for part in manifest.parts}
    if len(folders) < len(manifest.parts):
        raise BackupDamagedError(f"{folder / MANIFEST_FILE} lists two parts in the same folder")
    for part in manifest.parts:
        _require_unchanged(folder, part)
    return manifest


def verify_manifest(backup: Path, report: Report) -> tuple[PartReport, Manifest | None]:
    """Check the files of a backup against its manifest; return a report, and the manifest if nothing is damaged."""
    report(MANIFEST_FILE, 0, 1)
    try:
        manifest = read_manifest(backup)
    except BackupDamagedError as error:
        if not (backup / MANIFEST_FILE).exists():
            raise
        damage = Finding(place=MANIFEST_FILE, fault=str(error), count=1)
        return PartReport(part="manifest", entries=0, findings=(damage,)), None
    finally:
        report(MANIFEST_FILE, 1, 1)
    return PartReport(part="manifest", entries=len(manifest.parts)), manifest


def _require_unchanged(folder: Path, part: Part) -> None:
    file = folder / part.path
    if Path(part.path).is_absolute() or ".." in Path(part.path).parts:
        raise BackupDamagedError(f"{part.path} is outside the backup")
    if not _is_file(file):
        raise BackupDamagedError(f"{part.path} is missing")
    if file.stat().st_size != part.bytes or file_digest(file) != part.sha256:
        raise BackupDamagedError(f"{part.path} has changed since the backup was made")


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # not a valid file name
        return False
