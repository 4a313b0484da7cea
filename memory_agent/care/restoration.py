"""Restore a whole backup or one user from it, or replay one user's events from the journal.

The whole backup is checked before anything changes, and the data folder must not be in use. Copies are staged, and
encrypted if the data folder is encrypted. Memories erased here since the backup are erased from the copies, which then
replace the existing files. The existing files are moved aside. If a single store is restored, the daemon's cursor is
reset to the last event of that store; other stores recognise repeated events.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from memory_agent.archiving import fetch_home, forget_archive, is_away, restore_journal
from memory_agent.care.backup import JOURNAL, OWNERS, Part, file_digest, read_manifest
from memory_agent.care.encryption import encrypt_staged
from memory_agent.care.offline import Warn, erase_events, erase_events_of, erase_user, erased_events, open_memory
from memory_agent.erasure.logs import HISTORY_FOLDER, History, read_history
from memory_agent.errors import (
    ArchiveDamagedError,
    BackupDamagedError,
    EncryptionKeyMissingError,
    InvalidInputError,
    StoreEncryptedError,
)
from memory_agent.knowledge import Knowledge
from memory_agent.layout import CONSUMER, Layout
from memory_agent.settings import Settings
from memory_agent.storage.archive import Archive
from memory_agent.storage.environment import has_records, open_records, open_user_key, own, require_keys
from memory_agent.storage.folder_moves import has_unfinished_moves, move_folders
from memory_agent.storage.folders import ASIDE, STAGE, known_users, user_folder
from memory_agent.storage.snapshot import Snapshot
from relay import SHARED_USER, Erasable, journal_folder, require_unused, rewind
from relay.disk import DATA_FILE, Report, find_fault, flush_tree

USERS = "users"
NOT_IN_JOURNAL = "memories created with remember or import, recalls, and runs recorded with trajectory"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Restored(msgspec.Struct, frozen=True, kw_only=True):
    """The restored parts. `aside` is the folder with the replaced files, or None if there were none.

    `erased_again`: for each user, the number of memories erased here since the backup. `has_history`: whether this data
    folder has a history of erasures.
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
    warn: Warn = lambda _: None,
) -> Restored:
    """Restore everything. With `replace`, existing files are moved aside; without it, they cause an error. Durable on
    return.

    Raises `BackupDamagedError`, `InvalidInputError`, `DaemonRunningError`, `StoreOwnedElsewhereError`,
    `JournalInUseError`, `OSError` and, if keys are missing, `StoreEncryptedError` or `EncryptionKeyMissingError`.
    """
    manifest = read_manifest(backup)
    tops = [data_dir / name for name in (USERS, OWNERS, JOURNAL)]
    with _staged(backup, data_dir, list(known_users(data_dir)), manifest.parts, settings, now, report) as stage:
        again = _reapply_erasures(stage, stage, data_dir, settings, manifest.made_at, now, warn)
        flush_tree(stage)
        for user_id in known_users(data_dir):
            _come_home(data_dir, settings, user_id)
        aside, moves = _moves_aside(data_dir, tops, now, replace=replace)
        move_folders(data_dir, moves + [(stage / top.name, top) for top in tops if (stage / top.name).exists()])
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
    warn: Warn = lambda _: None,
) -> Restored:
    """Restore one user's store; the daemon delivers the journal's later events at its next start. Durable on return.

    Raises the errors of `restore_all`, and `InvalidInputError` if the user is not in the backup or was erased since.
    """
    manifest = read_manifest(backup)
    parts = tuple(part for part in manifest.parts if part.part == f"user {user_id}")
    if not parts:
        raise InvalidInputError("user", f"{user_id} is not in this backup")
    folder = user_folder(data_dir, user_id)
    with _staged(backup, data_dir, [user_id], parts, settings, now, report) as stage:
        staged = stage / folder.relative_to(data_dir)
        key = open_user_key(settings.encryption, data_dir, user_id)
        with closing(open_records(staged, settings.store, key)) as environment, environment.read() as transaction:
            cursor = Snapshot(transaction).state.cursor
        if _read_history(data_dir, user_id, warn).since(manifest.made_at).is_everything:
            raise InvalidInputError("user", f"{user_id} was erased entirely after this backup was made")
        again = _reapply_erasures(stage, data_dir, data_dir, settings, manifest.made_at, now, warn)
        flush_tree(stage)
        if user_id != SHARED_USER:  # shared items have no events
            # Rewind before the moves: repeated events are detected as duplicates, but missed events would be lost.
            _rewind(data_dir, settings, cursor)
        _come_home(data_dir, settings, user_id)
        aside, moves = _moves_aside(data_dir, [folder], now, replace=replace)
        move_folders(data_dir, [*moves, (staged, folder)])
    return _restored(data_dir, parts, aside, manifest.made_at, again)


def take_users(
    backup: Path,
    data_dir: Path,
    is_wanted: Callable[[str], bool],
    settings: Settings,
    now: datetime,
    report: Report,
    warn: Warn = lambda _: None,
) -> Restored:
    """Restore users from another cell's backup, except users who have memories here or were erased here since the
    backup.

    Durable on return. The stores' cursors refer to that cell's journal, so they are reset. Raises the errors of
    `restore_all`.
    """
    manifest = read_manifest(backup)

    def is_taken(user_id: str) -> bool:
        folder = user_folder(data_dir, user_id)
        is_here = has_records(folder) or is_away(folder)
        return not (is_here or read_history(folder, user_id).since(manifest.made_at).is_everything)

    users = {part: part.part.removeprefix("user ") for part in manifest.parts if part.part.startswith("user ")}
    users = {part: one for part, one in users.items() if one != SHARED_USER and is_wanted(one) and is_taken(one)}
    with _staged(backup, data_dir, users.values(), list(users), settings, now, report) as stage:
        for user_id in users.values():
            key = open_user_key(settings.encryption, data_dir, user_id)
            folder = user_folder(stage, user_id)
            with closing(Archive.open(folder, settings.store, "library", key)) as archive, archive.batch() as batch:
                batch.state.cursor = 0
        again = _reapply_erasures(stage, data_dir, data_dir, settings, manifest.made_at, now, warn)
        flush_tree(stage)
        folders = [user_folder(data_dir, user_id) for user_id in users.values()]
        aside, moves = _moves_aside(data_dir, folders, now, replace=True)
        move_folders(data_dir, moves + [(stage / folder.relative_to(data_dir), folder) for folder in folders])
    return _restored(data_dir, tuple(users), aside, manifest.made_at, again)


def replay_user(
    data_dir: Path,
    user_id: str,
    settings: Settings,
    now: datetime,
    *,
    replace: bool,
    warn: Warn = lambda _: None,
) -> Restored:
    """Move one user's store aside, so that the daemon builds a new store from the journal at its next start.

    Durable on return. Raises the same errors as `restore_all`.
    """
    folder = user_folder(data_dir, user_id)
    if user_id == SHARED_USER:
        raise InvalidInputError("user", f"{user_id}: shared items are not in the journal; restore them from a backup")
    with _exclusive(data_dir, [user_id]):
        fetch_home(data_dir, settings, user_id)
        if not replace and folder.exists() and any(folder.iterdir()):
            reason = f"{user_id} already has memories; --replace moves them aside, and {NOT_IN_JOURNAL} stay there"
            raise InvalidInputError("user", reason)
        _rewind(data_dir, settings, 0)
        aside, moves = _moves_aside(data_dir, [folder], now, replace=True)
        move_folders(data_dir, moves)
        known = erased_events(data_dir, settings, user_id, _read_history(data_dir, user_id, warn))
        if known:
            with open_memory(data_dir, settings, user_id) as memory:
                memory.erasure.erase_again(History(), _EPOCH, known)
    return _restored(data_dir, (), aside, None, {user_id: len(known)} if known else {})


def _come_home(data_dir: Path, settings: Settings, user_id: str) -> None:
    """If the user is on another node, fetch the user's files, which are then moved aside. Discard a damaged archive."""
    try:
        fetch_home(data_dir, settings, user_id)
    except ArchiveDamagedError:
        forget_archive(data_dir, settings, user_id)


def restore_archived_journal(data_dir: Path, settings: Settings) -> int:
    """Restore the journal from the archive; return the number of its last event. The stores recognise repeated
    events.
    """
    return restore_journal(settings.archive, journal_folder(data_dir), settings.relay.journal, {CONSUMER: 0})


def _reapply_erasures(
    stage: Path, journal_dir: Path, data_dir: Path, settings: Settings, made_at: datetime, now: datetime, warn: Warn
) -> dict[str, int]:
    """Erase the memories listed in the history of `data_dir` from the staged files; return the count for each user."""
    counts = {}
    for user_id in list(known_users(stage)):
        history = _read_history(data_dir, user_id, warn)
        if not history.erasures:
            continue
        if history.since(made_at).is_everything:
            counts[user_id] = erase_user(stage, settings, user_id, now, warn=warn).memories
        else:
            if user_id == SHARED_USER:  # also erases events of items that the restored store does not have
                wanted = Erasable(user_id=SHARED_USER, quoted=history.memories_in(now))
                erase_events(journal_dir, settings, wanted, now)
            known = erased_events(journal_dir, settings, user_id, history)
            with open_memory(stage, settings, user_id) as memory:
                if isinstance(memory, Knowledge):
                    counts[user_id] = memory.removal.apply(history)
                    memory.expire(now)
                    continue
                intents = memory.erasure.erase_again(history, made_at, known)
            for intent in intents:
                erase_events_of(stage, settings, user_id, intent, now)
            counts[user_id] = len({id_ for intent in intents for id_ in intent.all_ids})
    return {user_id: count for user_id, count in counts.items() if count}


def _read_history(data_dir: Path, user_id: str, warn: Warn) -> History:
    history = read_history(user_folder(data_dir, user_id), user_id)
    if history.unread:
        warn(f"{history.unread} damaged erasure records of {user_id}; the memories that they name may reappear")
    return history


def _restored(
    data_dir: Path, parts: tuple[Part, ...], aside: str | None, made_at: datetime | None, again: dict[str, int]
) -> Restored:
    has_history = (data_dir / HISTORY_FOLDER).exists()
    return Restored(parts=parts, aside=aside, made_at=made_at, erased_again=again, has_history=has_history)


@contextmanager
def _exclusive(data_dir: Path, users: Iterable[str]) -> Iterator[None]:
    """Hold the data folder exclusively. After an exception, also in the context, a folder created here is removed."""
    layout = Layout(data_dir)
    is_new = not data_dir.exists()
    try:
        layout.create()
        with layout.hold(serves=False):
            for folder in (user_folder(data_dir, user_id) for user_id in users):
                if folder.exists():
                    own(folder, "library").release()
            if journal_folder(data_dir).exists():
                require_unused(journal_folder(data_dir))
            yield
    except BaseException:
        if is_new and not has_unfinished_moves(data_dir):
            shutil.rmtree(data_dir, ignore_errors=True)
        raise


@contextmanager
def _staged(
    backup: Path,
    data_dir: Path,
    users: Iterable[str],
    parts: Sequence[Part],
    settings: Settings,
    now: datetime,
    report: Report,
) -> Iterator[Path]:
    """Lock the data folder; copy the parts to a folder next to the stores, then check and encrypt them. Durable."""
    require_keys(settings.encryption, data_dir)
    stage = data_dir / STAGE
    with _exclusive(data_dir, users):
        shutil.rmtree(stage, ignore_errors=True)  # left by an interrupted restore
        try:
            for done, part in enumerate(parts):
                report("parts", done, len(parts))
                file = stage / part.path
                file.parent.mkdir(mode=0o700, parents=True)
                shutil.copyfile(backup / part.path, file)
                file.chmod(0o600)
                fault = find_fault(file.parent)
                if file_digest(file) != part.sha256 or fault is not None:
                    raise BackupDamagedError(f"{part.path}: {fault or 'changed while being copied'}")
            report("parts", len(parts), len(parts))
            flush_tree(stage)
            encrypt_staged(stage, data_dir, settings, now, report)
            _require_usable(backup, stage, data_dir, settings)
            yield stage
        finally:
            if not has_unfinished_moves(data_dir):
                shutil.rmtree(stage, ignore_errors=True)


def _require_usable(backup: Path, stage: Path, data_dir: Path, settings: Settings) -> None:
    """Raise `StoreEncryptedError` if the settings name no keys folder, or `EncryptionKeyMissingError` if all keys are
    missing.

    A user whose key was destroyed is restored but remains unreadable, provided that other users can be opened.
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
    """Return a new folder for the existing files (None if there are none), and the moves into it."""
    present = [folder for folder in folders if folder.exists() and any(folder.iterdir())]
    if present and not replace:
        names = ", ".join(folder.name for folder in present)
        raise InvalidInputError("data_dir", f"{data_dir} already contains {names}; --replace moves them aside")
    for folder in folders:
        if folder.exists() and folder not in present:
            folder.rmdir()
    if not present:
        return None, []
    aside = data_dir / f"{ASIDE}{now:%Y%m%dT%H%M%S%f}"
    return str(aside), [(folder, aside / folder.relative_to(data_dir)) for folder in present]


def _rewind(data_dir: Path, settings: Settings, seq: int) -> None:
    journal = journal_folder(data_dir)
    if (journal / DATA_FILE).exists():
        rewind(journal, settings.relay.journal, {CONSUMER: seq})
