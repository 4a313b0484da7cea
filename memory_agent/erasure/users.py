"""Removing a user: the whole folder, at once for everybody who looks, and for good when a crash came between.

With it go the user's folders in what a restore put aside, or left when it was interrupted. What this does not do: the
journals there, which are many users' (`aside`).
"""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path

from ulid import ULID

from memory_agent.config import StoreSettings
from memory_agent.errors import StoreError
from memory_agent.storage.environment import own
from memory_agent.storage.folders import ASIDE, STAGE, data_dir_of, user_folder
from relay import journal_folder
from relay.disk import flush

_DOOMED = ".erased-"


def remove_user(data_dir: Path, user_id: str) -> bool:
    """Remove a user's folders; return whether there was one. On the disk when it returns.

    Raises `StoreOwnedElsewhereError`, `StoreError`.
    """
    folder = user_folder(data_dir, user_id)
    if folder.exists():
        lock = own(folder, "library", StoreSettings().takeover_after_s)
        try:
            _doom(folder)
        finally:
            lock.release()
    for kept in (*data_dir.glob(f"{ASIDE}*/{folder.parent.name}"), data_dir / STAGE / folder.parent.name):
        if (kept / folder.name).exists():
            _doom(kept / folder.name)
    return finish_removals(data_dir) > 0


def finish_removals(data_dir: Path) -> int:
    """Remove what a crash left of users that were removed; return how many folders there were. Raises `StoreError`."""
    doomed = [*data_dir.glob(f"users/{_DOOMED}*"), *data_dir.glob(f"{ASIDE}*/users/{_DOOMED}*")]
    doomed += data_dir.glob(f"{STAGE}/users/{_DOOMED}*")
    for folder in doomed:
        try:
            shutil.rmtree(folder)
            flush(folder.parent)
        except OSError as error:
            raise StoreError(f"{folder}: {error.strerror}") from error
        if folder.parent.parent != data_dir:
            with contextlib.suppress(OSError):  # others are still in it
                folder.parent.rmdir()
                folder.parent.parent.rmdir()
    return len(doomed)


def has_journal(folder: Path) -> bool:
    """Whether a user's folder lies in a data folder with a journal, which has the events that memories were made of."""
    data_dir = data_dir_of(folder)
    return data_dir is not None and journal_folder(data_dir).exists()


def aside(folder: Path) -> list[str]:
    """Return the names of what a restore put aside that has this user's folder or a journal, which may have more."""
    data_dir = data_dir_of(folder)
    if data_dir is None:
        return []
    kept = sorted([*data_dir.glob(f"{ASIDE}*/"), *data_dir.glob(f"{STAGE}/")])
    return [
        one.name for one in kept if (one / folder.parent.name / folder.name).exists() or journal_folder(one).exists()
    ]


def why_aside(folder: Path) -> str | None:
    """Return why an erasure is not complete for what was put aside, or None where nothing was."""
    names = aside(folder)
    return f"a restore left older files: remove {', '.join(names)} in the data folder" if names else None


def _doom(folder: Path) -> None:
    try:
        folder.rename(folder.parent / f"{_DOOMED}{ULID()}")
        flush(folder.parent)
    except OSError as error:
        raise StoreError(f"{folder}: {error.strerror}") from error
