"""The ledger of a soak test records which writes were acknowledged, in a SQLite file outside the daemon's data folder.

Each write has a unique mark in its text. A mark is `sent` before its request, `kept` after the acknowledgement, and
`leaving` once its removal is requested; after the removal is acknowledged, it is deleted from the ledger. A request
without an answer may or may not have been carried out: a `sent` or `leaving` mark may be in the store, but at most
once.
"""

from __future__ import annotations

import re
import sqlite3
import threading
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

Letter = Literal["m", "i"]
"""Whether a mark belongs to a memory or to a shared item."""

_MARK = re.compile(r"\bsoak-\d+-[mi]\d{6}\b")
_TABLES = """
CREATE TABLE IF NOT EXISTS writes (user TEXT, mark TEXT, state TEXT, PRIMARY KEY (user, mark)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS numbers (user TEXT PRIMARY KEY, next INTEGER) WITHOUT ROWID;
"""


class Finding(NamedTuple):
    """A violated guarantee: `lost`, `doubled`, `risen` (removed, but reappeared) or `foreign` (another user's mark)."""

    kind: str
    user: str
    what: str


class Held(NamedTuple):
    """The type and the text of a stored memory or item."""

    type: str
    text: str


def marks_in(text: str) -> list[str]:
    """Return the distinct marks in a text.

    >>> marks_in("The key (soak-03-m000012)")
    ['soak-03-m000012']
    """
    return list(dict.fromkeys(_MARK.findall(text)))


def foreign(user: str, texts: Iterable[str], where: str) -> list[Finding]:
    """Return a finding for each mark of another user in texts that only `user` may have written."""
    marks = (mark for text in texts for mark in marks_in(text))
    return [Finding("foreign", user, f"{mark} {where}") for mark in marks if owner_of(mark) != user]


def owner_of(mark: str) -> str:
    """Return the user of a mark."""
    return mark.rpartition("-")[0]


class Ledger:
    """The marks of all users. Thread-safe; the marks of one user are changed by one thread at a time."""

    def __init__(self, file: Path) -> None:
        self._lock = threading.Lock()
        self._rows = sqlite3.connect(file, isolation_level=None, check_same_thread=False)
        self._rows.executescript(f"PRAGMA journal_mode = WAL; PRAGMA synchronous = OFF; {_TABLES}")

    def close(self) -> None:
        """Close the file."""
        self._rows.close()

    def send(self, user: str, letter: Letter = "m") -> str:
        """Return a new mark, recorded as sent."""
        ((number,),) = self._run(
            "INSERT INTO numbers VALUES (?, 1) ON CONFLICT DO UPDATE SET next = next + 1 RETURNING next", user
        )
        mark = f"{user}-{letter}{number:06}"
        self._run("INSERT INTO writes VALUES (?, ?, 'sent')", user, mark)
        return mark

    def keep(self, marks: Iterable[str]) -> None:
        """Record that writes were acknowledged."""
        for mark in marks:
            self._run("UPDATE writes SET state = 'kept' WHERE user = ? AND mark = ?", owner_of(mark), mark)

    def leave(self, user: str, marks: Iterable[str] | None = None) -> None:
        """Record that the removal of these marks, or of all marks of the user, was requested."""
        for mark in self.of(user) if marks is None else marks:
            self._run("UPDATE writes SET state = 'leaving' WHERE user = ? AND mark = ?", user, mark)

    def remove(self, user: str, marks: Iterable[str] | None = None) -> None:
        """Record that the removal was acknowledged."""
        for mark in self.of(user) if marks is None else marks:
            self._run("DELETE FROM writes WHERE user = ? AND mark = ?", user, mark)

    def of(self, user: str, letter: Letter | None = None) -> dict[str, str]:
        """Return the states of a user's marks, oldest first."""
        rows = self._run("SELECT mark, state FROM writes WHERE user = ? ORDER BY mark", user)
        return {mark: state for mark, state in rows if letter is None or f"{user}-{letter}" in mark}

    def compare(self, user: str, letter: Letter, held: Sequence[Held]) -> list[Finding]:
        """Compare what a store holds with the ledger. Marks that are only `sent`, but are found in the store, become
        `kept`.

        A client may write the same mark in memories of several types (a prompt is a message and also begins a run), but
        only once per type.
        """
        known = self.of(user, letter)
        times = Counter((mark, one.type) for one in held for mark in marks_in(one.text))
        present = {mark for mark, _ in times}
        findings = foreign(user, (one.text for one in held), "in the store")
        findings += [
            Finding("lost", user, mark) for mark, state in known.items() if state == "kept" and mark not in present
        ]
        findings += [Finding("doubled", user, f"{mark} {type_}") for (mark, type_), count in times.items() if count > 1]
        own = {mark for mark in present if owner_of(mark) == user}
        findings += [Finding("risen", user, mark) for mark in sorted(own - known.keys())]
        self.keep(mark for mark in own if known.get(mark) == "sent")
        return findings

    def _run(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        with self._lock:
            return self._rows.execute(statement, values).fetchall()
