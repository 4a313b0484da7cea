"""The files of users on one node of a cluster: restored from the archive, archived again, deleted.

On a node that joined, files are a copy of the archive, which the host keeps up to date. On the daemon's own machine
(home), they are the truth: once a user's files are restored there, its archive is deleted.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import msgspec

from memory_agent.archiving.chain import Restored
from memory_agent.archiving.objects import ObjectStore
from memory_agent.archiving.placements import PLACEMENT_FILE, Placements, away_since, read_placement
from memory_agent.archiving.restoration import restore
from memory_agent.archiving.user_archive import UserArchive
from memory_agent.errors import SettingsError, StoreError
from memory_agent.records.placement import HOME, Placement, Position
from memory_agent.settings import Settings
from memory_agent.storage.environment import RECORDS_FOLDER, has_records, open_key_of, open_records
from memory_agent.storage.folders import user_folder
from relay.disk import OnCommit, flush, write_private

_MARKER_FILE = "placed.json"
_SCRATCH_FOLDER = "archiving"
_MOST_OPENINGS = 1_000_000
"""Each opening begins a new epoch of the archive, between those of the placement and of the next one."""


class _Marker(msgspec.Struct, frozen=True, kw_only=True):
    """The placement for which the files next to it were restored or created, and how often they were opened since.

    `archived` is the state of the archive, if the files are closed and equal to it.
    """

    epoch: int
    openings: int = 0
    archived: Restored | None = None


class UserFiles:
    """The files of users on one node. Thread-safe, if each user is used by one thread at a time."""

    def __init__(self, data_dir: Path, settings: Settings, *, is_home: bool) -> None:
        """Raises `SettingsError` for an unusable `archive.url`."""
        self._data_dir = data_dir
        self._settings = settings
        self._store = ObjectStore.open(settings.archive)
        self._archives: dict[str, UserArchive] = {}
        self.is_home = is_home
        """Whether this is the daemon's own machine."""

    def prepare(self, user_id: str, placement: Placement, copy: Callable[[Path], None]) -> OnCommit | None:
        """Make the files of a sleeping user current. Return the receiver of their changes; None at home.

        `copy` copies the user's records into an empty folder, for a snapshot. Raises `ArchiveUnavailableError`,
        `ArchiveDamagedError` and `StoreError`.
        """
        folder = user_folder(self._data_dir, user_id)
        if self.is_home:
            self._come_home(folder, user_id, placement)
            return None
        marker = self._marker(folder)
        if marker is None or marker.epoch != placement.epoch:
            marker = _Marker(epoch=placement.epoch, archived=self._restore(folder, user_id, placement))
        self._write_marker(folder, msgspec.structs.replace(marker, openings=marker.openings + 1, archived=None))
        archive = self._archive_of(folder, user_id, marker.epoch * _MOST_OPENINGS + marker.openings + 1)
        archive.start(copy, marker.archived)
        self._archives[user_id] = archive
        return archive.note

    def archive(self, user_id: str) -> Position | None:
        """Archive everything committed before this call. Returns None at home. Raises `ArchiveUnavailableError`."""
        archive = self._archives.get(user_id)
        return None if archive is None else archive.flush()

    def close(self, user_id: str) -> Position | None:
        """Like `archive`, for a closed memory. If it fails, call it again; the changes remain in the files."""
        archive = self._archives.get(user_id)
        if archive is None:
            return None
        position = archive.flush()
        del self._archives[user_id]
        folder = user_folder(self._data_dir, user_id)
        marker = self._marker(folder)
        if marker is not None:
            self._write_marker(folder, msgspec.structs.replace(marker, archived=archive.state))
        return position

    def forget(self, user_id: str) -> None:
        """Note that the memory was closed after a failure. Changes that are not archived yet remain in the files."""
        self._archives.pop(user_id, None)

    def release(self, user_id: str, epoch: int) -> Position | None:
        """Archive the files of a sleeping user at home, and delete the files on any node; return the archive's state.

        Returns None on other nodes, where a user is archived before it sleeps. Raises as `prepare`.
        """
        folder, position = user_folder(self._data_dir, user_id), None
        if self.is_home and has_records(folder):
            archive = self._archive_of(folder, user_id, epoch * _MOST_OPENINGS)
            archive.start(partial(copy_records, folder, user_id, self._settings))
            position = archive.flush()
        self._delete(folder)
        return position

    def discard(self, user_id: str) -> None:
        """Delete what must not outlive a user at home: the files on another node, or, called at home, the archive.

        Raises `StoreError` and `ArchiveUnavailableError`.
        """
        if self.is_home:
            self._store.of_user(user_id).remove_all()
        else:
            self._delete(user_folder(self._data_dir, user_id))

    def copy_archived(self, user_id: str, placement: Placement, target: Path) -> None:
        """Restore the user's archive into the folder `target`. Raises as `prepare`."""
        restore(self._store.of_user(user_id), user_id, target, placement.archived, self._settings.store)

    def _come_home(self, folder: Path, user_id: str, placement: Placement) -> None:
        """Restore the files if they are elsewhere, then delete the archive: from now on, the files are the truth."""
        if placement.epoch and not has_records(folder):
            restored = self._restore(folder, user_id, placement)
            self._write_marker(folder, _Marker(epoch=placement.epoch, archived=restored))
        if self._marker(folder) is not None:  # the archive was not deleted yet
            self._store.of_user(user_id).remove_all()
            (folder / _MARKER_FILE).unlink()

    def _restore(self, folder: Path, user_id: str, placement: Placement) -> Restored | None:
        self._delete(folder)
        return restore(
            self._store.of_user(user_id), user_id, folder / RECORDS_FOLDER, placement.archived, self._settings.store
        )

    def _archive_of(self, folder: Path, user_id: str, epoch: int) -> UserArchive:
        return UserArchive(self._store.of_user(user_id), user_id, epoch, folder / _SCRATCH_FOLDER)

    def _marker(self, folder: Path) -> _Marker | None:
        try:
            return msgspec.json.decode((folder / _MARKER_FILE).read_bytes(), type=_Marker)
        except (OSError, msgspec.DecodeError):
            return None

    def _write_marker(self, folder: Path, marker: _Marker) -> None:
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_private(folder / _MARKER_FILE, msgspec.json.encode(marker))
        except OSError as error:
            raise StoreError(f"{folder}: {error.strerror}") from error

    def _delete(self, folder: Path) -> None:
        """Delete the files of a user, except for the placement, which is at home."""
        try:
            for path in folder.iterdir() if folder.exists() else ():
                if path.name == PLACEMENT_FILE:
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
    """Restore the files of a user who is on another node, while no daemon runs. Durable on return.

    Does nothing for a user at home. Raises `SettingsError` without `archive.url`, and the errors of the archive.
    """
    placements = Placements(data_dir)
    if placements.of(user_id).node != HOME:
        files = _home_files(data_dir, settings, user_id)
        files.prepare(user_id, placements.move(user_id, HOME), lambda _: None)


def forget_archive(data_dir: Path, settings: Settings, user_id: str) -> None:
    """Delete the archive of a user who is on another node and whose files are about to be replaced, as `fetch_home`."""
    placements = Placements(data_dir)
    if placements.of(user_id).node != HOME:
        _home_files(data_dir, settings, user_id).discard(user_id)


def copy_archived(data_dir: Path, settings: Settings, user_id: str, target: Path) -> None:
    """Restore the records of a user who is on another node into the folder `target`, which must not exist.

    Raises the same errors as `fetch_home`.
    """
    _home_files(data_dir, settings, user_id).copy_archived(
        user_id, read_placement(user_folder(data_dir, user_id)), target
    )


@contextmanager
def current_files(data_dir: Path, settings: Settings, user_id: str) -> Iterator[tuple[Path, bool]]:
    """Yield the folder with a user's records, to read, and whether it is a temporary copy of the archive.

    Works while a daemon runs. Raises the same errors as `fetch_home`.
    """
    folder = user_folder(data_dir, user_id)
    if away_since(folder) is None:
        yield folder, False
        return
    with tempfile.TemporaryDirectory(dir=data_dir) as copy:
        copy_archived(data_dir, settings, user_id, Path(copy) / RECORDS_FOLDER)
        yield Path(copy), True


def _home_files(data_dir: Path, settings: Settings, user_id: str) -> UserFiles:
    if not settings.archive.url:
        raise SettingsError("archive.url", f"is not set, but the memories of {user_id} are in an archive")
    return UserFiles(data_dir, settings, is_home=True)
