"""Small disks, and disks that lose power, mounted for a test.

kill -9 does not test fsync, because the page cache outlives the process. A power cut is therefore simulated by a copy
of the file that contains a mounted file system, taken while its writers are stopped. The copy contains what was flushed
and nothing that was only in memory. Unlike a disk, it never reorders the writes of one flush.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class CannotMountError(Exception):
    """This machine does not allow mounting; the message states the reason."""


@contextmanager
def small_disk(folder: Path, size_bytes: int) -> Iterator[Path]:
    """Yield an in-memory file system of this size. Raises `CannotMountError`."""
    folder.mkdir()
    with _mounted(["-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs"], folder):
        yield folder


@contextmanager
def image_disk(image: Path, folder: Path) -> Iterator[Path]:
    """Mount the file system in the file `image`, which is created if missing. Raises `CannotMountError`."""
    folder.mkdir()
    if not image.exists():
        with image.open("wb") as file:
            file.truncate(256 << 20)
        _run(["mke2fs", "-q", "-t", "ext4", "-F", str(image)])
    with _mounted(["-o", "loop,commit=300", str(image)], folder):  # flushes only on request
        yield folder


def cut_power(image: Path, copy: Path) -> None:
    """Copy the disk as a power cut would leave it now. Its writers must be stopped first."""
    _run(["cp", "--sparse=always", str(image), str(copy)])


def fill(folder: Path, keep_bytes: int = 0) -> Path:
    """Fill the disk until only `keep_bytes` are free; return the file to remove afterwards."""
    ballast = folder / "ballast"
    with ballast.open("wb", buffering=0) as file:
        size = 1 << 16
        while size:
            try:
                file.write(bytes(size))
            except OSError:
                size //= 2
        file.truncate(max(0, file.tell() - keep_bytes))
    return ballast


@contextmanager
def _mounted(what: list[str], folder: Path) -> Iterator[None]:
    _run(["mount", *what, str(folder)])
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def _run(command: list[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise CannotMountError(f"{command[0]} is not here") from error
    if done.returncode:
        raise CannotMountError(f"{' '.join(command)}: {done.stderr.strip()}")
