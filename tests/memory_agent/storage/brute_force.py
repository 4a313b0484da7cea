"""The expected answers of a view, computed by brute force from the records."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

import numpy as np
from samples import NOW, WORD_BYTES, tables

from memory_agent.records.embedded import Embedding
from memory_agent.records.memories import Exclusion, MemoryFilter, MemoryRecord
from memory_agent.records.metadata import numbers_of
from memory_agent.storage.changes import Change, Changes, Words
from memory_agent.storage.columns import Columns, record_fingerprint
from memory_agent.storage.postings import Postings
from memory_agent.storage.terms import asks
from memory_agent.storage.view import View

REACH = 2

Records = Mapping[int, MemoryRecord]
Vectors = Mapping[int, Embedding]
"""For each row, one vector (d,) or the vectors of all passages (p, d)."""
KnownWords = Mapping[int, Words]


def passes(record: MemoryRecord, chosen: MemoryFilter) -> bool:
    """Whether a memory passes the filter, ignoring `min_score`."""
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
        and (chosen.exclude is None or not _is_excluded(record, chosen.exclude))
    )


def _is_excluded(record: MemoryRecord, exclude: Exclusion) -> bool:
    return (
        record.id in exclude.records
        or record.session_id in exclude.sessions
        or record.run_id in exclude.runs
        or (exclude.since is not None and record.timestamp >= exclude.since)
    )


def _has(metadata: dict[str, Any], path: str, values: Any) -> bool:
    """Whether one of the values is at the path. Keys may contain dots, so every interpretation of the path is tried."""
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
    """Whether two values are equal as JSON."""
    return held == wanted and isinstance(held, bool) == isinstance(wanted, bool)


def assert_holds(view: View, records: Records, vectors: Vectors) -> None:
    """Check the rows, counts, times, fingerprints and sessions of a view."""
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
    alike = defaultdict(list)
    for row in rows:
        alike[fingerprints[row]].append(row)
    assert [sorted(view.rows[same].tolist()) for same in view.same(view.fingerprints[slots])] == [
        alike[fingerprints[row]] for row in rows
    ]
    assert view.asks[slots].tolist() == [asks(records[row].text) for row in rows]
    assert view.metadata_of(slots) == [numbers_of(records[row].metadata) for row in rows]
    windows = list(_windows(records))
    found = view.windows(slots, REACH)
    assert np.where(found < 0, -1, view.rows[found]).tolist() == windows if rows else not len(found)


def assert_filters(view: View, records: Records, chosen: MemoryFilter) -> None:
    """Check the mask of a filter, and `within` with time ranges."""
    named = () if chosen.exclude is None else chosen.exclude.records
    mask = view.mask(chosen, [row for row, record in records.items() if record.id in named])
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
    """Check cosines against the vectors. Check words against newly built columns, which contain no deleted words."""
    rows = sorted(records)
    slots = view.slots(rows)
    assert_passages(view, vectors, query)
    fresh = built(records, vectors).view
    scores, expected = view.words.scores(words), fresh.words.scores(words)
    assert np.allclose(scores[slots], expected[fresh.slots(rows)], rtol=1e-5)
    assert not scores[~view.alive].any()
    assert view.words.having(words) == fresh.words.having(words)
    hits = [[word in records[row].text.split() for row in rows] for word in words]
    assert view.words.hits(words, slots).tolist() == hits


def assert_passages(view: View, vectors: Vectors, query: Embedding) -> None:
    """Check that every search uses each memory's best passage, and that `best_passages` returns it."""
    every = np.flatnonzero(view.alive)
    exact = np.full(view.count, np.nan)
    places = view.vectors.best_passages(query, every)[1].tolist()
    for row, slot, place in zip(view.rows[every].tolist(), every.tolist(), places, strict=True):
        if row in vectors:
            products = np.atleast_2d(vectors[row]) @ query
            exact[slot] = products.max()
            assert products[place] >= exact[slot] - 1e-3
    for slots in (every, every[::-2]):
        assert np.allclose(view.vectors.cosines(query, slots), exact[slots], atol=1e-3, equal_nan=True)
    first = [np.atleast_2d(vectors[row])[0] if row in vectors else 0 * query for row in view.rows[every].tolist()]
    if vectors:
        assert np.allclose(view.vectors.vectors(every), first, atol=1e-3)
    some = np.zeros(view.count, dtype=np.bool_)
    some[every[::3]] = True
    for mask in (None, some, np.ones(view.count, dtype=np.bool_)):
        found = view.vectors.scan(query, 100, mask)
        expected = exact if mask is None else np.where(mask, exact, np.nan)
        assert np.array_equal(np.isnan(found.values), np.isnan(expected))
        assert not (np.abs(found.values - expected) > found.error + 1e-3).any()


def assert_words(view: View, words: KnownWords) -> None:
    """Check the word bits of a view, for all slots and for a subset of the slots."""
    slots = np.flatnonzero(view.alive)
    rows = view.rows[slots].tolist()
    assert view.word_bits.count == len(words)
    assert view.word_bits.known[slots].tolist() == [row in words for row in rows]
    nothing = Words(np.zeros((0, WORD_BYTES), dtype=np.uint8), 0)
    expected = [words.get(row, nothing) for row in rows]
    assert view.word_bits.lengths[slots].tolist() == [one.length for one in expected]
    for some, wanted in ((slots, expected), (slots[::-2], expected[::-2])):
        bits, counts = view.word_bits.of(some)
        assert counts.tolist() == [len(one.bits) for one in wanted]
        assert bits.tobytes() == b"".join(one.bits.tobytes() for one in wanted)
        assert len(bits) == counts.sum()


def built(records: Records, vectors: Vectors, applied: int = 1) -> Columns:
    """Return new columns built from these memories."""
    columns = Columns(tables(), Postings())
    passages = {row: np.atleast_2d(vector) for row, vector in vectors.items()}
    puts = (
        Change(row, "put", record, None, True)
        if row not in passages
        else Change(row, "put", record, passages[row][0], True, passages[row][1:])
        for row, record in sorted(records.items())
    )
    columns.apply(Changes(0, applied, puts))
    return columns


def _windows(records: Records) -> Iterator[list[int]]:
    """Yield the neighbours of each row, in row order."""
    sessions: dict[object, list[tuple[datetime, int]]] = defaultdict(list)
    for row, record in records.items():
        sessions[row if record.session_id is None else record.session_id].append((record.timestamp, row))
    for row, record in sorted(records.items()):
        order = [r for _, r in sorted(sessions[row if record.session_id is None else record.session_id])]
        padded = [-1] * REACH + order + [-1] * REACH
        place = order.index(row)
        yield padded[place : place + 2 * REACH + 1]
