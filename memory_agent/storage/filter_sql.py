"""A `MemoryFilter` as SQL over the lexicon's columns, and the rows that pass it. Pure: values travel as parameters.

Functions that read take the lexicon's way of running a statement. Many rows travel as one parameter and come back as
one text: SQLite bounds the parameters of a statement (250,000 here, 999 elsewhere), and a tuple for each row takes
three times as long.

n = number of rows.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from typing import Any

import msgspec
import numpy as np

from memory_agent.records import MemoryFilter
from memory_agent.storage.changes import Rows
from memory_agent.storage.codec import microseconds

Condition = tuple[str, list[object]]

_NAMED = "(SELECT id FROM names WHERE name IN ({places}))"


class Narrowed(MemoryFilter, frozen=True, kw_only=True):
    """A filter narrowed further.

    To any of `spans`, if there are some, each (since, until) as in the filter; without memories whose fingerprint
    (`lexicon_schema.record_fingerprint`) is in `unlike`.
    """

    spans: tuple[tuple[datetime | None, datetime | None], ...] = ()
    unlike: tuple[int, ...] = ()


def spanned(chosen: MemoryFilter | None, spans: Iterable[tuple[datetime | None, datetime | None]]) -> Narrowed:
    """Return `chosen` narrowed to memories in one of `spans`."""
    return Narrowed(**_fields(chosen) | {"spans": tuple(spans)})


def unlike(chosen: MemoryFilter | None, fingerprints: Iterable[int]) -> Narrowed:
    """Return `chosen` narrowed to memories with none of these fingerprints."""
    return Narrowed(**_fields(chosen) | {"unlike": tuple(fingerprints)})


def condition(chosen: MemoryFilter | None, *, by_time: bool = True) -> Condition:
    """Return a condition on `memories` with its parameters, true for exactly the memories that pass `chosen`.

    For scans of many rows. Without `by_time`, SQLite does not use the index on time, which is slower than a full scan
    where most rows are in the range. `min_score` is not a column and is left to the caller. Raises `InvalidInputError`
    for a time without zone.
    """
    if chosen is None:
        return "1", []
    listing = chosen.session_id is None and chosen.run_id is None  # their indexes narrow first
    tagged = _tagged_rows(chosen.tags) if listing else _tagged_row(chosen.tags)
    return _joined([*_columns(chosen), tagged, *_times(chosen, "" if by_time else "+")])


def condition_on_row(chosen: MemoryFilter) -> Condition:
    """Return the same condition for rows looked up one by one: 5 ms less where 10,000 rows have the tag."""
    return _joined([*_columns(chosen), _tagged_row(chosen.tags), *_times(chosen, "+")])


def indexed_sources(chosen: MemoryFilter) -> list[Condition]:
    """Return the parts of a filter that one index answers, each as table and condition; every match is in each."""
    named = [_equal("memories.session", chosen.session_id), _equal("memories.run", chosen.run_id)]
    sources = [(f"memories WHERE {sql}", values) for sql, values in filter(None, named)]
    if chosen.tags:
        sources.append(
            (f"tags WHERE tags.name IN {_NAMED.format(places=_places(chosen.tags))}", _storables(chosen.tags))
        )
    times, moments = _joined(_times(chosen, ""))
    return [*sources, (f"memories WHERE {times}", moments)] if moments else sources


def _joined(parts: list[Condition | None]) -> Condition:
    present = [part for part in parts if part is not None]
    return " AND ".join(part for part, _ in present) or "1", [value for _, values in present for value in values]


def _columns(chosen: MemoryFilter) -> list[Condition | None]:
    return [
        _any_of("memories.kind", chosen.kinds),
        _any_of("memories.source", chosen.sources),
        _any_of("memories.provenance", chosen.provenance),
        _equal("memories.session", chosen.session_id),
        _equal("memories.run", chosen.run_id),
        _equal("memories.channel", chosen.channel_id),
        _equal("memories.agent", chosen.agent_id),
        _compared("memories.quality >= ?", chosen.min_quality),
        *(_narrowing(chosen) if isinstance(chosen, Narrowed) else ()),
    ]


def _times(chosen: MemoryFilter, no_index: str) -> list[Condition | None]:
    return [
        _timed(f"{no_index}memories.timestamp >= ?", chosen.since, "since"),
        _timed(f"{no_index}memories.timestamp < ?", chosen.until, "until"),
    ]


def _timed(comparison: str, time: datetime | None, field: str) -> Condition | None:
    return None if time is None else (comparison, [microseconds(time, field)])


def _fields(chosen: MemoryFilter | None) -> dict[str, Any]:
    return {} if chosen is None else msgspec.structs.asdict(chosen)


def _narrowing(chosen: Narrowed) -> Iterator[Condition]:
    if chosen.spans:
        yield _in_one_of(chosen.spans)
    if chosen.unlike:
        told = json.dumps(chosen.unlike)
        yield "memories.fingerprint NOT IN (SELECT value FROM json_each(?))", [told]


def _in_one_of(spans: Iterable[tuple[datetime | None, datetime | None]]) -> Condition:
    """Return a condition that holds in any of the spans. There must be at least one."""
    conditions = []
    for since, until in spans:
        ends = (_timed("memories.timestamp >= ?", since, "since"), _timed("memories.timestamp < ?", until, "until"))
        conditions.append([end for end in ends if end is not None])
    either = " OR ".join(" AND ".join(["1", *(comparison for comparison, _ in ends)]) for ends in conditions)
    return f"({either})", [value for ends in conditions for _, values in ends for value in values]


def _compared(comparison: str, value: float | None) -> Condition | None:
    return None if value is None else (comparison, [value])


def _any_of(column: str, names: tuple[str, ...]) -> Condition | None:
    if not names:
        return None
    return f"{column} IN {_NAMED.format(places=_places(names))}", _storables(names)


def _equal(column: str, name: str | None) -> Condition | None:
    return None if name is None else (f"{column} = (SELECT id FROM names WHERE name = ?)", [_storable(name)])


def _tagged_rows(tags: tuple[str, ...]) -> Condition | None:
    """Return a condition that goes from the tags to the rows."""
    if not tags:
        return None
    named = _NAMED.format(places=_places(tags))
    return f"memories.row IN (SELECT row FROM tags WHERE name IN {named})", _storables(tags)


def _tagged_row(tags: tuple[str, ...]) -> Condition | None:
    """Return a condition that goes from a row to its tags."""
    if not tags:
        return None
    named = _NAMED.format(places=_places(tags))
    return f"EXISTS (SELECT 1 FROM tags WHERE tags.name IN {named} AND tags.row = memories.row)", _storables(tags)


def _places(names: tuple[str, ...]) -> str:
    return ", ".join("?" * len(names))


def _storables(names: tuple[str, ...]) -> list[object]:
    return [_storable(name) for name in names]


def _storable(name: str) -> str | None:
    """Return the name, or NULL, which matches nothing, for one that is not valid Unicode and so is never stored."""
    return None if any("\ud800" <= character <= "\udfff" for character in name) else name


Read = Callable[[str, list[object]], list[tuple[Any, ...]]]
"""Runs a statement with its parameters."""

_REACH = 5_000
"""Rows of an index that are counted at most (.1 ms); an index that leaves more does not narrow."""

_LEAST_SAMPLE, _MOST_SAMPLE = 256, 1_000
"""Bounds of the sample from which a share is estimated, one row in a hundred: .2 ms of 10,000 rows, 1.5 ms of 100,000,
where a share of .1 is right within .01 and a search takes 10 ms and more."""


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
    """Estimate how many of `total` memories pass, and how many rows an index leaves, None where none narrows.

    The second is counted and an upper bound of what passes; without it the first comes from a sample.
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
    """Return a condition, with a leading AND, that keeps only `rows` (n,) of a full-text table, n at least 1.

    The engine may use the span, but not the list (`+`): it would restart its search for each row.
    """
    return (
        f"AND {column} BETWEEN ? AND ? AND +{column} IN (SELECT value FROM json_each(?))",
        [int(rows.min()), int(rows.max()), _json(rows)],
    )


def _narrowed(read: Read, filter: MemoryFilter) -> int | None:
    """Return the fewest rows that one of the indexes leaves, None where none narrows."""
    counts = [_count(read, source, values) for source, values in indexed_sources(filter)]
    least = min(counts, default=_REACH)
    return least if least < _REACH else None


def _count(read: Read, source: str, values: list[object]) -> int:
    return int(read(f"SELECT count(*) FROM (SELECT 1 FROM {source} LIMIT ?)", [*values, _REACH])[0][0])


def _is_narrow_in_time(read: Read, filter: MemoryFilter) -> bool:
    """Whether to use the index on time: nothing else is asked for, or few rows lie in the range."""
    times = MemoryFilter(since=filter.since, until=filter.until)
    return times == filter or _narrowed(read, times) is not None


def _sample(last: int) -> Rows:
    """Return a stratified sample of the rows from 1 to `last`, the same one each time."""
    count = min(last, max(_LEAST_SAMPLE, min(last // 100, _MOST_SAMPLE)))
    if not count:
        return np.empty(0, dtype=np.int64)
    places = np.arange(count) + np.random.default_rng(count).random(count)
    return 1 + (places * last / count).astype(np.int64)


def _json(rows: Rows) -> str:
    return f"[{','.join(map(str, rows.tolist()))}]"


def _listed(found: list[tuple[Any, ...]]) -> Rows:
    return np.sort(np.fromstring(found[0][0] or "", dtype=np.int64, sep=","))
