"""A future: one thread waits for the result of another. A future remains usable after Ctrl-C (`relay.locks`)."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import CancelledError
from typing import Generic, TypeVar

from relay.locks import Condition
from relay.log import log

Result = TypeVar("Result")


class Future(Generic[Result]):
    """A result or exception that is set once. Thread-safe."""

    def __init__(self) -> None:
        self._condition = Condition()
        self._is_done = False
        self._outcome: Result | Exception | None = None
        self._callbacks: list[Callable[[Future[Result]], object]] = []

    def settle(self, outcome: Result | Exception) -> None:
        """Set the outcome and call the callbacks, unless there is already an outcome. Never raises."""
        with self._condition.lock:
            if self._is_done:
                return
            self._outcome, self._is_done = outcome, True
            self._condition.notify_all()
        for callback in self._callbacks:
            try:
                callback(self)
            except Exception as error:  # noqa: BLE001 - a faulty callback must not stop the others
                log.error("future.callback_failed", error=type(error).__name__)

    def cancel(self) -> bool:
        """Cancel the future unless it has an outcome; `result` then raises `CancelledError`. Return whether the future
        is cancelled.
        """
        self.settle(CancelledError())
        return self.cancelled()

    def done(self) -> bool:
        return self._is_done

    def cancelled(self) -> bool:
        return isinstance(self._outcome, CancelledError)

    def result(self, timeout_s: float | None = None) -> Result:
        """Wait for the result. Raises the stored exception, `CancelledError`, or `TimeoutError` after `timeout_s`.

        >>> future = Future[int]()
        >>> future.settle(7)
        >>> future.result(timeout_s=1.0)
        7
        """
        error = self.exception(timeout_s)
        if error is not None:
            raise error
        return self._outcome  # type: ignore[return-value]  # not an exception

    def exception(self, timeout_s: float | None = None) -> Exception | None:
        """Wait for the outcome; return its exception, or None for a result. Raises `TimeoutError` after `timeout_s`."""
        if not self._condition.wait_for(self.done, timeout_s):
            raise TimeoutError("no result is available yet")
        return self._outcome if isinstance(self._outcome, Exception) else None

    def call_when_done(self, callback: Callable[[Future[Result]], object]) -> None:
        """Call `callback` when the outcome is set, in the thread that sets it, or immediately if it is already set."""
        with self._condition.lock:
            is_done = self._is_done
            if not is_done:
                self._callbacks.append(callback)
        if is_done:
            callback(self)
