"""Causes that wait for their recall: bounded, in turn over users, messages before documents, which pause. Pure.

Times are seconds of one monotonic clock, which the caller reads.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

_MOST_BYTES = 16 << 20
_MOST_PAUSES = 10_000


@dataclass(frozen=True)
class Cause:
    """An event that calls for a recall of its user's memory, by a trigger, until `deadline_s`.

    After its recall, causes of the same `document` wait for `pause_s`. `received_ms` is when the journal received it.
    """

    user_id: str
    seq: int
    trigger: str
    data: bytes = field(repr=False)
    deadline_s: float
    received_ms: int = 0
    document: str | None = None
    pause_s: float = 0.0

    @property
    def _place(self) -> tuple[str, str | int]:
        return self.trigger, self.seq if self.document is None else self.document


@dataclass
class _Waiting:
    cause: Cause
    due_s: float


class TriggerQueue:
    """Waiting causes. `counts` says how many were dropped, by reason.

    `debounced`: a later cause of the same document took its place; `full`: too many wait; `late`: the deadline passed.
    """

    def __init__(self, limit: int, user_limit: int) -> None:
        """Hold at most `limit` causes, of one user `user_limit`, and 16 MB of events; the oldest give way."""
        self._limit = limit
        self._user_limit = user_limit
        self._users: OrderedDict[str, OrderedDict[tuple[str, str | int], _Waiting]] = OrderedDict()
        self._paused_until: OrderedDict[tuple[str, str, str | int], float] = OrderedDict()
        self._busy: set[str] = set()
        self._bytes = 0
        self.counts: Counter[str] = Counter()

    def __len__(self) -> int:
        return sum(map(len, self._users.values()))

    def offer(self, cause: Cause, now_s: float) -> None:
        """Add a cause. During the pause of its document, its deadline counts from the end of the pause."""
        own = self._users.setdefault(cause.user_id, OrderedDict())
        former = own.pop(cause._place, None)
        if former is not None:
            self._forget(former)
            self.counts["debounced"] += 1
        due_s = self._paused_until.get((cause.user_id, *cause._place), now_s)
        delay_s = max(0.0, due_s - now_s)
        own[cause._place] = _Waiting(replace(cause, deadline_s=cause.deadline_s + delay_s), now_s + delay_s)
        self._bytes += len(cause.data)
        if len(own) > self._user_limit:
            self._drop_oldest(cause.user_id)
        while len(self) > self._limit or self._bytes > _MOST_BYTES:
            self._drop_oldest(max(self._users, key=lambda user_id: len(self._users[user_id])))

    def take(self, now_s: float) -> Cause | None:
        """Return a cause that is due, of the next user without one under way; `done` ends it. None if there is none."""
        for user_id in list(self._users):
            self._drop_late(user_id, now_s)
            if user_id in self._busy:
                continue
            own = self._users.get(user_id, OrderedDict())
            due = [place for place, waiting in own.items() if waiting.due_s <= now_s]
            if due:  # a conductor that waits for its message comes before a document, whose recall takes longer
                first = min(due, key=lambda place: own[place].cause.document is not None)
                return self._taken(user_id, first, now_s)
        return None

    def done(self, user_id: str) -> None:
        """End what `take` returned for this user."""
        self._busy.discard(user_id)

    def drop(self, user_id: str) -> None:
        """Drop what waits for this user, without counting it."""
        for waiting in self._users.pop(user_id, OrderedDict()).values():
            self._forget(waiting)

    def next_due_s(self) -> float | None:
        """Return when the next cause is due, of users without one under way; None if there is none."""
        return min(self._due(), default=None)

    def _due(self) -> Iterator[float]:
        for user_id, own in self._users.items():
            if user_id not in self._busy:
                yield from (waiting.due_s for waiting in own.values())

    def _taken(self, user_id: str, place: tuple[str, str | int], now_s: float) -> Cause:
        own = self._users[user_id]
        waiting = own.pop(place)
        self._forget(waiting)
        if own:
            self._users.move_to_end(user_id)
        else:
            del self._users[user_id]
        self._busy.add(user_id)
        if waiting.cause.pause_s:
            self._pause((user_id, *place), now_s + waiting.cause.pause_s, now_s)
        return waiting.cause

    def _pause(self, place: tuple[str, str, str | int], until_s: float, now_s: float) -> None:
        self._paused_until[place] = until_s
        self._paused_until.move_to_end(place)
        while len(self._paused_until) > _MOST_PAUSES or next(iter(self._paused_until.values())) <= now_s:
            self._paused_until.popitem(last=False)

    def _drop_late(self, user_id: str, now_s: float) -> None:
        own = self._users[user_id]
        for place in [place for place, waiting in own.items() if waiting.cause.deadline_s <= now_s]:
            self._forget(own.pop(place))
            self.counts["late"] += 1
        if not own:
            del self._users[user_id]

    def _drop_oldest(self, user_id: str) -> None:
        _, waiting = self._users[user_id].popitem(last=False)
        self._forget(waiting)
        self.counts["full"] += 1
        if not self._users[user_id]:
            del self._users[user_id]

    def _forget(self, waiting: _Waiting) -> None:
        self._bytes -= len(waiting.cause.data)
