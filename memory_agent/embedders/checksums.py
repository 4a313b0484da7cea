"""Files with known checksums: comparing them, remembering which were compared, and putting new ones in place at once.

What this file does not do: it knows no model and no checksum of its own.
"""

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
    """Read `path` and compare. Raises `ModelChecksumError`, or `ModelMissingError` where it is not there."""
    try:
        with path.open("rb") as file:
            actual = hashlib.file_digest(file, "sha256").hexdigest()
    except FileNotFoundError as error:
        raise ModelMissingError(f"{path} is not there") from error
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error}") from error
    if actual != expected_sha256:
        raise ModelChecksumError(str(path), expected_sha256, actual)


def is_whole(path: Path, expected_sha256: str) -> bool:
    """Say whether `path` is there and has this checksum."""
    try:
        verify_file(path, expected_sha256)
    except ModelError:
        return False
    return True


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give a temporary file that takes the place of `path` at once when the block ends well, whoever else writes it."""
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
    """Remembers which files had which checksum, so that 90 MB are not hashed at each start.

    A file is recognised by size, inode and times; the time of the last status change cannot be set back. Measured:
    90 ms for the weights on a processor with SHA instructions; .1 ms when remembered.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def verify(self, path: Path, expected_sha256: str) -> None:
        """Compare `path` unless it is known not to have changed since it was. Raises as `verify_file` does."""
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
        # A cache that cannot be written costs the next start its 90 ms, and nothing else.
        with contextlib.suppress(OSError), replacing(self._path) as temporary:
            temporary.write_bytes(msgspec.json.encode(known))


def _identity(path: Path) -> list[int]:
    """Return what changes when a file does; empty where there is none."""
    try:
        status = path.stat()
    except OSError:
        return []
    return [status.st_size, status.st_ino, status.st_mtime_ns, status.st_ctime_ns]
