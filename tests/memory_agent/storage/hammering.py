"""Threads that repeat an action while a test runs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def hammered(action: Callable[[], object], threads: int = 3) -> Iterator[None]:
    """Repeat `action` in threads until the block ends; raise its first exception."""
    stop, failures = threading.Event(), list[BaseException]()

    def repeat() -> None:
        try:
            while not stop.is_set():
                action()
        except BaseException as error:
            failures.append(error)

    running = [threading.Thread(target=repeat, daemon=True) for _ in range(threads)]
    for thread in running:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in running:
            thread.join()
    if failures:
        raise failures[0]
