"""Who has how many of the places for requests under way: shared out by user, so that nobody takes all of them. Pure.

A user has a quarter, with however many keys. Keys of users together leave a quarter to keys for all users, and those
leave one to users. What this does not do: keep several users from filling what is for users, each with a share.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from memory_agent.errors import UnavailableError
from relay import Principal

_SHARES = 4
_SMALLEST_SHARE = 8


class Places:
    """The requests under way, by whose they are. Lives in one event loop."""

    def __init__(self, limit: int) -> None:
        """Share out `limit` places; a share is a quarter of them, 8 at least."""
        self._share = max(limit // _SHARES, _SMALLEST_SHARE)
        self._most = max(limit - self._share, self._share)
        self._of_users: Counter[str] = Counter()
        self._for_all = 0

    @contextmanager
    def taken_by(self, principal: Principal) -> Iterator[None]:
        """Have a place for as long as this lasts. Raises `UnavailableError` where there is none left for whom asks."""
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
            self._leave(user_id)

    def _leave(self, user_id: str | None) -> None:
        if user_id is None:
            self._for_all -= 1
        else:
            self._of_users[user_id] -= 1
            if not self._of_users[user_id]:
                del self._of_users[user_id]

    def _require(self, is_free: bool, whose: str) -> None:
        if not is_free:
            raise UnavailableError(f"too many requests {whose} are under way: ask again")
