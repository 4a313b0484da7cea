"""Computes the map of one user's memories, and keeps the positions until the memories change.

Vectors are read from the store, so the map is the same for every index. Positions are recomputed from the former ones
once more than one in a hundred memories has changed. Titles are read again for each map, so that no text of a forgotten
memory is kept.
"""

from __future__ import annotations

import threading
from datetime import datetime
from math import isnan
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from memory_agent.memory.listing import beginning
from memory_agent.memory.projection import Floats, arrange, explained
from memory_agent.records.arguments import MOST_POINTS, check_whole
from memory_agent.records.memories import Kind, MemoryMap, MemoryRecord
from memory_agent.storage.archive import Archive
from memory_agent.storage.changes import Rows
from memory_agent.storage.view import View

_CHANGED_SHARE = 100
_MOST_TITLE_CHARS = 80
_DIGITS = 4
_SPREAD = np.uint64(0x9E3779B97F4A7C15)  # multiplying by it spreads consecutive numbers (Knuth 1973, 6.4)


class _Positions(NamedTuple):
    """The positions (n, 2) of memories, their rows (n,), and the state from which they were computed."""

    limit: int
    stamp: str
    applied: int
    rows: Rows
    places: Floats
    explained: float

    def are_current(self, view: View, limit: int) -> bool:
        is_little = abs(view.applied - self.applied) * _CHANGED_SHARE <= view.live
        return is_little and self.are_usable(view, limit)

    def are_usable(self, view: View, limit: int) -> bool:
        """Whether the positions were computed with the view's model, for at least `limit` memories."""
        return self.limit >= limit and self.stamp == view.stamp


class Maps:
    """The maps of one user's memories. Thread-safe."""

    def __init__(self, archive: Archive) -> None:
        self._archive = archive
        self._computing = threading.Lock()
        self._positions: _Positions | None = None

    def map(self, limit: int) -> MemoryMap:
        check_whole("limit", limit, MOST_POINTS)
        view = self._archive.settled_view()
        return self._drawn(view, self._current(view, limit), limit)

    def _current(self, view: View, limit: int) -> _Positions:
        """Return positions for the view, or the former ones while another call computes them."""
        found = self._positions
        if found is None or not found.are_current(view, limit):
            is_usable = found is not None and found.are_usable(view, limit)
            if self._computing.acquire(blocking=not is_usable):
                try:
                    found = self._positions
                    if found is None or not found.are_current(view, limit):
                        found = self._positions = self._computed(view, limit, found)
                finally:
                    self._computing.release()
        assert found is not None
        return found

    def _computed(self, view: View, limit: int, former: _Positions | None) -> _Positions:
        """Compute positions that are close to the previous ones if the model is the same."""
        rows = _sample(view.rows[view.alive], limit)
        vectors = self._archive.store.vectors(rows)
        has_vector = vectors.any(axis=1)
        rows, vectors = rows[has_vector], vectors[has_vector]
        known = np.full((len(rows), 2), np.nan, dtype=np.float32)
        if former is not None and former.stamp == view.stamp:
            _, here, there = np.intersect1d(rows, former.rows, return_indices=True)
            known[here] = former.places[there]
        places = arrange(vectors, known)
        return _Positions(limit, view.stamp, view.applied, rows, places, explained(vectors, places))

    def _drawn(self, view: View, positions: _Positions, limit: int) -> MemoryMap:
        """Return at most `limit` of the memories in `positions` that still exist, each with its position."""
        slots = view.slots(positions.rows)
        exists = np.flatnonzero(slots >= 0)
        rows = positions.rows[exists]
        exists = exists[np.isin(rows, _sample(rows, limit))]
        qualities = view.qualities_with_runs(slots[exists])
        with self._archive.store.snapshot() as snapshot:
            facts = [_facts(snapshot.record(row)) for row in positions.rows[exists].tolist()]
        shown = np.array([fact is not None for fact in facts], dtype=np.bool_)
        columns = zip(*filter(None, facts), strict=True)
        ids, kinds, session_ids, timestamps, titles = columns if shown.any() else ((), (), (), (), ())
        x, y = _scaled(positions.places)[exists][shown].T.tolist()
        return MemoryMap(
            ids=ids,
            x=tuple(x),
            y=tuple(y),
            kinds=kinds,
            session_ids=session_ids,
            qualities=tuple(None if isnan(quality) else quality for quality in qualities[shown].tolist()),
            timestamps=timestamps,
            titles=titles,
            total=view.live,
            explained=positions.explained,
            model=view.stamp or None,
        )


def _facts(record: MemoryRecord | None) -> tuple[str, Kind, str | None, datetime, str] | None:
    if record is None:  # it has been forgotten since the view was made
        return None
    title = beginning(record.title or record.text, _MOST_TITLE_CHARS)
    return record.id, record.kind, record.session_id, record.timestamp, title


def _sample(rows: Rows, limit: int) -> Rows:
    """Return at most `limit` rows, ascending: a pseudorandom sample that changes little as memories are added."""
    if len(rows) > limit:
        rows = rows[np.argpartition(rows.astype(np.uint64) * _SPREAD, limit - 1)[:limit]]
    return np.sort(rows)


def _scaled(places: Floats) -> npt.NDArray[np.float64]:
    if not len(places):
        return np.zeros((0, 2))
    centred = places.astype(np.float64) - places.mean(axis=0)
    scaled: npt.NDArray[np.float64] = np.round(centred / (np.abs(centred).max() or 1.0), _DIGITS)
    return scaled
