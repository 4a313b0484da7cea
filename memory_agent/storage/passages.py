"""A few memories under the words of one query: which has which word, and the passage where they stand.

The lexicon holds no texts, so these are indexed by themselves, in memory, for the length of one recall. FTS5 splits,
stems and marks them as it does in the lexicon. A long text is read to `_HEAD_CHARS` until its passage is asked for, so
that a hundred of them cost no more than 2 ms. What this does not do: find memories (`lexicon`).

Shapes: m memories, w words of the query.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, Self

import numpy as np
import numpy.typing as npt

from memory_agent.records import MemoryRecord
from memory_agent.storage.changes import IndexedText, Rows, indexed_text
from memory_agent.storage.lexicon_rows import TOKENIZER, insert_words
from memory_agent.storage.terms import match_expression, query_words

_HEAD_CHARS = 2_000
_PASSAGE_TOKENS = 24
_MARK = "**"


class Connection(Protocol):
    """The part of a connection to a database in memory that is used here."""

    def execute(self, sql: str, parameters: Any = ..., /) -> Any:
        """Run one statement."""
        ...

    def close(self) -> None:
        """Let go of it."""
        ...


class Passages:
    """Memories indexed for one query. Used by one thread, and closed."""

    def __init__(self, connection: Connection, query_text: str) -> None:
        """Use an empty database in memory, and close it."""
        self._connection = connection
        self._words = query_words(query_text)
        self._whole: dict[int, bool] = {}
        connection.execute(f"CREATE VIRTUAL TABLE words USING fts5 (title, text, tags, {TOKENIZER})")

    def add(self, records: Mapping[int, MemoryRecord]) -> None:
        """Index memories by row, the head of long ones."""
        self._connection.execute("BEGIN")
        for row, record in records.items():
            if row not in self._whole:
                self._whole[row] = len(record.text) <= _HEAD_CHARS
                insert_words(self._connection, row, _head(record))
        self._connection.execute("COMMIT")

    def hits(self, rows: Rows) -> npt.NDArray[np.bool_]:
        """Return (w, m): which of `rows` (ascending) has which word."""
        found = np.zeros((len(self._words), rows.size), dtype=np.bool_)
        place_of = {row: place for place, row in enumerate(rows.tolist())}
        for number, word in enumerate(self._words):
            having = self._connection.execute("SELECT rowid FROM words WHERE words MATCH ?", [match_expression([word])])
            found[number, [place_of[row] for (row,) in having if row in place_of]] = True
        return found

    def marked(self, records: Mapping[int, MemoryRecord]) -> dict[int, tuple[str, ...]]:
        """Return for each row its best passage, words **marked**; nothing where no word is shared."""
        if not self._words or not records:
            return dict.fromkeys(records, ())
        self._complete(records)
        places = ", ".join(str(int(row)) for row in records)
        found = dict(
            self._connection.execute(
                "SELECT rowid, snippet(words, -1, ?, ?, '…', ?) FROM words "
                f"WHERE words MATCH ? AND +rowid IN ({places})",
                (_MARK, _MARK, _PASSAGE_TOKENS, match_expression(self._words)),
            )
        )
        return {row: (found[row],) if row in found else () for row in records}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def _complete(self, records: Mapping[int, MemoryRecord]) -> None:
        """Index what is not there yet, and the rest of what was cut."""
        for row in [row for row in records if not self._whole.get(row, True)]:
            self._connection.execute("DELETE FROM words WHERE rowid = ?", [row])
            insert_words(self._connection, row, indexed_text(records[row]))
            self._whole[row] = True
        missing = {row: record for row, record in records.items() if row not in self._whole}
        for row, record in missing.items():
            insert_words(self._connection, row, indexed_text(record))
            self._whole[row] = True


def _head(record: MemoryRecord) -> IndexedText:
    whole = indexed_text(record)
    return IndexedText(whole.title, whole.text[:_HEAD_CHARS], whole.tags)
