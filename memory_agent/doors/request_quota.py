"""Divides request slots and buffered bytes among users, so that no user can take all of them. No I/O.

A user may hold up to a quarter of either resource. One quarter is reserved for keys for all users, and one quarter for
keys for a single user.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from memory_agent.errors import UnavailableError
from relay import Principal

_SHARES = 4
_SMALLEST_SHARE = 8


class RequestQuota:
    """The running requests, counted by principal. Must be used from a single event loop."""

    def __init__(self, limit: int) -> None:
        """Divide `limit` slots; a user may hold a quarter of them, or 8 if that is more."""
        self._share = max(limit // _SHARES, _SMALLEST_SHARE)
        self._most = max(limit - self._share, self._share)
        self._of_users: Counter[str] = Counter()
        self._for_all = 0

    def __len__(self) -> int:
        return self._for_all + self._of_users.total()

    @contextmanager
    def slot(self, principal: Principal) -> Iterator[None]:
        """Reserve a request slot for this principal. Raises `UnavailableError` if no slot is free for it."""
        user_id = principal.user_id
        if user_id is None:
            self._require(self._for_all < self._most, "with keys for all users")
            self._for_all += 1
        else:
            self._require(self._of_users[user_id] < self._share, f"of {user_id}")
            self._require(self._of_users.total() < self._most, "of users")
            self._of_users[user_id] += 1
        try:
            yield
        finally:
            self._release(user_id)

    def _release(self, user_id: str | None) -> None:
        if user_id is None:
            self._for_all -= 1
        else:
            self._of_users[user_id] -= 1
            if not self._of_users[user_id]:
                del self._of_users[user_id]

    def _require(self, is_free: bool, whose: str) -> None:
        if not is_free:
            raise UnavailableError(f"too many requests {whose} are in progress; try again")


class ByteQuota:
    """The bytes buffered for each user's requests (keys for all users count as one user). Must be used from a single
    event loop."""

    def __init__(self, limit: int) -> None:
        """Divide `limit` bytes among the users; one user may hold at most a quarter of them."""
        self._share = limit // _SHARES
        self._most = limit - self._share
        self._limit = limit
        self._held: Counter[str | None] = Counter()

    def take(self, principal: Principal, count: int, own: int = 0) -> None:
        """Reserve `count` more bytes for a request that already holds `own` bytes. A single request may have any size.

        Raises `UnavailableError` if the other requests of this user, or of all users together, hold too many bytes.
        """
        user_id = principal.user_id
        most = self._most if user_id is None else self._share
        for held, limit in ((self._held[user_id], most), (self._held.total(), self._limit)):
            if held > own and held + count > limit:
                raise UnavailableError("the requests in progress hold too many bytes; try again")
        self._held[user_id] += count

    def release(self, principal: Principal, count: int) -> None:
        self._held[principal.user_id] -= count
        if self._held[principal.user_id] <= 0:
            del self._held[principal.user_id]
