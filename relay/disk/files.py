"""Writes files atomically and durably, with checksums that detect damage but not forgery.

A text file ends with a line that contains its SHA-256. A file without that line is from an older version and is read
without a check. The last functions of this module create and replace the data file of an LMDB environment, without
importing LMDB.
"""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

import xxhash

from relay.disk.pages import DATA_FILE

CHECKSUM_BYTES = 8
LOCK_FILE = "lock.mdb"
_NEW = "new"
_COPY = "compact"


def flush(path: Path) -> None:
    """Fsync a file, or a folder's directory entries. Raises `OSError`."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def flush_tree(folder: Path) -> None:
    for root, _, names in os.walk(folder):
        for name in names:
            flush(Path(root) / name)
        flush(Path(root))


def write_private(path: Path, content: bytes) -> None:
    """Write a file atomically, readable only by its owner. Durable on return. Raises `OSError`."""
    made = path.with_name(f"{path.name}.new")
    try:
        made.unlink(missing_ok=True)
        _write(made, content, os.O_EXCL)
        made.replace(path)
    except OSError as error:
        if error.filename is not None:
            error.filename = str(path)  # the name of the temporary file would mean nothing to the caller
        raise
    flush(path.parent)


def write_once(path: Path, content: bytes) -> None:
    """Write a file with `write_private`, unless it exists. If several processes write it, the first one wins."""
    made = path.with_name(f"{path.name}.{os.getpid()}.{threading.get_ident()}.new")
    _write(made, content, os.O_TRUNC)
    with suppress(FileExistsError):
        os.link(made, path)
    made.unlink()
    flush(path.parent)


def _write(path: Path, content: bytes, mode: int) -> None:
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | mode | os.O_CLOEXEC, 0o600), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def checksum(number: int, body: bytes) -> bytes:
    """Return the 8-byte checksum of `body` and its key `number`. Including the number makes moved values detectable."""
    return xxhash.xxh3_64_digest(body, seed=number)


def add_checksum(content: bytes) -> bytes:
    """Return the content of a text file, followed by a line with its checksum."""
    return content + b"\n" + _line(content)


def verify_checksum(data: bytes) -> bytes:
    """Return the content of a file written with `add_checksum`. Raises `ValueError` if the checksum is wrong."""
    content, newline, line = data.removesuffix(b"\n").rpartition(b"\n")
    if not newline or not line.startswith(b'"'):
        return data
    if line + b"\n" != _line(content):
        raise ValueError("its last line is not the SHA-256 of the lines above: the file was damaged or edited")
    return content


def _line(content: bytes) -> bytes:
    return b'"%s"\n' % sha256(content).hexdigest().encode()


def make_first_file(path: Path, make: Callable[[Path], None]) -> None:
    """Create an environment's data file in `path` by calling `make`, unless it exists. Durable on return.

    LMDB writes the first two pages in place, and cannot open a file that contains only one of them. Therefore, `make`
    writes into a temporary folder, and the complete file is then moved into place. Raises `OSError`, and any error that
    `make` raises.
    """
    file = path / DATA_FILE
    if file.exists() and file.stat().st_size:
        return
    aside = path / _NEW
    shutil.rmtree(aside, ignore_errors=True)  # left by a killed process
    aside.mkdir(mode=0o700)
    try:
        make(aside)
        flush(aside / DATA_FILE)
        (aside / DATA_FILE).replace(file)
        flush(path)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def room_for_copy(folder: Path) -> Path:
    """Return an empty folder inside `folder` for a copy. Removes the leftovers of an interrupted call."""
    copy = folder / _COPY
    shutil.rmtree(copy, ignore_errors=True)
    copy.mkdir(mode=0o700)
    return copy


def flush_copy(copy: Path) -> None:
    flush(copy / DATA_FILE)
    flush(copy)


def replace_by_copy(copy: Path) -> None:
    """Replace the file with the copy; a complete file exists at all times. Durable on return.

    The environment must not be opened or written during the call (`fence`). LMDB also keeps the number of the last
    commit in its lock file, but commits are numbered from 1 again in a compact copy. Therefore, the lock file is
    removed first.
    """
    folder = copy.parent
    (folder / LOCK_FILE).unlink(missing_ok=True)
    (copy / DATA_FILE).replace(folder / DATA_FILE)
    flush(folder)
    discard_copy(copy)


def discard_copy(copy: Path) -> None:
    shutil.rmtree(copy, ignore_errors=True)
