"""The copy of the relay's journal in the archive, and its restoration on another machine.

It is an archive like that of a user, except that no lease ends one relay before the next begins: each write finds out
whether another machine has taken over (`restoration.take_over`). A relay begins with a snapshot of the whole journal,
because other commands may have changed the file while it was closed.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from memory_agent.archiving.objects import Objects, ObjectStore
from memory_agent.archiving.restoration import restore, take_over
from memory_agent.archiving.user_archive import Limits, UserArchive
from memory_agent.errors import (
    ArchiveUnavailableError,
    FencedError,
    InvalidInputError,
    MemoryAgentError,
    SettingsError,
    StoreError,
)
from memory_agent.settings import ArchiveSettings, StoreSettings
from relay import CopyUnavailableError, JournalError, JournalSettings, JournalSupersededError, skip_numbers
from relay.disk import StoredChange, flush, write_private

_NAME = "journal"
_MARKER_FILE = "archived.json"
_SCRATCH_FOLDER = "archiving"
_LIMITS = Limits(pending_bytes=64 << 20, increments=50_000, share=1.0, least_bytes=64 << 20)
"""One increment is written for each group of commits. Acks wait for a snapshot, so snapshots are rare."""
_ADVICE = "restore it with memory-agent restore --from-archive, or delete the archive's folder journal to begin anew"


class _Marker(msgspec.Struct, frozen=True):
    """The last epoch in which a journal's folder was archived."""

    epoch: int


def archived_journal(settings: ArchiveSettings) -> ArchivedJournal | None:
    """Return the copy of the journal, or None if `archive.journal` is off. Raises `SettingsError`."""
    return ArchivedJournal(_objects(settings)) if settings.journal else None


def restore_journal(settings: ArchiveSettings, folder: Path, journal: JournalSettings) -> int:
    """Write the journal in the archive into `folder`, which must not exist, and stop the relay that archived it.

    That relay acknowledges nothing more, even if it is only cut off from this machine. Returns the number of the last
    event. Numbers after it are left out (`skip_numbers`). Durable on return. Needs no encryption keys. Raises
    `StoreError` if another relay keeps writing, `ArchiveUnavailableError`, `ArchiveDamagedError`, `SettingsError`,
    `InvalidInputError` and `JournalError`.
    """
    if folder.exists():
        raise InvalidInputError("data_dir", f"{folder} already exists")
    objects = _objects(settings)
    partial = folder.with_name(f".{folder.name}.restored")
    try:
        shutil.rmtree(partial, ignore_errors=True)
        position = take_over(objects, _NAME)
        if position is None:
            raise StoreError(f"{settings.url} contains no journal")
        restore(objects, _NAME, partial, position, StoreSettings(map_size_bytes=journal.map_size_bytes))
        _write_marker(partial, position.epoch)
        last_seq = skip_numbers(partial, journal)
        partial.rename(folder)
        flush(folder.parent)
    except OSError as error:
        raise StoreError(f"{folder}: {error.strerror}") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return last_seq


class ArchivedJournal:
    """Archives the journal of one relay (`relay.JournalCopy`)."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects
        self._archive: UserArchive | None = None

    def note(self, changes: list[StoredChange] | None) -> None:
        """As `JournalCopy.note`. What precedes `begin` is part of the first snapshot."""
        if self._archive is not None:
            self._archive.note(changes)

    def begin(self, folder: Path, copy: Callable[[Path], None]) -> None:
        """As `JournalCopy.begin`. Begins a new epoch."""
        try:
            epoch = _read_marker(folder) + 1
            _write_marker(folder, epoch)
        except (OSError, msgspec.DecodeError) as error:
            raise JournalError(f"{folder / _MARKER_FILE}: {error}") from error
        self._archive = UserArchive(self._objects, _NAME, epoch, folder / _SCRATCH_FOLDER, _LIMITS, is_contested=True)
        self._archive.start(copy)

    def flush(self) -> None:
        """As `JournalCopy.flush`."""
        assert self._archive is not None
        with _as_relay_errors():
            self._archive.flush()

    def renew(self) -> None:
        """As `JournalCopy.renew`."""
        assert self._archive is not None
        with _as_relay_errors():
            self._archive.renew()


@contextmanager
def _as_relay_errors() -> Iterator[None]:
    try:
        yield
    except ArchiveUnavailableError as error:
        raise CopyUnavailableError(str(error)) from error
    except FencedError as error:
        raise JournalSupersededError(f"the archive contains a newer journal ({error}); {_ADVICE}") from error
    except MemoryAgentError as error:
        raise JournalError(f"the copy of the journal: {error}") from error


def _objects(settings: ArchiveSettings) -> Objects:
    if not settings.url:
        raise SettingsError("archive.url", "must be set for a copy of the journal")
    return ObjectStore.open(settings).of_journal()


def _read_marker(folder: Path) -> int:
    """Return the last epoch of this folder, or 0 if it was never archived."""
    try:
        return msgspec.json.decode((folder / _MARKER_FILE).read_bytes(), type=_Marker).epoch
    except FileNotFoundError:
        return 0


def _write_marker(folder: Path, epoch: int) -> None:
    write_private(folder / _MARKER_FILE, msgspec.json.encode(_Marker(epoch)))
