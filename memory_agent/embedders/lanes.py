"""Two lanes that share one model: queries have priority over bulk work.

Queries run at normal priority on their own threads. Bulk threads are `nice`, run one passage of a text per step, and
start no passage while a query waits. So bulk work delays a query by at most one passage per bulk thread. A text that a
caller waits for is queued with the queries, and moves to the end of the queue after each passage. Bulk calls alternate
step by step, so a short call does not wait for a long one.

Two guards prevent starvation. Each bulk thread takes a step every `starved_s` even while queries keep arriving. While
other programs starve the bulk threads, an equal number of normal-priority threads help.

Equal texts are embedded once: recent results are cached, and concurrent calls with the same text share one computation.
"""

from __future__ import annotations

import hashlib
import math
import os
import queue
import sys
import threading
import time
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Protocol, TypeVar

from memory_agent.embedders.protocol import EmbedderInfo, Later, PassageEmbedder, Pending, Progress, all_of
from memory_agent.errors import EmbedderUnavailableError
from memory_agent.records.arguments import check_text
from memory_agent.records.embedded import Embedded, EmbeddedQuery
from relay.future import Future

OWN_GROUP, GROUPS = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")
_BULK_CACHE = 4096  # number of results; 2.2 KB each for 34 tokens
_CACHE_BYTES = 16 << 20  # limit of each of the two caches
_LOOK_EVERY_S = 0.05
_LATE = "the query did not start in time"
_CLOSED = "the embedder was closed"
_SLOW = 12.0  # starved if a passage takes this many times the processor time that it uses
_STALLED_S = 0.5
_QUERY, _TEXT = b"query", b"text"  # a string may have different vectors as a query and as a text

Digest = bytes
Result = TypeVar("Result")
Outcome = Embedded | EmbeddedQuery | Exception
Steps = queue.SimpleQueue[int | None]  # receives the number of finished texts after each text, and None at the end


class Reading(Protocol):
    """A text that is being embedded passage by passage. Used by one thread at a time."""

    def step(self) -> Embedded | None:
        """Run the model on the next passage; return the result after the last one."""
        ...


class Model(Protocol):
    """The model behind the lanes. Embeds one passage per call; called from several threads."""

    @property
    def info(self) -> EmbedderInfo: ...

    def embed_query(self, text: str) -> EmbeddedQuery: ...

    def begin_text(self, text: str) -> Reading: ...

    def count_tokens(self, text: str) -> int: ...


def usable_cores(own: Path = OWN_GROUP, groups: Path = GROUPS) -> int:
    """Return the number of usable processors: the number in the affinity mask or, if lower, the CPU quota of the
    control groups, rounded up.
    """
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    for text in control_group_limits("cpu.max", own, groups):
        quota, _, period = text.partition(" ")
        if quota != "max":
            cores = min(cores, math.ceil(int(quota) / int(period)))
    return max(1, cores)


def control_group_limits(file: str, own: Path = OWN_GROUP, groups: Path = GROUPS) -> Iterator[str]:
    """Yield the contents of `file` in each control group (v2) of this process, from the innermost outwards."""
    with suppress(OSError, StopIteration):
        line = next(line for line in own.read_text().splitlines() if line.startswith("0::/"))
        group = groups / line.removeprefix("0::/")
        for folder in (group, *group.parents):
            with suppress(OSError):
                yield (folder / file).read_text().strip()


@dataclass(frozen=True)
class Waiter:
    """A caller that waits for a query or text until `deadline` (monotonic seconds)."""

    future: Future[EmbeddedQuery] | Future[Embedded]
    deadline: float | None


@dataclass
class PendingQuery:
    """A query or an awaited text, and all callers waiting for it."""

    digest: Digest
    step: Callable[[], Embedded | EmbeddedQuery | None] = field(repr=False)  # runs the model once; None: not finished
    cache: ResultCache = field(repr=False)
    waiters: list[Waiter] = field(default_factory=list)

    def take_late(self, now: float) -> list[Waiter]:
        """Remove and return the waiters that were cancelled or whose deadline has passed."""
        late = [w for w in self.waiters if w.future.cancelled() or (w.deadline is not None and w.deadline < now)]
        self.waiters = [w for w in self.waiters if w not in late]
        return late

    def answer(self, outcome: Outcome) -> None:
        answer_all(self.waiters, outcome)


class BulkTask:
    """A bulk call: its texts, and for each text its positions in the result."""

    def __init__(self, total: int, on_done: Callable[[int], None] | None) -> None:
        self.found: dict[int, Embedded] = {}
        self.places: defaultdict[Digest, list[int]] = defaultdict(list)
        self.todo: deque[BulkText] = deque()
        self.future: Future[list[Embedded]] = Future()
        self._total = total
        self._on_done = on_done
        self._ended = False

    def fill(self, digest: Digest, outcome: Outcome) -> bool:
        """Store the outcome of one text; return whether the task has ended, successfully or not."""
        if self._ended:
            return False
        if isinstance(outcome, Embedded):
            self._enter(self.places[digest], outcome)
        self._ended = isinstance(outcome, Exception) or len(self.found) == self._total
        return self._ended

    def result(self) -> list[Embedded]:
        return [self.found[place] for place in range(self._total)]

    def _enter(self, places: list[int], found: Embedded) -> None:
        self.found.update(dict.fromkeys(places, found))
        if self._on_done is not None:
            self._on_done(len(self.found))


class ResultCache:
    """An LRU cache of at most `capacity` results and 16 MiB in total."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._results: OrderedDict[Digest, Embedded | EmbeddedQuery] = OrderedDict()
        self._bytes = 0

    def get(self, digest: Digest) -> Embedded | EmbeddedQuery | None:
        result = self._results.get(digest)
        if result is not None:
            self._results.move_to_end(digest)
        return result

    def put(self, digest: Digest, outcome: Outcome | None) -> None:
        if outcome is None or isinstance(outcome, Exception) or digest in self._results:
            return
        self._results[digest] = outcome
        self._bytes += outcome.nbytes
        while len(self._results) > self._capacity or self._bytes > _CACHE_BYTES:
            self._bytes -= self._results.popitem(last=False)[1].nbytes


def answer_all(waiters: Sequence[Waiter], outcome: Outcome) -> None:
    for waiter in waiters:
        future: Future[Any] = waiter.future
        future.settle(outcome)


def _within(future: Future[Result], timeout_s: float | None) -> Pending[Result]:
    """Return the result of a query or an awaited text, as read-only arrays."""
    ends_at_s = _deadline(timeout_s)

    def result() -> Result:
        remaining_s = None if ends_at_s is None else max(0.0, ends_at_s - time.monotonic())
        try:
            return future.result(remaining_s)
        except TimeoutError as error:
            raise EmbedderUnavailableError(f"no vector within {timeout_s:.3g} s") from error

    return Later(result)


def _reporting(future: Future[list[Embedded]], total: int, progress: Progress, steps: Steps) -> Pending[list[Embedded]]:
    """Return the pending result of a bulk call. Waiting for it also raises any error from the progress function."""
    future.call_when_done(lambda _: steps.put(None))

    def result() -> list[Embedded]:
        try:
            for done in iter(steps.get, None):
                progress(done, total)
            return future.result()
        finally:
            future.cancel()  # if `progress` raised, drop the rest of the task

    return Later(result)


class Pace:
    """Detects when other programs starve the bulk threads. The caller must hold the lanes' lock.

    A thread at niceness 10 gets a tenth of a normal thread's share: with six other busy programs on two cores, it
    embedded 7 texts per second instead of 300 (measured), and the backlog never shrank.
    """

    def __init__(self) -> None:
        self._began: dict[int, float] = {}
        self._slowness = 1.0

    def began(self, thread: int, now_s: float) -> None:
        self._began[thread] = now_s

    def ended(self, thread: int, now_s: float, processor_s: float) -> None:
        taken_s = now_s - self._began.pop(thread)
        if processor_s > 0:
            self._slowness = taken_s / processor_s

    def is_slow(self, now_s: float) -> bool:
        """Return whether the last passage took more than 12 times the processor time that it used, or a passage has
        been running for 0.5 s.
        """
        hangs = any(now_s - began_s > _STALLED_S for began_s in self._began.values())
        return hangs or self._slowness > _SLOW


class LanedEmbedder(PassageEmbedder):
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

        `steady_threads` embed bulk texts at normal priority while other programs starve the bulk threads; by default,
        there are as many steady threads as bulk threads.
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
        self._known_queries = ResultCache(query_cache)
        self._known_texts = ResultCache(_BULK_CACHE)
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
        return self._model.info

    def begin_query_words(self, text: str, timeout_s: float | None = None) -> Pending[EmbeddedQuery]:
        """Queue a query, ahead of all bulk work. Raises the same errors as `Embedder.begin_query`."""
        return _within(self.submit_query(text, timeout_s), timeout_s)

    def begin_passages(
        self, texts: Sequence[str], progress: Progress | None = None, timeout_s: float | None = None
    ) -> Pending[list[Embedded]]:
        """Queue a bulk call or, with `timeout_s`, awaited texts. Raises the same errors as the protocol."""
        if timeout_s is not None:
            return all_of([_within(self.submit_awaited_text(text, timeout_s), timeout_s) for text in texts])
        if progress is None:
            return self.submit_texts(texts)
        steps: Steps = queue.SimpleQueue()
        return _reporting(self.submit_texts(texts, steps.put), len(texts), progress, steps)

    def count_tokens(self, text: str, timeout_s: float | None = None) -> int:
        """Return the number of tokens of `text`, without truncation. Does not wait for the lanes."""
        return self._model.count_tokens(text)

    def submit_query(self, text: str, timeout_s: float | None = None) -> Future[EmbeddedQuery]:
        """Queue a query and return its future; the arrays are read-only. Raises `InvalidInputError`.

        The future fails with `EmbedderUnavailableError` if the query does not start within `timeout_s` (immediately if
        `timeout_s` is 0 or less), or if this embedder is closed.
        """
        future: Future[EmbeddedQuery] = Future()
        digest = _digest("text", text, _QUERY)
        query = PendingQuery(digest, partial(self._model.embed_query, text), self._known_queries)
        self._submit(query, Waiter(future, _deadline(timeout_s)), is_late=timeout_s is not None and timeout_s <= 0)
        return future

    def submit_awaited_text(self, text: str, timeout_s: float) -> Future[Embedded]:
        """Queue a text with the queries, because a caller is waiting for it. Otherwise like `submit_query`."""
        future: Future[Embedded] = Future()
        digest = _digest("text", text, _TEXT)
        query = PendingQuery(digest, _lazy_steps(self._model, text), self._known_texts)
        self._submit(query, Waiter(future, _deadline(timeout_s)), is_late=timeout_s <= 0)
        return future

    def submit_texts(
        self, texts: Sequence[str], on_done: Callable[[int], None] | None = None
    ) -> Future[list[Embedded]]:
        """Queue a bulk call and return its future. Raises `InvalidInputError`.

        `on_done` receives the number of finished texts; it must return quickly. The future fails with
        `EmbedderUnavailableError` if this embedder is closed.
        """
        digests = [_digest(f"texts[{position}]", text, _TEXT) for position, text in enumerate(texts)]
        task = BulkTask(len(texts), on_done)
        for position, (digest, text) in enumerate(zip(digests, texts, strict=True)):
            if digest not in task.places:
                task.todo.append(BulkText(digest, _lazy_steps(self._model, text)))
            task.places[digest].append(position)
        with self._lock:
            is_closed = self._closed
            if texts and not is_closed:
                self._tasks.append(task)
                self._bulk_ready.notify_all()
        if is_closed:
            task.future.settle(EmbedderUnavailableError(_CLOSED))
        elif not texts:
            task.future.settle([])
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
        for task in (*self._tasks, *chain.from_iterable(self._begun.values())):
            task.future.settle(closed)
        self._queries.clear()
        self._tasks.clear()

    # The query lane

    def _submit(self, query: PendingQuery, waiter: Waiter, *, is_late: bool) -> None:
        """Answer from the cache, join a queued request for the same text, or queue this one."""
        with self._lock:
            outcome: Outcome | None = query.cache.get(query.digest)
            if self._closed:
                outcome = EmbedderUnavailableError(_CLOSED)
            elif outcome is None and is_late:
                outcome = EmbedderUnavailableError(_LATE)
            elif outcome is None:
                self._ask(query, waiter)
        if outcome is not None:
            answer_all([waiter], outcome)

    def _ask(self, query: PendingQuery, waiter: Waiter) -> None:
        asked = self._asked.get(query.digest)
        if asked is None:
            self._queries.append(query)  # before `_asked`, so an interruption between the two does not lose the query
            asked = self._asked[query.digest] = query
        asked.waiters.append(waiter)
        # Wake all: a `notify` interrupted by Ctrl-C leaves an entry that consumes the next `notify`. This is needed
        # even for a known query, because its first caller may have been interrupted before notifying.
        self._query_ready.notify_all()

    def _run_queries(self) -> None:
        while (query := self._next_query()) is not None:
            self._finish_query(query, _attempt(query.step) if query.waiters else None)

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
            if outcome is None and query.waiters:  # passages remain, or another caller has joined
                self._queries.append(query)
                self._query_ready.notify_all()
                return
            if self._asked.get(query.digest) is query:
                del self._asked[query.digest]
            query.cache.put(query.digest, outcome)
            if self._tasks and not self._asked:  # waking the bulk threads needlessly costs 0.15 ms per query
                self._bulk_ready.notify_all()
        if outcome is not None:
            query.answer(outcome)

    # The bulk lane

    def _run_bulk(self) -> None:
        _lower_priority(self._niceness)
        thread = threading.get_ident()
        while (text := self._next_step()) is not None:
            with self._lock:
                self._pace.began(thread, time.monotonic())
            before_s = time.thread_time()
            outcome = _attempt(text.step)
            with self._lock:
                self._pace.ended(thread, time.monotonic(), time.thread_time() - before_s)
            self._finish_step(text, outcome)

    def _run_steady(self) -> None:
        while (text := self._next_steady_step()) is not None:
            self._finish_step(text, _attempt(text.step))

    def _next_steady_step(self) -> BulkText | None:
        """Wait until the bulk threads are starved, and return the next text. None when closed."""
        with self._lock:
            while not self._closed:
                if not self._tasks:
                    self._bulk_ready.wait()
                elif not self._pace.is_slow(time.monotonic()):
                    self._bulk_ready.wait(_LOOK_EVERY_S)
                elif (text := self._take_turn()) is not None:
                    return text
            return None

    def _next_step(self) -> BulkText | None:
        """Wait until no query is pending; return the next text of the task whose turn it is. None when closed."""
        starved_at = time.monotonic() + self._starved_s
        with self._lock:
            while not self._closed:
                patience = starved_at - time.monotonic()
                if not self._tasks:
                    self._bulk_ready.wait()
                elif self._asked and patience > 0:
                    self._bulk_ready.wait(patience)
                elif (text := self._take_turn()) is not None:
                    return text
            return None

    def _take_turn(self) -> BulkText | None:
        """Move the first task to the end; return its next text, or None if another thread is embedding it."""
        task = self._tasks.popleft()
        if task.future.done():
            for text in task.todo:
                if text.is_begun:
                    self._continue(text)  # another task may be waiting for the text
            return None
        text = task.todo.popleft()
        if task.todo:
            self._tasks.append(task)
        if text.is_begun:
            return text
        waiting = self._begun[text.digest]
        waiting.append(task)
        if len(waiting) > 1:
            return None
        text.is_begun = True
        known = self._known_texts.get(text.digest)
        if known is not None:
            text.step = lambda: known
        return text

    def _finish_step(self, text: BulkText, outcome: Outcome | None) -> None:
        with self._lock:
            if outcome is None:
                self._continue(text)
                return
            self._known_texts.put(text.digest, outcome)
            ended = [task for task in self._begun.pop(text.digest) if task.fill(text.digest, outcome)]
        for task in ended:
            task.future.settle(outcome if isinstance(outcome, Exception) else task.result())

    def _continue(self, text: BulkText) -> None:
        """Put an unfinished text at the front of a waiting task's queue; drop the text if no task waits for it."""
        task = next((task for task in self._begun[text.digest] if not task.future.done()), None)
        if task is None:
            del self._begun[text.digest]
            return
        task.todo.appendleft(text)
        if task not in self._tasks:
            self._tasks.append(task)
        self._bulk_ready.notify_all()  # notifying only one thread might wake a steady thread, which ignores it


@dataclass
class BulkText:
    """A text of the bulk lane. `step` runs the model once and returns None while passages are left."""

    digest: Digest
    step: Callable[[], Outcome | None] = field(repr=False)
    is_begun: bool = False


def _lazy_steps(model: Model, text: str) -> Callable[[], Embedded | None]:
    """Return a function that, on each call, runs the model on the next passage of `text`."""
    reading: Reading | None = None

    def step() -> Embedded | None:
        nonlocal reading
        if reading is None:
            reading = model.begin_text(text)
        return reading.step()

    return step


def _digest(field_name: str, text: str, purpose: bytes) -> Digest:
    check_text(field_name, text)
    return hashlib.blake2b(text.encode(), digest_size=16, person=purpose).digest()


def _deadline(timeout_s: float | None) -> float | None:
    return None if timeout_s is None else time.monotonic() + timeout_s


def _attempt(step: Callable[[], Outcome | None]) -> Outcome | None:
    try:
        return step()
    except Exception as error:  # noqa: BLE001 - callers get the error; the lane continues
        return error


def _lower_priority(niceness: int) -> None:
    """Lower the priority of the calling thread. Only on Linux: on other systems it would slow the queries too."""
    if sys.platform == "linux":
        thread = threading.get_native_id()
        os.setpriority(os.PRIO_PROCESS, thread, max(niceness, os.getpriority(os.PRIO_PROCESS, thread)))
