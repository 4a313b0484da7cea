"""The figures of one user's memory, from the store's counters and the lexicon's columns. Reads no record."""

from __future__ import annotations

from collections.abc import Mapping

from memory_agent.records import MemoryStats
from memory_agent.storage.archive import Archive

_DROPPED = "dropped."
_DROPPED_TYPES = "dropped_type."
_EXPIRED = "expired."
_MASKED = "masked."


def make_stats(user_id: str, archive: Archive) -> MemoryStats:
    """Return the figures as of now. Raises `StoreError`, and `IndexDamagedError` when the lexicon needs mending."""
    store, lexicon = archive.store, archive.lexicon
    counters = store.counters()
    oldest, newest = lexicon.time_span()
    return MemoryStats(
        user_id=user_id,
        memories=store.count,
        by_kind=lexicon.count_by("kind"),
        by_source=lexicon.count_by("source"),
        without_vector=store.pending_count,
        events_kept=counters.get("kept", 0),
        events_duplicate=counters.get("duplicates", 0),
        events_dropped=_below(_DROPPED, counters),
        cursor=store.cursor,
        oldest=oldest,
        newest=newest,
        model=store.stamp,
        index="approximate" if archive.index.is_approximate else "exact",
        disk_bytes=store.disk_bytes,
        masked=_below(_MASKED, counters),
        expired=_below(_EXPIRED, counters),
        dropped_types=_below(_DROPPED_TYPES, counters),
    )


def _below(prefix: str, counters: Mapping[str, int]) -> dict[str, int]:
    found = ((counter, number) for counter, number in sorted(counters.items()) if counter.startswith(prefix))
    return {counter.removeprefix(prefix): number for counter, number in found}
