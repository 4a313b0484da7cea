"""The runs that have begun since this daemon started and have not ended. During a run, the daemon is not idle."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from memory_agent.signals import SignalTable, read_run_sign
from relay import JournalEntry, read_event

_LONGEST_S = 12 * 3600.0
"""A run older than this is treated as interrupted, even without an event that ends it."""


class OpenRuns:
    """The runs in progress, as events and requests report them. A session has one run at a time."""

    def __init__(self, table: SignalTable, now: Callable[[], float] = time.monotonic) -> None:
        self._table = table
        self._now = now
        self._began_s: dict[tuple[str, str], tuple[str, float]] = {}

    def __len__(self) -> int:
        self._drop_interrupted()
        return len(self._began_s)

    def notice(self, user_id: str, entry: JournalEntry) -> None:
        row = self._table.match(entry.event_type)
        if row is None or row.run not in ("begin", "end", "cancel"):
            return
        sign = read_run_sign(read_event(entry.data), self._table)
        if sign is None or sign.run_id is None:
            return
        if sign.role != "begin":
            self.end(user_id, sign.run_id)
        elif datetime.now(UTC) - sign.at < timedelta(seconds=_LONGEST_S):  # an imported session may be years old
            self.begin(user_id, sign.run_id, sign.session_id)

    def begin(self, user_id: str, run_id: str, session_id: str | None) -> None:
        key = (user_id, session_id or run_id)
        self._began_s.pop(key, None)  # moves it to the end
        self._began_s[key] = (run_id, self._now())
        self._drop_interrupted()

    def end(self, user_id: str, run_id: str) -> None:
        ended = [key for key, (own, _) in self._began_s.items() if key[0] == user_id and own == run_id]
        for key in ended:
            del self._began_s[key]

    def _drop_interrupted(self) -> None:
        oldest_s = self._now() - _LONGEST_S
        while self._began_s and next(iter(self._began_s.values()))[1] <= oldest_s:
            del self._began_s[next(iter(self._began_s))]
