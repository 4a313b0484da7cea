"""What a user's runs say of shared items: counts and sums for the store of these, and nothing else.

A report is stored before it is sent, and sent unchanged until it is answered, so that a crash neither loses it nor
counts it twice. It covers the recalls that showed items and the runs that ended since the last one: of a run, the items
that its events name and that its recalls showed, with the run's quality. Runs without a quality say nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import msgspec

from memory_agent.records.shared_requests import LARGEST_COUNT, LARGEST_REPORT, Report, ReportedItem
from memory_agent.storage.snapshot import Snapshot
from memory_agent.storage.stored_runs import ENDED, SHOWED_ITEMS, StoredTrajectory

Version = tuple[str, str]
"""The id of an item, and the name of a version."""


class Outbox(msgspec.Struct, frozen=True, array_like=True):
    """The reports that are not answered yet, and what is covered: until when, up to which number."""

    reports: tuple[Report, ...] = ()
    through_us: int = 0
    number: int = 0


MOST_AHEAD_US = 3_600_000_000
"""How much of the history upkeep may read again, rather than store that there was nothing to report; and how far what
is covered may be ahead of the clock."""
_BLOB = "shared:outbox"
_decoder = msgspec.msgpack.Decoder(Outbox)


def outbox_in(snapshot: Snapshot) -> Outbox:
    """Return the outbox of a store."""
    blob = snapshot.blob(_BLOB)
    return _decoder.decode(blob) if blob else Outbox()


def outbox_blob(outbox: Outbox) -> tuple[str, bytes]:
    """Return the name and the bytes under which an outbox is stored."""
    return _BLOB, msgspec.msgpack.encode(outbox)


def filled(snapshot: Snapshot, outbox: Outbox, until_us: int) -> Outbox:
    """Return the outbox with the reports of what happened since the last ones, until a time (exclusive).

    After a clock that was ahead for hours, what is covered ends at `until_us` again: else nothing would be reported
    until the clock is there once more; what was reported meanwhile may then count again. Less is no such jump, and what
    was covered stays so.
    """
    if not outbox.reports and outbox.through_us - until_us > MOST_AHEAD_US:
        return msgspec.structs.replace(outbox, through_us=until_us)
    if outbox.reports or until_us <= outbox.through_us or SHOWED_ITEMS not in snapshot.state.counters:
        return outbox  # nothing to read through in upkeep, for a user who was never shown an item
    said = sorted(_said(snapshot, outbox.through_us, until_us).items())
    items = [_reported(version, *counts) for version, counts in said]
    parts = [tuple(items[start : start + LARGEST_REPORT]) for start in range(0, len(items), LARGEST_REPORT)]
    reports = tuple(Report(number=outbox.number + place, items=part) for place, part in enumerate(parts, 1))
    return Outbox(reports, until_us, outbox.number + len(reports))


def _reported(version: Version, shown: int, uses: int, quality: float) -> ReportedItem:
    """Return what a report says of a version, at most as much as one may say."""
    told = min(uses, LARGEST_COUNT)
    mean = quality / uses if uses else 0.0
    return ReportedItem(
        item_id=version[0],
        version=version[1],
        retrievals=min(shown, LARGEST_COUNT),
        uses=told,
        quality=min(mean * told, float(told)),
    )


def _said(snapshot: Snapshot, since_us: int, until_us: int) -> dict[Version, tuple[int, int, float]]:
    """Return how often each version was shown and used, and the sum of the qualities of the runs that used it."""
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
    """Yield the versions that a run's recalls showed and its events name, each once."""
    named = {name for mark in run.marks for name in mark.others}
    if named:
        notes = [note for recall_id in run.recall_ids if (note := snapshot.recall_note(recall_id)) is not None]
        yield from {version: None for note in notes for version in note.items if version[0] in named}
