"""Which rows pass a filter: all of them, those of some rows, or about how many. No engine: it is handed a way to read.

Many rows travel as one parameter or one text, whatever their number: SQLite bounds the parameters of a statement
(250,000 here, 999 elsewhere), and a tuple for each row takes three times as long.

n = number of rows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from memory_agent.records import MemoryFilter
from memory_agent.storage.changes import Rows
from memory_agent.storage.conditions import condition, condition_on_row, indexed_sources

Read = Callable[[str, list[object]], list[tuple[Any, ...]]]
"""Runs a statement with its parameters."""

_REACH = 5_000
"""How far an index is counted: .1 ms. What it leaves beyond is no reason to go by it."""

_LEAST_SAMPLE, _MOST_SAMPLE = 256, 1_000
"""Rows of which a share is estimated, one in a hundred between these: .2 ms of 10,000, 1.5 ms of 100,000, where a share
of .1 is then right within .01 and a search takes 10 ms and more."""


def matching_rows(read: Read, filter: MemoryFilter) -> Rows:
    """Return exactly the rows that pass the filter, ascending."""
    where, values = condition(filter, by_time=_is_narrow_in_time(read, filter))
    return _listed(read(f"SELECT group_concat(row) FROM memories WHERE {where}", values))


def passing(read: Read, rows: Rows, filter: MemoryFilter) -> Rows:
    """Return exactly those of `rows` (n,) that pass the filter, ascending."""
    where, values = condition_on_row(filter)
    return _listed(
        read(
            "SELECT group_concat(memories.row) FROM json_each(?) AS asked "
            f"CROSS JOIN memories ON memories.row = asked.value WHERE {where}",
            [_json(np.sort(rows)), *values],  # in order, so that each page is read once: half the time
        )
    )


def estimate_matching(read: Read, filter: MemoryFilter, total: int) -> tuple[int, int | None]:
    """Return about how many of `total` memories pass, and how many an index leaves, None where none narrows.

    The latter is counted, and never exceeded by what passes; the former is from a sample where nothing narrows.
    """
    narrowed = _narrowed(read, filter)
    if narrowed is not None:
        return min(narrowed, total), narrowed
    where, values = condition_on_row(filter)
    last = read("SELECT max(row) FROM memories", [])[0][0] or 0
    seen, passed = read(
        f"SELECT count(*), total({where}) FROM json_each(?) AS asked CROSS JOIN memories ON memories.row = asked.value",
        [*values, _json(_sample(last))],
    )[0]
    return round(total * max(passed, 0.5) / max(seen, 1)), None


def among(column: str, rows: Rows) -> tuple[str, list[object]]:
    """Return a condition, with AND before it, that leaves only `rows` (n,) of a full-text table, n at least 1.

    The span is the engine's to use. The list is not (`+`): it would start its search anew for each row.
    """
    return (
        f"AND {column} BETWEEN ? AND ? AND +{column} IN (SELECT value FROM json_each(?))",
        [int(rows.min()), int(rows.max()), _json(rows)],
    )


def _narrowed(read: Read, filter: MemoryFilter) -> int | None:
    """Return the fewest rows that one of the indexes leaves."""
    counts = [_count(read, source, values) for source, values in indexed_sources(filter)]
    least = min(counts, default=_REACH)
    return least if least < _REACH else None


def _count(read: Read, source: str, values: list[object]) -> int:
    return int(read(f"SELECT count(*) FROM (SELECT 1 FROM {source} LIMIT ?)", [*values, _REACH])[0][0])


def _is_narrow_in_time(read: Read, filter: MemoryFilter) -> bool:
    """Whether to go by time: there is nothing else to look at, or few rows lie in the range."""
    times = MemoryFilter(since=filter.since, until=filter.until)
    return times == filter or _narrowed(read, times) is not None


def _sample(last: int) -> Rows:
    """Return rows from 1 to `last`, one from each of as many equal stretches, the same ones each time."""
    count = min(last, max(_LEAST_SAMPLE, min(last // 100, _MOST_SAMPLE)))
    if not count:
        return np.empty(0, dtype=np.int64)
    places = np.arange(count) + np.random.default_rng(count).random(count)
    return 1 + (places * last / count).astype(np.int64)


def _json(rows: Rows) -> str:
    return f"[{','.join(map(str, rows.tolist()))}]"


def _listed(found: list[tuple[Any, ...]]) -> Rows:
    return np.sort(np.fromstring(found[0][0] or "", dtype=np.int64, sep=","))
