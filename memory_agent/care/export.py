"""Export a user's memories as JSON Lines, and import them into another store.

Each memory is one line and round-trips bit for bit: record, usage, vectors, words and events, with bytes in base64 and
long event ids as digests. An import checks every line, and then writes all memories in one transaction. It skips
memories whose id or event is already in the store, and is idempotent. Vectors of a different embedder are dropped and
recomputed later.

In an export of shared items, each line contains an item, its attachment and its author's pseudonym, but neither
statistics nor the names that authors chose. An import does not restore items that were unpublished in the target
folder.
"""

from __future__ import annotations

import base64
import math
import os
import tempfile
from binascii import Error as NotBase64
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from datetime import datetime
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from memory_agent.archiving import current_files
from memory_agent.erasure.eraser import note_reimported
from memory_agent.erasure.logs import fingerprint, read_history
from memory_agent.erasure.request import passes, with_excluded_memories
from memory_agent.errors import DaemonRunningError, InvalidInputError, StoreDamagedError
from memory_agent.knowledge import add_published, all_offerers, check_item, file_of_item
from memory_agent.layout import Layout
from memory_agent.recall.query import check_filter
from memory_agent.records.memories import MemoryFilter, MemoryRecord
from memory_agent.settings import Settings, StoreSettings
from memory_agent.storage import codec
from memory_agent.storage.archive import Archive
from memory_agent.storage.batch import Batch
from memory_agent.storage.environment import UserKey, open_records, open_user_key
from memory_agent.storage.folders import user_folder
from memory_agent.storage.snapshot import EVENTS, PASSAGES, VECTORS, WORD_BITS, Snapshot
from relay import SHARED_USER, described
from relay.disk import Report, Transaction, flush

FORMAT = 2
"""Version 0.1.0 wrote format 1, without passages and words."""
LONGEST_LINE_BYTES = 64 << 20

_LENGTH_ERROR = 0.01  # maximum length error of a unit vector in float16
_STEP = 1_000
_MOST_NAMED = 5  # maximum number of bad lines named in one error


class Bodies(NamedTuple):
    """A model's stored output for a text."""

    vector: bytes | None = None
    passages: bytes | None = None
    words: bytes | None = None


Arrival = tuple[MemoryRecord | None, Bodies, list[bytes], bytes | None]
"""A memory, its `Bodies`, the stored keys of its events, and the attachment if it is a shared item."""


class Head(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The first line: the user and the embedder of the memories that follow."""

    memory_agent_export: int
    user_id: str
    stamp: str | None = None
    ndim: int | None = None
    memories: int = 0
    words_stamp: str | None = None
    word_bytes: int | None = None


class Line(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A memory with its events. If `record` is None, the memory was deleted, but its events are still recognised."""

    record: MemoryRecord | None = None
    vector: str | None = None
    metadata_msgpack: str | None = None
    events: tuple[str, ...] = ()
    event_digests: tuple[str, ...] = ()
    passages: str | None = None
    words: str | None = None
    attachment: str | None = None


class Imported(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of the memories that were imported (`taken`) and of those that were already stored (`known`).

    `unpublished`: items skipped because they were unpublished here.
    """

    taken: int
    known: int
    without_vector: int
    unpublished: int = 0


_heads = msgspec.json.Decoder(described(Head))
_lines = msgspec.json.Decoder(described(Line))


def export_user(
    data_dir: Path, settings: Settings, user_id: str, report: Report, filter: MemoryFilter | None = None
) -> Iterator[bytes]:
    """Return the decrypted lines of a user's export, without line endings; works while a daemon runs.

    Raises `InvalidInputError` if the user has no store. Also raises `StoreError`, `StoreDamagedError` and
    `EncryptionKeyMissingError`.
    """
    folder = user_folder(data_dir, user_id)
    if not folder.exists():
        raise InvalidInputError("user", f"{user_id} has no memories in {data_dir}")
    key = open_user_key(settings.encryption, data_dir, user_id)
    chosen = check_filter(filter)

    def lines() -> Iterator[bytes]:  # a generator, so that the checks above run before the first line is read
        with current_files(data_dir, settings, user_id) as (current, _):
            yield from export_lines(current, user_id, settings.store, report, key, chosen)

    return lines()


def import_user(
    file: BinaryIO, data_dir: Path, settings: Settings, user_id: str, now: datetime, report: Report
) -> Imported:
    """Import a seekable export file for a user, atomically. Durable on return.

    A later restore does not erase imported memories. Raises `InvalidInputError` (which lists the bad lines),
    `DaemonRunningError`, `StoreOwnedElsewhereError` or `StoreError`.
    """
    head = decode_head(next(_numbered(file), (1, b""))[1])  # raises before anything is created
    if (head.user_id == SHARED_USER) != (user_id == SHARED_USER):
        what = "shared items" if head.user_id == SHARED_USER else "a user's memories"
        raise InvalidInputError("line 1", f"starts an export of {what}; import it with --user {head.user_id}")
    layout = Layout(data_dir)
    if layout.daemon_runs():
        raise DaemonRunningError(f"a daemon serves {data_dir}; stop it before importing")
    layout.create()
    key = open_user_key(settings.encryption, data_dir, user_id)
    with closing(Archive.open(user_folder(data_dir, user_id), settings.store, "library", key)) as archive:
        if user_id == SHARED_USER:
            gone = read_history(user_folder(data_dir, user_id), user_id).memories_in(now)
            return import_lines(file, archive, report, lambda item_id: fingerprint(user_id, item_id) in gone)
        imported = import_lines(file, archive, report)
        note_reimported(user_id, archive, now)
    return imported


def write_file(file: Path, chunks: Iterable[bytes]) -> int:
    """Write chunks to a private file, atomically; return the chunk count. Durable on return. Raises `OSError`."""
    count = 0
    with tempfile.NamedTemporaryFile(dir=file.absolute().parent, prefix=f".{file.name}.", delete=False) as part:
        try:
            for chunk in chunks:
                part.write(chunk)
                count += 1
            part.flush()
            os.fsync(part.fileno())
            os.replace(part.name, file)
            flush(file.absolute().parent)
        except BaseException:
            Path(part.name).unlink(missing_ok=True)
            raise
    return count


def export_lines(
    folder: Path,
    user_id: str,
    settings: StoreSettings,
    report: Report,
    key: UserKey | None = None,
    filter: MemoryFilter | None = None,
) -> Iterator[bytes]:
    """Yield the lines of the store in `folder`, without line endings. Raises `StoreError` and `StoreDamagedError`."""
    with closing(open_records(folder, settings, key)) as environment, environment.read() as transaction:
        yield from _lines_of(transaction, user_id, report, None if filter == MemoryFilter() else filter)


def import_lines(
    file: BinaryIO, archive: Archive, report: Report, is_gone: Callable[[str], bool] = lambda _: False
) -> Imported:
    """Import a seekable export file atomically, skipping ids for which `is_gone` is true. Durable on return.

    Raises `InvalidInputError` with the bad lines, and `StoreError`.
    """
    head = _checked(file, report)
    arrivals = (decode_line(number, data, head) for number, data in _numbered(file) if number > 1)
    with archive.batch() as batch:
        return _take(batch, head, arrivals, report, is_gone)


def _lines_of(transaction: Transaction, user_id: str, report: Report, filter: MemoryFilter | None) -> Iterator[bytes]:
    snapshot = Snapshot(transaction)
    of_many = {one.item_id for one in all_offerers(snapshot)}  # items created from private offers
    state, total = snapshot.state, snapshot.counts().memories - len(of_many)
    if filter is not None:
        filter = with_excluded_memories(filter, snapshot)
        total = sum(record.id not in of_many and passes(record, filter) for _, record in snapshot.scan())
    events: defaultdict[int, list[bytes]] = defaultdict(list)
    for key, value in transaction.scan(EVENTS):
        events[codec.row_number(value)].append(key)
    head = Head(
        memory_agent_export=FORMAT,
        user_id=user_id,
        stamp=state.stamp,
        ndim=state.ndim,
        memories=total,
        words_stamp=state.words_stamp,
        word_bytes=state.word_bytes,
    )
    yield msgspec.json.encode(head)
    kept = (one for one in snapshot.scan() if one[1].id not in of_many)
    chosen = (one for one in kept if filter is None or passes(one[1], filter))
    for done, (row, record) in enumerate(chosen):
        if done % _STEP == 0:
            report("memories", done, total)
        attachment = file_of_item(snapshot, record.id) if user_id == SHARED_USER else None
        yield encode_line(record, _bodies(transaction, row, state), events.pop(row, []), attachment)
    report("memories", total, total)
    for row in sorted(events) if filter is None else ():
        yield encode_line(None, Bodies(), events[row])


def _bodies(transaction: Transaction, row: int, state: codec.StoreState) -> Bodies:
    reads = (
        (VECTORS, codec.vector_body, state.ndim),
        (PASSAGES, codec.passages_body, state.ndim),
        (WORD_BITS, codec.words_body, state.word_bytes),
    )
    found = ((transaction.get(database, codec.row_key(row)), body, size) for database, body, size in reads)
    return Bodies(*(None if value is None else body(row, value, size or 0) for value, body, size in found))


def _numbered(file: BinaryIO) -> Iterator[tuple[int, bytes]]:
    file.seek(0)
    number = 0
    while data := file.readline(LONGEST_LINE_BYTES + 1):
        number += 1
        if len(data) > LONGEST_LINE_BYTES:
            raise InvalidInputError(f"line {number}", f"is longer than {LONGEST_LINE_BYTES} bytes")
        yield number, data


def _checked(file: BinaryIO, report: Report) -> Head:
    lines = _numbered(file)
    head = decode_head(next(lines, (1, b""))[1])
    faults: list[str] = []
    ids: dict[str, int] = {}
    for number, data in lines:
        if number % _STEP == 0:
            report("checked", number, head.memories)
        try:
            record = decode_line(number, data, head)[0]
            if record is not None and ids.setdefault(record.id, number) != number:
                raise InvalidInputError(f"line {number}", f"has the same id as line {ids[record.id]}")
        except InvalidInputError as error:
            faults.append(str(error))
    if faults:
        more = f"; and {len(faults) - _MOST_NAMED} more" if len(faults) > _MOST_NAMED else ""
        raise InvalidInputError("file", f"nothing was imported: {'; '.join(faults[:_MOST_NAMED])}{more}")
    if len(ids) != head.memories:
        raise InvalidInputError("file", f"contains {len(ids)} of {head.memories} memories; nothing was imported")
    return head


def _take(
    batch: Batch, head: Head, arrivals: Iterator[Arrival], report: Report, is_gone: Callable[[str], bool]
) -> Imported:
    if batch.state.stamp is None and head.stamp is not None:
        batch.set_stamp(head.stamp)
        batch.state.ndim = head.ndim  # even if no memory has a vector
    fits = batch.state.stamp == head.stamp and batch.state.ndim in (None, head.ndim)
    if fits and batch.state.words_stamp is None and head.words_stamp is not None:
        batch.set_words_stamp(head.words_stamp)
    has_words = batch.state.words_stamp == head.words_stamp and batch.state.word_bytes in (None, head.word_bytes)
    if fits and has_words:
        batch.state.word_bytes = head.word_bytes  # the store may have no words yet
    taken = known = without_vector = unpublished = 0
    for done, (record, bodies, events, attachment) in enumerate(arrivals):
        if done % _STEP == 0:
            report("taken", done, head.memories)
        is_news = record is None and not all(map(batch.knows_event, events))
        row = batch.allot_row() if is_news else None
        of_event = None if record is None or record.event_id is None else batch.row_of_event(record.event_id)
        if record is not None and (batch.row_of_id(record.id) or of_event):
            known += 1
        elif record is not None and is_gone(record.id):
            unpublished += 1
        elif record is not None:
            vector = bodies.vector if fits else None
            passages, words = (bodies.passages, bodies.words) if fits and has_words else (None, None)
            row = batch.put_stored(record, vector, passages, words)
            if head.user_id == SHARED_USER:
                add_published(batch, record, attachment)
            taken += 1
            without_vector += vector is None
        if row is not None:
            batch.link_keys(events, row)
    report("taken", head.memories, head.memories)
    return Imported(taken=taken, known=known, without_vector=without_vector, unpublished=unpublished)


def encode_line(
    record: MemoryRecord | None, bodies: Bodies, events: list[bytes], attachment: bytes | None = None
) -> bytes:
    """Encode a memory as one line. `events` are stored keys; `attachment` is given only for a shared item."""
    metadata = None
    if record is not None and not _is_exact(record.metadata):
        metadata = _base64(msgspec.msgpack.encode(record.metadata))
        record = msgspec.structs.replace(record, metadata={})
    line = Line(
        record=record,
        **{name: _base64(body) for name, body in bodies._asdict().items() if body is not None},
        metadata_msgpack=metadata,
        events=tuple(key.decode() for key in events if not _is_digest(key)),
        event_digests=tuple(key.hex() for key in events if _is_digest(key)),
        attachment=None if attachment is None else _base64(attachment),
    )
    return msgspec.json.encode(line)


def decode_head(data: bytes) -> Head:
    try:
        head = _heads.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidInputError("line 1", f"the file was not written by `memory-agent export`: {error}") from error
    if head.memory_agent_export > FORMAT:
        raise InvalidInputError(
            "line 1", f"has format {head.memory_agent_export}, but this version supports {FORMAT}; use a newer version"
        )
    if head.ndim is not None and not 0 < head.ndim <= 1 << 16:
        raise InvalidInputError("line 1", f"invalid number of dimensions: {head.ndim}")
    if head.word_bytes is not None and not 0 < head.word_bytes <= 1 << 16:
        raise InvalidInputError("line 1", f"invalid word size: {head.word_bytes} bytes")
    return head


def decode_line(number: int, data: bytes, head: Head) -> Arrival:
    """Decode a line; its events become stored keys. Raises `InvalidInputError` (with the line number)."""
    try:
        line = _lines.decode(data)
        record = line.record if line.metadata_msgpack is None else _with_metadata(line)
        if record is not None:
            _require_storable(record)
        events = [codec.name_key(event, "events") for event in line.events]
        events += [_digest(text) for text in line.event_digests]
        return record, _checked_bodies(line, head), events, _checked_attachment(line, record, head)
    except InvalidInputError as error:
        raise InvalidInputError(f"line {number}", f"{error.field} {error.reason}") from error
    except (msgspec.DecodeError, NotBase64, RecursionError, ValueError) as error:
        raise InvalidInputError(f"line {number}", str(error)) from error


def _require_storable(record: MemoryRecord) -> None:
    codec.name_key(record.id, "id")
    if record.event_id is not None:
        codec.name_key(record.event_id, "event_id")
    codec.encode_record(0, record)
    usage = codec.usage_of(record)
    if min(usage.times_recalled, usage.used) < 0 or not math.isfinite(usage.reward_sum):
        raise InvalidInputError("utility", "is out of range")
    if max(usage.times_recalled, usage.used) >= 1 << 62:
        raise InvalidInputError("utility", "is out of range")


def _with_metadata(line: Line) -> MemoryRecord:
    if line.record is None or line.record.metadata:
        raise InvalidInputError("metadata_msgpack", "requires a record without other metadata")
    decoded: Any = msgspec.msgpack.decode(_bytes(line.metadata_msgpack or ""), type=dict[str, Any])
    return msgspec.structs.replace(line.record, metadata=decoded)


def _checked_bodies(line: Line, head: Head) -> Bodies:
    bodies = Bodies(*(text if text is None else _bytes(text) for text in (line.vector, line.passages, line.words)))
    ndim, word_bytes = head.ndim or 0, head.word_bytes or 0
    if bodies.vector is not None:
        values = np.frombuffer(bodies.vector, dtype="<f2")
        if values.size != ndim:
            raise InvalidInputError("vector", f"has {values.size} dimensions, but the first line specifies {ndim}")
        _require_unit("vector", values[None])
    elif bodies.passages is not None or bodies.words is not None:
        raise InvalidInputError("vector", "is missing, although there are passages or words")
    try:
        if bodies.passages is not None:
            codec.passages_body(0, codec.with_checksum(0, bodies.passages), ndim)
            _require_unit("passages", codec.passages_of(bodies.passages, ndim)[1])
        if bodies.words is not None:
            codec.words_body(0, codec.with_checksum(0, bodies.words), word_bytes)
    except StoreDamagedError as error:
        raise InvalidInputError("passages or words", "do not have the size that the first line specifies") from error
    return bodies


def _checked_attachment(line: Line, record: MemoryRecord | None, head: Head) -> bytes | None:
    attachment = None if line.attachment is None else _bytes(line.attachment)
    if head.user_id != SHARED_USER:
        if attachment is not None:
            raise InvalidInputError("attachment", "is only for shared items")
        return None
    if record is None or line.events or line.event_digests:
        raise InvalidInputError("record", "is not a shared item")
    check_item(record, attachment)
    return attachment


def _require_unit(field: str, vectors: npt.NDArray[np.floating[Any]]) -> None:
    values = vectors.astype(np.float64)
    if not np.isfinite(values).all() or (np.abs(np.linalg.norm(values, axis=1) - 1) > _LENGTH_ERROR).any():
        raise InvalidInputError(field, "is not of unit length")


def _digest(text: str) -> bytes:
    key = bytes.fromhex(text)
    if not _is_digest(key) or len(key) != 17:
        raise InvalidInputError("event_digests", "contains a value that is not a digest")
    return key


def _is_digest(key: bytes) -> bool:
    return key[:1] == b"\xff"  # a byte that never occurs in UTF-8


def _is_exact(metadata: dict[str, Any]) -> bool:
    encode = msgspec.msgpack.encode  # distinguishes 1, 1.0 and True, and 0.0 from -0.0
    try:
        return encode(msgspec.json.decode(msgspec.json.encode(metadata))) == encode(metadata)
    except (msgspec.MsgspecError, TypeError, ValueError):
        return False


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _bytes(text: str) -> bytes:
    return base64.b64decode(text, validate=True)
