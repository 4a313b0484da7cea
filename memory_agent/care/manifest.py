"""What a backup says that it holds: each file with its size and SHA-256, and who made it."""

from __future__ import annotations

import hashlib
import os
from datetime import datetime
from pathlib import Path
from typing import Annotated

import msgspec

from memory_agent.errors import BackupDamagedError

MANIFEST_FILE = "manifest.json"
FORMAT = 1


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """One file. `part` is `user ID`, `owners` or `journal`; `entries` its memories, or its last event's number."""

    part: str
    path: str
    bytes: int
    sha256: str
    entries: int = 0


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of a backup. `left_out` names users who are not in it: damaged, or without a key."""

    format: int
    version: str
    made_at: Annotated[datetime, msgspec.Meta(tz=True)]
    parts: tuple[Part, ...]
    left_out: tuple[str, ...] = ()


def describe(folder: Path, file: Path, part: str, entries: int) -> Part:
    """Return what the manifest says of a file below `folder`."""
    path = file.relative_to(folder).as_posix()
    return Part(part=part, path=path, bytes=file.stat().st_size, sha256=digest(file), entries=entries)


def digest(file: Path) -> str:
    """Return the SHA-256 of a file."""
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write the manifest, on the disk when this returns."""
    with (folder / MANIFEST_FILE).open("xb") as file:
        file.write(msgspec.json.format(msgspec.json.encode(manifest), indent=2))
        file.flush()
        os.fsync(file.fileno())


def read_manifest(folder: Path) -> Manifest:
    """Return the manifest of a backup whose files are all there and as they were. Raises `BackupDamagedError`."""
    try:
        manifest = msgspec.json.decode((folder / MANIFEST_FILE).read_bytes(), type=Manifest)
    except FileNotFoundError as error:
        raise BackupDamagedError(f"{folder} is no backup: it has no {MANIFEST_FILE}") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BackupDamagedError(f"{folder / MANIFEST_FILE}: {error}") from error
    if manifest.format > FORMAT:
        raise BackupDamagedError(f"{folder} has format {manifest.format}; this version knows up to {FORMAT}")
    folders = {Path(part.path).parent for part in manifest.parts}
    if len(folders) < len(manifest.parts):
        raise BackupDamagedError(f"{folder / MANIFEST_FILE} names two parts of one folder")
    for part in manifest.parts:
        _require_as_it_was(folder, part)
    return manifest


def _require_as_it_was(folder: Path, part: Part) -> None:
    file = folder / part.path
    if Path(part.path).is_absolute() or ".." in Path(part.path).parts:
        raise BackupDamagedError(f"{part.path} lies outside the backup")
    if not _is_file(file):
        raise BackupDamagedError(f"{part.path} is missing")
    if file.stat().st_size != part.bytes or digest(file) != part.sha256:
        raise BackupDamagedError(f"{part.path} is not as it was when the backup was made")


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # a name that no file can have
        return False
