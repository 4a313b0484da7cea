"""What a view must answer, computed from the records one by one."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

import numpy as np
from samples import NOW, exact_ranking

from memory_agent.metadata import numbers_of
from memory_agent.records import Embedding, MemoryFilter, MemoryRecord
from memory_agent.storage.changes import Change, Changes
from memory_agent.storage.columns import Columns, View, record_fingerprint
from memory_agent.storage.postings import Postings
from memory_agent.storage.vector_table import VectorTable

REACH = 2

Records = Mapping[int, MemoryRecord]
Vectors = Mapping[int, Embedding]


def passes(record: MemoryRecord, chosen: MemoryFilter) -> bool:
    """Whether a memory passes the filter, its `min_score` aside."""
    named = ((record.session_id, chosen.session_id), (record.run_id, chosen.run_id))
    named += ((record.channel_id, chosen.channel_id), (record.agent_id, chosen.agent_id))
    named += ((record.type, chosen.type), (record.phase, chosen.phase))
    return (
        (not chosen.kinds or record.kind in chosen.kinds)
        and (not chosen.sources or record.source in chosen.sources)
        and (not chosen.provenance or record.provenance in chosen.provenance)
        and (not chosen.tags or bool(set(chosen.tags) & set(record.tags)))
        and (chosen.since is None or record.timestamp >= chosen.since)
        and (chosen.until is None or record.timestamp < chosen.until)
        and all(wanted is None or name == wanted for name, wanted in named)
        and (
            chosen.min_quality is None
            or (record.quality_score is not None and record.quality_score >= chosen.min_quality)
        )
        and all(_has(record.metadata, path, values) for path, values in chosen.metadata.items())
    )


def _has(metadata: dict[str, Any], path: str, values: Any) -> bool:
    """Whether one of the values is at the path, found by following every way to read it."""
    wanted = values if isinstance(values, tuple) else (values,)
    return any(_same(held, one) for held in _at(metadata, path) for one in wanted)


def _at(value: Any, path: str | None) -> Iterator[Any]:
    if isinstance(value, list):
        for element in value:
            yield from _at(element, path)
    elif isinstance(value, dict) and path is not None:
        for key, below in value.items():
            if path == key:
                yield from _at(below, None)
            elif path.startswith(f"{key}."):
                yield from _at(below, path.removeprefix(f"{key}."))
    elif not isinstance(value, dict) and path is None:
        yield value


def _same(held: object, wanted: object) -> bool:
    """Equal as values of JSON."""
    return held == wanted and isinstance(held, bool) == isinstance(wanted, bool)


def assert_holds(view: View, records: Records, vectors: Vectors) -> None:
    """Check rows, counts, times, fingerprints and sessions of a view."""
    rows = sorted(records)
    slots = view.slots(rows)
    assert (slots >= 0).all()
    assert view.rows[slots].tolist() == rows
    assert np.array_equal(np.sort(slots), np.flatnonzero(view.alive))
    assert (view.live, view.vectors.count) == (len(records), len(vectors))
    assert view.slots([-1, 0, max(rows, default=0) + 1]).tolist() == [-1, -1, -1]
    assert view.slots([row for row in range(1, max(rows, default=0)) if row not in records]).max(initial=-1) == -1
    assert view.count_by("kind") == Counter(record.kind for record in records.values())
    assert view.count_by("source") == Counter(record.source for record in records.values())
    times = [record.timestamp for record in records.values()]
    assert view.time_span() == ((min(times), max(times)) if times else (None, None))
    fingerprints = {row: record_fingerprint(record) for row, record in records.items()}
    assert view.fingerprints[slots].tolist() == [fingerprints[row] for row in rows]
    for fingerprint in set(fingerprints.values()):
        alike = [row for row in rows if fingerprints[row] == fingerprint]
        assert sorted(view.rows[view.same(fingerprint)].tolist()) == alike
    assert view.metadata_of(slots) == [numbers_of(records[row].metadata) for row in rows]
    windows = list(_windows(records))
    found = view.windows(slots, REACH)
    assert np.where(found < 0, -1, view.rows[found]).tolist() == windows if rows else not len(found)


def assert_filters(view: View, records: Records, chosen: MemoryFilter) -> None:
    """Check the mask of a filter, and the time ranges of `within`."""
    mask = view.mask(chosen)
    passing = sorted(row for row, record in records.items() if passes(record, chosen))
    if mask is None:
        assert passing == sorted(records)
    else:
        assert sorted(view.rows[mask].tolist()) == passing
    spans = [(chosen.since, chosen.until), (NOW, NOW)]
    ranges = [MemoryFilter(since=since, until=until) for since, until in spans]
    within = sorted(row for row, record in records.items() if any(passes(record, one) for one in ranges))
    assert sorted(view.rows[view.within(spans)].tolist()) == within


def assert_searches(view: View, records: Records, vectors: Vectors, query: Embedding, words: list[str]) -> None:
    """Check cosines against the vectors, and words against columns built from nothing: leftovers would show."""
    rows = sorted(records)
    slots = view.slots(rows)
    exact = [float(vectors[row] @ query) if row in vectors else np.nan for row in rows]
    assert np.allclose(view.vectors.cosines(query, slots), exact, atol=1e-3, equal_nan=True)
    seen = np.flatnonzero(~np.isnan(view.vectors.scan(query, 100).values))
    assert sorted(view.rows[seen].tolist()) == sorted(exact_ranking(dict(vectors), query))
    fresh = built(records, vectors).view
    scores, expected = view.words.scores(words), fresh.words.scores(words)
    assert np.allclose(scores[slots], expected[fresh.slots(rows)], rtol=1e-5)
    assert not scores[~view.alive].any()
    assert view.words.having(words) == fresh.words.having(words)
    hits = [[word in records[row].text.split() for row in rows] for word in words]
    assert view.words.hits(words, slots).tolist() == hits


def built(records: Records, vectors: Vectors, applied: int = 1) -> Columns:
    """Return columns built from nothing."""
    columns = Columns(VectorTable(), Postings())
    puts = (Change(row, "put", record, vectors.get(row), True) for row, record in sorted(records.items()))
    columns.apply(Changes(0, applied, puts))
    return columns


def _windows(records: Records) -> Iterator[list[int]]:
    """Yield the neighbours of each row, in order of rows."""
    sessions: dict[object, list[tuple[datetime, int]]] = defaultdict(list)
    for row, record in records.items():
        sessions[row if record.session_id is None else record.session_id].append((record.timestamp, row))
    for row, record in sorted(records.items()):
        order = [r for _, r in sorted(sessions[row if record.session_id is None else record.session_id])]
        padded = [-1] * REACH + order + [-1] * REACH
        place = order.index(row)
        yield padded[place : place + 2 * REACH + 1]
