"""Which node each user's memory is on, and since when: the truth in a cluster.

A placement is a node and an epoch. A new epoch begins whenever the user is placed on a node, so a host recognises
files from an earlier placement and restores the archive instead. A placement is durable before the node receives the
user's first request. The file is in the user's folder on the daemon's machine, so erasing the user removes it.
"""

from __future__ import annotations

import time
from pathlib import Path

import msgspec

from memory_agent.errors import StoreError
from memory_agent.records.placement import HOME, Placement, Position
from memory_agent.storage.environment import has_records
from memory_agent.storage.folders import user_folder
from relay.disk import add_checksum, verify_checksum, write_private

PLACEMENT_FILE = "placement.json"


class Placements:
    """The placements of all users. Must be used from a single event loop."""

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir
        self._known: dict[str, Placement] = {}
        self._unsaved: set[str] = set()

    def of(self, user_id: str) -> Placement:
        """Return the user's placement. Raises `StoreError` if its file is damaged."""
        if user_id not in self._known:
            self._known[user_id] = self._read(user_id)
        return self._known[user_id]

    def known(self, user_id: str) -> Placement | None:
        """Return the user's placement, or None for a user without memories. Raises `StoreError`."""
        placement = self.of(user_id)
        is_new = not placement.epoch and not has_records(user_folder(self._data_dir, user_id))
        return None if is_new else placement

    def move(self, user_id: str, node: str) -> Placement:
        """Begin a new epoch on `node` and return it. Durable on return. Raises `StoreError`."""
        former = self.of(user_id)
        # Seconds since 1970, so that a user who was erased never gets an earlier epoch again.
        moved = msgspec.structs.replace(former, node=node, epoch=max(former.epoch + 1, int(time.time())))
        self._write(user_id, moved)
        return moved

    def note_archived(self, user_id: str, position: Position) -> None:
        """Note the newest state of the archive. Durable with the next `save` or `move`."""
        self._known[user_id] = msgspec.structs.replace(self.of(user_id), archived=position)
        self._unsaved.add(user_id)

    def save(self, user_id: str) -> None:
        """Write what was noted about a user that went to sleep, and free its memory here. Raises `StoreError`."""
        placement = self._known.get(user_id)
        if placement is not None and user_id in self._unsaved:
            self._write(user_id, placement)
        self.forget(user_id)

    def forget(self, user_id: str) -> None:
        """Read the placement from its file again when it is next needed: the user may have been erased."""
        self._known.pop(user_id, None)
        self._unsaved.discard(user_id)

    def _file(self, user_id: str) -> Path:
        return user_folder(self._data_dir, user_id) / PLACEMENT_FILE

    def _read(self, user_id: str) -> Placement:
        return read_placement(user_folder(self._data_dir, user_id))

    def _write(self, user_id: str, placement: Placement) -> None:
        file = self._file(user_id)
        try:
            file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_private(file, add_checksum(msgspec.json.encode(placement)))
        except OSError as error:
            raise StoreError(f"{file}: {error.strerror}") from error
        self._known[user_id] = placement
        self._unsaved.discard(user_id)


def read_placement(folder: Path) -> Placement:
    """Return the placement in a user's folder at home. Raises `StoreError` if its file is damaged."""
    file = folder / PLACEMENT_FILE
    try:
        return msgspec.json.decode(verify_checksum(file.read_bytes()), type=Placement)
    except FileNotFoundError:
        return Placement()
    except (OSError, msgspec.DecodeError, ValueError) as error:
        raise StoreError(f"{file} cannot be read: {error}") from error


def away_since(folder: Path) -> int | None:
    """Return when a user was placed on another node, in seconds since 1970, or None if the user is at home."""
    placement = read_placement(folder)
    return None if placement.node == HOME else placement.epoch
