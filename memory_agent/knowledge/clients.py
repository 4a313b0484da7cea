"""Access to the store of shared items: through its host's socket, or directly to its files if there is no daemon.

The first write creates the store's folder. While the host does not respond, one request waits for it and the other
requests fail fast.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

from memory_agent.embedders import Embedder, LazyEmbedder
from memory_agent.errors import (
    DeadlineExceededError,
    InvalidInputError,
    ModelError,
    NothingSharedError,
    UnavailableError,
)
from memory_agent.knowledge.store import Knowledge
from memory_agent.recall.query import check_now
from memory_agent.records import shared_requests as requests
from memory_agent.records.shared import FoundItem, UnpublishReceipt
from memory_agent.records.shared_requests import Caller, PendingItems, SharedRequest
from memory_agent.settings import AnyEmbedder
from memory_agent.tracing import current_span
from memory_agent.verbs.protocol import HostRequest, decode_reply, encode
from memory_agent.verbs.shared_params import AskSharedParams
from relay import SHARED_USER, Identity
from relay.net import CircuitBreaker, RequestSockets

_UNKNOWN = (requests.Rate, requests.ShowItem, requests.Fetch)
_CREATING = (requests.Publish, requests.Offer, requests.SetName)


def creates_store(ask: SharedRequest[Any]) -> bool:
    return isinstance(ask, _CREATING)


def answer_without_store(ask: SharedRequest[Any]) -> Any:
    """Return the answer to a read request when no store of shared items exists.

    Raises `InvalidInputError` if the read names an item.
    """
    if isinstance(ask, _UNKNOWN):
        raise InvalidInputError("item_id", "is not a shared item that this user may see")
    if isinstance(ask, requests.Unpublish):
        return UnpublishReceipt(item_id=ask.item_id, found=False, at=check_now(None))
    if isinstance(ask, requests.ReadLog):
        return requests.PendingChanges()
    if isinstance(ask, requests.ForgetUser):
        return requests.SharedPart()
    if isinstance(ask, requests.OwnName):
        return None
    return 0 if ask.result is int else []


def _no_items(timeout_s: float) -> list[FoundItem]:
    return []


class RemoteKnowledge:
    """The store in another process. Satisfies `SharedStore`. Thread-safe: each request uses its own socket."""

    def __init__(self, endpoint: str, folder: Path | None, identity: Identity | None = None) -> None:
        """`folder` is the store's folder; None if it is on another machine. `identity` holds the keys for a CURVE
        endpoint.
        """
        self._folder = folder
        self._sockets = RequestSockets(endpoint, identity)
        self._breaker = CircuitBreaker()

    def ask(self, caller: Caller, ask: SharedRequest[Any], timeout_s: float) -> Any:
        """Return the answer. Raises `UnavailableError`, `DeadlineExceededError` and the errors of the store.

        If there is no store, a request that would create it raises `NothingSharedError`; the daemon then creates the
        store and repeats the request.
        """
        if self._is_missing():
            if creates_store(ask):
                raise NothingSharedError("nothing has been shared yet, so there is no store of shared items")
            return answer_without_store(ask)
        return _Pending(self, caller, ask, timeout_s)(timeout_s)

    def begin_search(self, caller: Caller, ask: requests.SearchItems, timeout_s: float) -> PendingItems:
        """Send a search and return without waiting for the result."""
        if self._is_missing():
            return _no_items
        return _Pending(self, caller, ask, self._breaker.patience_s(timeout_s))

    def close(self) -> None:
        self._sockets.close()

    def _is_missing(self) -> bool:
        return self._folder is not None and not self._folder.exists()


class _Pending:
    """A request in progress. Its socket is returned to the pool after the answer or when this object is dropped."""

    def __init__(self, knowledge: RemoteKnowledge, caller: Caller, ask: SharedRequest[Any], timeout_s: float) -> None:
        sent_at_s = 0.0 if knowledge._folder is None else time.time()
        request = HostRequest(
            user_id=SHARED_USER,
            method="ask_shared",
            deadline_ms=timeout_s * 1000,
            sent_at_s=sent_at_s,
            traceparent=current_span().traceparent,
        )
        self._ask = ask
        self._breaker = knowledge._breaker
        self._sent_at_s = time.monotonic()
        self._ends_at_s = self._sent_at_s + timeout_s
        self._socket = knowledge._sockets.borrow()
        self._give_back = weakref.finalize(self, knowledge._sockets.give_back, self._socket)
        self._correlation = self._socket.send(
            [encode(request), encode(AskSharedParams(caller=caller, ask=cast(requests.AnySharedRequest, ask)))]
        )

    def __call__(self, timeout_s: float) -> Any:
        """Wait for the answer until the earlier of `timeout_s` and the request's deadline."""
        left_s = min(timeout_s, self._ends_at_s - time.monotonic())
        try:
            frames = self._socket.receive(self._correlation, max(left_s, 0.0))
        except DeadlineExceededError as error:
            self._breaker.waited_since(self._sent_at_s)
            raise UnavailableError("the store of shared items did not respond in time") from error
        finally:
            self._give_back()
        self._breaker.heard()
        return decode_reply(frames[0], self._ask.result)


OpenStore = Callable[[Embedder | None], Knowledge]
"""Opens or creates the store with an embedder that the caller owns."""


class KnowledgeOnFiles:
    """The store of a data folder without a daemon, opened on demand. Satisfies `SharedStore`. Not thread-safe."""

    def __init__(self, folder: Path, open_store: OpenStore, settings: AnyEmbedder) -> None:
        self._folder = folder
        self._open_store = open_store
        self._embedder = LazyEmbedder(None, settings)
        self._knowledge: Knowledge | None = None

    def ask(self, caller: Caller, ask: SharedRequest[Any], timeout_s: float) -> Any:
        """Return the answer. Raises `InvalidInputError` and the errors of opening the store."""
        if not creates_store(ask) and not self._folder.exists():
            return answer_without_store(ask)
        return self._opened().ask(caller, ask, timeout_s)

    def begin_search(self, caller: Caller, ask: requests.SearchItems, timeout_s: float) -> PendingItems:
        """Open the store and load its model; this takes longer than a recall waits for shared items."""
        if not self._folder.exists():
            return _no_items
        with suppress(ModelError):
            self._embedder.get(timeout_s)
        return self._opened().begin_search(caller, ask, timeout_s)

    def close(self) -> None:
        """Purge removed items from the files, and close the store."""
        if self._knowledge is not None:
            try:
                self._knowledge.expire()
            finally:
                self._knowledge.close()
        self._embedder.close()

    def _opened(self) -> Knowledge:
        if self._knowledge is None:
            self._knowledge = self._open_store(self._embedder.get(0) if self._embedder.is_open else None)
        return self._knowledge
