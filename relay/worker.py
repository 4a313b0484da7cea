"""Runs a task step by step in its own thread, outside the broker's loop.

If the journal is paused, for example because the disk is full, the step is retried. Any other error stops the
relay.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Protocol

from relay.errors import JournalPausedError
from relay.log import log

_RETRY_S = 0.5


class Task(Protocol):
    """A worker's job. `step` returns the seconds to wait; `finish` is called after the last step."""

    name: str

    def step(self) -> float: ...

    def finish(self) -> None: ...


class Worker:
    """A thread that runs one task."""

    def __init__(self, task: Task, on_failure: Callable[[BaseException], None]) -> None:
        self._task = task
        self._on_failure = on_failure
        self._is_stopping = False
        self._woken = SimpleQueue[None]()  # an `Event` may hang after Ctrl-C (`locks`)
        self._thread = threading.Thread(target=self._run, name=f"relay-{task.name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def wake(self) -> None:
        """Start the next step at once."""
        self._woken.put(None)

    def stop(self) -> None:
        """Wait for the current step, finish the task, and join the thread."""
        self._is_stopping = True
        self.wake()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        try:
            while not self._is_stopping:
                self._wait(self._step())
        except BaseException as error:  # noqa: BLE001 - the relay must not continue without its worker
            self._on_failure(error)
        finally:
            self._finish()

    def _wait(self, timeout_s: float) -> None:
        with suppress(Empty):
            self._woken.get(timeout=max(timeout_s, 0.0))
            while True:
                self._woken.get_nowait()

    def _step(self) -> float:
        try:
            return self._task.step()
        except JournalPausedError as error:
            log.error("journal.paused", task=self._task.name, code=error.code)
            return _RETRY_S

    def _finish(self) -> None:
        try:
            self._task.finish()
        except Exception as error:  # noqa: BLE001 - reported; the relay is stopping already
            self._on_failure(error)
