"""A history of additions, removals and reads of each user's memories, and its check against a set.

As in Jepsen, each operation has a beginning and an end. A read must contain every text whose addition was acknowledged
before the read began, unless the text's removal began before the read ended. It must contain no text twice, and no text
whose addition began after the read ended. An operation without an answer may or may not have happened, but once a read
shows that it did, later reads must agree.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeVar

_END = 1 << 62


@dataclass
class Addition:
    """One addition. `acked` is the time of its acknowledgement, if any. `is_event` is true if an event added it."""

    user_id: str
    text: str
    begun: int
    is_event: bool = False
    acked: int = _END


@dataclass
class Removal:
    """One removal. `acked` is the time of its acknowledgement, if any."""

    user_id: str
    text: str
    begun: int
    acked: int = _END


@dataclass(frozen=True)
class Read:
    """A read that returned these texts. `has_events` is false if the read need not contain events."""

    user_id: str
    texts: tuple[str, ...]
    begun: int
    ended: int
    has_events: bool = True


T = TypeVar("T", Addition, Removal, Read)


class Violation(NamedTuple):
    """A text that a read wrongly contained or omitted."""

    kind: Literal["lost", "doubled", "resurrected", "foreign"]
    what: str


@dataclass
class History:
    """All operations. Times are numbers in the order of the events."""

    additions: list[Addition] = field(default_factory=list)
    removals: list[Removal] = field(default_factory=list)
    reads: list[Read] = field(default_factory=list)
    _clock: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def now(self) -> int:
        """Return the next time."""
        return next(self._clock)

    def begin(self, user_id: str, text: str, *, is_event: bool = False) -> Addition:
        """Begin an addition."""
        addition = Addition(user_id, text, self.now(), is_event)
        self.additions.append(addition)
        return addition

    def acknowledge(self, addition: Addition) -> None:
        """The addition was acknowledged."""
        addition.acked = self.now()

    def read(self, user_id: str, begun: int, texts: list[str]) -> None:
        """A read that began at `begun` has just ended."""
        self.reads.append(Read(user_id, tuple(texts), begun, self.now()))

    def violations(self) -> list[Violation]:
        """Return the violations that the reads reveal."""
        added, removed, reads = _by_user(self.additions), _by_user(self.removals), _by_user(self.reads)
        return [found for user_id in reads for found in _violations(added[user_id], removed[user_id], reads[user_id])]


def _by_user(operations: Iterable[T]) -> defaultdict[str, list[T]]:
    found: defaultdict[str, list[T]] = defaultdict(list)
    for operation in operations:
        found[operation.user_id].append(operation)
    return found


def _violations(added: Sequence[Addition], removed: Sequence[Removal], reads: Sequence[Read]) -> Iterator[Violation]:
    """Check the reads of one user, in the order in which they began."""
    begun = {addition.text: addition.begun for addition in added}
    events = {addition.text for addition in added if addition.is_event}
    removals = {removal.text: removal for removal in removed}
    by_ack = sorted(added, key=lambda addition: addition.acked)
    by_end = sorted(reads, key=lambda read: read.ended)
    present: set[str] = set()  # the texts that were acknowledged or read before
    absent: set[str] = set()  # the texts that were removed, according to an earlier read
    missed: dict[Read, set[str]] = {}
    acked = ended = 0
    for read in sorted(reads, key=lambda read: read.begun):
        while acked < len(by_ack) and by_ack[acked].acked < read.begun:
            present.add(by_ack[acked].text)
            acked += 1
        while ended < len(by_end) and by_end[ended].ended < read.begun:
            present.update(_shown(by_end[ended], events))
            absent |= missed.pop(by_end[ended], set())
            ended += 1
        shown = _shown(read, events)
        due = present if read.has_events else present - events
        missing = due - shown.keys()
        missed[read] = {text for text in missing if text in removals and removals[text].begun < read.ended}
        back = {text for text in shown if text in removals and removals[text].acked < read.begun}
        where = f"read of {read.user_id} from {read.begun} to {read.ended}"
        for text in sorted(missing - missed[read]):
            yield Violation("lost", f"{where}: {text!r} is lost")
        for text in sorted(back | (absent & shown.keys())):
            yield Violation("resurrected", f"{where}: {text!r} had been removed")
        for text, times in shown.items():
            if begun.get(text, _END) >= read.ended:
                yield Violation("foreign", f"{where}: {text!r} was never added")
            if times > 1:
                yield Violation("doubled", f"{where}: {text!r} is there {times} times")


def _shown(read: Read, events: set[str]) -> Counter[str]:
    return Counter(text for text in read.texts if read.has_events or text not in events)
