"""What a lexicon's file holds, looked at from outside, for whoever compares it with the records. Changes nothing.

A seal that does not match is damage; without one somebody has the file open, or died with it open.
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from memory_agent.errors import IndexDamagedError
from memory_agent.storage.database import copy_in_memory, translating
from memory_agent.storage.lexicon_rows import applied_in
from memory_agent.storage.seal import matches_seal


class HeldWords(NamedTuple):
    """`fingerprints`: what each row says, by its columns; `worded`: the rows that have words. As of change `applied`"""

    applied: int
    lineage: str
    fingerprints: dict[int, int]
    worded: frozenset[int]


def look(path: Path, secret: bytes | None = None) -> HeldWords:
    """Return what the file holds. Raises `IndexDamagedError`: it is missing, or is not consistent."""
    if not path.exists():
        raise IndexDamagedError(f"{path.name} is missing")
    if matches_seal(path) is False:
        raise IndexDamagedError(f"{path.name} is not as it was closed")
    with translating(path), closing(copy_in_memory(path, secret)) as copy:
        if copy.execute("PRAGMA quick_check(1)").fetchone() != ("ok",):
            raise IndexDamagedError(f"{path.name} is not consistent")
        copy.execute("INSERT INTO words (words) VALUES ('integrity-check')")
        state = dict(copy.execute("SELECT name, value FROM state"))
        return HeldWords(
            applied=applied_in(state),
            lineage=state.get("lineage", ""),
            fingerprints=dict(copy.execute("SELECT row, fingerprint FROM memories")),
            worded=frozenset(row for (row,) in copy.execute("SELECT id FROM words_docsize")),
        )
