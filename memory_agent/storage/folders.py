"""Map user ids to folder names that are safe on every file system, and back.

Two ids must not share a folder even on a file system that ignores case. Lower-case letters, digits, `-`, `_` and dots
other than a leading one are kept; other characters become `%` and two hex digits. Long ids with many such characters
are encoded as a whole in base 32, with the prefix `%b`.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator
from pathlib import Path

from memory_agent.errors import InvalidInputError
from relay import validate_user_id
from relay.errors import MalformedEventError

ASIDE = "replaced-"  # prefix of folders into which a restore moves the data that it replaces
STAGE = ".restoring"  # folder for a restore's copies until they are in place
USERS_FOLDER = "users"
_LONGEST_NAME = 240  # bytes; file systems allow 255
_BASE32 = "%b"
_KEPT = "abcdefghijklmnopqrstuvwxyz0123456789-_"
_ESCAPED = re.compile(r"%([0-9a-f]{2})")


def user_folder(data_dir: Path, user_id: str) -> Path:
    """Return the folder of a user; it need not exist. Raises `InvalidInputError`."""
    try:
        return data_dir / USERS_FOLDER / _name(validate_user_id(user_id))
    except MalformedEventError as error:
        raise InvalidInputError("user_id", error.reason) from error


def known_users(data_dir: Path) -> Iterator[str]:
    """Yield the ids of all users that have a folder, sorted by folder name."""
    for folder in sorted(data_dir.glob(f"{USERS_FOLDER}/*/")):
        user_id = _user_id(folder.name)
        if user_id is not None:
            yield user_id


def is_data_dir(folder: Path) -> bool:
    """Whether this is a data folder rather than a user's folder."""
    return (folder / USERS_FOLDER).is_dir()


def data_dir_of(folder: Path) -> Path | None:
    """Return the data folder of a user's folder, or None for a standalone memory."""
    return folder.parent.parent if folder.parent.name == USERS_FOLDER else None


def _name(user_id: str) -> str:
    name = "".join(
        character if character in _KEPT or (character == "." and place) else f"%{ord(character):02x}"
        for place, character in enumerate(user_id)
    )
    if len(name) <= _LONGEST_NAME:
        return name
    return _BASE32 + base64.b32encode(user_id.encode()).decode().rstrip("=").lower()


def _user_id(name: str) -> str | None:
    try:
        user_id = _decoded(name)
        return user_id if _name(validate_user_id(user_id)) == name else None
    except (MalformedEventError, ValueError):  # also raised for invalid base 32 or UTF-8
        return None


def _decoded(name: str) -> str:
    if name.startswith(_BASE32):
        encoded = name.removeprefix(_BASE32).upper()
        return base64.b32decode(encoded + "=" * (-len(encoded) % 8)).decode()
    return _ESCAPED.sub(lambda found: chr(int(found[1], 16)), name)
