"""Delays the acks of events until the journal's copy contains the events. Without a copy, acks are sent at once.

A thread writes the copy while the next events are journaled. Each write contains all commits since the previous write.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue

from relay.errors import CopyUnavailableError
from relay.intake.group_commit import Reply
from relay.journal import Journal

_INTERVAL_S = 5.0  # interval at which changes that are not events (such as cursors) are copied


class Copier:
    """A worker's task: copies the journaled changes, then releases the held replies."""

    name = "copier"

    def __init__(self, journal: Journal, on_released: Callable[[], None]) -> None:
        """`on_released` is called in the worker's thread when replies have become available (`released`)."""
        self._journal = journal
        self._on_released = on_released
        self._held = SimpleQueue[Reply]()
        self._copying: list[Reply] = []
        self._released = SimpleQueue[Reply]()

    def hold(self, replies: Sequence[Reply]) -> None:
        """Hold the replies for events that were journaled before this call. The caller must then wake the worker."""
        for reply in replies:
            self._held.put(reply)

    def released(self) -> Iterator[Reply]:
        return _taken(self._released)

    def step(self) -> float:
        """Copy everything. A failed copy is retried; the replies remain held."""
        self._copying += _taken(self._held)
        self._journal.flush_copy()
        if self._copying:
            for reply in self._copying:
                self._released.put(reply)
            self._copying = []
            self._on_released()
        return _INTERVAL_S

    def finish(self) -> None:
        """Copy once more, before the relay sends the last replies. If that fails, publishers resend."""
        with suppress(CopyUnavailableError):
            self.step()


def _taken(queue: SimpleQueue[Reply]) -> Iterator[Reply]:
    try:
        while True:
            yield queue.get_nowait()
    except Empty:
        return
