"""How often a user may search the shared items: a bucket of tokens each, which fills with time. Pure.

Without it one user's loop would take the time of the one process that everybody asks.
"""

from __future__ import annotations

from collections import OrderedDict

from memory_agent.errors import RateLimitedError

_MOST_USERS = 10_000


class SearchQuota:
    """The buckets of the users seen last. For one thread at a time."""

    def __init__(self, size: int, per_s: float) -> None:
        """Give each user `size` searches at once, and `per_s` a second from then on."""
        self._size = float(size)
        self._per_s = per_s
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, user: str, now_s: float) -> None:
        """Take a token of a user's bucket, by a monotonic clock. Raises `RateLimitedError` while it is empty.

        >>> quota = SearchQuota(1, per_s=2.0)
        >>> quota.take("user-1", now_s=0.0)
        >>> quota.take("user-1", now_s=0.1)
        Traceback (most recent call last):
        memory_agent.errors.RateLimitedError: too many searches of shared items: ask again in 400 ms
        """
        tokens, at_s = self._buckets.pop(user, (self._size, now_s))
        tokens = min(self._size, tokens + max(now_s - at_s, 0.0) * self._per_s)
        self._buckets[user] = (tokens - 1.0 if tokens >= 1.0 else tokens, now_s)
        if len(self._buckets) > _MOST_USERS:
            self._buckets.popitem(last=False)
        if tokens < 1.0:
            raise RateLimitedError(round((1.0 - tokens) / self._per_s * 1000))
