"""A checksum beside a file that is only trusted when it was closed in order.

While the file is in use there is no seal. So a file without one was left by a process that died; whether what it wrote
reached the disk depends on whether the machine went on running, which `boot_id` tells.
"""

from __future__ import annotations

from pathlib import Path

import xxhash

from memory_agent.errors import IndexDamagedError

_CHUNK_BYTES = 1 << 20
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def put_seal(path: Path) -> None:
    """Note the checksum of the file as it is now."""
    temporary = _seal(path).with_suffix(".new")
    temporary.write_bytes(_digest(path))
    temporary.replace(_seal(path))


def break_seal(path: Path) -> bool:
    """Remove the seal and return whether there was one. Raises `IndexDamagedError` when the file does not match it."""
    seal = _seal(path)
    try:
        expected = seal.read_bytes()
    except FileNotFoundError:
        return False
    actual = _digest(path)
    seal.unlink()
    if actual != expected:
        raise IndexDamagedError(f"{path.name} is not as it was closed")
    return True


def matches_seal(path: Path) -> bool | None:
    """Say whether the file is as it was closed; None when it has no seal. Changes nothing."""
    try:
        return _seal(path).read_bytes() == _digest(path)
    except FileNotFoundError:
        return None


def boot_id() -> str | None:
    """Return a name of this run of the machine's kernel; None where it has none."""
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return None


def _seal(path: Path) -> Path:
    return path.with_name(path.name + ".seal")


def _digest(path: Path) -> bytes:
    digest = xxhash.xxh3_128()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.digest()
