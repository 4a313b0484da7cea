"""The `Reranker` protocol, with its input and its result."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Protocol

import msgspec


class Snippet(msgspec.Struct, frozen=True):
    """A memory that is offered to a reranker."""

    id: str
    text: str  # one line with the title and the best passage, at most `judge.snippet_chars` characters long
    score: float  # the score in the ranking so far; higher is better
    timestamp: datetime


class Selection(msgspec.Struct, frozen=True):
    """The ids of the selected memories, best first, with a remark and, if known, the number of tokens used."""

    selected: tuple[str, ...]
    notes: str = ""
    tokens_read: int = 0
    tokens_written: int = 0


class Reranker(Protocol):
    """Selects memories. May be called from several threads at once."""

    def __call__(self, query: str, candidates: Sequence[Snippet], most: int, timeout_s: float) -> Selection:
        """Return up to `most` candidates, or none if none is relevant. The candidates are ordered by score.

        After `timeout_s`, the result is no longer used. May raise any exception; the answer is then ranked by score.
        """
        ...
