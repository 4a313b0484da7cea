"""A reranker that calls a custom function with a timeout.

A function cannot be stopped, so it runs in its own thread and is abandoned after the timeout. It counts towards
`judge.at_once` until it returns.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from queue import Empty, SimpleQueue

from memory_agent.errors import ProviderError, ProviderUnavailableError
from memory_agent.rerankers.protocol import Reranker, Selection, Snippet
from memory_agent.settings import import_named

SETTING = "judge.server"
"""The setting that may name a function."""


class OwnFunction:
    """Calls a function, given as it is or as MODULE:NAME, within a time limit. Thread-safe."""

    def __init__(self, function: Reranker | str, at_once: int) -> None:
        """Import nothing yet. At most `at_once` calls run at a time."""
        self._function = function
        self._slots = threading.BoundedSemaphore(at_once)

    def __call__(self, query: str, candidates: Sequence[Snippet], most: int, timeout_s: float) -> Selection:
        """As `Reranker`. Raises `ProviderError`, `ProviderUnavailableError` and `SettingsError`."""
        function = import_named(SETTING, self._function) if isinstance(self._function, str) else self._function
        if not self._slots.acquire(blocking=False):
            raise ProviderUnavailableError("judge", "earlier calls have not returned (judge.at_once)")
        outcome = SimpleQueue[Selection | Exception]()

        def call() -> None:
            try:
                outcome.put(function(query, candidates, most, timeout_s))
            except Exception as error:  # noqa: BLE001 - raised in the waiting thread
                outcome.put(error)
            finally:
                self._slots.release()

        threading.Thread(target=call, name="reranker", daemon=True).start()
        try:
            found = outcome.get(timeout=timeout_s)
        except Empty:
            raise ProviderUnavailableError("judge", f"the function did not return within {timeout_s:.3g} s") from None
        if isinstance(found, Exception):
            raise ProviderError("judge", type(found).__name__) from found  # its message may contain memories
        return found

    def close(self) -> None:
        """Do nothing."""
