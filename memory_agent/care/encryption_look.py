"""Which stores of a data folder are encrypted, and whether their keys are there. Opens them to look, no more."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import msgspec

from memory_agent.layout import Layout
from memory_agent.settings import Settings
from memory_agent.storage.environment import RECORDS_FOLDER, open_environment
from memory_agent.storage.folders import known_users, user_folder
from memory_agent.storage.ownership import MAP_SIZE_BYTES
from relay import SYSTEM_USER, read_mark
from relay.crypto import KeyRing
from relay.disk import opening

State = Literal["plain", "encrypted", "locked"]
"""`locked`: encrypted with a key that is not in the folder of keys, or no folder is named."""


class StoreState(msgspec.Struct, frozen=True, kw_only=True):
    """How one store is kept: `user ID`, `owners` or `journal`."""

    part: str
    state: State


def look_at_stores(data_dir: Path, settings: Settings, keys: KeyRing | None) -> Iterator[StoreState]:
    """Go over the stores that hold something. Raises `StoreError`, `JournalError`, `KeyFileError`."""
    layout = Layout(data_dir)
    for user_id in known_users(data_dir):
        folder = user_folder(data_dir, user_id)
        if (folder / RECORDS_FOLDER).exists():
            with opening(folder):
                key_id = _key_id(folder / RECORDS_FOLDER, settings.store.map_size_bytes)
            yield StoreState(part=f"user {user_id}", state=_state(user_id, key_id, keys))
    if layout.owners.exists():
        yield StoreState(part="owners", state=_state(SYSTEM_USER, _key_id(layout.owners, MAP_SIZE_BYTES), keys))
    mark = read_mark(layout.journal, settings.relay.journal)
    if not mark.is_new:
        yield StoreState(part="journal", state=_state(SYSTEM_USER, mark.key_id, keys))


def _key_id(folder: Path, map_size_bytes: int) -> bytes | None:
    environment = open_environment(folder, map_size_bytes, readonly=True)
    try:
        return environment.key_id()
    finally:
        environment.close()


def _state(user_id: str, key_id: bytes | None, keys: KeyRing | None) -> State:
    if key_id is None:
        return "plain"
    return "encrypted" if keys is not None and keys.fits(user_id, key_id) else "locked"
