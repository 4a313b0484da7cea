"""Counts how often an event has crashed the daemon, if the daemon runs as one process."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from memory_agent.errors import HostDiedError
from relay import described


class _Delivery(msgspec.Struct, frozen=True):
    """Events that were being ingested: the user, the first and last journal numbers, and the crashes so far."""

    user_id: str
    first: int
    last: int
    crashes: int


class Deliveries:
    """Keeps a record on disk of the events being ingested, so that a crash of the process is counted against them.

    With Ray, a crash takes down only the host, and the lane counts the crash. In a single process, a crash also takes
    down the lane, and a restarted daemon would read the same events and crash again. After a crash, the events of the
    recorded batch are therefore ingested one by one. After `daemon.crashes_before_quarantine` crashes, an event is
    refused, and the lane quarantines it.
    """

    def __init__(self, folder: Path, most_crashes: int) -> None:
        """Read and remove what the previous process left in `folder`."""
        folder.mkdir(mode=0o700, exist_ok=True)
        self._folder = folder
        self._most_crashes = most_crashes
        self._former: dict[str, _Delivery] = {}
        for file in folder.iterdir():
            with suppress(msgspec.DecodeError):
                noted = msgspec.msgpack.decode(file.read_bytes(), type=described(_Delivery))
                self._former[noted.user_id] = noted
            file.unlink()

    @contextmanager
    def of(self, user_id: str, seqs: Sequence[int]) -> Iterator[None]:
        """Record these events on disk while the context is active.

        Raises `HostDiedError` if they must not be ingested now.
        """
        first, last = min(seqs), max(seqs)
        former = self._former.get(user_id)
        crashes = 0
        if former is not None and first <= former.last and last >= former.first:
            if len(seqs) > 1:
                raise HostDiedError(f"the daemon crashed while it ingested one of these {len(seqs)} events")
            crashes = former.crashes if former.first == former.last else 0
            if crashes >= self._most_crashes:
                raise HostDiedError(f"the daemon crashed {crashes} times while it ingested this event")
        file = self._folder / hashlib.sha256(user_id.encode()).hexdigest()[:32]
        file.write_bytes(msgspec.msgpack.encode(_Delivery(user_id, first, last, crashes + 1)))
        try:
            yield
        finally:
            file.unlink(missing_ok=True)
