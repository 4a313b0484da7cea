"""The node of a cluster that holds one user's memories, and the states of these memories in the archive."""

from __future__ import annotations

import msgspec

HOME = ""
"""The name of the daemon's own machine among the nodes."""


class Position(msgspec.Struct, frozen=True, order=True):
    """The position of an object in a user's archive; later states have higher positions."""

    epoch: int
    number: int

    def __str__(self) -> str:
        return f"{self.epoch}/{self.number}"


class Placement(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The node that holds one user's memories. Each move begins a new epoch; an epoch of 0 means that the user was
    never placed.

    `archived` is the newest known state of the user's archive; a host must not restore an older state. A host must also
    not restore a state from before the epoch `archived_since`, because the archive before this epoch was deleted or
    belongs to an erased user.
    """

    node: str = HOME
    epoch: int = 0
    archived: Position | None = None
    archived_since: int = 0
