"""Whether a data folder of the laboratory is encrypted: with the keys in a folder beside it, if there is one."""

from __future__ import annotations

from pathlib import Path

from relay import EncryptionSettings

KEYS = "keys"


def encryption_of(folder: Path) -> EncryptionSettings:
    """How the data in this folder are encrypted: with the keys beside them, if there are any."""
    keys = folder / KEYS
    return EncryptionSettings(keys_folder=str(keys)) if keys.exists() else EncryptionSettings()
