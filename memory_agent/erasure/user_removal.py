"""Removes a user's folder. The folder is renamed, which hides it immediately, and is deleted by the next start at the
latest.

Also removes the user's folders from the files that a restore moved aside or left behind. Journals there are retained.
"""

from __future__ import annotations

import contextlib
import shutil
import threading
from datetime import datetime
from pathlib import Path

from ulid import ULID

from memory_agent.erasure.logs import note_erasure, note_user_erased, os_errors_as_store_errors
from memory_agent.erasure.request import Intent
from memory_agent.indexes import forget_user
from memory_agent.settings import IndexSettings, StoreSettings
from memory_agent.storage.environment import own
from memory_agent.storage.folders import ASIDE, STAGE, data_dir_of, user_folder
from relay import SHARED_USER, Erased, journal_folder
from relay.disk import flush

_DOOMED = ".erased-"
_removing = threading.Lock()  # an erasure also deletes folders renamed by others, and parents that become empty


def erase_user_files(data_dir: Path, user_id: str, now: datetime, index: IndexSettings) -> None:
    """Erase a user's vectors from a shared database, add the erasure to the history, and remove the user's folders.

    Durable on return. Idempotent. Raises the errors of `forget_user` and `remove_user`.
    """
    forget_user(index, user_id)
    note_user_erased(user_folder(data_dir, user_id), user_id, now)
    remove_user(data_dir, user_id)


def note_absent_user_erased(data_dir: Path, user_id: str, intent: Intent, erased: Erased, now: datetime) -> None:
    """If events of a user without a store were erased, record this in the user's history. Raises `StoreError`."""
    if erased.seqs:
        note_erasure(user_folder(data_dir, user_id), user_id, intent, now)


def remove_user(data_dir: Path, user_id: str) -> bool:
    """Remove a user's folders; return whether any existed. Durable on return.

    Raises `StoreOwnedElsewhereError` and `StoreError`.
    """
    folder = user_folder(data_dir, user_id)
    if folder.exists():
        lock = own(folder, "library", StoreSettings().takeover_after_s)
        try:
            _doom(folder)
        finally:
            lock.release()
    with _removing:
        for kept in (*data_dir.glob(f"{ASIDE}*/{folder.parent.name}"), data_dir / STAGE / folder.parent.name):
            if (kept / folder.name).exists():
                _doom(kept / folder.name)
    return finish_removals(data_dir) > 0


def finish_removals(data_dir: Path) -> int:
    """Delete renamed folders, including those of interrupted removals; return their number. Raises `StoreError`."""
    with _removing:
        doomed = [*data_dir.glob(f"users/{_DOOMED}*"), *data_dir.glob(f"{ASIDE}*/users/{_DOOMED}*")]
        doomed += data_dir.glob(f"{STAGE}/users/{_DOOMED}*")
        for folder in doomed:
            with os_errors_as_store_errors(folder):
                shutil.rmtree(folder)
                flush(folder.parent)
            if folder.parent.parent != data_dir:
                with contextlib.suppress(OSError):  # the folder still contains other users
                    folder.parent.rmdir()
                    folder.parent.parent.rmdir()
    return len(doomed)


def has_journal(folder: Path) -> bool:
    """Whether a user's folder is in a data folder with a journal. If so, the journal's owner must erase the events from
    it.
    """
    data_dir = data_dir_of(folder)
    return data_dir is not None and journal_folder(data_dir).exists()


def moved_aside_reason(folder: Path, *, whole_user: bool = False) -> str | None:
    """Return why an erasure is incomplete, if a restore moved aside files that may contain the user's data."""
    data_dir = data_dir_of(folder)
    if data_dir is None:
        return None
    kept = sorted([*data_dir.glob(f"{ASIDE}*/"), *data_dir.glob(f"{STAGE}/")])
    names = [
        one.name
        for one in kept
        if (one / folder.parent.name / folder.name).exists()
        or journal_folder(one).exists()
        or (whole_user and user_folder(one, SHARED_USER).exists())
    ]
    return f"a restore left older files; remove {', '.join(names)} from the data folder" if names else None


def _doom(folder: Path) -> None:
    with os_errors_as_store_errors(folder):
        folder.rename(folder.parent / f"{_DOOMED}{ULID()}")
        flush(folder.parent)
