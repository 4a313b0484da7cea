"""The passage of each of a few memories in which the words of a query stand, marked.

The lexicon holds no texts, so these are indexed by themselves, in memory: FTS5 splits, stems and marks them as it does
there. What this does not do: find memories (`lexicon`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from memory_agent.records import MemoryRecord
from memory_agent.storage.changes import indexed_text
from memory_agent.storage.lexicon_rows import TOKENIZER, insert_words
from memory_agent.storage.terms import match_expression, query_words

_PASSAGE_TOKENS = 24
_MARK = "**"


class Connection(Protocol):
    """The part of a connection to a database in memory that is used here."""

    def execute(self, sql: str, parameters: Any = ..., /) -> Any:
        """Run one statement."""
        ...


def mark_passages(
    connection: Connection, query_text: str, records: Mapping[int, MemoryRecord]
) -> dict[int, tuple[str, ...]]:
    """Return for each row its best passage, words **marked**; nothing where no word is shared.

    `connection` is to an empty database in memory.
    """
    words = query_words(query_text)
    if not words or not records:
        return dict.fromkeys(records, ())
    connection.execute(f"CREATE VIRTUAL TABLE words USING fts5 (title, text, tags, {TOKENIZER})")
    connection.execute("BEGIN")  # one transaction: half the time
    for row, record in records.items():
        insert_words(connection, row, indexed_text(record))
    found = dict(
        connection.execute(
            "SELECT rowid, snippet(words, -1, ?, ?, '…', ?) FROM words WHERE words MATCH ?",
            (_MARK, _MARK, _PASSAGE_TOKENS, match_expression(words)),
        )
    )
    return {row: (found[row],) if row in found else () for row in records}
