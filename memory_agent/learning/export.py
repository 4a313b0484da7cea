"""Exports runs and recalls to a framed file from which another store can learn.

An export refers to memories by id and contains no text. It contains query vectors, from which words can be recovered,
so it is as sensitive as the memories. An import omits the uses of memories that do not exist in the importing store.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from hashlib import blake2b

import msgspec

from memory_agent.errors import InvalidInputError
from memory_agent.storage.batch import Batch
from memory_agent.storage.snapshot import Snapshot
from memory_agent.storage.stored_runs import Mark, RecallNote, StoredTrajectory, trajectory_key
from relay import described
from sona import MOST_BOOST

_MAGIC = b"memory-agent runs 1\n"
_DIGEST_BYTES = 16
_FAR_US = 1 << 60  # microseconds: 36,000 years


class RunsExport(msgspec.Struct, frozen=True, array_like=True):
    ids: dict[int, str]
    runs: list[StoredTrajectory]
    notes: list[RecallNote]


def export_runs(snapshot: Snapshot) -> bytes:
    runs = list(snapshot.trajectories())
    notes = [note for run in runs for id_ in run.recall_ids if (note := snapshot.recall_note(id_)) is not None]
    rows = {row for run in runs for row in _rows_of_run(run)} | {row for note in notes for row in note.said_rows}
    ids = {row: record.id for row in sorted(rows) if (record := snapshot.record(row)) is not None}
    return framed(RunsExport(ids, runs, notes))


def framed(export: RunsExport) -> bytes:
    """Return an export as bytes: magic number, checksum, MessagePack body."""
    body = msgspec.msgpack.encode(export)
    return _MAGIC + _digest(body) + body


def read_export(data: bytes) -> RunsExport:
    """Decode an export. Raises `InvalidInputError` if it is damaged or not an export."""
    start = len(_MAGIC) + _DIGEST_BYTES
    body = data[start:]
    if data[: len(_MAGIC)] != _MAGIC:
        raise InvalidInputError("data", "is not a learner export, or has an unsupported version")
    if _digest(body) != data[len(_MAGIC) : start]:
        raise InvalidInputError("data", "does not match its checksum: it is damaged or truncated")
    try:
        export = msgspec.msgpack.decode(body, type=described(RunsExport))
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise InvalidInputError("data", f"is not a learner export: {error}") from error
    if not all(map(_is_sound_run, export.runs)) or not all(map(_is_sound_note, export.notes)):
        raise InvalidInputError("data", "contains invalid values in a run or recall")
    return export


def _is_sound_run(run: StoredTrajectory) -> bool:
    times = (run.began_us, run.ended_us, *(mark.at_us for mark in run.marks), *(one.at_us for one in run.revisions))
    shares = (*(one.quality for one in run.revisions), *(use.credit for use in run.used))
    return all(us is None or abs(us) < _FAR_US for us in times) and all(0.0 <= share <= 1.0 for share in shares)


def _is_sound_note(note: RecallNote) -> bool:
    are_ranks = all(rank > 0 for rank in note.ranks) and all(0 <= one.place < len(note.ranks) for one in note.shown)
    are_boosts = len(note.boosts) in (0, len(note.ranks)) and all(0 <= boost <= MOST_BOOST for boost in note.boosts)
    return abs(note.at_us) < _FAR_US and len(note.vector) % 2 == 0 and (not note.ranks or are_ranks) and are_boosts


def import_runs(batch: Batch, data: bytes) -> int:
    """Add the runs that this store lacks; return their number. Raises `InvalidInputError` before any write."""
    export = read_export(data)
    rows = {row: here for row, id_ in export.ids.items() if (here := batch.row_of_id(id_)) is not None}
    # A forgotten run is not restored.
    new = [run for run in export.runs if batch.run_of_key(trajectory_key(run.id)) is None]
    of_new = {id_ for run in new for id_ in run.recall_ids}
    for note in export.notes:
        if note.recall_id in of_new and batch.recall_note(note.recall_id) is None:
            batch.put_note(_note_here(note, rows))
    used: set[int] = set()
    for run in new:
        used |= {use.row for use in batch.put_trajectory(_run_here(run, rows)).used}
    for row in sorted(used):
        qualities = [use.quality for use in batch.uses(row) if use.quality is not None]
        batch.set_utility(row, len(qualities), sum(qualities))
    return len(new)


def _rows_of_run(run: StoredTrajectory) -> Iterable[int]:
    for mark in run.marks:
        yield from (*mark.named, *(() if mark.row is None else (mark.row,)))
    yield from (row for row, _ in run.inferred)
    yield from (use.row for use in run.used)


def _run_here(run: StoredTrajectory, rows: Mapping[int, int]) -> StoredTrajectory:
    used = [msgspec.structs.replace(use, row=rows[use.row]) for use in run.used if use.row in rows]
    here = msgspec.structs.replace(
        run,
        number=None,
        marks=tuple(_mark_here(mark, rows) for mark in run.marks),
        inferred=tuple((rows[row], recall_id) for row, recall_id in run.inferred if row in rows),
        used=tuple(sorted(used, key=lambda use: use.row)),
        begin_row=None if run.begin_row is None else rows.get(run.begin_row),
        former_signs=(),
        was_watched=False,
    )
    return here if run.read != run.output else msgspec.structs.replace(here, read=here.output)


def _mark_here(mark: Mark, rows: Mapping[int, int]) -> Mark:
    return msgspec.structs.replace(
        mark,
        row=None if mark.row is None else rows.get(mark.row),
        named=tuple(rows[row] for row in mark.named if row in rows),
    )


def _note_here(note: RecallNote, rows: Mapping[int, int]) -> RecallNote:
    shown = (
        msgspec.structs.replace(one, row=rows[one.row], others=tuple(rows[row] for row in one.others if row in rows))
        for one in note.shown
        if one.row in rows
    )
    return msgspec.structs.replace(note, shown=tuple(shown))


def _digest(body: bytes) -> bytes:
    return blake2b(body, digest_size=_DIGEST_BYTES).digest()
