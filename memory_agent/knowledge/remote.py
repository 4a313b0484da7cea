"""The store of shared items from another process of the daemon, over the socket of the process that hosts it.

A deployment that shares nothing has no such process: `folder` does not exist, and what is asked finds nothing. While
the process is silent, one request waits for it and the others fail fast.
"""

from __future__ import annotations

import time
import weakref
from pathlib import Path
from typing import Any

from memory_agent.errors import DeadlineExceededError, NothingSharedError, UnavailableError
from memory_agent.knowledge.nothing_shared import NothingFound, answer_without_store, creates_store
from memory_agent.records.shared_requests import AnyAsk, Caller, SearchItems
from memory_agent.verbs.params import AskSharedParams
from memory_agent.verbs.protocol import HostRequest, decode_reply, encode
from relay import SHARED_USER
from relay.net import CircuitBreaker, RequestSockets


class RemoteKnowledge:
    """Satisfies `SharedStore`. Thread-safe: each request uses a socket of its own."""

    def __init__(self, endpoint: str, folder: Path) -> None:
        """`folder` is where the store lies, once something was published."""
        self._folder = folder
        self._sockets = RequestSockets(endpoint)
        self._breaker = CircuitBreaker()

    def ask(self, caller: Caller, ask: AnyAsk, timeout_s: float) -> Any:
        """Return the answer. Raises `UnavailableError`, `DeadlineExceededError` and what the store raises.

        Where there is no store, a request that would create it raises `NothingSharedError`: the daemon starts the
        process of the store then, and repeats the request, which its user's memory has accepted.
        """
        if not self._folder.exists():
            if creates_store(ask):
                raise NothingSharedError("nothing was shared yet, and the store of shared items does not exist")
            return answer_without_store(ask)
        return _Pending(self, caller, ask, timeout_s).result(timeout_s)

    def begin_search(self, caller: Caller, ask: SearchItems, timeout_s: float) -> _Pending | NothingFound:
        """Send a search, and return without waiting for it."""
        if not self._folder.exists():
            return NothingFound()
        return _Pending(self, caller, ask, self._breaker.patience_s(timeout_s))

    def close(self) -> None:
        """Close the sockets; requests in progress end with their answer or timeout."""
        self._sockets.close()


class _Pending:
    """A request under way, on a socket that is idle again after the answer or when this is dropped."""

    def __init__(self, knowledge: RemoteKnowledge, caller: Caller, ask: AnyAsk, timeout_s: float) -> None:
        request = HostRequest(
            user_id=SHARED_USER, method="ask_shared", deadline_ms=timeout_s * 1000, sent_at_s=time.time()
        )
        self._ask = ask
        self._breaker = knowledge._breaker
        self._sent_at_s = time.monotonic()
        self._ends_at_s = self._sent_at_s + timeout_s
        self._socket = knowledge._sockets.borrow()
        self._give_back = weakref.finalize(self, knowledge._sockets.give_back, self._socket)
        self._correlation = self._socket.send([encode(request), encode(AskSharedParams(caller=caller, ask=ask))])

    def result(self, timeout_s: float) -> Any:
        """Wait for the answer, at most `timeout_s` and as long as was said when it was sent."""
        left_s = min(timeout_s, self._ends_at_s - time.monotonic())
        try:
            frames = self._socket.receive(self._correlation, max(left_s, 0.0))
        except DeadlineExceededError as error:
            self._breaker.waited_since(self._sent_at_s)
            raise UnavailableError("the store of shared items did not answer in time") from error
        finally:
            self._give_back()
        self._breaker.heard()
        return decode_reply(frames[0], self._ask.result)
