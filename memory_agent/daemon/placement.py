"""Assigns users to host processes. Pure bookkeeping, no Ray.

The first users to wake get a host of their own, up to `dedicated_limit`; the others share `shared_hosts` hosts, chosen
by rendezvous hashing so that a user returns to the same one. One process per user does not scale: a Ray process costs
53 MB and half a percent of an idle core (measured).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import xxhash


@dataclass
class Seat:
    """The host of an awake user, and when it was last used (seconds, monotonic clock)."""

    host: str
    dedicated: bool
    last_used_s: float


class Directory:
    """The awake users and their hosts."""

    def __init__(self, dedicated_limit: int, shared_hosts: int) -> None:
        """Give at most `dedicated_limit` users a host of their own; the others share `shared_hosts` (1 or more)."""
        self._dedicated_limit = dedicated_limit
        self._shared = tuple(f"shared-{number}" for number in range(shared_hosts))
        self._seats: dict[str, Seat] = {}  # least recently used first

    def __contains__(self, user_id: str) -> bool:
        return user_id in self._seats

    def __len__(self) -> int:
        return len(self._seats)

    def __iter__(self) -> Iterator[str]:
        """The awake users, least recently used first."""
        return iter(self._seats)

    def seat(self, user_id: str, now_s: float) -> str:
        """Return the user's host; assigns one if the user was asleep."""
        seat = self._seats.pop(user_id, None) or self._assign(user_id, now_s)
        seat.last_used_s = now_s
        self._seats[user_id] = seat
        return seat.host

    def leave(self, user_id: str) -> str | None:
        """Remove the user; return its host if no other user needs it."""
        seat = self._seats.pop(user_id, None)
        if seat is None or any(other.host == seat.host for other in self._seats.values()):
            return None
        return seat.host

    def idle(self, now_s: float, idle_s: float) -> tuple[str, ...]:
        """Return the users without a request for `idle_s`."""
        return tuple(user for user, seat in self._seats.items() if now_s - seat.last_used_s >= idle_s)

    def has(self, user_id: str) -> bool:
        """Whether the user is awake."""
        return user_id in self._seats

    def awake(self) -> tuple[str, ...]:
        """Return the awake users, least recently used first."""
        return tuple(self._seats)

    def hosts(self) -> frozenset[str]:
        """Return the hosts in use."""
        return frozenset(seat.host for seat in self._seats.values())

    def _assign(self, user_id: str, now_s: float) -> Seat:
        dedicated = sum(seat.dedicated for seat in self._seats.values())
        if dedicated < self._dedicated_limit:
            return Seat(f"user-{user_id}", True, now_s)
        return Seat(rendezvous(user_id, self._shared), False, now_s)


def rendezvous(key: str, nodes: tuple[str, ...]) -> str:
    """Return the node of `key`; when a node is removed, only its keys move (Thaler, Ravishankar 1998)."""
    return max(nodes, key=lambda node: xxhash.xxh3_64_intdigest(f"{node}\0{key}".encode()))
