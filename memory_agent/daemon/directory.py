"""Assigns awake users to the nodes and host processes that serve them. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import xxhash

from memory_agent.records.placement import HOME

_BUSY_S = 30.0
"""How long after a request a user counts as busy."""
_UNBALANCED = 2.0
"""The tolerated difference between nodes, in awake users per core."""


@dataclass
class Seat:
    """The host of an awake user. `is_apart`: whether the user has a fixed host and always stays awake."""

    host: str
    dedicated: bool
    last_used_s: float
    is_apart: bool = False
    node: str = HOME

    def is_busy(self, now_s: float) -> bool:
        return now_s - self.last_used_s < _BUSY_S


class Directory:
    """The awake users and the names of their hosts. Pure.

    On each node, the first users to wake, up to `dedicated_limit`, get a dedicated host each; all other users share
    `shared_hosts` hosts. A waking user gets the host with the fewest busy users. Ties are broken by the number of
    users, then by rendezvous hashing. With hashing alone, at least two of eight users would share one of eight
    hosts in 99.8 % of cases.
    """

    def __init__(self, dedicated_limit: int, shared_hosts: int, apart: Mapping[str, str] = {}) -> None:
        """`shared_hosts` is at least 1. `apart` maps some users to fixed hosts; these do not count towards limits."""
        self._apart = apart
        self._dedicated_limit = dedicated_limit
        self._shared = tuple(f"shared-{number}" for number in range(shared_hosts))
        self._seats: dict[str, Seat] = {}  # least recently used first

    def __contains__(self, user_id: str) -> bool:
        return user_id in self._seats

    def __len__(self) -> int:
        return sum(not seat.is_apart for seat in self._seats.values())

    def __iter__(self) -> Iterator[str]:
        """Iterate over the awake users that may be put to sleep, least recently used first."""
        return iter([user for user, seat in self._seats.items() if not seat.is_apart])

    def seat(self, user_id: str, now_s: float, node: str = HOME) -> str:
        """Return the user's host, assigning one on `node` if the user was asleep."""
        seat = self._seats.pop(user_id, None) or self._assign(user_id, now_s, node)
        seat.last_used_s = now_s
        self._seats[user_id] = seat
        return seat.host

    def host_on(self, user_id: str, now_s: float, node: str) -> str:
        return self._assign(user_id, now_s, node).host

    def host_of(self, user_id: str) -> str | None:
        """Return the user's host, or None if the user is asleep. Does not count as a request."""
        seat = self._seats.get(user_id)
        return None if seat is None else seat.host

    def node_of(self, user_id: str) -> str | None:
        seat = self._seats.get(user_id)
        return None if seat is None else seat.node

    def is_busy(self, user_id: str, now_s: float) -> bool:
        return user_id in self._seats and self._seats[user_id].is_busy(now_s)

    def users_of(self, host: str) -> tuple[str, ...]:
        return tuple(user for user, seat in self._seats.items() if seat.host == host)

    def users_on(self, node: str) -> tuple[str, ...]:
        return tuple(user for user, seat in self._seats.items() if seat.node == node)

    def awake_by_node(self) -> Counter[str]:
        return Counter(seat.node for seat in self._seats.values() if not seat.is_apart)

    def crowded(self, nodes: Mapping[str, int]) -> tuple[str, str] | None:
        """Return a user on the most loaded node, and the least loaded node; None if the nodes are balanced."""
        awake = self.awake_by_node()
        load = {node: awake[node] / max(1, cores) for node, cores in nodes.items()}
        least, most = min(load, key=lambda node: load[node]), max(load, key=lambda node: load[node])
        if load[most] - load[least] < _UNBALANCED:
            return None
        return next(((user, least) for user in self if self._seats[user].node == most), None)

    def leave(self, user_id: str) -> str | None:
        """Remove the user; return its host if no other user is on it."""
        seat = self._seats.pop(user_id, None)
        if seat is None or any(other.host == seat.host for other in self._seats.values()):
            return None
        return seat.host

    def idle(self, now_s: float, idle_s: float) -> tuple[str, ...]:
        return tuple(user for user in self if now_s - self._seats[user].last_used_s >= idle_s)

    def misplaced(self, now_s: float) -> str | None:
        """Return a busy user who shares a host with other busy users, while another shared host has none; otherwise,
        return None.
        """
        busy = self._busy(now_s)
        if all(busy[host] for host in self._shared):
            return None
        shared = (user for user, seat in self._seats.items() if seat.host in self._shared and busy[seat.host] > 1)
        return next((user for user in shared if self._seats[user].is_busy(now_s)), None)

    def awake(self) -> tuple[str, ...]:
        """Return the awake users, least recently used first."""
        return tuple(self._seats)

    def _assign(self, user_id: str, now_s: float, node: str) -> Seat:
        if user_id in self._apart:
            return Seat(self._apart[user_id], True, now_s, is_apart=True)
        dedicated = sum(self._seats[user].dedicated and self._seats[user].node == node for user in self)
        if dedicated < self._dedicated_limit:
            return Seat(f"user-{user_id}", True, now_s, node=node)
        busy, users = self._busy(now_s), Counter(seat.host for seat in self._seats.values())
        load = {host: (busy[host], users[host]) for host in (_on(node, shared) for shared in self._shared)}
        least = min(load.values())
        host = rendezvous(user_id, tuple(host for host in load if load[host] == least))
        return Seat(host, False, now_s, node=node)

    def _busy(self, now_s: float) -> Counter[str]:
        return Counter(seat.host for seat in self._seats.values() if seat.is_busy(now_s))


def _on(node: str, host: str) -> str:
    return host if node == HOME else f"{host}@{node}"


def chosen_node(user_id: str, former: str | None, nodes: Mapping[str, int], awake: Mapping[str, int]) -> str:
    """Return the node for a user who wakes: `former`, or the node with the fewest awake users per core.

    A user leaves `former` only if that node is not up, or has many more awake users per core than another node.

    >>> chosen_node("alice", HOME, {HOME: 2, "big": 16}, {HOME: 3, "big": 4})
    ''
    >>> chosen_node("alice", None, {HOME: 2, "big": 16}, {HOME: 1, "big": 4})
    'big'
    """
    load = {node: awake.get(node, 0) / max(1, cores) for node, cores in nodes.items()}
    least = min(load.values())
    if former is not None and former in nodes and load[former] - least < _UNBALANCED:
        return former
    return rendezvous(user_id, tuple(node for node in nodes if load[node] == least))


def rendezvous(key: str, nodes: tuple[str, ...]) -> str:
    """Return the node of `key`. Removing a node moves only the keys of that node (Thaler, Ravishankar 1998)."""
    return max(nodes, key=lambda node: xxhash.xxh3_64_intdigest(f"{node}\0{key}".encode()))
