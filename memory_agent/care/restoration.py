"""A backup brought back: all of it, or one user's memories; or one user begun anew from the journal.

Refuses what is not whole before it changes anything, and while somebody works on the folder. What was there is put
aside, not deleted. The files are checked again where they are to be used, and named when they are on the disk.
A store that comes back has a new owner epoch at its next start, and its caches are built anew. One user's memories are
older than the journal, so the daemon's cursor goes back to where they end: every user is given the events since then
again, and those who have them recognise them.

What was erased since the backup was made is erased again by who knows how (`revise`), before anything is in its place.
Where the data folder is encrypted, what comes back plain is encrypted before (`encrypt`).
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

import msgspec

from memory_agent.care.backup import JOURNAL, OWNERS
from memory_agent.care.manifest import Part, digest, read_manifest
from memory_agent.erasure.history import HISTORY_FOLDER
from memory_agent.errors import BackupDamagedError, EncryptionKeyMissingError, InvalidInputError, StoreEncryptedError
from memory_agent.layout import CONSUMER, Layout
from memory_agent.moving import is_moving, move_all
from memory_agent.settings import Settings
from memory_agent.storage.environment import open_records, own
from memory_agent.storage.folders import ASIDE, STAGE, known_users, user_folder
from memory_agent.storage.snapshot import Snapshot
from memory_agent.storage.user_key import UserKey, open_user_key, require_keys
from relay import journal_folder, require_unused, rewind
from relay.disk import DATA_FILE, Report, find_fault, flush_tree

USERS = "users"
NOT_IN_JOURNAL = "memories that were remembered by hand or imported, recalls, and runs begun by hand"


Revise = Callable[[Path, datetime], dict[str, int]]
"""Erases again from staged files, of a backup made then; gives how many memories of whom."""


Encrypt = Callable[[Path], None]
"""Encrypts what is plain of staged files, where the settings name keys."""


class Restored(msgspec.Struct, frozen=True, kw_only=True):
    """What was brought back. `aside`: where that lies which was there before; None where nothing was.

    `erased_again`: how many memories of whom were erased again, since they had been after the backup. `has_history`:
    whether this data folder knows what was erased; on another machine it does not.
    """

    parts: tuple[Part, ...]
    aside: str | None
    made_at: datetime | None
    erased_again: dict[str, int] = {}
    has_history: bool = False


def restore_all(
    backup: Path,
    data_dir: Path,
    settings: Settings,
    now: datetime,
    report: Report,
    *,
    replace: bool,
    revise: Revise = lambda *_: {},
    encrypt: Encrypt = lambda _: None,
) -> Restored:
    """Bring everything back. Raises `BackupDamagedError`, `InvalidInputError` where memories are there already and
    `replace` is not said, `StoreEncryptedError` and `EncryptionKeyMissingError` without the keys, `DaemonRunningError`,
    `StoreOwnedElsewhereError`, `JournalInUseError`, `OSError`."""
    manifest = read_manifest(backup)
    require_keys(settings.encryption, data_dir)
    with _holding(data_dir, settings, list(known_users(data_dir))):
        tops = [data_dir / name for name in (USERS, OWNERS, JOURNAL)]
        with _staged(backup, data_dir, manifest.parts, report) as stage:
            encrypt(stage)
            _require_usable(backup, stage, data_dir, settings)
            again = revise(stage, manifest.made_at)
            flush_tree(stage)
            aside, moves = _moves_aside(data_dir, tops, now, replace=replace)
            move_all(data_dir, moves + [(stage / top.name, top) for top in tops if (stage / top.name).exists()])
    return _restored(data_dir, manifest.parts, aside, manifest.made_at, again)


def restore_user(
    backup: Path,
    data_dir: Path,
    user_id: str,
    settings: Settings,
    now: datetime,
    report: Report,
    *,
    replace: bool,
    revise: Revise = lambda *_: {},
    encrypt: Encrypt = lambda _: None,
) -> Restored:
    """Bring one user's memories back, and have the journal give what came since. Raises as `restore_all`."""
    manifest = read_manifest(backup)
    parts = tuple(part for part in manifest.parts if part.part == f"user {user_id}")
    if not parts:
        raise InvalidInputError("user", f"{user_id} is not in this backup")
    require_keys(settings.encryption, data_dir)
    folder = user_folder(data_dir, user_id)
    with _holding(data_dir, settings, [user_id]), _staged(backup, data_dir, parts, report) as stage:
        staged = stage / folder.relative_to(data_dir)
        encrypt(stage)
        _require_usable(backup, stage, data_dir, settings)
        cursor = _cursor(staged, settings, open_user_key(settings.encryption, data_dir, user_id))
        again = revise(stage, manifest.made_at)
        flush_tree(stage)
        _rewind(data_dir, settings, cursor)  # first: to be given too much does no harm
        aside, moves = _moves_aside(data_dir, [folder], now, replace=replace)
        move_all(data_dir, [*moves, (staged, folder)])
    return _restored(data_dir, parts, aside, manifest.made_at, again)


def begin_anew(
    data_dir: Path,
    user_id: str,
    settings: Settings,
    now: datetime,
    *,
    replace: bool,
    revise: Callable[[], dict[str, int]] = dict,
) -> Restored:
    """Put one user's files aside and have the journal give all of its events again. What came by other ways than the
    journal (`NOT_IN_JOURNAL`) is not in it. Raises as `restore_all`."""
    folder = user_folder(data_dir, user_id)
    with _holding(data_dir, settings, [user_id]):
        if not replace and folder.exists() and any(folder.iterdir()):
            reason = (
                f"{user_id} has memories already; with --replace they are put aside, and {NOT_IN_JOURNAL} stay there"
            )
            raise InvalidInputError("user", reason)
        _rewind(data_dir, settings, 0)
        aside, moves = _moves_aside(data_dir, [folder], now, replace=True)
        move_all(data_dir, moves)
        again = revise()
    return _restored(data_dir, (), aside, None, again)


def _restored(
    data_dir: Path, parts: tuple[Part, ...], aside: str | None, made_at: datetime | None, again: dict[str, int]
) -> Restored:
    has_history = (data_dir / HISTORY_FOLDER).exists()
    return Restored(parts=parts, aside=aside, made_at=made_at, erased_again=again, has_history=has_history)


@contextmanager
def _holding(data_dir: Path, settings: Settings, users: Sequence[str]) -> Iterator[None]:
    """Make sure that nobody works on the folder; one that was made for this is gone again when it fails."""
    layout = Layout(data_dir)
    is_new = not data_dir.exists()
    try:
        layout.create()
        with _held(layout, data_dir, users):
            yield
    except BaseException:
        if is_new and not is_moving(data_dir):
            shutil.rmtree(data_dir, ignore_errors=True)
        raise


@contextmanager
def _held(layout: Layout, data_dir: Path, users: Sequence[str]) -> Iterator[None]:
    with layout.hold():
        for user_id in users:
            folder = user_folder(data_dir, user_id)
            if folder.exists():
                own(folder, "library").release()
        if journal_folder(data_dir).exists():
            require_unused(journal_folder(data_dir))
        yield


@contextmanager
def _staged(backup: Path, data_dir: Path, parts: Sequence[Part], report: Report) -> Iterator[Path]:
    """Give a folder beside the others with copies of the parts, checked and on the disk."""
    stage = data_dir / STAGE
    shutil.rmtree(stage, ignore_errors=True)  # of one that was interrupted
    try:
        for done, part in enumerate(parts):
            report("parts", done, len(parts))
            file = stage / part.path
            file.parent.mkdir(mode=0o700, parents=True)
            shutil.copyfile(backup / part.path, file)
            file.chmod(0o600)
            fault = find_fault(file.parent)
            if digest(file) != part.sha256 or fault is not None:
                raise BackupDamagedError(f"{part.path}: {fault or 'changed while it was copied'}")
        report("parts", len(parts), len(parts))
        flush_tree(stage)
        yield stage
    finally:
        if not is_moving(data_dir):
            shutil.rmtree(stage, ignore_errors=True)


def _require_usable(backup: Path, stage: Path, data_dir: Path, settings: Settings) -> None:
    """Raise `StoreEncryptedError` or `EncryptionKeyMissingError` for what could not be opened where it is to be used.

    Users whose key was destroyed since are no reason to refuse all others: they stay as unreadable as they were.
    """
    missing: list[EncryptionKeyMissingError] = []
    users = list(known_users(stage))
    for user_id in users:
        key = open_user_key(settings.encryption, data_dir, user_id)
        try:
            open_records(user_folder(stage, user_id), settings.store, key).close()
        except StoreEncryptedError as error:
            raise StoreEncryptedError(str(backup)) from error
        except EncryptionKeyMissingError as error:
            missing.append(error)
    if missing and len(missing) == len(users):
        raise missing[0]


def _moves_aside(
    data_dir: Path, folders: Sequence[Path], now: datetime, *, replace: bool
) -> tuple[str | None, list[tuple[Path, Path]]]:
    """Return the name of a folder of its own for what is there, None where nothing is, and what has to move into it."""
    present = [folder for folder in folders if folder.exists() and any(folder.iterdir())]
    if present and not replace:
        names = ", ".join(folder.name for folder in present)
        raise InvalidInputError("data_dir", f"{data_dir} holds {names} already; with --replace they are put aside")
    for folder in folders:
        if folder.exists() and folder not in present:
            folder.rmdir()
    if not present:
        return None, []
    aside = data_dir / f"{ASIDE}{now:%Y%m%dT%H%M%S%f}"
    return str(aside), [(folder, aside / folder.relative_to(data_dir)) for folder in present]


def _cursor(folder: Path, settings: Settings, key: UserKey | None) -> int:
    """Return the last event of the journal that a store has."""
    environment = open_records(folder, settings.store, key)
    try:
        with environment.read() as transaction:
            return Snapshot(transaction).state.cursor
    finally:
        environment.close()


def _rewind(data_dir: Path, settings: Settings, seq: int) -> None:
    journal = journal_folder(data_dir)
    if (journal / DATA_FILE).exists():
        rewind(journal, settings.relay.journal, {CONSUMER: seq})
