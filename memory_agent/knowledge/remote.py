"""The store of shared items from another process of the daemon, over the socket of the process that hosts it.

A deployment that shares nothing has no such process: `folder` does not exist, and what is asked finds nothing. While
the process is silent, one request waits for it and the others fail fast.
"""

from __future__ import annotations

import time
import weakref
from pathlib import Path
from typing import Any

from memory_agent.errors import DeadlineExceededError, InvalidInputError, UnavailableError
from memory_agent.params import AskSharedParams
from memory_agent.protocol import HostRequest, decode_reply, encode
from memory_agent.recall.query import check_now
from memory_agent.shared_asks import AnyAsk, Caller, Fetch, Publish, Rate, SearchItems, SetName, Unpublish
from memory_agent.shared_records import FoundItem, UnpublishReceipt
from relay import SHARED_USER
from relay.net import CircuitBreaker, RequestSockets

_UNKNOWN = (Rate, Fetch)
_WRITING = (Publish, SetName)


class RemoteKnowledge:
    """Satisfies `SharedStore`. Thread-safe: each request uses a socket of its own."""

    def __init__(self, endpoint: str, folder: Path) -> None:
        """`folder` is where the store lies, once something was published."""
        self._folder = folder
        self._sockets = RequestSockets(endpoint)
        self._breaker = CircuitBreaker()

    def ask(self, caller: Caller, ask: AnyAsk, timeout_s: float) -> Any:
        """Return the answer. Raises `UnavailableError`, `DeadlineExceededError` and what the store raises."""
        if not isinstance(ask, _WRITING) and not self._folder.exists():
            return _nothing(ask)
        return _Pending(self, caller, ask, timeout_s).result(timeout_s)

    def begin_search(self, caller: Caller, ask: SearchItems, timeout_s: float) -> _Pending | _Nothing:
        """Send a search, and return without waiting for it."""
        if not self._folder.exists():
            return _Nothing()
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


class _Nothing:
    """The search of a store that does not exist."""

    def result(self, timeout_s: float) -> list[FoundItem]:
        """Return no items."""
        return []


def _nothing(ask: AnyAsk) -> Any:
    """Return the answer of a store that does not exist."""
    if isinstance(ask, _UNKNOWN):
        raise InvalidInputError("item_id", "is no shared item that this user may see")
    if isinstance(ask, Unpublish):
        return UnpublishReceipt(item_id=ask.item_id, found=False, at=check_now(None))
    return 0 if ask.result is int else []
