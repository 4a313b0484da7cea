"""The encryption of the laboratory's data folders: on if there is a keys folder beside the data folder."""

from __future__ import annotations

from pathlib import Path

from relay import EncryptionSettings

KEYS = "keys"


def encryption_of(folder: Path) -> EncryptionSettings:
    """The encryption settings of this folder: the keys beside it, if any."""
    keys = folder / KEYS
    return EncryptionSettings(keys_folder=str(keys)) if keys.exists() else EncryptionSettings()
