"""One writer per store: a file lock that tells who owns it, and an epoch in the store that stops a former owner.

A lock alone is not enough: after the death of its raylet a Ray actor lives on for minutes, keeps its lock and answers,
while Ray has started its successor (measured). So a successor with the role `host` may take over from a `host` that
does not let go: it puts a lock file of its own in the place of the old one and raises the epoch. Each write
transaction compares the epoch, so the former owner's next write fails. A `library` (someone's own program) is never
taken over, and takes over nobody.

What this does not cover: a former owner frozen inside a write transaction blocks its successor until it ends (LMDB
frees the lock of a dead process, not of a stopped one), and a folder shared between machines (flock sees one machine).
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import msgspec

from memory_agent.errors import FencedError, StoreDamagedError, StoreError, StoreOwnedElsewhereError
from memory_agent.storage.environment import Environment
from memory_agent.storage.transaction import Transaction

Role = Literal["library", "host"]

_LOCK_FILE = "owner.lock"
_GATE_FILE = "takeover.lock"
_OWNER_BYTES = 4096
_POLL_S = 0.05
_GATE_PATIENCE_S = 10.0
_EPOCH_KEY = b"owner_epoch"


class Owner(msgspec.Struct, frozen=True):
    """What a lock file says. `epoch` is 0 until the owner has claimed the store."""

    role: Role
    pid: int
    epoch: int = 0

    def __str__(self) -> str:
        return f"{self.role} process {self.pid} (epoch {self.epoch})"


class OwnerLock:
    """The right to write in one folder. Held until `release`, or until the process ends."""

    def __init__(self, folder: Path, role: Role, descriptor: int, last_epoch: int) -> None:
        self.folder = folder
        self.role = role
        self.epoch = 0
        self._descriptor = descriptor
        self._last_epoch = last_epoch

    @classmethod
    def acquire(cls, folder: Path, role: Role, takeover_after_s: float = 5.0) -> OwnerLock:
        """Become the owner of `folder`, which is created if need be.

        A `library` does not wait. A `host` waits for another host to let go, and takes over from one that has held the
        lock for `takeover_after_s` since. Raises `StoreOwnedElsewhereError` naming the owner, `StoreError` where the
        system does not let it: no room, no descriptors, no permission.
        """
        with _system_errors(folder):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            return cls._acquire(folder, role, takeover_after_s)

    @classmethod
    def _acquire(cls, folder: Path, role: Role, takeover_after_s: float) -> OwnerLock:
        path = folder / _LOCK_FILE
        waiting_for, deadline = None, 0.0
        while (descriptor := _try_lock(path)) is None:
            _require_patience(role, path)
            if (holder := _inode(path)) != waiting_for:
                waiting_for, deadline = holder, time.monotonic() + takeover_after_s
            if time.monotonic() >= deadline and (lock := cls._take_over(path, waiting_for)):
                return lock
            time.sleep(_POLL_S)
        return cls._begin(folder, role, descriptor)

    @classmethod
    def _begin(cls, folder: Path, role: Role, descriptor: int) -> OwnerLock:
        last = _decode_owner(os.pread(descriptor, _OWNER_BYTES, 0))
        (folder / _GATE_FILE).touch(mode=0o600)  # for `opening`
        lock = cls(folder, role, descriptor, last.epoch if last else 0)
        lock._write_owner()
        return lock

    @classmethod
    def _take_over(cls, path: Path, waited_for: int | None) -> OwnerLock | None:
        """Put a locked file of our own in the place of the old one; None when another was faster."""
        with _gate(path.with_name(_GATE_FILE)) as entered:
            owner = _read_owner(path)
            if not entered or owner is None or _inode(path) != waited_for:
                return None
            own = path.with_name(f"{_LOCK_FILE}.{os.getpid()}")
            descriptor = os.open(own, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            lock = cls(path.parent, "host", descriptor, owner.epoch)
            lock._write_owner()
            own.replace(path)
            return lock

    def claim(self, environment: Environment, database: str) -> int:
        """Raise the store's epoch and make it ours; earlier owners are fenced from the moment this returns.

        Raises `StoreDamagedError` when the store is empty although it was claimed before: its file was lost.
        """
        with environment.write() as transaction:
            current = _epoch(transaction, database)
            if not current and self._last_epoch:
                raise StoreDamagedError(f"{self.folder} had epoch {self._last_epoch}, but its store is empty")
            self.epoch = current + 1
            transaction.put(database, _EPOCH_KEY, self.epoch.to_bytes(8, "big"))
        with _system_errors(self.folder):
            self._write_owner()
        return self.epoch

    def check(self, transaction: Transaction, database: str) -> None:
        """Raise `FencedError` when a newer owner has claimed the store. Call it in each write transaction."""
        current = _epoch(transaction, database)
        if current != self.epoch:
            raise FencedError(str(self.folder), self.epoch, current)

    @contextmanager
    def swapping(self) -> Iterator[None]:
        """Keep others from taking over, and from opening the files (`opening`), while those are replaced.

        Raises `FencedError` when another took over already, `StoreError` when the gate stays taken.
        """
        deadline = time.monotonic() + _GATE_PATIENCE_S
        while time.monotonic() < deadline:
            with _gate(self.folder / _GATE_FILE) as entered:
                if entered:
                    if _inode(self.folder / _LOCK_FILE) != os.fstat(self._descriptor).st_ino:
                        raise FencedError(str(self.folder), self.epoch, self.epoch + 1)
                    yield
                    return
            time.sleep(_POLL_S)
        raise StoreError(f"{self.folder}: the files stay in use by others")

    def release(self) -> None:
        """Let go. Twice does no harm."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _write_owner(self) -> None:
        owner = Owner(self.role, os.getpid(), self.epoch or self._last_epoch)
        content = msgspec.json.encode(owner)
        os.pwrite(self._descriptor, content, 0)
        os.ftruncate(self._descriptor, len(content))


@contextmanager
def opening(folder: Path) -> Iterator[None]:
    """Keep the files of a store from being replaced while they are opened by one who is not the owner."""
    try:
        descriptor = os.open(folder / _GATE_FILE, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:  # no owner has been there yet that could
        yield
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        yield
    finally:
        os.close(descriptor)


def last_epoch(folder: Path) -> int:
    """Return the epoch of whoever owned a store last, or owns it; 0 before the first. Opens no store.

    Raises `StoreError` where the system does not let it.
    """
    with _system_errors(folder):
        owner = _read_owner(folder / _LOCK_FILE)
    return 0 if owner is None else owner.epoch


@contextmanager
def _system_errors(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StoreError(f"{folder}: {error.strerror}") from error


def _require_patience(role: Role, path: Path) -> None:
    """Only a host waits, and only for a host in another process: this one would wait for itself."""
    owner = _read_owner(path)
    if role == "library" or (owner is not None and (owner.role == "library" or owner.pid == os.getpid())):
        raise StoreOwnedElsewhereError(str(path.parent), str(owner or "another process"))


def _try_lock(path: Path) -> int | None:
    """Return the descriptor of the locked file, or None when another holds it."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(descriptor).st_ino == _inode(path):  # else it was replaced between open and lock
            return descriptor
    except BlockingIOError:
        pass
    os.close(descriptor)
    return None


@contextmanager
def _gate(path: Path) -> Iterator[bool]:
    """Say whether we are the only one in here; does not wait, since who is inside may be frozen."""
    descriptor = _try_lock(path)
    try:
        yield descriptor is not None
    finally:
        if descriptor is not None:
            os.close(descriptor)


def _inode(path: Path) -> int | None:
    try:
        return path.stat().st_ino
    except FileNotFoundError:
        return None


def _read_owner(path: Path) -> Owner | None:
    try:
        return _decode_owner(path.read_bytes())
    except FileNotFoundError:
        return None


def _decode_owner(content: bytes) -> Owner | None:
    try:
        return msgspec.json.decode(content, type=Owner)
    except (msgspec.DecodeError, UnicodeDecodeError):  # empty, being written, or damaged
        return None


def _epoch(transaction: Transaction, database: str) -> int:
    return int.from_bytes(transaction.get(database, _EPOCH_KEY) or b"", "big")
