"""Memories out of one store as JSON lines, and into another one.

Export reads a snapshot of the files and may go on beside a daemon. Import looks at every line before it takes one, and
takes all in one transaction: a line that is wrong, a full disk or a kill leave the store as it was. What is there
already, by id or by event, stays as it is, so to import twice is to import once. Vectors of another embedder than the
store's are left out, and made anew when a model is at hand.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import msgspec

from memory_agent.care.lines import FORMAT, LONGEST_LINE_BYTES, Head, decode_head, decode_line, encode_line
from memory_agent.config import StoreSettings
from memory_agent.errors import InvalidInputError
from memory_agent.records import MemoryRecord
from memory_agent.storage.archive import Archive
from memory_agent.storage.batch import Batch
from memory_agent.storage.codec import row_key, row_number, vector_body
from memory_agent.storage.environment import open_records
from memory_agent.storage.snapshot import EVENTS, VECTORS, Snapshot
from memory_agent.storage.user_key import UserKey
from relay.disk import Report, Transaction

_STEP = 1_000
_MOST_NAMED = 5  # lines that are wrong

Arrival = tuple[MemoryRecord | None, bytes | None, list[bytes]]


class Imported(msgspec.Struct, frozen=True, kw_only=True):
    """How many memories were taken, and how many were there already. `without_vector`: of those that were taken."""

    taken: int
    known: int
    without_vector: int


def export_lines(
    folder: Path, user_id: str, settings: StoreSettings, report: Report, key: UserKey | None = None
) -> Iterator[bytes]:
    """Go over the lines of a user's memories, without line ends: in plain words, whatever the `key` they are under.

    Raises `StoreError`, `StoreDamagedError`.
    """
    environment = open_records(folder, settings, key)
    try:
        with environment.read() as transaction:
            yield from _lines_of(transaction, user_id, report)
    finally:
        environment.close()


def check_head(file: BinaryIO) -> None:
    """Look whether a file is an export at all, before anything is made for it. Raises `InvalidInputError`."""
    decode_head(next(_numbered(file), (1, b""))[1])


def import_lines(file: BinaryIO, archive: Archive, report: Report) -> Imported:
    """Take the memories of a file, which can be read from its beginning again. Durable on return.

    Raises `InvalidInputError` naming the lines that are wrong, `StoreError`; nothing was taken then.
    """
    head = _checked(file, report)
    with archive.batch() as batch:
        return _take(batch, head, _arrivals(file, head), report)


def _lines_of(transaction: Transaction, user_id: str, report: Report) -> Iterator[bytes]:
    snapshot = Snapshot(transaction)
    state, total = snapshot.state, snapshot.counts()[0]
    events: defaultdict[int, list[bytes]] = defaultdict(list)
    for key, value in transaction.scan(EVENTS):
        events[row_number(value)].append(key)
    yield msgspec.json.encode(
        Head(memory_agent_export=FORMAT, user_id=user_id, stamp=state.stamp, ndim=state.ndim, memories=total)
    )
    for done, (row, record) in enumerate(snapshot.scan()):
        if done % _STEP == 0:
            report("memories", done, total)
        kept = transaction.get(VECTORS, row_key(row))
        vector = None if kept is None else vector_body(row, kept, state.ndim or 0)
        yield encode_line(record, vector, events.pop(row, []))
    report("memories", total, total)
    for row in sorted(events):
        yield encode_line(None, None, events[row])


def _numbered(file: BinaryIO) -> Iterator[tuple[int, bytes]]:
    file.seek(0)
    number = 0
    while data := file.readline(LONGEST_LINE_BYTES + 1):
        number += 1
        if len(data) > LONGEST_LINE_BYTES:
            raise InvalidInputError(f"line {number}", f"is longer than {LONGEST_LINE_BYTES} bytes")
        yield number, data


def _checked(file: BinaryIO, report: Report) -> Head:
    """Look at every line; return the first."""
    lines = _numbered(file)
    head = decode_head(next(lines, (1, b""))[1])
    faults: list[str] = []
    ids: dict[str, int] = {}
    for number, data in lines:
        if number % _STEP == 0:
            report("checked", number, head.memories)
        try:
            record = decode_line(number, data, head.ndim)[0]
            if record is not None and ids.setdefault(record.id, number) != number:
                raise InvalidInputError(f"line {number}", f"has the id of line {ids[record.id]}")
        except InvalidInputError as error:
            faults.append(str(error))
    if faults:
        more = f"; and {len(faults) - _MOST_NAMED} more" if len(faults) > _MOST_NAMED else ""
        raise InvalidInputError("file", f"nothing was taken: {'; '.join(faults[:_MOST_NAMED])}{more}")
    if len(ids) != head.memories:
        raise InvalidInputError("file", f"nothing was taken: it holds {len(ids)} of {head.memories} memories")
    return head


def _arrivals(file: BinaryIO, head: Head) -> Iterator[Arrival]:
    for number, data in _numbered(file):
        if number > 1:
            yield decode_line(number, data, head.ndim)


def _take(batch: Batch, head: Head, arrivals: Iterator[Arrival], report: Report) -> Imported:
    if batch.state.stamp is None and head.stamp is not None:
        batch.set_stamp(head.stamp)
        batch.state.ndim = head.ndim  # also where no memory has a vector any more
    fits = batch.state.stamp == head.stamp and batch.state.ndim in (None, head.ndim)
    taken = known = without_vector = 0
    for done, (record, vector, events) in enumerate(arrivals):
        if done % _STEP == 0:
            report("taken", done, head.memories)
        row = batch.allot_row() if record is None and _is_news(batch, events) else None
        if record is not None and (batch.row_of_id(record.id) or _row_of_event(batch, record)):
            known += 1
        elif record is not None:
            row = batch.put_stored(record, vector if fits else None)
            taken += 1
            without_vector += not fits or vector is None
        if row is not None:
            batch.link_keys(events, row)
    report("taken", head.memories, head.memories)
    return Imported(taken=taken, known=known, without_vector=without_vector)


def _row_of_event(batch: Batch, record: MemoryRecord) -> int | None:
    return None if record.event_id is None else batch.row_of_event(record.event_id)


def _is_news(batch: Batch, events: list[bytes]) -> bool:
    return any(not batch.knows_event(key) for key in events)
