"""Threads that answer the requests at one socket, so that no user occupies them all.

A user has at most half of the threads; what exceeds that waits in the user's queue, and the thread that ends a request
of the user takes the next. Each thread receives, answers and replies itself: passing a request to another thread and
its reply back took half a millisecond (measured). Rejected: one queue for all, in which everyone waits behind a user
with many requests, or with a few that take minutes.
"""

from __future__ import annotations

import os
import threading
from collections import Counter, defaultdict, deque
from collections.abc import Callable

from relay.log import log
from relay.net import Message, ReplySocket

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
