"""Restores, archives and deletes users' files on one node of a cluster.

On a node that joined, the archive is authoritative: the files are a copy of it, and the host archives each change. On
the daemon's own machine (home), the files are authoritative: once they are restored there, the user's archive is
deleted.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import msgspec

from memory_agent.archiving.chain import Restored
from memory_agent.archiving.objects import ObjectStore
from memory_agent.archiving.placements import EPOCHS_OF_ARCHIVE, PLACEMENT_FILE, Placements, is_away, read_placement
from memory_agent.archiving.restoration import restore, restore_derived
from memory_agent.archiving.user_archive import UserArchive
from memory_agent.errors import ArchiveUnavailableError, FencedError, SettingsError, StoreError
from memory_agent.records.placement import HOME, Placement, Position
from memory_agent.settings import Settings
from memory_agent.storage.derived import derived_files
from memory_agent.storage.environment import RECORDS_FOLDER, has_records, open_key_of, open_records, own
from memory_agent.storage.folders import user_folder
from relay import described
from relay.disk import OnCommit, flush, write_private

_MARKER_FILE = "placed.json"
_SCRATCH_FOLDER = "archiving"
_COPY = ".archive-copy-"  # prefix of the folders for temporary copies of a user's archive, in the user's folder


class _Marker(msgspec.Struct, frozen=True, kw_only=True):
    """The placement of the files in the same folder, and how often they have been opened since the placement.

    `is_left`: the user left this node after `epoch`, so the files are outdated. `archived` is the state of the archive,
    provided that the files are closed and identical to the archive. On the home node, the files of a user without an
    archive have no marker.
    """

    epoch: int
    openings: int = 0
    is_left: bool = False
    archived: Restored | None = None


class UserFiles:
    """Users' files on one node. Thread-safe as long as each user's files are used by only one thread at a time."""

    def __init__(self, data_dir: Path, settings: Settings, *, is_home: bool) -> None:
        self._data_dir = data_dir
        self._settings = settings
        self._store = ObjectStore.open(settings.archive)
        self._archives: dict[str, UserArchive] = {}
        self.is_home = is_home

    def prepare(self, user_id: str, placement: Placement, copy: Callable[[Path], None]) -> OnCommit | None:
        """Bring a sleeping user's files up to date. Return the callback that receives the changes to these files, or
        None at home.

        `copy` copies the user's records into an empty folder, for a snapshot. Raises `FencedError` if the placement has
        ended. Also raises `ArchiveUnavailableError`, `ArchiveDamagedError` and `StoreError`.
        """
        folder = user_folder(self._data_dir, user_id)
        self.require_current(user_id, placement)
        if self.is_home:
            self._come_home(folder, user_id, placement)
            return None
        marker = self._marker(folder)
        if marker is None or marker.epoch != placement.epoch:
            marker = self.fetch(user_id, placement)
        self._write_marker(folder, msgspec.structs.replace(marker, openings=marker.openings + 1, archived=None))
        archive = self._archive_of(folder, user_id, placement.epoch * EPOCHS_OF_ARCHIVE + marker.openings + 1)
        archive.start(copy, marker.archived, derived_files(folder))
        self._archives[user_id] = archive
        return archive.note

    def require_current(self, user_id: str, placement: Placement) -> None:
        """Raise `FencedError` if this placement is known to have ended: a late request must not open the files."""
        folder = user_folder(self._data_dir, user_id)
        if self.is_home:
            known = read_placement(folder)
            is_over, epoch = (known.node, known.epoch) != (placement.node, placement.epoch), known.epoch
        else:
            marker = self._marker(folder)
            epoch = 0 if marker is None else marker.epoch + marker.is_left
            is_over = placement.epoch < epoch
        if is_over:
            raise FencedError(str(folder), placement.epoch, epoch)

    def archive(self, user_id: str) -> Position | None:
        """Archive everything committed before this call. Returns None at home. Raises `ArchiveUnavailableError`."""
        archive = self._archives.get(user_id)
        return None if archive is None else archive.flush()

    def close(self, user_id: str) -> Position | None:
        """Like `archive`, but for a closed memory, and for files left behind by an earlier process. May be repeated."""
        folder, archive = user_folder(self._data_dir, user_id), self._archives.get(user_id)
        marker = self._marker(folder)
        if self.is_home or marker is None or marker.is_left:
            return None
        if archive is None:
            if marker.archived is not None:
                return marker.archived.position
            marker = msgspec.structs.replace(marker, openings=marker.openings + 1)
            self._write_marker(folder, marker)
            archive = self._archive_of(folder, user_id, marker.epoch * EPOCHS_OF_ARCHIVE + marker.openings)
            archive.start(partial(copy_records, folder, user_id, self._settings), None, derived_files(folder))
        position = archive.flush()
        self._archives.pop(user_id, None)
        self._write_marker(folder, msgspec.structs.replace(marker, archived=archive.state))
        return position

    def forget(self, user_id: str) -> None:
        """Record that the memory was closed after a failure. Unarchived changes remain in the files."""
        self._archives.pop(user_id, None)

    def release(self, user_id: str, placement: Placement) -> Position | None:
        """Archive the files that a sleeping user has on the daemon's machine, and mark them as outdated; return the
        position in the archive. `discard` deletes them later. Returns None if there are no files. Raises the errors of
        `prepare`, and `FencedError` if the placement has ended or a memory was opened meanwhile.
        """
        folder, position = user_folder(self._data_dir, user_id), None
        self.require_current(user_id, placement)
        self._come_home(folder, user_id, placement)
        lock = own(folder, "host", self._settings.store.takeover_after_s)
        try:
            self.require_current(user_id, placement)
            if has_records(folder):
                archive = self._archive_of(folder, user_id, placement.epoch * EPOCHS_OF_ARCHIVE)
                archive.start(partial(copy_records, folder, user_id, self._settings), None, derived_files(folder))
                position = archive.flush()
            with lock.swapping():
                self._write_marker(folder, _Marker(epoch=placement.epoch, is_left=True))
        finally:
            lock.release()
        return position

    def discard(self, user_id: str, epoch: int) -> None:
        """Delete the files of a user who left this node before this epoch. Keeps the placement. Raises `StoreError`."""
        folder = user_folder(self._data_dir, user_id)
        if folder.exists():
            try:
                self._write_marker(folder, _Marker(epoch=epoch - 1, is_left=True))
            except StoreError:  # a full disk
                if self.is_home:
                    raise
                self._remove_marker(folder)  # except at home, files without a marker are also outdated
            self._delete(folder)

    def discard_archive(self, user_id: str, epoch: int) -> None:
        """Delete what was archived before this epoch of the placement. Raises `ArchiveUnavailableError`."""
        self._store.of_user(user_id).remove_before(epoch * EPOCHS_OF_ARCHIVE)

    def copy_archived(self, user_id: str, placement: Placement, target: Path) -> Restored | None:
        """Restore the user's archive into the folder `target`. Raises the errors of `prepare`."""
        return restore(
            self._store.of_user(user_id),
            user_id,
            target,
            placement.archived,
            self._settings.store,
            placement.archived_since * EPOCHS_OF_ARCHIVE,
        )

    def _come_home(self, folder: Path, user_id: str, placement: Placement) -> None:
        """Restore the files if they are elsewhere, then delete the archive."""
        if not self.is_settled(user_id, placement):
            if not self._is_at_home(folder, placement):
                self.fetch(user_id, placement)
            self.settle(user_id, placement)

    def is_settled(self, user_id: str, placement: Placement) -> bool:
        """Whether the files at home are authoritative, and there is no archive."""
        folder = user_folder(self._data_dir, user_id)
        return placement.node == HOME and self._marker(folder) is None and self._is_at_home(folder, placement)

    def settle(self, user_id: str, placement: Placement) -> None:
        """Delete the archive of a user who was placed at home and whose files are there. Raises as `prepare`."""
        self.discard_archive(user_id, placement.epoch + 1)
        self._remove_marker(user_folder(self._data_dir, user_id))

    def _is_at_home(self, folder: Path, placement: Placement) -> bool:
        marker = self._marker(folder)
        has_files = has_records(folder) or not placement.epoch
        return has_files and (marker is None or marker.epoch == placement.epoch)

    def fetch(self, user_id: str, placement: Placement) -> _Marker:
        """Replace the files with those in the archive, and return their marker. Idempotent. Raises as `prepare`."""
        folder = user_folder(self._data_dir, user_id)
        self._write_marker(folder, _Marker(epoch=placement.epoch - 1, is_left=True))
        self._delete(folder)
        restored = self.copy_archived(user_id, placement, folder / RECORDS_FOLDER)
        if restored is not None:
            with suppress(ArchiveUnavailableError, OSError):  # the store rebuilds missing derived files
                restore_derived(self._store.of_user(user_id), restored, folder)
        last = 0 if restored is None else restored.position.epoch - placement.epoch * EPOCHS_OF_ARCHIVE
        marker = _Marker(epoch=placement.epoch, openings=max(0, last), archived=restored)
        self._write_marker(folder, marker)
        return marker

    def _archive_of(self, folder: Path, user_id: str, epoch: int) -> UserArchive:
        return UserArchive(self._store.of_user(user_id), user_id, epoch, folder / _SCRATCH_FOLDER)

    def _marker(self, folder: Path) -> _Marker | None:
        try:
            return msgspec.json.decode((folder / _MARKER_FILE).read_bytes(), type=described(_Marker))
        except (OSError, msgspec.DecodeError):
            return None

    def _write_marker(self, folder: Path, marker: _Marker) -> None:
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_private(folder / _MARKER_FILE, msgspec.json.encode(marker))
        except OSError as error:
            raise StoreError(f"{folder}: {error.strerror}") from error

    def _remove_marker(self, folder: Path) -> None:
        try:
            (folder / _MARKER_FILE).unlink(missing_ok=True)
        except OSError as error:
            raise StoreError(f"{folder}: {error.strerror}") from error

    def _delete(self, folder: Path) -> None:
        try:
            for path in folder.iterdir() if folder.exists() else ():
                if path.name in (PLACEMENT_FILE, _MARKER_FILE) or path.name.startswith(_COPY):
                    continue
                shutil.rmtree(path) if path.is_dir() else path.unlink()
            if folder.exists():
                flush(folder)
        except OSError as error:
            raise StoreError(f"{folder}: {error.strerror}") from error


def copy_records(folder: Path, user_id: str, settings: Settings, target: Path) -> None:
    """Write a compact copy of the records of a closed memory into the empty folder `target`. Raises `StoreError`."""
    environment = open_records(folder, settings.store, open_key_of(settings.encryption, folder, user_id))
    try:
        environment.copy(target)
    finally:
        environment.close()


def fetch_home(data_dir: Path, settings: Settings, user_id: str) -> None:
    """Move a user from another node to this one; no cluster may be running. Idempotent. Raises `SettingsError`."""
    placement = read_placement(user_folder(data_dir, user_id))
    if not placement.epoch:
        return
    files = _home_files(data_dir, settings, user_id)
    if files.is_settled(user_id, placement):
        return
    if placement.node != HOME:
        files.fetch(user_id, placement)
        placement = Placements(data_dir).move(user_id, HOME)
        files.settle(user_id, placement)
    else:
        files.prepare(user_id, placement, lambda _: None)


def forget_archive(data_dir: Path, settings: Settings, user_id: str) -> None:
    """Delete the damaged archive of a user on another node, before other files replace it."""
    placement = read_placement(user_folder(data_dir, user_id))
    if placement.node != HOME:
        _home_files(data_dir, settings, user_id).discard_archive(user_id, placement.epoch + 1)


def copy_archived(data_dir: Path, settings: Settings, user_id: str, target: Path) -> None:
    """Restore into `target` the records of a user whose memory is on another node. Raises as `fetch_home`."""
    _home_files(data_dir, settings, user_id).copy_archived(
        user_id, read_placement(user_folder(data_dir, user_id)), target
    )


@contextmanager
def current_files(data_dir: Path, settings: Settings, user_id: str) -> Iterator[tuple[Path, bool]]:
    """Yield the folder with a user's records, and whether that folder is a temporary copy. A daemon may be running."""
    folder = user_folder(data_dir, user_id)
    if not is_away(folder):
        yield folder, False
        return
    with tempfile.TemporaryDirectory(prefix=_COPY, dir=folder) as copy:
        copy_archived(data_dir, settings, user_id, Path(copy) / RECORDS_FOLDER)
        yield Path(copy), True


def remove_copies(folder: Path) -> None:
    """Remove the temporary copies that killed processes left in the folder of a user at home. Raises `StoreError`."""
    try:
        for copy in (*folder.glob(f"{_COPY}*"), *folder.glob(_SCRATCH_FOLDER)):
            shutil.rmtree(copy)
    except OSError as error:
        raise StoreError(f"{folder}: {error.strerror}") from error


def _home_files(data_dir: Path, settings: Settings, user_id: str) -> UserFiles:
    if not settings.archive.url:
        raise SettingsError("archive.url", f"is not set, but the memories of {user_id} are in an archive")
    return UserFiles(data_dir, settings, is_home=True)
