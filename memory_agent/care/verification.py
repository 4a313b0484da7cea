"""Verify a data folder or a backup: every user's store, the map of run owners and the journal. Changes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from memory_agent.care.backup import MANIFEST_FILE, Manifest, read_manifest
from memory_agent.care.checkup import PartReport, check_events, check_owners, check_user
from memory_agent.care.encryption import OnMissingKey
from memory_agent.errors import BackupDamagedError, EncryptionKeyMissingError
from memory_agent.layout import Layout
from memory_agent.settings import Settings
from memory_agent.storage.environment import open_user_key
from memory_agent.storage.folders import known_users, user_folder
from relay import SYSTEM_USER, journal_folder
from relay.disk import Finding, Report

_FEW_USERS = 3


def verify_folder(
    data_dir: Path,
    settings: Settings,
    report: Report,
    user_id: str | None = None,
    on_missing_key: OnMissingKey | None = None,
    backup: Path | None = None,
) -> Iterator[PartReport]:
    """Check each store of a data folder, or of a `backup` of it, against its checksums and indexes; or one user's.

    May run beside a daemon. A user without the key is reported to `on_missing_key` and skipped; without that callback,
    `EncryptionKeyMissingError` is raised. Progress is reported per part for up to three users. Raises `StoreError`,
    `JournalError`.
    """
    root = backup or data_dir
    users = [user_id] if user_id is not None else list(known_users(root))
    for done, one in enumerate(users):
        report("users", done, len(users))
        progress = partial(_report_part, report, one) if len(users) <= _FEW_USERS else _report_nothing
        try:
            key = open_user_key(settings.encryption, data_dir, one)
            yield check_user(user_folder(root, one), one, settings.store, progress, key, is_copy=backup is not None)
        except EncryptionKeyMissingError as error:
            if on_missing_key is None:
                raise
            on_missing_key(error)
    report("users", len(users), len(users))
    owners, journal = Layout(root).owners, journal_folder(root)
    if user_id is None and owners.exists():
        yield check_owners(owners, open_user_key(settings.encryption, data_dir, SYSTEM_USER))
    if user_id is None and journal.exists():
        yield check_events(journal, settings.relay.journal, partial(_report_part, report, "journal"))


def verify_manifest(backup: Path, report: Report) -> tuple[PartReport, Manifest | None]:
    """Check the files of a backup against its manifest; return None for a manifest that does not hold.

    Raises `BackupDamagedError` for a folder without a manifest.
    """
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


def _report_part(report: Report, part: str, what: str, done: int, total: int) -> None:
    report(f"{part}: {what}", done, total)


def _report_nothing(_what: str, _done: int, _total: int) -> None:
    """With many users, a progress bar for each part of each would fill the screen."""
