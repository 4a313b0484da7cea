"""Checks every entry of a journal against its checksum, and every reference in both directions. Read-only.

References to entries that were set aside or deleted are not faults. No keys are needed, because checksums cover the
stored form.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

from relay.config import JournalSettings
from relay.disk import DATA_FILE, UNREADABLE, Checkup, Findings, Report, Transaction
from relay.errors import JournalDamagedError
from relay.journal.entries import counter, load_event, load_quarantine, number, number_key, user_key
from relay.journal.file import open_file


def check_journal(folder: Path, settings: JournalSettings, findings: Findings, report: Report) -> int:
    """Add a journal's faults to `findings`; return the number of events in it. Raises `JournalError`."""
    try:
        environment = open_file(folder, settings, readonly=True)
    except JournalDamagedError as error:
        findings.add(f"journal/{DATA_FILE}", str(error))
        return 0
    with closing(environment), environment.read() as transaction:
        _JournalCheckup(transaction, findings, report).run()
        return transaction.count("events")


class _JournalCheckup(Checkup):
    def __init__(self, transaction: Transaction, findings: Findings, report: Report) -> None:
        super().__init__(transaction, findings, report)
        self._last_seq = counter(transaction, "last_seq")
        self._gone = {number(key) for key, _ in transaction.scan("forgotten")}
        self._has_set_aside = False

    def checks(self) -> Sequence[Callable[[], None]]:
        return (self._quarantine, self._events, self._references, self._consumers)

    def _events(self) -> None:
        require, get = self.findings.require, self.transaction.get
        size_bytes, before = 0, 0
        for key, value in self.walk("events"):
            seq, stored = number(key), load_event(key, value)
            require(len(key) == 8 and before < seq <= self._last_seq, "events", "is beyond the last number")
            before = seq
            if stored is None:
                self.findings.add("events", UNREADABLE)
                continue
            size_bytes += stored.size_bytes
            require(get("users", user_key(stored.user_id, seq)) is not None, "users", "is missing an event")
            require(get("ids", stored.id_key) == key, "ids", "an event's id does not refer to it")
        is_counted = size_bytes == counter(self.transaction, "event_bytes")
        require(is_counted or self._has_set_aside, "counters", "event_bytes is wrong")

    def _references(self) -> None:
        for key, _ in self.walk("users"):
            self._reference("users", key, number(key))
        for key, value in self.walk("ids"):
            self._reference("ids", key, number(value))

    def _reference(self, database: str, key: bytes, seq: int) -> None:
        """Check that a reference points either to a deleted event or to an event that refers back to it."""
        found = self.transaction.get("events", number_key(seq))
        stored = None if found is None else load_event(number_key(seq), found)
        if stored is not None:
            back = user_key(stored.user_id, seq) if database == "users" else stored.id_key
            self.findings.require(back == key, database, "refers to a different event")
        elif found is None:
            self.findings.require(seq in self._gone, database, "refers to no event")

    def _consumers(self) -> None:
        for name, seq in self.walk("consumers"):
            fault = f"{name.decode(errors='replace')} is past the end"
            self.findings.require(number(seq) <= self._last_seq, "consumers", fault)

    def _quarantine(self) -> None:
        require, last_id = self.findings.require, counter(self.transaction, "quarantine_last_id")
        for key, value in self.walk("quarantine"):
            stored = load_quarantine(key, value)
            require(number(key) <= last_id, "quarantine", "is beyond the last number")
            if stored is None:
                self.findings.add("quarantine", UNREADABLE)
                continue
            if stored.seq is not None:
                self._gone.add(stored.seq)
                self._has_set_aside = True
            require(self.transaction.get("unread", stored.digest) == key, "unread", "is missing an entry")
        for _, value in self.walk("unread"):
            require(self.transaction.get("quarantine", value) is not None, "unread", "refers to no entry")
