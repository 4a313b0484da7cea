"""A history of additions to each user's memories and of reads, and its check against a grow-only set.

In the manner of Jepsen: each operation has a begin and an end. A read must contain every addition that was acknowledged
before it began, and nothing that had not begun before it ended; no text twice. Additions without an answer may appear
or not, but once a read has returned one, later reads must return it too.
"""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import dataclass, field

_END = 1 << 62


@dataclass
class Addition:
    """One addition. `acked` is the time of its acknowledgement, if any. `is_event`: whether it is an event."""

    user_id: str
    text: str
    begun: int
    is_event: bool = False
    acked: int = _END


@dataclass(frozen=True)
class Read:
    """One read that returned these texts."""

    user_id: str
    texts: tuple[str, ...]
    begun: int
    ended: int


@dataclass
class History:
    """All operations. Times are numbers in the order of the events."""

    additions: list[Addition] = field(default_factory=list)
    reads: list[Read] = field(default_factory=list)
    _clock: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

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
        """A read that began at `begun` ended now."""
        self.reads.append(Read(user_id, tuple(texts), begun, self.now()))

    def faults(self) -> list[str]:
        """Return what the history violates, in words."""
        found = []
        for read in self.reads:
            of_user = [addition for addition in self.additions if addition.user_id == read.user_id]
            seen = Counter(read.texts)
            earlier = {
                text
                for other in self.reads
                if other.user_id == read.user_id and other.ended < read.begun
                for text in other.texts
            }
            lost = ({one.text for one in of_user if one.acked < read.begun} | earlier) - seen.keys()
            strange = seen.keys() - {one.text for one in of_user if one.begun < read.ended}
            doubled = [text for text, times in seen.items() if times > 1]
            where = f"read of {read.user_id} from {read.begun} to {read.ended}"
            found += [f"{where}: {text!r} is lost" for text in sorted(lost)]
            found += [f"{where}: {text!r} was never added" for text in sorted(strange)]
            found += [f"{where}: {text!r} is there twice" for text in doubled]
        return found
