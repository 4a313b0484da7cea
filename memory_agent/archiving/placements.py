"""Records which node each user's memory is on, and since when. These records are authoritative in a cluster.

A new epoch begins whenever the user is placed on a node. A host therefore recognises files from an earlier placement
and restores the archive instead of using them. The file is in the user's folder on the daemon's machine.
"""

from __future__ import annotations

import time
from pathlib import Path

import msgspec

from memory_agent.errors import StoreError
from memory_agent.records.placement import HOME, Placement, Position
from memory_agent.storage.environment import has_records
from memory_agent.storage.folders import user_folder
from relay import described
from relay.disk import add_checksum, verify_checksum, write_private

PLACEMENT_FILE = "placement.json"
EPOCHS_OF_ARCHIVE = 1_000_000
"""The number of archive epochs per placement epoch. One archive epoch is used each time the files are opened."""


class Placements:
    """The placements of all users. Must be used from a single event loop."""

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir
        self._known: dict[str, Placement] = {}
        self._unsaved: set[str] = set()
        self._least_epoch = 1

    def of(self, user_id: str) -> Placement:
        """Return the user's placement. Raises `StoreError` if its file is damaged."""
        if user_id not in self._known:
            self._known[user_id] = read_placement(user_folder(self._data_dir, user_id))
        return self._known[user_id]

    def known(self, user_id: str) -> Placement | None:
        """Return the user's placement, or None for a user without memories. Raises `StoreError`."""
        placement = self.of(user_id)
        is_new = not placement.epoch and not has_records(user_folder(self._data_dir, user_id))
        return None if is_new else placement

    def move(self, user_id: str, node: str) -> Placement:
        """Begin a new epoch on `node` and return it. Durable on return. Raises `StoreError`."""
        former = self.of(user_id)
        # Seconds since 1970, so that an erased user who is created again gets a later epoch, even after a restart.
        epoch = max(former.epoch + 1, int(time.time()), self._least_epoch)
        since = former.archived_since if former.node != HOME else former.epoch or epoch
        moved = msgspec.structs.replace(former, node=node, epoch=epoch, archived_since=since)
        self._write(user_id, moved)
        return moved

    def note_archived(self, user_id: str, position: Position) -> None:
        """Set the newest known state of the user's archive. `save` or `move` makes it durable."""
        placement = self.of(user_id)
        is_newer = placement.archived is None or position > placement.archived
        if is_newer and position.epoch // EPOCHS_OF_ARCHIVE == placement.epoch:
            self._known[user_id] = msgspec.structs.replace(placement, archived=position)
            self._unsaved.add(user_id)

    def save(self, user_id: str) -> None:
        """Write the unsaved placement of a user whose memory was closed, and forget the user. Raises `StoreError`."""
        placement = self._known.get(user_id)
        if placement is not None and user_id in self._unsaved:
            self._write(user_id, placement)
        self.forget(user_id)

    def forget(self, user_id: str) -> None:
        """Read the placement from its file again when it is next needed."""
        self._known.pop(user_id, None)
        self._unsaved.discard(user_id)

    def forget_erased(self, user_id: str) -> None:
        """Like `forget`, for a user who is being erased. If this id is used again later, it gets a later epoch."""
        self._least_epoch = max(self._least_epoch, self.of(user_id).epoch + 1)  # moves may advance it past the clock
        self.forget(user_id)

    def _write(self, user_id: str, placement: Placement) -> None:
        file = user_folder(self._data_dir, user_id) / PLACEMENT_FILE
        try:
            file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_private(file, add_checksum(msgspec.json.encode(placement)))
        except OSError as error:
            raise StoreError(f"{file}: {error.strerror}") from error
        self._known[user_id] = placement
        self._unsaved.discard(user_id)


def read_placement(folder: Path) -> Placement:
    """Return the placement in a user's folder on the home node. Raises `StoreError` if its file is damaged."""
    file = folder / PLACEMENT_FILE
    try:
        return msgspec.json.decode(verify_checksum(file.read_bytes()), type=described(Placement))
    except (FileNotFoundError, NotADirectoryError):
        return Placement()
    except (OSError, msgspec.DecodeError, ValueError) as error:
        raise StoreError(f"{file} cannot be read: {error}") from error


def is_away(folder: Path) -> bool:
    """Whether the user with this folder on the home node is now on another node. Raises `StoreError`."""
    return read_placement(folder).node != HOME
