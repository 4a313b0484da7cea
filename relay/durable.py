"""What is on the disk when a call returns: a file or the names in a folder, all below it, a file put in its place."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from pathlib import Path


def flush(path: Path) -> None:
    """Bring a file, or the names in a folder, to the disk. Raises `OSError`."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def flush_tree(folder: Path) -> None:
    """Bring a folder with all that is below it to the disk. Raises `OSError`."""
    for root, _, names in os.walk(folder):
        for name in names:
            flush(Path(root) / name)
        flush(Path(root))


def write_private(path: Path, content: bytes) -> None:
    """Put a file in its place that only its owner can read, whole or not at all. Raises `OSError`.

    What it had written stays beside it, as `.new`, when it is killed; the next one takes that place.
    """
    made = path.with_name(f"{path.name}.new")
    made.unlink(missing_ok=True)
    with open(os.open(made, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    made.replace(path)
    flush(path.parent)


def write_once(path: Path, content: bytes) -> None:
    """As `write_private`, unless there is one already: who is faster, of many processes, writes it for all."""
    made = path.with_name(f"{path.name}.{os.getpid()}.{threading.get_ident()}.new")
    with open(os.open(made, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    with suppress(FileExistsError):
        os.link(made, path)
    made.unlink()
    flush(path.parent)
