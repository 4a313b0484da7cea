"""The objects of one user or of the journal, in a folder or an object store, through `fsspec`.

Objects become visible only when complete. Each operation runs in a thread, because not every file system honours a
timeout. A late operation is not stopped; the next operation of the same `Objects` waits for it. Late operations of
other processes are harmless, because each owner has its own epoch.
"""

from __future__ import annotations

import errno
import io
import os
import re
import shutil
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from queue import Empty, SimpleQueue
from secrets import token_hex
from typing import Any, TypeVar
from urllib.parse import urlsplit

from memory_agent.errors import ArchiveUnavailableError, SettingsError
from memory_agent.settings import ArchiveSettings
from memory_agent.storage.folders import user_folder
from relay.disk import flush
from relay.future import Future

SLOWEST_BYTES_PER_S = 1 << 20
_COPIED_BYTES = 1 << 20
_FOLDER = re.compile(r"\d{16}")
_Result = TypeVar("_Result")


class ObjectStore:
    """The objects of all users and of the journal, under the archive's URL."""

    def __init__(self, files: Any, root: str, timeout_s: float, *, is_local: bool) -> None:
        self._files = files
        self._root = root
        self._timeout_s = timeout_s
        self._is_local = is_local

    @classmethod
    def open(cls, settings: ArchiveSettings) -> ObjectStore:
        """Open the store at `settings.url`, without connecting to it. Raises `SettingsError`."""
        _require_url(settings.url)
        try:
            from fsspec.core import url_to_fs
            from fsspec.implementations.local import LocalFileSystem
        except ImportError as error:
            raise SettingsError("archive.url", "requires `pip install fsspec`") from error
        always = {"use_listings_cache": False, "skip_instance_cache": True}  # other machines also write
        try:
            files, root = url_to_fs(settings.url, **settings.options, **always)
        except ImportError as error:  # names the package to install
            raise SettingsError("archive.url", str(error)) from error
        except Exception as error:
            if "rotocol not known" in str(error):
                raise SettingsError("archive.url", f"unknown protocol {settings.url.split(':')[0]}") from error
            what = f"the file system rejected the URL or the options ({type(error).__name__})"  # may contain secrets
            raise SettingsError("archive.options", what) from None
        return cls(files, root.rstrip("/"), settings.timeout_s, is_local=isinstance(files, LocalFileSystem))

    def of_user(self, user_id: str) -> Objects:
        """Return the objects of a user. Raises `InvalidInputError`."""
        folder = user_folder(Path(self._root), user_id)
        return self._below(f"users/{folder.name}")

    def of_journal(self) -> Objects:
        return self._below("journal")

    def _below(self, folder: str) -> Objects:
        return Objects(self._files, f"{self._root}/{folder}", self._timeout_s, is_local=self._is_local)


def _require_url(url: str) -> None:
    if "://" not in url:
        raise SettingsError("archive.url", "must be a URL, such as file:///srv/archive or s3://bucket/prefix")
    if any(sign in url for sign in "*?[]"):
        raise SettingsError("archive.url", "must not contain the characters *?[]")
    try:
        password = urlsplit(url).password
    except ValueError as error:
        raise SettingsError("archive.url", "is not a valid URL") from error
    if password is not None:
        raise SettingsError("archive.url", "must not contain a password; put it into archive.options")


class Objects:
    """The objects of one user or of the journal, in one folder per epoch. Thread-safe; operations run one at a time.

    Every method raises `ArchiveUnavailableError` if the store fails or does not answer in time. Methods that read an
    object raise `FileNotFoundError` if it does not exist.
    """

    def __init__(self, files: Any, root: str, timeout_s: float, *, is_local: bool) -> None:
        self._files = files
        self._root = root
        self._timeout_s = timeout_s
        self._is_local = is_local
        self._turn = SimpleQueue[None]()  # non-empty while no operation is running
        self._turn.put(None)

    def epochs(self) -> list[int]:
        """Return the epochs that have a folder, in ascending order."""
        return sorted(int(name) for name in self._list("") if _FOLDER.fullmatch(name))

    def names(self, epoch: int) -> list[str]:
        """Return the names of all files of an epoch, including those of interrupted writes, sorted."""
        return sorted(self.sizes(epoch))

    def sizes(self, epoch: int) -> dict[str, int]:
        return self._list(f"/{_folder(epoch)}")

    def put(self, epoch: int, name: str, content: bytes | Path, *, may_be_late: bool = True) -> None:
        """Write or replace an object. Durable on return. An object written late is deleted, unless `may_be_late`."""
        path = f"{self._root}/{_folder(epoch)}/{name}"

        def put() -> None:
            if self._is_local:
                _put_locally(Path(path), content)
            elif isinstance(content, bytes):
                self._files.pipe_file(path, content)
            else:
                self._files.put_file(str(content), path)

        size_bytes = len(content) if isinstance(content, bytes) else content.stat().st_size
        self._run(path, put, size_bytes, undo=None if may_be_late else lambda: self._files.rm_file(path))

    def create(self, epoch: int, name: str, content: bytes) -> bool:
        """Write an object unless it exists; return whether it was written. Durable; atomic if the store supports it."""
        path = f"{self._root}/{_folder(epoch)}/{name}"

        def create() -> bool:
            try:
                if self._is_local:
                    _put_locally(Path(path), content, is_new=True)
                else:
                    self._files.pipe_file(path, content, mode="create")
            except FileExistsError:
                return False
            except OSError as error:
                if error.errno == errno.EINVAL:  # `s3fs` reports this for some servers if the object exists
                    return False
                raise
            return True

        return self._run(path, create, len(content))

    def get(self, epoch: int, names: Sequence[str]) -> list[bytes]:
        """Return the contents of objects, read concurrently if the file system can do so."""
        paths = [f"{self._root}/{_folder(epoch)}/{name}" for name in names]
        found: dict[str, bytes] = self._run(self._root, lambda: self._files.cat(paths), may_be_missing=True)
        return [found[path] for path in paths]

    def get_start(self, epoch: int, name: str, size_bytes: int) -> bytes:
        path = f"{self._root}/{_folder(epoch)}/{name}"
        start: bytes = self._run(path, lambda: self._files.cat_file(path, start=0, end=size_bytes), may_be_missing=True)
        return start

    def get_file(self, epoch: int, name: str, target: Path) -> None:
        path = f"{self._root}/{_folder(epoch)}/{name}"
        size_bytes = self._run(path, lambda: int(self._files.size(path) or 0), may_be_missing=True)
        self._run(path, lambda: self._files.get_file(path, str(target)), size_bytes, may_be_missing=True)

    def remove(self, epoch: int, names: Sequence[str]) -> None:
        self._remove([f"{_folder(epoch)}/{name}" for name in names], recursive=False)

    def remove_epochs(self, epochs: Sequence[int]) -> None:
        """Delete everything in the folders of these epochs. Durable on return."""
        self._remove([_folder(epoch) for epoch in epochs], recursive=True)

    def remove_before(self, epoch: int) -> None:
        """Delete everything from earlier epochs. Durable on return. Idempotent."""
        self.remove_epochs([earlier for earlier in self.epochs() if earlier < epoch])

    def _remove(self, names: Sequence[str], *, recursive: bool) -> None:
        paths = [f"{self._root}/{name}".rstrip("/") for name in names]

        def remove() -> None:
            self._files.rm(paths, recursive=recursive)
            if self._is_local:
                for folder in {Path(path).parent for path in paths}:
                    flush(folder)

        if paths:
            self._run(self._root, remove)

    def _list(self, folder: str) -> dict[str, int]:
        path = self._root + folder

        def listed() -> list[tuple[str, int]]:
            self._files.invalidate_cache()
            try:
                return [(one["name"].rstrip("/"), one["size"] or 0) for one in self._files.ls(path, detail=True)]
            except FileNotFoundError:
                return []

        return {name.rpartition("/")[2]: size for name, size in self._run(path, listed) if not path.endswith(name)}

    def _run(
        self,
        what: str,
        operation: Callable[[], _Result],
        size_bytes: int = 0,
        *,
        may_be_missing: bool = False,
        undo: Callable[[], object] | None = None,
    ) -> _Result:
        """Run an operation in a thread. Calls `undo` if the operation succeeds after the time limit."""
        limit_s = self._timeout_s + size_bytes / SLOWEST_BYTES_PER_S
        deadline_s = time.monotonic() + limit_s
        done = Future[_Result]()

        def work() -> None:
            try:
                done.settle(operation())
                if done.cancelled() and undo is not None:
                    undo()
            except Exception as error:  # noqa: BLE001 - raised by the caller's thread
                done.settle(error)
            finally:
                self._turn.put(None)

        try:
            self._turn.get(timeout=limit_s)
            self._start(work)
            failure = done.exception(max(0.001, deadline_s - time.monotonic()))
        except (Empty, TimeoutError) as error:
            if done.cancel():
                raise ArchiveUnavailableError(f"{what}: the archive did not answer in {limit_s:.3g} s") from error
            failure = done.exception()
        if failure is None:
            return done.result()
        if may_be_missing and isinstance(failure, FileNotFoundError):
            raise failure
        reason = failure.strerror if isinstance(failure, OSError) else None  # other errors may contain secrets
        raise ArchiveUnavailableError(f"{what}: {reason or type(failure).__name__}") from failure

    def _start(self, work: Callable[[], None]) -> None:
        try:
            threading.Thread(target=work, name="archive", daemon=True).start()
        except RuntimeError as error:  # too many threads
            self._turn.put(None)
            raise ArchiveUnavailableError(f"{self._root}: {error}") from error


def _folder(epoch: int) -> str:
    return f"{epoch:016}"


def make_folders(folder: Path) -> None:
    """Create a folder and its parents. Durable on return. Raises `OSError`."""
    missing = [one for one in (folder, *folder.parents) if not one.exists()]
    for one in reversed(missing):
        one.mkdir(mode=0o700, exist_ok=True)
        flush(one.parent)


def _put_locally(path: Path, content: bytes | Path, *, is_new: bool = False) -> None:
    """Put a file in place atomically. Raises `FileExistsError` if `is_new` and the file exists."""
    make_folders(path.parent)
    made = path.with_name(f"{path.name}.{token_hex(4)}.new" if is_new else f"{path.name}.new")
    with io.BytesIO(content) if isinstance(content, bytes) else content.open("rb") as source:
        made.unlink(missing_ok=True)
        made.touch(mode=0o600)
        with made.open("wb") as target:
            shutil.copyfileobj(source, target, _COPIED_BYTES)
    flush(made)
    if is_new:
        os.link(made, path)
        made.unlink()
    else:
        made.replace(path)
    flush(path.parent)
