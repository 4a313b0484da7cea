"""When to call a provider again: pauses between attempts, and a circuit breaker across calls."""

from __future__ import annotations

import math
import random
import threading
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.25, 8.0
_FAILURES, _OPEN_S, _OPEN_LONGEST_S = 3, 1.0, 60.0
_LONGEST_RETRY_AFTER_S = 3600.0


def pause_s(attempt: int) -> float:
    """Return the pause after attempt 0, 1, ...: .25 s, doubled each time to at most 8 s, times a random .5 to 1."""
    longest_s = min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2.0 ** min(attempt, 16))
    return random.uniform(longest_s / 2, longest_s)


def retry_after_s(headers: Mapping[str, str]) -> float:
    """Return the seconds in the header Retry-After, a number or a date, at most an hour; 0 without one.

    >>> retry_after_s({"retry-after": "2.5"}), retry_after_s({"retry-after": "soon"})
    (2.5, 0.0)
    """
    text = headers.get("retry-after", "")
    try:
        seconds = float(text)
    except ValueError:
        try:
            moment = parsedate_to_datetime(text)
        except ValueError:
            return 0.0
        seconds = (moment.replace(tzinfo=moment.tzinfo or UTC) - datetime.now(UTC)).total_seconds()
    return min(max(0.0, seconds), _LONGEST_RETRY_AFTER_S) if math.isfinite(seconds) else 0.0


class Circuit:
    """Rejects calls for a while after three consecutive failures, and then admits one as a probe. Thread-safe.

    The pause doubles from 1 s to a minute. It is longer if the provider requests that.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._failures = 0
        self._closed_again_at_s = 0.0

    def admit(self) -> float:
        """Return 0 to admit a call, or the seconds until the next may be sent."""
        now_s = time.monotonic()
        with self._lock:
            waits_s = self._closed_again_at_s - now_s
            if waits_s <= 0 and self._failures >= _FAILURES:
                self._closed_again_at_s = now_s + self._open_s()  # other calls wait for the result of this one
            return max(0.0, waits_s)

    def succeeded(self) -> None:
        """Record that the provider answered."""
        with self._lock:
            self._failures, self._closed_again_at_s = 0, 0.0

    def failed(self, asked_s: float = 0.0) -> None:
        """Record a failed call, after which the provider requested a pause of `asked_s`."""
        with self._lock:
            self._failures += 1
            open_s = self._open_s() if self._failures >= _FAILURES else 0.0
            self._closed_again_at_s = max(self._closed_again_at_s, time.monotonic() + max(open_s, asked_s))

    def _open_s(self) -> float:
        return min(_OPEN_LONGEST_S, _OPEN_S * 2.0 ** min(self._failures - _FAILURES, 16))
