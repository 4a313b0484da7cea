"""Reads the operations recorded by a cluster's clients: a history to check, and when users received answers."""

from __future__ import annotations

import itertools
import json
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from tests.set_history import Addition, History, Read, Removal, Violation

_ANSWERED = {"read": "read", "added": "write", "removed": "write"}
Life = tuple[int, int]
"""When a daemon ran, in nanoseconds of the monotonic clock."""


class ClusterOperations:
    """Everything that the clients had recorded by the last `update`."""

    def __init__(self, notes: Path) -> None:
        self._notes = notes
        self._offsets: defaultdict[Path, int] = defaultdict(int)
        self._additions: dict[str, Addition] = {}
        self._removals: dict[str, Removal] = {}
        self._reads: list[Read] = []
        self._acked: dict[str, int] = {}
        self._waits: defaultdict[str, list[Life]] = defaultdict(list)
        self._answers: defaultdict[tuple[str, str], list[int]] = defaultdict(list)
        self.failures = 0
        """The number of requests that were refused or not answered."""

    def update(self) -> None:
        """Read the new lines, those of reads first, because every text in a result has already been recorded."""
        for file in sorted(self._notes.glob("*.ops"), key=lambda file: not file.name.startswith("read-")):
            with file.open("rb") as lines:
                lines.seek(self._offsets[file])
                text = lines.read()
            whole = text[: text.rfind(b"\n") + 1]
            self._offsets[file] += len(whole)
            for line in whole.splitlines():
                self._take(json.loads(line))

    @property
    def acks(self) -> int:
        """The number of acknowledged events, notes and removals."""
        acked = [one for one in (*self._additions.values(), *self._removals.values()) if one.acked < 1 << 62]
        return len(self._acked) + len(acked)

    @property
    def reads(self) -> int:
        """The number of answered reads."""
        return len(self._reads)

    def has_answered(self, user_id: str, since_ns: int) -> bool:
        """Whether a read and a write have been answered since `since_ns`."""
        answers = (self._answers[user_id, kind] for kind in ("read", "write"))
        return all(times and times[-1] > since_ns for times in answers)

    def outage_s(self, user_id: str, kind: Literal["read", "write"], since_ns: int) -> float:
        """Return the longest time without an answer since `since_ns`, in seconds."""
        times = self._answers[user_id, kind]
        later = [since_ns, *times[bisect_right(times, since_ns) :]]
        return max((after - before for before, after in itertools.pairwise(later)), default=0) / 1e9

    def violations(self, lives: Sequence[Life]) -> list[Violation]:
        """Check all operations.

        Reads must contain an acknowledged event once a client has waited for it. After a daemon dies, events that were
        not archived are delivered again. Until a client has waited again, reads may miss events.
        """
        additions = [self._settled(addition) for addition in self._additions.values()]
        reads = [
            Read(read.user_id, read.texts, read.begun, read.ended, self._has_events(read, lives))
            for read in self._reads
        ]
        return History(additions, list(self._removals.values()), reads).violations()

    def _settled(self, addition: Addition) -> Addition:
        if not addition.is_event or addition.text not in self._acked:
            return addition
        waits = self._waits[addition.user_id]
        first = bisect_left(waits, (self._acked[addition.text], 0))
        acked = {"acked": waits[first][1]} if first < len(waits) else {}
        return Addition(addition.user_id, addition.text, addition.begun, True, **acked)

    def _has_events(self, read: Read, lives: Sequence[Life]) -> bool:
        life = next((life for life in lives if life[0] <= read.begun and read.ended <= life[1]), None)
        if life is None:
            return False
        waits = self._waits[read.user_id]
        first = bisect_left(waits, (life[0], 0))
        return first < len(waits) and waits[first][1] <= read.begun

    def _take(self, line: dict[str, Any]) -> None:
        user_id, at = line["user"], line["at"]
        match line["what"]:
            case "add":
                self._additions[line["id"]] = Addition(user_id, line["id"], at, line.get("event", False))
            case "added" if self._additions[line["id"]].is_event:
                self._acked[line["id"]] = at
                return  # an acknowledgement from the relay, not an answer from the user's memory
            case "added":
                self._additions[line["id"]].acked = at
            case "remove":
                self._removals[line["id"]] = Removal(user_id, line["id"], at)
            case "removed":
                self._removals[line["id"]].acked = at
            case "wait":
                self._waits[user_id].append((line["begun"], at))
            case "read":
                self._reads.append(Read(user_id, tuple(line["ids"]), line["begun"], at))
            case "failed":
                self.failures += 1
        if kind := _ANSWERED.get(line["what"]):
            self._answers[user_id, kind].append(at)
