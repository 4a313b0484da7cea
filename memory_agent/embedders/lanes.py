"""Two lanes into one model: queries first, bulk work at low priority behind them.

A query never waits behind bulk work: its threads run at normal priority, those of the bulk lane are `nice`, take one
text a step and start none while a query waits. So a bulk load delays a query by at most the texts already begun, one a
bulk thread, and those give way to it on the processor. Bulk calls take turns, text by text: a short one does not wait
for a long one. Queries that come without pause do not stop the bulk lane: each of its threads takes a step every
`starved_s`. Nor do other programs: while they keep the nice threads from the processor, as many others work at normal
priority, whether a query waits or not. Queries take long then anyway, and who waited for them would do nothing.

The same text is embedded once: answers are kept (bounded), and a text that is being embedded is waited for. What this
file does not do: it knows no engine. Rejected: one worker with a priority queue, where a query waits for the text in
front of it while other cores idle.
"""

from __future__ import annotations

import hashlib
import os
import queue
import sys
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from memory_agent.embedders import EmbedderInfo, Embeddings, Progress, check_text
from memory_agent.embedders.pace import Pace
from memory_agent.embedders.work import Answers, Digest, Job, Outcome, Query, Waiter, answer_all, resolve
from memory_agent.errors import EmbedderUnavailableError
from memory_agent.records import Embedding

_BULK_CACHE = 4096  # 1.6 KB each
_MOST_QUERY_THREADS = 4
_LOOK_EVERY_S = 0.05
_LATE = "the query was not begun in time"


class Model(Protocol):
    """What the lanes call: one text at a time, from several threads at once."""

    @property
    def info(self) -> EmbedderInfo: ...

    def embed(self, text: str) -> Embedding: ...

    def count_tokens(self, text: str) -> int: ...


def usable_cores() -> int:
    """Return the number of processors that this process may run on."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


class LanedEmbedder:
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
        """Start the lanes; 0 threads: one a core, for queries at most four. `steady_threads` stand by for when other
        programs keep those of the bulk lane from the processor: as many as it has, unless it is said."""
        cores = usable_cores()
        self._model = model
        self._niceness = bulk_niceness
        self._starved_s = starved_s
        self._lock = threading.Lock()
        self._query_ready = threading.Condition(self._lock)
        self._bulk_ready = threading.Condition(self._lock)
        self._queries: deque[Query] = deque()
        self._asked: dict[Digest, Query] = {}
        self._jobs: deque[Job] = deque()
        self._begun: defaultdict[Digest, list[Job]] = defaultdict(list)
        self._query_answers = Answers(query_cache)
        self._bulk_answers = Answers(_BULK_CACHE)
        self._closed = False
        self._pace = Pace()
        lanes = [self._run_queries] * (query_threads or min(cores, _MOST_QUERY_THREADS))
        lanes += [self._run_bulk] * (bulk_threads or cores)
        if bulk_niceness:
            lanes += [self._run_steady] * ((bulk_threads or cores) if steady_threads is None else steady_threads)
        self._threads = [threading.Thread(target=lane, name="embedder", daemon=True) for lane in lanes]
        for thread in self._threads:
            thread.start()

    @property
    def info(self) -> EmbedderInfo:
        """What the vectors come from."""
        return self._model.info

    def embed_query(self, text: str, timeout_s: float | None = None) -> Embedding:
        """Return the (d,) vector of `text`, ahead of all bulk work; errors as of `Embedder.embed_query`."""
        try:
            return self.submit_query(text, timeout_s).result(timeout_s).copy()
        except TimeoutError as error:
            raise EmbedderUnavailableError(f"no vector within {timeout_s or 0.0:.3g} s") from error

    def embed_texts(self, texts: Sequence[str], progress: Progress | None = None) -> Embeddings:
        """Return the (n, d) vectors of `texts`; errors as of `Embedder.embed_texts`."""
        steps: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        future = self.submit_texts(texts, steps.put if progress else None)
        future.add_done_callback(lambda _: steps.put(None))
        try:
            for done in iter(steps.get, None):
                if progress is not None:
                    progress(done, len(texts))
            return future.result()
        finally:
            future.cancel()  # where `progress` raised: what is left of the job is dropped

    def count_tokens(self, text: str, timeout_s: float | None = None) -> int:
        """Return the number of tokens of `text`, uncut; it waits for nothing."""
        return self._model.count_tokens(text)

    def submit_query(self, text: str, timeout_s: float | None = None) -> Future[Embedding]:
        """Queue a query and return at once; the vector is read-only.

        One that was not begun after `timeout_s` fails, one that is late already (0 or less) is not even queued.
        """
        digest = _digest("text", text)
        future: Future[Embedding] = Future()
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        is_late = timeout_s is not None and timeout_s <= 0
        with self._lock:
            self._check_open()
            known = self._known(digest)
            if known is None and not is_late:
                self._ask(digest, text, Waiter(future, deadline))
                return future
        resolve(future, EmbedderUnavailableError(_LATE) if known is None else known)
        return future

    def submit_texts(self, texts: Sequence[str], on_done: Callable[[int], None] | None = None) -> Future[Embeddings]:
        """Queue a bulk job and return at once. `on_done` gets the number of texts done, and must be quick."""
        digests = [_digest(f"texts[{position}]", text) for position, text in enumerate(texts)]
        job = Job(np.empty((len(texts), self.info.ndim), dtype=np.float32), on_done)
        for position, (digest, text) in enumerate(zip(digests, texts, strict=True)):
            if digest not in job.rows:
                job.todo.append((digest, text))
            job.rows[digest].append(position)
        with self._lock:
            self._check_open()
            if texts:
                self._jobs.append(job)
                self._bulk_ready.notify_all()
        if not texts:
            job.future.set_result(job.vectors)
        return job.future

    def close(self) -> None:
        """Stop the lanes after the texts they are at; who waits gets `EmbedderUnavailableError`."""
        with self._lock:
            self._closed = True
            self._query_ready.notify_all()
            self._bulk_ready.notify_all()
        for thread in self._threads:
            thread.join()
        closed = EmbedderUnavailableError("the embedder was closed")
        for query in self._queries:
            query.answer(closed)
        for job in self._jobs:
            resolve(job.future, closed)
        self._queries.clear()
        self._jobs.clear()

    def _check_open(self) -> None:
        if self._closed:
            raise EmbedderUnavailableError("the embedder was closed")

    def _known(self, digest: Digest) -> Embedding | None:
        known = self._query_answers.get(digest)
        return self._bulk_answers.get(digest) if known is None else known

    # The query lane

    def _ask(self, digest: Digest, text: str, waiter: Waiter) -> None:
        query = self._asked.get(digest)
        if query is None:
            query = self._asked[digest] = Query(digest, text)
            self._queries.append(query)
            self._query_ready.notify()
        query.waiters.append(waiter)

    def _run_queries(self) -> None:
        while (query := self._next_query()) is not None:
            self._finish_query(query, _attempt(self._model, query.text) if query.waiters else None)

    def _next_query(self) -> Query | None:
        """Wait for a query; take from it those who no longer wait. None when closed."""
        with self._lock:
            while not self._queries and not self._closed:
                self._query_ready.wait()
            if self._closed:
                return None
            query = self._queries.popleft()
            late = query.take_late(time.monotonic())
        answer_all(late, EmbedderUnavailableError(_LATE))
        return query

    def _finish_query(self, query: Query, outcome: Outcome | None) -> None:
        with self._lock:
            if outcome is None and query.waiters:  # someone asked again while the late ones were told
                self._queries.append(query)
                self._query_ready.notify()
                return
            del self._asked[query.digest]
            self._query_answers.put(query.digest, outcome)
            if not self._asked:
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
        """Help where the nice threads do not get on."""
        while (step := self._next_steady_step()) is not None:
            self._finish_step(step, self._outcome(step))

    def _outcome(self, step: _Step) -> Outcome:
        return _attempt(self._model, step.text) if step.known is None else step.known

    def _next_steady_step(self) -> _Step | None:
        """Wait until no query does and the nice threads are slow; return the next text. None when closed."""
        with self._lock:
            while not self._closed:
                if not self._jobs:
                    self._bulk_ready.wait()
                elif not self._pace.is_slow(time.monotonic()):
                    self._bulk_ready.wait(_LOOK_EVERY_S)
                elif (step := self._take_turn()) is not None:
                    return step
            return None

    def _next_step(self) -> _Step | None:
        """Wait until no query does, and return the next text of the job whose turn it is. None when closed."""
        starved_at = time.monotonic() + self._starved_s
        with self._lock:
            while not self._closed:
                patience = starved_at - time.monotonic()
                if not self._jobs:
                    self._bulk_ready.wait()
                elif self._asked and patience > 0:
                    self._bulk_ready.wait(patience)
                elif (step := self._take_turn()) is not None:
                    return step
            return None

    def _take_turn(self) -> _Step | None:
        """Move the first job to the end; return its next text, None where another thread is at that text."""
        job = self._jobs.popleft()
        if job.future.done():
            return None
        digest, text = job.todo.popleft()
        if job.todo:
            self._jobs.append(job)
        waiting = self._begun[digest]
        waiting.append(job)
        return _Step(digest, text, self._known(digest)) if len(waiting) == 1 else None

    def _finish_step(self, step: _Step, outcome: Outcome) -> None:
        with self._lock:
            self._bulk_answers.put(step.digest, outcome)
            ended = [job for job in self._begun.pop(step.digest) if job.fill(step.digest, outcome)]
        for job in ended:
            resolve(job.future, outcome if isinstance(outcome, Exception) else job.vectors)


@dataclass(frozen=True)
class _Step:
    """One text of the bulk lane; `known` is its vector where that is at hand already."""

    digest: Digest
    text: str = field(repr=False)
    known: Embedding | None = field(repr=False)


def _digest(field_name: str, text: str) -> Digest:
    check_text(field_name, text)
    return hashlib.blake2b(text.encode(), digest_size=16).digest()


def _attempt(model: Model, text: str) -> Outcome:
    try:
        vector = model.embed(text)
    except Exception as error:  # noqa: BLE001 - whatever it is, it belongs to those who asked, not to the lane
        return error
    vector.flags.writeable = False
    return vector


def _lower_priority(niceness: int) -> None:
    """Make the calling thread nice. Linux has priorities for threads; elsewhere it would slow the queries too."""
    if sys.platform == "linux":
        thread = threading.get_native_id()
        os.setpriority(os.PRIO_PROCESS, thread, max(niceness, os.getpriority(os.PRIO_PROCESS, thread)))
