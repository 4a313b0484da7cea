"""Which ring of keys a data folder is encrypted with: the id of the system's key, in a small file of the data folder.

Stores and journals say so of what they hold; this speaks for users of whom nothing is kept yet, who would get a key
from a folder of keys that nobody finds again while the right one is away. What this does not do: look for keys.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from relay.durable import write_once
from relay.errors import KeyFileError
from relay.sealed import sealed, unsealed

MARK_FILE = "encryption"


class _Mark(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    system_key_id: str


def read_ring(data_dir: Path) -> bytes | None:
    """Return the id of the system's key, None where nothing was encrypted yet. Raises `KeyFileError`."""
    path = data_dir / MARK_FILE
    try:
        return bytes.fromhex(msgspec.json.decode(unsealed(path.read_bytes()), type=_Mark).system_key_id)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise KeyFileError(str(path), str(error.strerror)) from error
    except (ValueError, RecursionError) as error:
        advice = "is damaged: with the right folder of keys in its place, remove it, and it is made again"
        raise KeyFileError(str(path), advice) from error


def note_ring(data_dir: Path, key_id: bytes) -> None:
    """Note the id of the system's key, unless one is noted already. Durable on return. Raises `KeyFileError`."""
    path = data_dir / MARK_FILE
    try:
        data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_once(path, sealed(msgspec.json.encode(_Mark(key_id.hex()))))
    except OSError as error:
        raise KeyFileError(str(path), str(error.strerror)) from error
