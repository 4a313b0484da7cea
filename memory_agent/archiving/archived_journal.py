"""Archives the relay's journal, and restores it on another machine.

There is no lease; instead, each write detects whether another machine has taken over (`restoration.take_over`). A relay
first writes a snapshot of the whole journal, because other commands may have changed the file while it was closed.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from secrets import token_bytes

import msgspec

from memory_agent import errors
from memory_agent.archiving.chain import Header
from memory_agent.archiving.objects import Objects, ObjectStore
from memory_agent.archiving.restoration import begun_by, newest_epoch, restore, take_over
from memory_agent.archiving.user_archive import Limits, UserArchive
from memory_agent.settings import ArchiveSettings, StoreSettings
from relay import (
    CopyUnavailableError,
    JournalError,
    JournalSettings,
    JournalSupersededError,
    described,
    rewind,
    skip_numbers,
)
from relay.disk import StoredChange, flush, write_private

_NAME = "journal"
_MARKER_FILE = "archived.json"
_SCRATCH_FOLDER = "archiving"
_LIMITS = Limits(pending_bytes=64 << 20, increments=50_000, share=1.0, least_bytes=64 << 20)
"""One increment is written for each group of commits. Snapshots are rare, because acks wait for them."""
_ADVICE = "restore it with memory-agent restore --from-archive, or delete the archive's folder journal to start over"


class _Marker(msgspec.Struct, frozen=True):
    """The identity of this folder in the archive, and the last archive epoch that the folder's relay began."""

    owner: bytes
    epoch: int = 0


def archived_journal(settings: ArchiveSettings) -> ArchivedJournal | None:
    return ArchivedJournal(_objects(settings)) if settings.journal else None


def restore_journal(
    settings: ArchiveSettings, folder: Path, journal: JournalSettings, cursors: Mapping[str, int] | None = None
) -> int:
    """Restore the archived journal into `folder`, which must not exist. This ends archiving by the previous relay.

    That relay then acknowledges no more events, even if it was only disconnected. Returns the number of the last event.
    `cursors` sets the positions at which consumers continue if their data was also lost. Durable on return. Needs no
    encryption keys. Raises `StoreError` if another relay keeps writing. Also raises `ArchiveUnavailableError`,
    `ArchiveDamagedError`, `SettingsError`, `InvalidInputError` and `JournalError`.
    """
    if folder.exists():
        raise errors.InvalidInputError("data_dir", f"{folder} already exists")
    objects = _objects(settings)
    partial = folder.with_name(f".{folder.name}.restored")
    try:
        shutil.rmtree(partial, ignore_errors=True)
        epoch = newest_epoch(objects)
        if not epoch:
            raise errors.StoreError(f"{settings.url} contains no journal")
        marker = _Marker(token_bytes(16))
        begun = take_over(objects, _NAME, epoch, marker.owner)
        size = StoreSettings(map_size_bytes=journal.map_size_bytes)
        restored = restore(objects, _NAME, partial, settings=size)
        if restored is None or restored.position != begun.position:
            raise errors.StoreError(f"{settings.url} contains no journal, or another machine is also restoring it")
        _write_marker(partial, msgspec.structs.replace(marker, epoch=begun.position.epoch))
        last_seq = skip_numbers(partial, journal)
        rewind(partial, journal, cursors or {})
        partial.rename(folder)
        flush(folder.parent)
    except OSError as error:
        raise errors.StoreError(f"{folder}: {error.strerror}") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return last_seq


class ArchivedJournal:
    """Archives the journal of one relay (`relay.JournalCopy`)."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects
        self._archive: UserArchive | None = None
        self._beginning = threading.Lock()

    def note(self, changes: list[StoredChange] | None) -> None:
        """As `JournalCopy.note`. The snapshot of the first `flush` includes all earlier changes."""
        if self._archive is not None:
            self._archive.note(changes)

    def begin(self, folder: Path, copy: Callable[[Path], None]) -> None:
        self._archive = None
        self._folder, self._copy = folder, copy

    def flush(self) -> None:
        """As `JournalCopy.flush`. The first call begins a new epoch."""
        with _as_relay_errors():
            self._begun().flush()

    def renew(self) -> None:
        with _as_relay_errors():
            self._begun().renew()

    def _begun(self) -> UserArchive:
        with self._beginning:
            if self._archive is None:
                begun = self._take_over()
                scratch = self._folder / _SCRATCH_FOLDER
                archive = UserArchive(self._objects, _NAME, begun.position.epoch, scratch, _LIMITS, begun=begun)
                self._archive = archive
                archive.start(self._copy)
            return self._archive

    def _take_over(self) -> Header:
        """Begin the next epoch, unless the newest one belongs to another folder. Raises `FencedError`."""
        marker, newest = _read_marker(self._folder), newest_epoch(self._objects)
        if marker is None:
            marker = _Marker(token_bytes(16))
            _write_marker(self._folder, marker)
        if newest == marker.epoch + 1 and begun_by(self._objects, _NAME, newest) == marker.owner:
            marker = msgspec.structs.replace(marker, epoch=newest)  # an earlier attempt was interrupted
            _write_marker(self._folder, marker)
        if newest != marker.epoch:
            raise errors.FencedError("the journal in the archive", marker.epoch, newest)
        begun = take_over(self._objects, _NAME, newest, marker.owner)
        _write_marker(self._folder, msgspec.structs.replace(marker, epoch=begun.position.epoch))
        return begun


@contextmanager
def _as_relay_errors() -> Iterator[None]:
    try:
        yield
    except errors.ArchiveUnavailableError as error:
        raise CopyUnavailableError(str(error)) from error
    except errors.FencedError as error:
        raise JournalSupersededError(f"the archive contains a newer journal ({error}); {_ADVICE}") from error
    except (errors.MemoryAgentError, OSError, msgspec.DecodeError) as error:
        raise JournalError(f"the copy of the journal: {error}") from error


def _objects(settings: ArchiveSettings) -> Objects:
    if not settings.url:
        raise errors.SettingsError("archive.url", "must be set to archive the journal")
    return ObjectStore.open(settings).of_journal()


def _read_marker(folder: Path) -> _Marker | None:
    try:
        return msgspec.json.decode((folder / _MARKER_FILE).read_bytes(), type=described(_Marker))
    except FileNotFoundError:
        return None


def _write_marker(folder: Path, marker: _Marker) -> None:
    write_private(folder / _MARKER_FILE, msgspec.json.encode(marker))
