"""Verify files against SHA-256 checksums, with a cache of verified files, and replace files atomically."""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec

from memory_agent.errors import ModelChecksumError, ModelError, ModelMissingError


def verify_file(path: Path, expected_sha256: str) -> None:
    """Verify the SHA-256 of a file. Raises `ModelChecksumError`, `ModelMissingError`, or `ModelError` if the file is
    unreadable.
    """
    try:
        actual = sha256_of(path)
    except FileNotFoundError as error:
        raise ModelMissingError(f"{path} is missing") from error
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error}") from error
    if actual != expected_sha256:
        raise ModelChecksumError(str(path), expected_sha256, actual)


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def git_blob_of(path: Path) -> str:
    """Return the git blob id of a file: the SHA-1 of its size and content."""
    content = path.read_bytes()
    return hashlib.sha1(b"blob %d\0%b" % (len(content), content), usedforsecurity=False).hexdigest()


def is_whole(path: Path, expected_sha256: str) -> bool:
    try:
        verify_file(path, expected_sha256)
    except ModelError:
        return False
    return True


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary file that is fsynced and atomically replaces `path` if the block succeeds."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


class VerifiedFiles:
    """A cache of verified files: hashing the weights (90 MB) takes 90 ms; a cache look-up takes 0.1 ms."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def verify(self, path: Path, expected_sha256: str) -> None:
        """Verify `path`, hashing it only if it has changed since the last call. Raises the same errors as
        `verify_file`.
        """
        identity = _identity(path)
        known = self._load()
        entry: list[str | int] = [expected_sha256, *identity]
        if identity and known.get(str(path.resolve())) == entry:
            return
        verify_file(path, expected_sha256)
        if identity and identity == _identity(path):
            self._save(known | {str(path.resolve()): entry})

    def _load(self) -> dict[str, list[str | int]]:
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=dict[str, list[str | int]])
        except (OSError, msgspec.MsgspecError):
            return {}

    def _save(self, known: dict[str, list[str | int]]) -> None:
        # without a writable cache the next start hashes again (90 ms)
        with contextlib.suppress(OSError), replacing(self._path) as temporary:
            temporary.write_bytes(msgspec.json.encode(known))


def _identity(path: Path) -> list[int]:
    """Return a value that changes with the file's content (ctime cannot be set back); empty if there is no file."""
    try:
        status = path.stat()
    except OSError:
        return []
    return [status.st_size, status.st_ino, status.st_mtime_ns, status.st_ctime_ns]
