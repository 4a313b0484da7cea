"""One writer per folder: a file lock that names the owner, and an epoch in the store that fences earlier owners.

A lock alone is not enough: if its raylet dies, a Ray actor keeps its lock for minutes, although Ray has already started
its successor. Therefore, an owner with the role `host` may take over from another `host`. The new owner increments the
epoch, which makes the earlier owner's next write fail. This does not cover owners that are frozen in the middle of a
write, or folders shared between machines.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Literal, Self

import msgspec

from relay.decoding import described
from relay.disk.transaction import ErrorFamily, Transaction

Role = Literal["library", "host"]

_LOCK_FILE = "owner.lock"
_OWNER_BYTES = 4096
_POLL_S = 0.05
_SWAP_PATIENCE_S = 10.0
_EPOCH_KEY = b"owner_epoch"


class WriterLock:
    """The exclusive right to write to a folder, until `release` or until the process exits."""

    swap_file = "swap.lock"
    """The lock is exclusive while files are replaced, and shared while other processes open them (`opening`)."""

    def __init__(self, folder: Path, descriptor: int, errors: ErrorFamily) -> None:
        self.folder = folder
        self._descriptor = descriptor
        self._errors = errors

    @classmethod
    def take(cls, folder: Path, errors: ErrorFamily) -> Self:
        """Lock `folder`, which must exist. Raises `in_use` (with the owner) and `OSError`."""
        path = folder / _LOCK_FILE
        descriptor = _try_lock(path)
        if descriptor is None:
            owner = path.read_bytes()[:32].decode(errors="replace").strip() or "another process"
            raise errors.in_use(str(folder), owner)
        lock = cls(folder, descriptor, errors)
        lock._begin(f"process {os.getpid()}\n".encode())
        return lock

    @contextmanager
    def swapping(self) -> Iterator[None]:
        """Prevent other processes from opening the files (`opening`) while they are replaced. Raises `TimeoutError`."""
        deadline = time.monotonic() + _SWAP_PATIENCE_S
        while time.monotonic() < deadline:
            with _locked(self.folder / self.swap_file) as entered:
                if entered:
                    yield
                    return
            time.sleep(_POLL_S)
        raise TimeoutError(f"{self.folder}: other processes keep the files open")

    def release(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _begin(self, owner: bytes) -> None:
        try:
            (self.folder / self.swap_file).touch(mode=0o600)
            self._write(owner)
        except BaseException:
            self.release()
            raise

    def _write(self, content: bytes) -> None:
        os.pwrite(self._descriptor, content, 0)
        os.ftruncate(self._descriptor, len(content))


class Owner(msgspec.Struct, frozen=True):
    """The content of a lock file. Until the owner claims the store, `epoch` is the previous owner's epoch."""

    role: Role
    pid: int
    epoch: int = 0

    def __str__(self) -> str:
        return f"{self.role} process {self.pid} (epoch {self.epoch})"


class OwnerLock(WriterLock):
    """A writer lock that a `host` may take over, fencing the earlier owner."""

    swap_file = "takeover.lock"

    def __init__(self, folder: Path, role: Role, descriptor: int, last_epoch: int, errors: ErrorFamily) -> None:
        super().__init__(folder, descriptor, errors)
        self.role = role
        self.epoch = 0
        self._last_epoch = last_epoch

    @classmethod
    def acquire(cls, folder: Path, role: Role, errors: ErrorFamily, takeover_after_s: float = 5.0) -> OwnerLock:
        """Become the owner of `folder`, which is created if needed.

        A `library` does not wait. A `host` waits for another host, and takes over after `takeover_after_s`. Raises
        `in_use` with the owner, and `failed` for an `OSError`.
        """
        path = folder / _LOCK_FILE
        waiting_for, deadline = None, 0.0
        with _system_errors(folder, errors):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            while (descriptor := _try_lock(path)) is None:
                owner = _read_owner(path)
                if not _may_wait(role, owner):
                    raise errors.in_use(str(folder), str(owner or "another process"))
                if (holder := _inode(path)) != waiting_for:
                    waiting_for, deadline = holder, time.monotonic() + takeover_after_s
                if time.monotonic() >= deadline and (lock := cls._take_over(path, waiting_for, errors)):
                    return lock
                time.sleep(_POLL_S)
            last = _decode_owner(os.pread(descriptor, _OWNER_BYTES, 0))
            lock = cls(folder, role, descriptor, last.epoch if last else 0, errors)
            lock._begin(lock._owner())
        return lock

    @classmethod
    def _take_over(cls, path: Path, waited_for: int | None, errors: ErrorFamily) -> OwnerLock | None:
        """Replace the lock file with a new file that this process has locked; return None if another process was
        faster.
        """
        with _locked(path.with_name(cls.swap_file)) as entered:
            owner = _read_owner(path)
            if not entered or owner is None or _inode(path) != waited_for:
                return None
            own = path.with_name(f"{_LOCK_FILE}.{os.getpid()}")
            descriptor = os.open(own, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            lock = cls(path.parent, "host", descriptor, owner.epoch, errors)
            lock._write(lock._owner())
            own.replace(path)
            return lock

    def claim(self, write: Callable[[], AbstractContextManager[Transaction]], database: str) -> int:
        """Increment the store's epoch, which fences earlier owners. Return the new epoch.

        `write` opens a write transaction. Raises `damaged` if the store was claimed before but is now empty, which
        means that its file was lost.
        """
        with write() as transaction:
            current = _epoch(transaction, database)
            if not current and self._last_epoch:
                raise self._errors.damaged(f"{self.folder} had epoch {self._last_epoch}, but its store is empty")
            self.epoch = current + 1
            transaction.put(database, _EPOCH_KEY, self.epoch.to_bytes(8, "big"))
        with _system_errors(self.folder, self._errors):
            self._write(self._owner())
        return self.epoch

    def check(self, transaction: Transaction, database: str) -> None:
        """Raise `fenced` if a newer owner has claimed the store. Call it in each write transaction."""
        current = _epoch(transaction, database)
        if current != self.epoch:
            raise self._errors.fenced(str(self.folder), self.epoch, current)

    @contextmanager
    def swapping(self) -> Iterator[None]:
        """Also prevent takeovers. Raises `fenced` after a takeover, and `failed` while others keep the files open."""
        with ExitStack() as stack:
            try:
                stack.enter_context(super().swapping())
            except TimeoutError as error:
                raise self._errors.failed(str(error)) from error
            if _inode(self.folder / _LOCK_FILE) != os.fstat(self._descriptor).st_ino:
                raise self._errors.fenced(str(self.folder), self.epoch, self.epoch + 1)
            yield

    def _owner(self) -> bytes:
        return msgspec.json.encode(Owner(self.role, os.getpid(), self.epoch or self._last_epoch))


@contextmanager
def opening(folder: Path, kind: type[WriterLock] = OwnerLock) -> Iterator[None]:
    """Keep the files below `folder` from being replaced inside a `with` block in which a non-writer opens them."""
    try:
        descriptor = os.open(folder / kind.swap_file, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:  # the folder is a copy, or was never written to
        yield
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        yield
    finally:
        os.close(descriptor)


def last_epoch(folder: Path, errors: ErrorFamily) -> int:
    """Return the epoch of a store's last owner, or 0, without opening the store. Raises `failed`."""
    with _system_errors(folder, errors):
        owner = _read_owner(folder / _LOCK_FILE)
    return 0 if owner is None else owner.epoch


@contextmanager
def _system_errors(folder: Path, errors: ErrorFamily) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise errors.failed(f"{folder}: {error.strerror}") from error


def _may_wait(role: Role, owner: Owner | None) -> bool:
    """Whether to wait for the owner: a host waits for a host in another process."""
    return role == "host" and (owner is None or (owner.role == "host" and owner.pid != os.getpid()))


def _try_lock(path: Path) -> int | None:
    """Return the descriptor of the locked file, or None if another process holds the lock."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    with suppress(BlockingIOError):
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(descriptor).st_ino == _inode(path):  # otherwise, the file was replaced before it was locked
            return descriptor
    os.close(descriptor)
    return None


@contextmanager
def _locked(path: Path) -> Iterator[bool]:
    """Try to lock a file for the block; yield whether that worked. Never blocks, because the holder may be frozen."""
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
        return msgspec.json.decode(content, type=described(Owner))
    except (msgspec.DecodeError, UnicodeDecodeError):  # empty, being written, or damaged
        return None


def _epoch(transaction: Transaction, database: str) -> int:
    return int.from_bytes(transaction.get(database, _EPOCH_KEY) or b"", "big")
