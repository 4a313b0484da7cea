"""The caller's own words: memories that a recall leaves out because its caller has them at hand.

A real system publishes a message and then recalls with it; nothing resembles a query like itself, and nothing answers
it less. Left out are, by the reason under which `RecallResult.excluded` counts them:

    event     the memory of the event that causes the recall
    run       what the calling run said
    session   what the calling session said in the last minutes (`recall.echo_minutes`)
    echo      a request of the last minutes that says what the query says, of the calling session or of none named

Echoes are left out even if the caller names neither event nor session, as most do. Only a memory made from an event
can be an echo, so a memory stored by hand is found by its own text. If the filter selects a run or session, its
memories stay and only the echo is left out. Older requests in the query's words are not echoes:
`duplicates.FormerRequests` folds them.

Shapes: m memories left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from memory_agent.recall.query import Query
from memory_agent.records.memories import SOURCES, MemoryFilter
from memory_agent.storage.columns import untitled_fingerprints
from memory_agent.storage.indexes import Mask, Slots
from memory_agent.storage.store import Store
from memory_agent.storage.view import View

IS_REQUEST = np.array([source in ("user_input", "conductor_plan") for source in SOURCES])
"""By place in `SOURCES`: whether memories from there may be requests."""


class OwnWords(NamedTuple):
    """The slots (m,) left out, and how many of them for which reason; each counts once, for the first that holds."""

    slots: Slots
    counts: dict[str, int]


def own_words(query: Query, view: View, store: Store, mask: Mask | None) -> OwnWords:
    """Return the caller's own words among the memories that pass `mask` (n,), the query's filter."""
    found, counts = np.empty(0, dtype=np.int64), {}
    for reason, slots in _reasons(query, view, store):
        if slots.size and (new := np.setdiff1d(slots if mask is None else slots[mask[slots]], found)).size:
            counts[reason] = new.size
            found = np.union1d(found, new)
    return OwnWords(found, counts)


def _reasons(query: Query, view: View, store: Store) -> Iterator[tuple[str, Slots]]:
    filter = query.filter or MemoryFilter()
    if query.by_event is not None and (row := store.row_of_event(query.by_event)) is not None:
        slots = view.slots([row])
        yield "event", slots[slots >= 0]
    if query.by_run is not None and query.by_run != filter.run_id:
        with store.snapshot() as snapshot:
            run = next(snapshot.runs_named(query.by_run), None)
        slots = view.of_run(query.by_run)  # of an id that was used again, those of the last run alone
        yield "run", slots if run is None else slots[view.times_us[slots] >= run.since_us]
    if query.present_us is None:
        return
    if query.by_session is not None and query.by_session != filter.session_id:
        yield "session", view.of_session(query.by_session, *query.present_us)
    yield "echo", _echoes(query, view, store, *query.present_us)


def _echoes(query: Query, view: View, store: Store, since_us: int, until_us: int) -> Slots:
    slots: Slots = np.concatenate(view.same(np.array(untitled_fingerprints(query.stored_text))))
    if not slots.size:
        return slots
    times_us = view.times_us[slots]
    slots = slots[(times_us >= since_us) & (times_us < until_us) & IS_REQUEST[view.sources[slots]]]
    if not slots.size:
        return slots
    sessions = (None, query.by_session)
    is_echo = [
        record is not None
        and record.event_id is not None
        and (query.by_session is None or record.session_id in sessions)
        for record in store.records(view.rows[slots].tolist())
    ]
    echoes: Slots = slots[np.array(is_echo)]
    return echoes
