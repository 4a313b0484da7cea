"""The checker: compares promises with the journal, the stores, their indexes and the quarantine. Pure.

A promise is an acknowledgement that was recorded by its receiver before the receiver continued. An event without an
acknowledgement may be missing, but must not exist twice. `reading` reads the files.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

Kind = Literal["lost", "doubled", "swapped", "resurrected", "foreign", "disagreeing"]


class Finding(NamedTuple):
    """A violated promise."""

    kind: Kind
    what: str


class Entry(NamedTuple):
    """An event in the journal; `number` counts the events of its publisher."""

    seq: int
    publisher: str
    number: int
    event_id: str
    user_id: str


class Stored(NamedTuple):
    """A memory in the store of `user_id`; `said_by` is the user named in its text."""

    user_id: str
    event_id: str
    said_by: str
    row: int


@dataclass(frozen=True)
class Store:
    """One user's store: its memories in order, and the rows that its columns find."""

    memories: Sequence[Stored]
    cursor: int = 0
    in_vectors: frozenset[int] = frozenset()
    in_words: frozenset[int] = frozenset()


@dataclass(frozen=True)
class History:
    """Everything known about a run.

    `handled` is the number of the last journal entry that the stores have ingested. `taken_in` contains the ids that a
    store reported as stored; `deleted` contains the ids reported as forgotten. `doubtful` contains the ids whose
    deletion was requested but not confirmed.
    """

    acked: Mapping[str, Sequence[str]] = field(default_factory=dict)
    journal: Sequence[Entry] = ()
    stores: Mapping[str, Store] | None = None
    handled: int = 0
    taken_in: frozenset[str] = frozenset()
    deleted: frozenset[str] = frozenset()
    doubtful: frozenset[str] = frozenset()
    quarantined: frozenset[str] = frozenset()


def check(history: History) -> list[Finding]:
    """Return the violated promises, in the order of the kinds above."""
    findings = [*_journal(history)]
    if history.stores is not None:
        findings += [*_taken(history, history.stores), *_apart(history.stores), *_agreeing(history.stores)]
    return findings


def counted(findings: Iterable[Finding]) -> dict[str, int]:
    """Return the number of violations of each kind."""
    return dict(Counter(finding.kind for finding in findings))


def _journal(history: History) -> Iterator[Finding]:
    times = Counter((entry.user_id, entry.event_id) for entry in history.journal)
    present = {event_id for _, event_id in times} | history.quarantined
    for publisher, ids in history.acked.items():
        for event_id in dict.fromkeys(ids):
            if event_id not in present:
                yield Finding("lost", f"{event_id} of {publisher} was acknowledged but is not in the journal")
    for (_, event_id), count in times.items():
        if count > 1:
            yield Finding("doubled", f"{event_id} is in the journal {count} times")
    seqs = [entry.seq for entry in history.journal]
    if seqs != sorted(set(seqs)):
        yield Finding("doubled", "the journal assigned a number twice or out of order")
    last: dict[str, int] = {}
    for entry in sorted(history.journal):
        if entry.number < last.get(entry.publisher, -1):
            yield Finding("swapped", f"{entry.event_id} of {entry.publisher} comes after a later one in the journal")
        last[entry.publisher] = max(last.get(entry.publisher, -1), entry.number)


def _taken(history: History, stores: Mapping[str, Store]) -> Iterator[Finding]:
    places = {entry.event_id: entry.seq for entry in history.journal}
    stored = Counter(memory.event_id for store in stores.values() for memory in store.memories)
    gone = history.deleted | history.doubtful | history.quarantined
    due = {entry.event_id for entry in history.journal if entry.seq <= history.handled} | history.taken_in
    for event_id in sorted(due - gone - stored.keys()):
        yield Finding("lost", f"{event_id} was ingested but is not in its store")
    for event_id, count in stored.items():
        if count > 1:
            yield Finding("doubled", f"{event_id} is in the stores {count} times")
        if event_id in history.deleted:
            yield Finding("resurrected", f"{event_id} was forgotten but is in its store")
        if event_id not in places:
            yield Finding("foreign", f"{event_id} is in a store but not in the journal")
    for user_id, store in stores.items():
        order = [places.get(memory.event_id, 0) for memory in store.memories]
        if order != sorted(order):
            yield Finding("swapped", f"the memories of {user_id} are not in the order of the journal")


def _apart(stores: Mapping[str, Store]) -> Iterator[Finding]:
    for user_id, store in stores.items():
        for memory in store.memories:
            if memory.said_by != user_id:
                yield Finding(
                    "foreign", f"{memory.event_id} is in the store of {user_id}, but {memory.said_by} said it"
                )


def _agreeing(stores: Mapping[str, Store]) -> Iterator[Finding]:
    for user_id, store in stores.items():
        rows = frozenset(memory.row for memory in store.memories)
        for name, held in (("vectors", store.in_vectors), ("words", store.in_words)):
            if held != rows:
                few, many = sorted(rows - held)[:5], sorted(held - rows)[:5]
                yield Finding(
                    "disagreeing",
                    f"the {name} of {user_id} do not contain rows {few}, and contain the extra rows {many}",
                )
