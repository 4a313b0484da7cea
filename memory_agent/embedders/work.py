"""What waits in a lane: queries and those who ask them, bulk jobs and their rows, and the vectors remembered.

Changed only under the lock of the lanes. What this file does not do: it starts no thread and runs no model.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

import numpy as np

from memory_agent.embedders import Embeddings
from memory_agent.records import Embedding

Digest = bytes
Outcome = Embedding | Exception


@dataclass(frozen=True)
class Waiter:
    """One who asked; after `deadline` (monotonic seconds) a query is not begun for them."""

    future: Future[Embedding]
    deadline: float | None


@dataclass
class Query:
    """A text somebody waits for; those who ask for the same text meanwhile wait with them."""

    digest: Digest
    text: str = field(repr=False)
    waiters: list[Waiter] = field(default_factory=list)

    def take_late(self, now: float) -> list[Waiter]:
        """Take out and return those who gave up or whose time is over."""
        late = [w for w in self.waiters if w.future.cancelled() or (w.deadline is not None and w.deadline < now)]
        self.waiters = [w for w in self.waiters if w not in late]
        return late

    def answer(self, outcome: Outcome) -> None:
        answer_all(self.waiters, outcome)


class Job:
    """A bulk call: which texts are to do, and which rows they fill."""

    def __init__(self, vectors: Embeddings, on_done: Callable[[int], None] | None) -> None:
        self.vectors = vectors
        self.rows: defaultdict[Digest, list[int]] = defaultdict(list)
        self.todo: deque[tuple[Digest, str]] = deque()
        self.future: Future[Embeddings] = Future()
        self._on_done = on_done
        self._done = 0
        self._ended = False

    def fill(self, digest: Digest, outcome: Outcome) -> bool:
        """Enter the outcome of one text; say whether the job ends with it, being complete or broken."""
        if self._ended:
            return False
        if not isinstance(outcome, Exception):
            self._enter(self.rows[digest], outcome)
        self._ended = isinstance(outcome, Exception) or self._done == len(self.vectors)
        return self._ended

    def _enter(self, rows: list[int], vector: Embedding) -> None:
        self.vectors[rows] = vector
        self._done += len(rows)
        if self._on_done is not None:
            self._on_done(self._done)


class Answers:
    """The most recently used vectors."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._vectors: OrderedDict[Digest, Embedding] = OrderedDict()

    def get(self, digest: Digest) -> Embedding | None:
        vector = self._vectors.get(digest)
        if vector is not None:
            self._vectors.move_to_end(digest)
        return vector

    def put(self, digest: Digest, outcome: Outcome | None) -> None:
        if not isinstance(outcome, np.ndarray):
            return
        self._vectors[digest] = outcome
        if len(self._vectors) > self._capacity:
            self._vectors.popitem(last=False)


def answer_all(waiters: Sequence[Waiter], outcome: Outcome) -> None:
    for waiter in waiters:
        resolve(waiter.future, outcome)


def resolve(future: Future[Embedding] | Future[Embeddings], outcome: Outcome) -> None:
    """Give a future its outcome, unless its owner has cancelled it."""
    if future.done() or not future.set_running_or_notify_cancel():
        return
    if isinstance(outcome, Exception):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)
