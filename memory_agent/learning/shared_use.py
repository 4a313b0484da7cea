"""Reports how a user's runs used shared items, only as counts and sums of qualities.

A report is stored before it is sent, and resent unchanged until it is acknowledged, so that a crash neither loses it
nor counts it twice. It covers the recalls that showed items and the runs that ended since the previous report. A run
with a known quality counts towards each item that was shown by one of its recalls and is named in one of its events.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import msgspec

from memory_agent.records.shared_requests import LARGEST_COUNT, LARGEST_REPORT, Report, ReportedItem
from memory_agent.storage.snapshot import Snapshot
from memory_agent.storage.stored_runs import ENDED, SHOWED_ITEMS, StoredTrajectory
from relay import described

Version = tuple[str, str]  # the id of an item, and the name of a version


class Outbox(msgspec.Struct, frozen=True, array_like=True):
    """Unacknowledged reports, the end of the period covered, and the number of the latest report."""

    reports: tuple[Report, ...] = ()
    through_us: int = 0
    number: int = 0


MOST_AHEAD_US = 3_600_000_000
"""How far the covered period may extend beyond the current time, and the longest period that upkeep rereads."""
_BLOB = "shared:outbox"
_decoder = msgspec.msgpack.Decoder(described(Outbox))


def outbox_in(snapshot: Snapshot) -> Outbox:
    blob = snapshot.blob(_BLOB)
    return _decoder.decode(blob) if blob else Outbox()


def outbox_blob(outbox: Outbox) -> tuple[str, bytes]:
    return _BLOB, msgspec.msgpack.encode(outbox)


def filled(snapshot: Snapshot, outbox: Outbox, until_us: int) -> Outbox:
    """Return the outbox with new reports for the period from its `through_us` until `until_us` (exclusive).

    If the clock was ahead by more than an hour and was set back, `through_us` is set back to `until_us`. Otherwise,
    nothing would be reported until the clock caught up. Uses that were already reported may then count twice.
    """
    if not outbox.reports and outbox.through_us - until_us > MOST_AHEAD_US:
        return msgspec.structs.replace(outbox, through_us=until_us)
    if outbox.reports or until_us <= outbox.through_us or SHOWED_ITEMS not in snapshot.state.counters:
        return outbox  # no recall has shown items, so there is no history to read
    counted = sorted(_counted(snapshot, outbox.through_us, until_us).items())
    items = [_reported(version, *counts) for version, counts in counted]
    parts = [tuple(items[start : start + LARGEST_REPORT]) for start in range(0, len(items), LARGEST_REPORT)]
    reports = tuple(Report(number=outbox.number + place, items=part) for place, part in enumerate(parts, 1))
    return Outbox(reports, until_us, outbox.number + len(reports))


def _reported(version: Version, shown: int, uses: int, quality: float) -> ReportedItem:
    reported = min(uses, LARGEST_COUNT)
    mean = quality / uses if uses else 0.0
    return ReportedItem(
        item_id=version[0],
        version=version[1],
        retrievals=min(shown, LARGEST_COUNT),
        uses=reported,
        quality=min(mean * reported, float(reported)),
    )


def _counted(snapshot: Snapshot, since_us: int, until_us: int) -> dict[Version, tuple[int, int, float]]:
    found: defaultdict[Version, tuple[int, int, float]] = defaultdict(lambda: (0, 0, 0.0))
    for note in snapshot.notes_between(since_us, until_us - 1):
        for version in note.items:
            shown, uses, quality = found[version]
            found[version] = shown + 1, uses, quality
    for key in snapshot.run_keys(ENDED, since_us, until_us):
        run = snapshot.run_of_key(key)
        if run is None or run.quality is None:
            continue
        for version in _used_by(snapshot, run):
            shown, uses, quality = found[version]
            found[version] = shown, uses + 1, quality + run.quality
    return found


def _used_by(snapshot: Snapshot, run: StoredTrajectory) -> Iterator[Version]:
    """Yield the distinct versions that were shown by the run's recalls and are named in its events."""
    named = {name for mark in run.marks for name in mark.others}
    if named:
        notes = [note for recall_id in run.recall_ids if (note := snapshot.recall_note(recall_id)) is not None]
        yield from {version: None for note in notes for version in note.items if version[0] in named}
