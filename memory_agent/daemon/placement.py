"""Assigns users to host processes. Pure bookkeeping, no Ray.

The first users to wake get a host of their own, up to `dedicated_limit`; the others share `shared_hosts` hosts. A
waking user gets the host with the fewest busy users, then the fewest users; rendezvous hashing decides between equal
ones, so that a user tends to return to the same one. While awake a user stays there. Rejected: rendezvous hashing
alone, which gives two of eight users one host of eight in 99.8 of 100 cases while others idle. One process per user
does not scale: a Ray process costs 53 MB and half a percent of an idle core (measured).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import xxhash

_BUSY_S = 30.0
"""How long after a request a user counts as busy."""


@dataclass
class Seat:
    """The host of an awake user, and when it was last used (seconds, monotonic clock).

    `is_apart`: it has a host of its own in any case, and does not sleep while the daemon runs.
    """

    host: str
    dedicated: bool
    last_used_s: float
    is_apart: bool = False

    def is_busy(self, now_s: float) -> bool:
        """Whether the user had a request recently."""
        return now_s - self.last_used_s < _BUSY_S


class Directory:
    """The awake users and their hosts."""

    def __init__(self, dedicated_limit: int, shared_hosts: int, apart: Mapping[str, str] = {}) -> None:
        """Give at most `dedicated_limit` users a host of their own; the others share `shared_hosts` (1 or more).

        Those `apart` have the host that it names, and count for nothing else.
        """
        self._apart = apart
        self._dedicated_limit = dedicated_limit
        self._shared = tuple(f"shared-{number}" for number in range(shared_hosts))
        self._seats: dict[str, Seat] = {}  # least recently used first

    def __contains__(self, user_id: str) -> bool:
        return user_id in self._seats

    def __len__(self) -> int:
        return sum(not seat.is_apart for seat in self._seats.values())

    def __iter__(self) -> Iterator[str]:
        """The awake users that may sleep, least recently used first."""
        return iter([user for user, seat in self._seats.items() if not seat.is_apart])

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
        return tuple(user for user in self if now_s - self._seats[user].last_used_s >= idle_s)

    def misplaced(self, now_s: float) -> str | None:
        """Return a busy user who shares a host with others while another shared host has none, if there is one."""
        busy = self._busy(now_s)
        if all(busy[host] for host in self._shared):
            return None
        shared = (user for user, seat in self._seats.items() if not seat.dedicated and busy[seat.host] > 1)
        return next((user for user in shared if self._seats[user].is_busy(now_s)), None)

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
        if user_id in self._apart:
            return Seat(self._apart[user_id], True, now_s, is_apart=True)
        dedicated = sum(self._seats[user].dedicated for user in self)
        if dedicated < self._dedicated_limit:
            return Seat(f"user-{user_id}", True, now_s)
        busy, users = self._busy(now_s), Counter(seat.host for seat in self._seats.values())
        load = {host: (busy[host], users[host]) for host in self._shared}
        least = min(load.values())
        return Seat(rendezvous(user_id, tuple(host for host in self._shared if load[host] == least)), False, now_s)

    def _busy(self, now_s: float) -> Counter[str]:
        return Counter(seat.host for seat in self._seats.values() if seat.is_busy(now_s))


def rendezvous(key: str, nodes: tuple[str, ...]) -> str:
    """Return the node of `key`; when a node is removed, only its keys move (Thaler, Ravishankar 1998)."""
    return max(nodes, key=lambda node: xxhash.xxh3_64_intdigest(f"{node}\0{key}".encode()))
