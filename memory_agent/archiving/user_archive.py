"""Archives one user's store: a snapshot, then increments with the changes of later transactions.

A new snapshot replaces everything older once the increments become too large or too numerous (`Limits`). Increments may
repeat changes that the snapshot already contains. This does no harm, because the increments also contain all later
changes.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from memory_agent.archiving import chain
from memory_agent.archiving.objects import Objects
from memory_agent.errors import ArchiveUnavailableError, FencedError, StoreError
from memory_agent.records.placement import Position
from relay.disk import DATA_FILE, StoredChange


class Limits(NamedTuple):
    """When to write a snapshot instead of an increment.

    If more than `pending_bytes` of changes are waiting in memory, they are dropped, and a snapshot is due. A snapshot
    is also due in each of these cases: `increments` increments have been written; their total size exceeds both
    `least_bytes` and the fraction `share` of the last snapshot's size; the archive continues `continued` earlier
    epochs. `check_s`: how often to check that the objects of those epochs still exist.
    """

    pending_bytes: int = 8 << 20
    increments: int = 1_000
    share: float = 0.5
    least_bytes: int = 4 << 20
    continued: int = 32
    check_s: float = 30.0


_COPIED_BYTES = 1 << 20

_Versions = dict[str, tuple[int, int]]
Copy = Callable[[Path], None]


class UserArchive:
    """Writes the archive of one user, while this process owns the store. Thread-safe.

    `epoch` must be greater than the epochs of all earlier owners. Pass `note` to `Store.open` as `on_commit`, then call
    `start`. Every method that writes raises `FencedError` if there are objects of a newer owner, and `StoreError` if
    the store cannot be copied. All of them may also raise `ArchiveUnavailableError`; the changes then stay pending, or
    a snapshot replaces them.
    """

    def __init__(
        self,
        objects: Objects,
        user_id: str,
        epoch: int,
        scratch: Path,
        limits: Limits | None = None,
        *,
        begun: chain.Header | None = None,
    ) -> None:
        """`scratch`: a folder for temporary copies. `begun` (without a lease): the result of
        `restoration.take_over`.
        """
        self._is_contested = begun is not None
        self._objects = objects
        self._user_id = user_id
        self._epoch = epoch
        self._scratch = scratch
        self._limits = limits or Limits()
        self._copy: Copy | None = None
        self._derived: Sequence[Path] = ()
        self._sent_derived: _Versions = {}
        self._continued: tuple[Position, ...] = ()  # positions of earlier owners, from `base` objects
        self._flushing = threading.RLock()
        self._noting = threading.Lock()
        self._pending: list[bytes] = []  # one item per transaction; guarded by `_noting`
        self._pending_bytes = 0
        self._needs_snapshot = False  # whether a snapshot replaces the pending changes; guarded by `_noting`
        self._unsent: tuple[chain.Header, bytes] | None = None  # may already be stored, so it is sent again unchanged
        self._next_number = 0 if begun is None else 1
        self._last = Position(epoch, 0)
        self._digest = chain.NO_PREVIOUS if begun is None else begun.digest
        self._snapshot_number = 0
        self._snapshot_bytes = self._increments = self._increment_bytes = 0
        self._checked_until_s = 0.0
        self._is_checked = begun is not None  # whether it is known that no newer owner has written
        self._has_older = True  # whether objects that the last snapshot superseded may still exist
        self._is_superseded = False
        self._sent_through = 0  # if `begun`: the highest number known to be stored
        shutil.rmtree(scratch, ignore_errors=True)

    def start(self, copy: Copy, continues: chain.Restored | None = None, derived: Sequence[Path] = ()) -> None:
        """Start archiving the open store. `continues`: the result of the `restore` that wrote the store's files.

        Without `continues`, the first flush writes a snapshot. With it, all changes since the restore must already have
        been noted. `derived` lists files that are computed from committed changes. They are archived on a best-effort
        basis.
        """
        self._copy, self._derived = copy, derived
        if continues is None:
            self._drop_pending()
            return
        self._continued, self._digest = (continues.position, *continues.continued), continues.digest
        self._sent_derived = _versions(derived)
        self._snapshot_bytes = continues.snapshot_bytes
        self._increments, self._increment_bytes = continues.increments, continues.increment_bytes
        self._unsent = self._made("base", chain.base_body(continues.position))

    def note(self, changes: Sequence[StoredChange] | None) -> None:
        """Add a commit's changes; None means that its outcome is unknown. Does no I/O and does not raise."""
        encoded = None if changes is None else chain.encode_changes(changes)
        with self._noting:
            if self._needs_snapshot:
                return
            if encoded is None or self._pending_bytes + len(encoded) > self._limits.pending_bytes:
                self._pending, self._pending_bytes, self._needs_snapshot = [], 0, True
                return
            self._pending.append(encoded)
            self._pending_bytes += len(encoded)

    @property
    def state(self) -> chain.Restored:
        """The state after the last flush, as `restore` would return it."""
        sizes = self._snapshot_bytes, self._increments, self._increment_bytes
        return chain.Restored(self._last, self._digest, *sizes, continued=self._continued)

    def flush(self) -> Position:
        """Archive everything that was committed before the call. Return the position that contains it."""
        with self._flushing, ExitStack() as stack:
            self._require_owner()
            is_due = self._is_snapshot_due()
            versions = _versions(self._derived)
            derived = self._linked(stack) if is_due or versions != self._sent_derived else []
            if self._unsent is not None and not is_due:
                self._send(*self._unsent)
            pending = None if is_due else self._take_pending()
            if pending is None:
                self._write_snapshot()
            elif pending:
                self._send(*self._made("increment", chain.increment_body(pending)))
            if self._has_older and not self._continued:
                with suppress(ArchiveUnavailableError):
                    self._remove_older()
            self._send_derived(derived, versions)
            return self._last

    def renew(self) -> Position:
        """Archive a new snapshot and delete all older objects, which may still contain erased data."""
        with self._flushing:
            self._require_owner()
            self._write_snapshot()
            self._remove_older()
            return self._last

    def _require_owner(self) -> None:
        if self._copy is None:
            raise StoreError(f"the archive of {self._user_id} has not been started")
        if self._is_superseded:
            raise self._superseded()
        if not self._is_checked:
            self._require_newest(self._epoch - 1)
            self._is_checked = True

    def _require_newest(self, allowed: int) -> list[int]:
        """Return all epochs that contain objects. Raises `FencedError` if an epoch is greater than `allowed`."""
        epochs = [epoch for epoch in self._objects.epochs() if epoch <= allowed or self._objects.names(epoch)]
        if epochs and epochs[-1] > allowed:
            raise FencedError(f"the archive of {self._user_id}", self._epoch, epochs[-1])
        return epochs

    def _is_snapshot_due(self) -> bool:
        if self._needs_snapshot or self._increments >= self._limits.increments:
            return True
        if self._increment_bytes > max(self._limits.least_bytes, self._limits.share * self._snapshot_bytes):
            return True
        if len(self._continued) >= self._limits.continued:
            return True
        if not self._continued or time.monotonic() < self._checked_until_s:
            return False
        self._checked_until_s = time.monotonic() + self._limits.check_s
        return not all(self._is_kept(position) for position in self._continued)

    def _is_kept(self, position: Position) -> bool:
        """Whether an earlier owner's object still exists. A late request of that owner may have deleted it."""
        found = (chain.parse_name(name) for name in self._objects.names(position.epoch))
        return position.number in {name[0] for name in found if name is not None}

    def _drop_pending(self) -> None:
        """Make the next flush write a snapshot instead of the pending changes."""
        with self._noting:
            self._pending, self._pending_bytes, self._needs_snapshot = [], 0, True

    def _take_pending(self) -> list[bytes] | None:
        with self._noting:
            if self._needs_snapshot:
                return None
            taken, self._pending, self._pending_bytes = self._pending, [], 0
        return taken

    def _made(self, kind: chain.Kind, body: bytes) -> tuple[chain.Header, bytes]:
        return chain.make_object(kind, Position(self._epoch, self._next_number), self._user_id, body, self._digest)

    def _send(self, header: chain.Header, content: bytes) -> None:
        self._unsent = header, content
        name = chain.object_name(header.position.number, header.kind)
        if not self._is_contested:
            self._objects.put(self._epoch, name, content)
        elif not self._objects.create(self._epoch, name, content) and self._stored(name) != content:
            raise self._superseded()
        self._unsent = None
        self._increments += 1
        self._increment_bytes += len(content)
        self._advance(header)

    def _linked(self, stack: ExitStack) -> list[Path]:
        """Hard-link the derived files until `stack` closes, because later versions may contain unarchived changes."""
        try:
            self._scratch.mkdir(mode=0o700, parents=True, exist_ok=True)
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=self._scratch)))
            for file in self._derived:
                if file.exists():
                    os.link(file, folder / file.name)
        except OSError:
            return []
        return list(folder.iterdir())

    def _send_derived(self, links: Sequence[Path], versions: _Versions) -> None:
        """Archive derived files, without retries. A late upload is undone, because the user may have been erased."""
        if links:
            self._sent_derived = versions
        with suppress(ArchiveUnavailableError):
            for link in links:
                self._objects.put(
                    self._epoch, chain.derived_name(self._last.number, link.name), link, may_be_late=False
                )

    def _stored(self, name: str) -> bytes | None:
        """Return an object written by another machine, or by an earlier attempt whose reply was lost."""
        try:
            return self._objects.get(self._epoch, [name])[0]
        except FileNotFoundError:
            return None

    def _require_alone(self) -> None:
        """Raise `FencedError` if another machine has written into this epoch. After the last object known to be stored,
        this machine has written only snapshots.
        """
        found = (chain.parse_name(name) for name in self._objects.names(self._epoch))
        if any(one is not None and one[0] > self._sent_through and one[1] != "snapshot" for one in found):
            raise self._superseded()
        self._require_newest(self._epoch)

    def _superseded(self) -> FencedError:
        self._is_superseded = True
        return FencedError(f"the archive of {self._user_id}", self._epoch, self._epoch + 1)

    def _advance(self, header: chain.Header) -> None:
        self._last, self._digest = header.position, header.digest
        self._sent_through = header.position.number
        self._next_number = header.position.number + 1

    def _write_snapshot(self) -> None:
        """Write a snapshot under a new number, because an earlier attempt may still have succeeded."""
        assert self._copy is not None
        if self._is_contested and self._unsent is not None:
            self._send(*self._unsent)
        with self._noting:
            self._pending, self._pending_bytes, self._needs_snapshot = [], 0, False
        number = self._next_number + (self._unsent is not None)
        self._next_number = number + 1
        self._unsent, self._has_older = None, True
        try:
            self._scratch.mkdir(mode=0o700, parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=self._scratch) as folder:
                self._copy(Path(folder))
                content = Path(folder) / "object"
                header = self._seal(Path(folder) / DATA_FILE, content, number)
                self._objects.put(self._epoch, chain.object_name(number, "snapshot"), content)
            if self._is_contested:
                self._require_alone()
        except BaseException as error:
            self._drop_pending()
            if isinstance(error, OSError):
                raise StoreError(f"{self._scratch}: {error.strerror}") from error
            raise
        self._advance(header)
        self._snapshot_number = number
        self._snapshot_bytes, self._increments, self._increment_bytes = header.body_bytes, 0, 0
        self._continued = ()

    def _seal(self, body: Path, target: Path, number: int) -> chain.Header:
        digest = sha256()
        with body.open("rb") as source, target.open("wb") as file:
            file.seek(chain.HEADER_BYTES)
            while chunk := source.read(_COPIED_BYTES):
                digest.update(chunk)
                file.write(chunk)
            length = os.fstat(source.fileno()).st_size
            header = chain.Header(
                "snapshot", Position(self._epoch, number), self._user_id, length, digest.digest(), self._digest
            )
            file.seek(0)
            file.write(header.encode())
        return header

    def _remove_older(self) -> None:
        """Delete all objects that precede the last snapshot, and the remains of interrupted writes."""
        epochs = self._require_newest(self._epoch)
        found = [(name, chain.parse_name(name)) for name in self._objects.names(self._epoch)]
        older = [name for name, parsed in found if parsed is None or parsed[0] < self._snapshot_number]
        self._objects.remove(self._epoch, older)
        earlier = [epoch for epoch in epochs if epoch < self._epoch]
        if self._is_contested:
            for epoch in earlier:
                sizes = self._objects.sizes(epoch)
                self._objects.remove(epoch, [name for name, size in sizes.items() if not _is_seal(name, size)])
        else:
            self._objects.remove_epochs(earlier)
        self._has_older, self._sent_derived = False, {}


def _versions(files: Sequence[Path]) -> _Versions:
    """Map the name of each existing file to its version. Files are replaced as a whole."""
    found = {}
    for file in files:
        with suppress(FileNotFoundError):
            status = file.stat()
            found[file.name] = status.st_ino, status.st_mtime_ns
    return found


def _is_seal(name: str, size_bytes: int) -> bool:
    """Whether an object is only the empty increment that ends an earlier owner's epoch."""
    parsed = chain.parse_name(name)
    return parsed is not None and parsed[1] == "increment" and size_bytes == chain.HEADER_BYTES
