"""Two lanes into one model: queries first, bulk work at low priority.

Queries run at normal priority on their own threads. Bulk threads are `nice`, take one text per step, and start none
while a query waits, so bulk work delays a query by at most the texts in progress, one per bulk thread. Bulk calls take
turns text by text, so a short call does not wait for a long one. Two guards prevent starvation: each bulk thread takes
a step every `starved_s` even while queries keep coming; and while other programs starve the nice threads, as many
normal-priority threads help.

Equal texts are embedded once: recent vectors are cached, and concurrent calls share a text in progress. Rejected: one
worker with a priority queue, where a query waits for the current text while other cores idle.
"""

from __future__ import annotations

import hashlib
import os
import queue
import sys
import threading
import time
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from memory_agent.embedders import (
    Embedder,
    EmbedderInfo,
    Embeddings,
    PendingVector,
    PendingVectors,
    Progress,
    check_text,
)
from memory_agent.errors import EmbedderUnavailableError
from memory_agent.records import Embedding

_BULK_CACHE = 4096  # 1.6 KB each
_LOOK_EVERY_S = 0.05
_LATE = "the query was not begun in time"
_CLOSED = "the embedder was closed"
_SLOW = 12.0  # ratio of elapsed to processor time of a nice thread
_STALLED_S = 0.5

Digest = bytes
Outcome = Embedding | Exception
Steps = queue.SimpleQueue[int | None]
"""Numbers of texts done, and None at the end."""


class Model(Protocol):
    """The model behind the lanes. Embeds one text per call; called from several threads."""

    @property
    def info(self) -> EmbedderInfo: ...

    def embed(self, text: str) -> Embedding: ...

    def count_tokens(self, text: str) -> int: ...


def usable_cores() -> int:
    """Return the number of processors that this process may run on."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


@dataclass(frozen=True)
class Waiter:
    """A caller waiting for a query, which is not started for it after `deadline` (monotonic seconds)."""

    future: Future[Embedding]
    deadline: float | None


@dataclass
class PendingQuery:
    """A queued text and all callers waiting for its vector."""

    digest: Digest
    text: str = field(repr=False)
    waiters: list[Waiter] = field(default_factory=list)

    def take_late(self, now: float) -> list[Waiter]:
        """Remove and return the waiters that have cancelled or whose deadline has passed."""
        late = [w for w in self.waiters if w.future.cancelled() or (w.deadline is not None and w.deadline < now)]
        self.waiters = [w for w in self.waiters if w not in late]
        return late

    def answer(self, outcome: Outcome) -> None:
        answer_all(self.waiters, outcome)


class BulkTask:
    """A bulk call: its texts, and the result rows that each text fills."""

    def __init__(self, vectors: Embeddings, on_done: Callable[[int], None] | None) -> None:
        self.vectors = vectors
        self.rows: defaultdict[Digest, list[int]] = defaultdict(list)
        self.todo: deque[tuple[Digest, str]] = deque()
        self.future: Future[Embeddings] = Future()
        self._on_done = on_done
        self._done = 0
        self._ended = False

    def fill(self, digest: Digest, outcome: Outcome) -> bool:
        """Store the outcome of one text; return whether the task has ended, complete or failed."""
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


class VectorCache:
    """The most recently used vectors (LRU)."""

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
    """Set the outcome of a future that was not cancelled."""
    if future.done() or not future.set_running_or_notify_cancel():
        return
    if isinstance(outcome, Exception):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)


class _QueuedVector:
    """The `PendingVector` of a query in the lanes."""

    def __init__(self, future: Future[Embedding], timeout_s: float | None) -> None:
        self._future = future
        self._timeout_s = timeout_s
        self._ends_at_s = None if timeout_s is None else time.monotonic() + timeout_s

    def result(self) -> Embedding:
        """Return a copy of the vector; same errors as `PendingVector.result`."""
        remaining_s = None if self._ends_at_s is None else max(0.0, self._ends_at_s - time.monotonic())
        try:
            return self._future.result(remaining_s).copy()
        except TimeoutError as error:
            raise EmbedderUnavailableError(f"no vector within {self._timeout_s:.3g} s") from error


class _QueuedTexts:
    """The `PendingVectors` of a bulk call whose caller follows its progress."""

    def __init__(self, future: Future[Embeddings], total: int, progress: Progress, steps: Steps) -> None:
        """`steps` receives the number of texts done."""
        self._future = future
        self._total = total
        self._progress = progress
        self._steps = steps
        future.add_done_callback(lambda _: steps.put(None))

    def result(self) -> Embeddings:
        """Return the vectors; same errors as `PendingVectors.result`, and those of the progress function."""
        try:
            for done in iter(self._steps.get, None):
                self._progress(done, self._total)
            return self._future.result()
        finally:
            self._future.cancel()  # if `progress` raised, drop the rest of the task


class Pace:
    """Detects when other programs starve the nice threads. Used under the lanes' lock.

    A thread at niceness 10 gets a tenth of the share of a normal one: beside six busy programs on two cores, 7 texts a
    second instead of 300 (measured), and the backlog never shrank. Times are seconds of the monotonic clock.
    """

    def __init__(self) -> None:
        self._began: dict[int, float] = {}
        self._slowness = 1.0

    def began(self, thread: int, now_s: float) -> None:
        """Record that a nice thread started a text."""
        self._began[thread] = now_s

    def ended(self, thread: int, now_s: float, processor_s: float) -> None:
        """Record that the thread finished the text, and the processor time it used."""
        taken_s = now_s - self._began.pop(thread)
        if processor_s > 0:
            self._slowness = taken_s / processor_s

    def is_slow(self, now_s: float) -> bool:
        """Return whether the last text took `_SLOW` times its processor time, or one is running for `_STALLED_S`."""
        hangs = any(now_s - began_s > _STALLED_S for began_s in self._began.values())
        return hangs or self._slowness > _SLOW


class LanedEmbedder(Embedder):
    """An `Embedder` over a model in this process. Safe to use from several threads."""

    def __init__(
        self,
        model: Model,
        *,
        bulk_niceness: int = 10,
        query_cache: int = 1024,
        bulk_threads: int = 0,
        query_threads: int = 0,
        steady_threads: int | None = None,
        starved_s: float = 0.25,
    ) -> None:
        """Start the lanes. 0 threads means one per core.

        `steady_threads` embed bulk texts at normal priority while other programs starve the bulk threads; by default
        there are as many of them as bulk threads.
        """
        cores = usable_cores()
        self._model = model
        self._niceness = bulk_niceness
        self._starved_s = starved_s
        self._lock = threading.Lock()
        self._query_ready = threading.Condition(self._lock)
        self._bulk_ready = threading.Condition(self._lock)
        self._queries: deque[PendingQuery] = deque()
        self._asked: dict[Digest, PendingQuery] = {}
        self._tasks: deque[BulkTask] = deque()
        self._begun: defaultdict[Digest, list[BulkTask]] = defaultdict(list)
        self._query_vectors = VectorCache(query_cache)
        self._bulk_vectors = VectorCache(_BULK_CACHE)
        self._closed = False
        self._pace = Pace()
        lanes = [self._run_queries] * (query_threads or cores)
        lanes += [self._run_bulk] * (bulk_threads or cores)
        if bulk_niceness:
            lanes += [self._run_steady] * ((bulk_threads or cores) if steady_threads is None else steady_threads)
        self._threads = [threading.Thread(target=lane, name="embedder", daemon=True) for lane in lanes]
        for thread in self._threads:
            thread.start()

    @property
    def info(self) -> EmbedderInfo:
        """The origin of the vectors."""
        return self._model.info

    def begin_query(self, text: str, timeout_s: float | None = None) -> PendingVector:
        """Queue a query, ahead of all bulk work; same errors as `Embedder.begin_query`."""
        return _QueuedVector(self.submit_query(text, timeout_s), timeout_s)

    def begin_texts(self, texts: Sequence[str], progress: Progress | None = None) -> PendingVectors:
        """Queue a bulk call; same errors as `Embedder.begin_texts`."""
        if progress is None:
            return self.submit_texts(texts)
        steps: Steps = queue.SimpleQueue()
        return _QueuedTexts(self.submit_texts(texts, steps.put), len(texts), progress, steps)

    def count_tokens(self, text: str, timeout_s: float | None = None) -> int:
        """Return the number of tokens of `text`, not truncated. Does not wait for the lanes."""
        return self._model.count_tokens(text)

    def submit_query(self, text: str, timeout_s: float | None = None) -> Future[Embedding]:
        """Queue a query and return its future; the vector is read-only.

        The future fails with `EmbedderUnavailableError` if the query does not start within `timeout_s`, at once if that
        is 0 or less, or if this embedder is closed. Raises `InvalidInputError`.
        """
        digest = _digest("text", text)
        future: Future[Embedding] = Future()
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        is_late = timeout_s is not None and timeout_s <= 0
        with self._lock:
            outcome: Outcome | None = self._known(digest)
            if self._closed:
                outcome = EmbedderUnavailableError(_CLOSED)
            elif outcome is None and is_late:
                outcome = EmbedderUnavailableError(_LATE)
            elif outcome is None:
                self._ask(digest, text, Waiter(future, deadline))
        if outcome is not None:
            resolve(future, outcome)
        return future

    def submit_texts(self, texts: Sequence[str], on_done: Callable[[int], None] | None = None) -> Future[Embeddings]:
        """Queue a bulk call and return its future. `on_done` receives the number of texts done; it must be quick.

        The future fails with `EmbedderUnavailableError` if this embedder is closed. Raises `InvalidInputError`.
        """
        digests = [_digest(f"texts[{position}]", text) for position, text in enumerate(texts)]
        task = BulkTask(np.empty((len(texts), self.info.ndim), dtype=np.float32), on_done)
        for position, (digest, text) in enumerate(zip(digests, texts, strict=True)):
            if digest not in task.rows:
                task.todo.append((digest, text))
            task.rows[digest].append(position)
        with self._lock:
            is_closed = self._closed
            if texts and not is_closed:
                self._tasks.append(task)
                self._bulk_ready.notify_all()
        if is_closed:
            resolve(task.future, EmbedderUnavailableError(_CLOSED))
        elif not texts:
            resolve(task.future, task.vectors)
        return task.future

    def close(self) -> None:
        """Stop the lanes after the texts in progress; waiting callers get `EmbedderUnavailableError`."""
        with self._lock:
            self._closed = True
            self._query_ready.notify_all()
            self._bulk_ready.notify_all()
        for thread in self._threads:
            thread.join()
        closed = EmbedderUnavailableError(_CLOSED)
        for query in self._queries:
            query.answer(closed)
        for task in self._tasks:
            resolve(task.future, closed)
        self._queries.clear()
        self._tasks.clear()

    def _known(self, digest: Digest) -> Embedding | None:
        known = self._query_vectors.get(digest)
        return self._bulk_vectors.get(digest) if known is None else known

    # The query lane

    def _ask(self, digest: Digest, text: str, waiter: Waiter) -> None:
        query = self._asked.get(digest)
        if query is None:
            query = self._asked[digest] = PendingQuery(digest, text)
            self._queries.append(query)
            self._query_ready.notify()
        query.waiters.append(waiter)

    def _run_queries(self) -> None:
        while (query := self._next_query()) is not None:
            self._finish_query(query, _attempt(self._model, query.text) if query.waiters else None)

    def _next_query(self) -> PendingQuery | None:
        """Wait for a query and drop its expired waiters. None when closed."""
        with self._lock:
            while not self._queries and not self._closed:
                self._query_ready.wait()
            if self._closed:
                return None
            query = self._queries.popleft()
            late = query.take_late(time.monotonic())
        answer_all(late, EmbedderUnavailableError(_LATE))
        return query

    def _finish_query(self, query: PendingQuery, outcome: Outcome | None) -> None:
        with self._lock:
            if outcome is None and query.waiters:  # a waiter arrived while expired ones were answered
                self._queries.append(query)
                self._query_ready.notify()
                return
            del self._asked[query.digest]
            self._query_vectors.put(query.digest, outcome)
            if self._tasks and not self._asked:  # else the bulk threads wake for nothing: .15 ms a query
                self._bulk_ready.notify_all()
        if outcome is not None:
            query.answer(outcome)

    # The bulk lane

    def _run_bulk(self) -> None:
        _lower_priority(self._niceness)
        thread = threading.get_ident()
        while (step := self._next_step()) is not None:
            with self._lock:
                self._pace.began(thread, time.monotonic())
            before_s = time.thread_time()
            outcome = self._outcome(step)
            with self._lock:
                self._pace.ended(thread, time.monotonic(), time.thread_time() - before_s)
            self._finish_step(step, outcome)

    def _run_steady(self) -> None:
        """Take bulk texts at normal priority while the nice threads are starved."""
        while (step := self._next_steady_step()) is not None:
            self._finish_step(step, self._outcome(step))

    def _outcome(self, step: _Step) -> Outcome:
        return _attempt(self._model, step.text) if step.known is None else step.known

    def _next_steady_step(self) -> _Step | None:
        """Wait until the nice threads are starved, and return the next text. None when closed."""
        with self._lock:
            while not self._closed:
                if not self._tasks:
                    self._bulk_ready.wait()
                elif not self._pace.is_slow(time.monotonic()):
                    self._bulk_ready.wait(_LOOK_EVERY_S)
                elif (step := self._take_turn()) is not None:
                    return step
            return None

    def _next_step(self) -> _Step | None:
        """Wait until no query is pending; return the next text of the task whose turn it is. None when closed."""
        starved_at = time.monotonic() + self._starved_s
        with self._lock:
            while not self._closed:
                patience = starved_at - time.monotonic()
                if not self._tasks:
                    self._bulk_ready.wait()
                elif self._asked and patience > 0:
                    self._bulk_ready.wait(patience)
                elif (step := self._take_turn()) is not None:
                    return step
            return None

    def _take_turn(self) -> _Step | None:
        """Move the first task to the end; return its next text, or None if another thread is embedding it."""
        task = self._tasks.popleft()
        if task.future.done():
            return None
        digest, text = task.todo.popleft()
        if task.todo:
            self._tasks.append(task)
        waiting = self._begun[digest]
        waiting.append(task)
        return _Step(digest, text, self._known(digest)) if len(waiting) == 1 else None

    def _finish_step(self, step: _Step, outcome: Outcome) -> None:
        with self._lock:
            self._bulk_vectors.put(step.digest, outcome)
            ended = [task for task in self._begun.pop(step.digest) if task.fill(step.digest, outcome)]
        for task in ended:
            resolve(task.future, outcome if isinstance(outcome, Exception) else task.vectors)


@dataclass(frozen=True)
class _Step:
    """One text of the bulk lane; `known` is its vector if it is cached."""

    digest: Digest
    text: str = field(repr=False)
    known: Embedding | None = field(repr=False)


def _digest(field_name: str, text: str) -> Digest:
    check_text(field_name, text)
    return hashlib.blake2b(text.encode(), digest_size=16).digest()


def _attempt(model: Model, text: str) -> Outcome:
    try:
        vector = model.embed(text)
    except Exception as error:  # noqa: BLE001 - callers get the error; the lane continues
        return error
    vector.flags.writeable = False
    return vector


def _lower_priority(niceness: int) -> None:
    """Lower the priority of the calling thread. Linux only: elsewhere it would slow the queries too."""
    if sys.platform == "linux":
        thread = threading.get_native_id()
        os.setpriority(os.PRIO_PROCESS, thread, max(niceness, os.getpriority(os.PRIO_PROCESS, thread)))
