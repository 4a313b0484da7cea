"""Answers the daemon's requests to one host process, at two sockets of its own. Knows no Ray.

One socket takes requests, the other batches of events, each with threads of its own, so that recalls never queue behind
ingestion. An empty call takes .16 ms here, .84 at a Ray actor (measured).

Threads that answer the requests at one socket, so that no user occupies them all.

A user has at most half of the threads; what exceeds that waits in the user's queue, and the thread that ends a request
of the user takes the next. Each thread receives, answers and replies itself: passing a request to another thread and
its reply back took half a millisecond (measured). Rejected: one queue for all, in which everyone waits behind a user
with many requests, or with a few that take minutes.
"""

from __future__ import annotations

import os
import threading
import time
import traceback
from collections import Counter, defaultdict, deque
from collections.abc import Callable
from functools import partial

from memory_agent.daemon.host import MemoryHost
from memory_agent.errors import MemoryAgentError, ProtocolError
from memory_agent.verbs.protocol import HostEndpoints, HostRequest, decode_host_request, encode_fault
from relay.log import log
from relay.net import Message, ReplySocket


class HostServer:
    """Serves a `MemoryHost` until `close` or the end of the process."""

    def __init__(self, host: MemoryHost, endpoints: HostEndpoints, answer_threads: int, ingest_threads: int) -> None:
        """Bind, also to socket files that a former process left. Raises `UnavailableError`."""
        answers, batches = ReplySocket(endpoints.answer), ReplySocket(endpoints.ingest)
        self.endpoints = HostEndpoints(answer=answers.endpoint, ingest=batches.endpoint)
        """Where it listens."""
        self._workers = (
            Workers("answer", answers, answer_threads, partial(_job, answers, partial(_answered, host))),
            Workers("ingest", batches, ingest_threads, partial(_job, batches, partial(_ingested, host))),
        )

    def close(self) -> None:
        """Stop after the requests in progress."""
        for workers in self._workers:
            workers.close()


def _answered(host: MemoryHost, request: HostRequest, params: bytes) -> bytes:
    return host.call(request.user_id, request.method, params, request.remaining_ms(time.time()), request.rights)


def _ingested(host: MemoryHost, request: HostRequest, batch: bytes) -> bytes:
    return host.ingest(request.user_id, batch)


def _job(socket: ReplySocket, do: Callable[[HostRequest, bytes], bytes], message: Message) -> Job | None:
    """Return the job of a request. Bytes that are no request are answered with a fault, and None is returned."""
    try:
        request, body = decode_host_request(message.frames)
    except ProtocolError as error:
        socket.reply(message, [encode_fault(error)])
        return None
    return request.user_id, lambda: socket.reply(message, _frames(partial(do, request, body)))


def _frames(reply: Callable[[], bytes]) -> list[bytes]:
    """Return the reply; for a bug a fault and, for the daemon's log, a traceback without the exception's text."""
    try:
        return [reply()]
    except Exception as error:  # noqa: BLE001 - one bug must not end the process
        name = type(error).__name__
        fault = MemoryAgentError(f"internal error ({name}); the daemon's log has the traceback")
        trace = "".join(traceback.format_tb(error.__traceback__)) + name
        return [encode_fault(fault), trace.encode()]


_LOOK_S = 0.5

Job = tuple[str, Callable[[], None]]
"""A user, and what is to be done for the user."""


class Workers:
    """A fixed number of threads at a socket, which they close in the end."""

    def __init__(self, name: str, socket: ReplySocket, threads: int, read: Callable[[Message], Job | None]) -> None:
        """Start them, named `name`.

        `read` returns the job of a request, or None for one that it refused. Neither may raise: that ends the process,
        since without its threads it would live on unheard.
        """
        self._socket = socket
        self._read = read
        self._share = max(1, threads // 2)
        self._guard = threading.Lock()
        self._running: Counter[str] = Counter()
        self._waiting: defaultdict[str, deque[Job]] = defaultdict(deque)
        self._is_closed = False
        self._threads = [threading.Thread(target=self._work, name=name, daemon=True) for _ in range(threads)]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """End the threads after the requests in progress, and close the socket; what waits is dropped."""
        self._is_closed = True
        self._socket.stop()
        for thread in self._threads:
            thread.join()
        self._socket.close()

    def _work(self) -> None:
        try:
            while not self._is_closed:
                message = self._socket.receive(_LOOK_S)
                if message is None:
                    self._socket.listen_again()  # every half second without requests
                elif (job := self._read(message)) is not None:
                    self._begin(job)
        except BaseException:
            log.exception("worker.failed")
            os._exit(1)

    def _begin(self, job: Job) -> None:
        """Do the job and what waits behind it, unless its user has all threads due; then it waits."""
        user_id = job[0]
        with self._guard:
            if self._running[user_id] >= self._share:
                self._waiting[user_id].append(job)
                return
            self._running[user_id] += 1
        following: Job | None = job
        while following is not None:
            following[1]()
            following = self._next(user_id)

    def _next(self, user_id: str) -> Job | None:
        """Return the user's next waiting job, or None and give the thread back to all."""
        with self._guard:
            waiting = self._waiting.get(user_id)
            if waiting and not self._is_closed:
                return waiting.popleft()
            self._waiting.pop(user_id, None)
            self._running[user_id] -= 1
            if not self._running[user_id]:
                del self._running[user_id]
            return None
