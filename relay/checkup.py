"""Every entry of a journal against its checksum, and what points to it against what points back. Changes nothing.

Works beside the relay: one snapshot of the file. What was set aside as damaged, and what retention deleted, may still
be pointed to; everything else that leads nowhere is told. No keys are needed: checksums are of what is on the disk.
What this does not do: mend (`Journal.set_aside`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from relay.config import JournalSettings
from relay.disk import DATA_FILE, Pair, Transaction
from relay.entries import number, number_key, open_event, open_quarantine, user_key
from relay.errors import JournalDamagedError
from relay.journal_file import open_file

Add = Callable[[str, str, int], None]
"""Called with (place, fault, how many)."""
Report = Callable[[str, int, int], None]

_UNREADABLE = "does not match its checksum"
_STEP = 1_000


def check_journal(folder: Path, settings: JournalSettings, add: Add, report: Report) -> int:
    """Check the journal in `folder`, telling `add` what is wrong, and return the number of its events.

    Raises `JournalError` where it cannot be read at all.
    """
    try:
        environment = open_file(folder, settings, readonly=True)
    except JournalDamagedError as error:
        add(f"journal/{DATA_FILE}", str(error), 1)
        return 0
    try:
        with environment.read() as transaction:
            return _Check(transaction, add, report).run()
    finally:
        environment.close()


class _Check:
    def __init__(self, transaction: Transaction, add: Add, report: Report) -> None:
        self._transaction = transaction
        self._add = add
        self._report = report
        self._aside: set[int] = set()
        self._gone: set[int] = set()

    def run(self) -> int:
        """Check everything; return the number of events."""
        self._last_seq = self._counter("last_seq")
        self._quarantine()
        self._gone = {number(key) for key, _ in self._items("forgotten")}
        self._events()
        self._leading("users")
        self._leading("ids")
        for name, seq in self._items("consumers"):
            self._require(
                number(seq) <= self._last_seq, "consumers", f"{name.decode(errors='replace')} is past the end"
            )
        return self._count("events")

    def _events(self) -> None:
        size_bytes, total, before = 0, self._count("events"), 0
        for done, (key, value) in enumerate(self._items("events")):
            if done % _STEP == 0:
                self._report("events", done, total)
            seq, stored = number(key), open_event(key, value)
            self._require(len(key) == 8 and before < seq <= self._last_seq, "events", "lies beyond the last number")
            before = seq
            if stored is None:
                self._add("events", _UNREADABLE, 1)
                continue
            size_bytes += stored.size_bytes
            self._require(self._get("users", user_key(stored.user_id, seq)) is not None, "users", "lacks an event")
            self._require(self._get("ids", stored.id_key) == key, "ids", "an event's id does not lead to it")
        self._report("events", total, total)
        self._require(size_bytes == self._counter("event_bytes") or self._aside, "counters", "event_bytes is wrong")

    def _leading(self, database: str) -> None:
        """What points to an event: it is there, and says the same of itself; or it is known to be gone."""
        for key, value in self._items(database):
            seq = number(key if database == "users" else value)
            found = self._get("events", number_key(seq))
            stored = None if found is None else open_event(number_key(seq), found)
            if stored is not None:
                pointer = user_key(stored.user_id, seq) if database == "users" else stored.id_key
                self._require(pointer == key, database, "leads to an event of another name")
            elif found is None:
                self._require(seq in self._gone or seq in self._aside, database, "leads to no event")

    def _quarantine(self) -> None:
        size_bytes, last_id = 0, self._counter("quarantine_last_id")
        for key, value in self._items("quarantine"):
            stored = open_quarantine(key, value)
            self._require(number(key) <= last_id, "quarantine", "lies beyond the last number")
            if stored is None:
                self._add("quarantine", _UNREADABLE, 1)
                continue
            size_bytes += stored.size_bytes
            if stored.seq is not None:
                self._aside.add(stored.seq)
            self._require(self._get("unread", stored.digest) == key, "unread", "does not know an entry")
        for _, value in self._items("unread"):
            self._require(self._get("quarantine", value) is not None, "unread", "leads to no entry")

    def _items(self, database: str) -> Iterator[Pair]:
        return self._transaction.scan(database)

    def _get(self, database: str, key: bytes) -> bytes | None:
        return self._transaction.get(database, key)

    def _count(self, database: str) -> int:
        return self._transaction.count(database)

    def _counter(self, name: str) -> int:
        value = self._get("counters", name.encode())
        return 0 if value is None else number(value)

    def _require(self, holds: object, place: str, fault: str) -> None:
        if not holds:
            self._add(place, fault, 1)
