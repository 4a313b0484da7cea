"""The stored forms of records, vectors, words and the state. Does not import usearch or open files.

Every value has a checksum, seeded with the number of its key, so a value under the wrong key is detected too. Records
are MessagePack arrays without field names: new fields go last and have defaults, and positions in tuples such as
`_SOURCES` never change. Vectors are stored at unit length in float16.

d = dimensions, p = passages of a text, w = words of a text, b = bytes of a word.
"""

from __future__ import annotations

import zlib
from datetime import datetime
from typing import Annotated, Any, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt
import xxhash
from ulid import ULID

from memory_agent.errors import InvalidInputError, StoreDamagedError
from memory_agent.records.embedded import Embedding
from memory_agent.records.memories import Kind, MemoryRecord, Provenance, Source, Utility, microseconds, time_of
from memory_agent.storage.changes import OPS, LogEntry, StoredWords, Words
from relay import described
from relay.disk import CHECKSUM_BYTES, checksum

FORMAT = 2  # the format of stores that contain passages or word bits; older versions would not erase these

_SOURCES: tuple[Source, ...] = (
    "user_input",
    "conductor_plan",
    "worker_result",
    "writer_revision",
    "trajectory_outcome",
)
_KINDS: tuple[Kind, ...] = ("episode", "strategy", "finding", "pattern")
_PROVENANCES: tuple[Provenance, ...] = ("verified", "cited", "assumed", "cached")

_PLAIN, _DEFLATED = b"\x00", b"\x01"
_DEFLATE_FROM_BYTES = 512  # bytes; deflate saves almost nothing on smaller values
_LONGEST_PLAIN_KEY = 128
_PLACE_BYTES = 9
_SPAN_BYTES = 8
_LENGTH_BYTES = 4  # precedes the word bits
_OFFSET = 1 << 63  # so that times before 1970 sort before later times

T = TypeVar("T")


class NextVectors(msgspec.Struct, kw_only=True):
    """The embedder that will replace the current one.

    If it rejects too many memories, `rejected` is their number; otherwise, `rejected` is 0.
    """

    stamp: str
    words_stamp: str = ""
    ndim: int | None = None
    word_bytes: int | None = None
    rejected: int = 0


class StoreState(msgspec.Struct, kw_only=True):
    """A store's state: one small value that each batch rewrites.

    `lineage` is a random name (a ULID), assigned at creation and copied into derived files. `stamp` identifies the
    embedder of the vectors, and `words_stamp` identifies the embedder of the words. The change log starts after
    `forgotten_through` and ends at `last_change`. `cursor` is the number of the last ingested journal event.
    `lessons_version` increases whenever a run's lessons change.
    """

    format: int = 1
    lineage: str = ""
    next_row: int = 1
    last_change: int = 0
    forgotten_through: int = 0
    cursor: int = 0
    stamp: str | None = None
    ndim: int | None = None
    counters: dict[str, int] = {}
    next_number: int = 1
    lessons_version: int = 0
    lessons_mark: int = 0
    words_stamp: str | None = None
    word_bytes: int | None = None
    next: NextVectors | None = None

    @property
    def created_at(self) -> datetime:
        return ULID.from_str(self.lineage).datetime


class Usage(msgspec.Struct, frozen=True, array_like=True):
    """How often a memory was recalled and used. Stored separately because it changes often."""

    times_recalled: int = 0
    last_recalled_us: int | None = None
    used: int = 0
    reward_sum: float = 0.0


_Place = Annotated[int, msgspec.Meta(ge=0)]


class _StoredRecord(msgspec.Struct, frozen=True, array_like=True):
    id: str
    text: str
    source: _Place
    kind: _Place
    timestamp_us: int
    event_id: str | None
    session_id: str | None
    run_id: str | None
    channel_id: str | None
    agent_id: str | None
    quality_score: float | None
    title: str | None
    tags: tuple[str, ...]
    provenance: _Place | None
    metadata: dict[str, Any]
    type: str | msgspec.UnsetType | None = msgspec.UNSET  # unset in records from version 0.1.0
    phase: str | None = None
    updated_us: int | None = None
    cached_from: _Place | None = None


_records = msgspec.msgpack.Decoder(described(_StoredRecord))
_encoder = msgspec.msgpack.Encoder()


def with_checksum(number: int, body: bytes) -> bytes:
    """Prefix `body` with a checksum over `number` and `body`."""
    return checksum(number, body) + body


def without_checksum(number: int, value: bytes, what: str) -> bytes:
    """Return the body of a value. Raises `StoreDamagedError` (with `what`) if its checksum does not match."""
    body = value[CHECKSUM_BYTES:]
    if checksum(number, body) != value[:CHECKSUM_BYTES]:
        raise StoreDamagedError(f"{what} {number} does not match its checksum")
    return body


def row_key(row: int) -> bytes:
    return row.to_bytes(8, "big")


def short_row(row: int) -> bytes:
    return row.to_bytes((row.bit_length() + 7) // 8, "big")


def row_number(key: bytes) -> int:
    return int.from_bytes(key, "big")


def name_key(name: str, field: str) -> bytes:
    """Return the key for an id; a long id is replaced with its digest. Raises `InvalidInputError` (with `field`)."""
    try:
        key = name.encode()
    except UnicodeEncodeError as error:
        raise InvalidInputError(field, "is not valid Unicode") from error
    if not key:
        raise InvalidInputError(field, "is empty")
    return key if len(key) <= _LONGEST_PLAIN_KEY else b"\xff" + xxhash.xxh3_128_digest(key)


def name_number(key: bytes) -> int:
    """Return the seed of the checksum of the value under `key`."""
    return xxhash.xxh3_64_intdigest(key)


def index_place(kind: bytes, number: int) -> bytes:
    """Return the prefix of index keys of one `kind` (a byte) and `number`: a time in microseconds, or a row."""
    return kind + row_key(number + _OFFSET)


def index_end(kind: bytes) -> bytes:
    return bytes([kind[0] + 1])


def indexed_key(index_key: bytes) -> bytes:
    return index_key[_PLACE_BYTES:]


def encode_record(row: int, record: MemoryRecord) -> bytes:
    """Encode a record without its vector and usage. Raises `InvalidInputError`."""
    quality = record.quality_score
    if quality is not None and not 0.0 <= quality <= 1.0:
        raise InvalidInputError("quality_score", f"must be between 0 and 1, not {quality}")
    stored = _StoredRecord(
        id=record.id,
        text=record.text,
        source=_place(_SOURCES, record.source, "source"),
        kind=_place(_KINDS, record.kind, "kind"),
        timestamp_us=microseconds(record.timestamp, "timestamp"),
        event_id=record.event_id,
        session_id=record.session_id,
        run_id=record.run_id,
        channel_id=record.channel_id,
        agent_id=record.agent_id,
        quality_score=quality,
        title=record.title,
        tags=tuple(record.tags),
        provenance=None if record.provenance is None else _place(_PROVENANCES, record.provenance, "provenance"),
        metadata=record.metadata,
        type=record.type,
        phase=record.phase,
        updated_us=None if record.updated_at is None else microseconds(record.updated_at, "updated_at"),
        cached_from=None if record.cached_from is None else _place(_PROVENANCES, record.cached_from, "cached_from"),
    )
    return with_checksum(row, _deflate(_encode(stored)))


def decode_record(row: int, value: bytes, usage: Usage, vector: Embedding | None = None) -> MemoryRecord:
    stored = decode(_records, row, _inflate(row, without_checksum(row, value, "record")), "record")
    try:
        return _memory(stored, usage, vector)
    except (IndexError, OverflowError) as error:
        raise StoreDamagedError(f"record {row}: {error}") from error


def _memory(stored: _StoredRecord, usage: Usage, vector: Embedding | None) -> MemoryRecord:
    recalled = usage.last_recalled_us
    return MemoryRecord(
        id=stored.id,
        text=stored.text,
        source=_SOURCES[stored.source],
        kind=_KINDS[stored.kind],
        timestamp=time_of(stored.timestamp_us),
        embedding=None if vector is None else vector.tolist(),
        quality_score=stored.quality_score,
        session_id=stored.session_id,
        metadata=stored.metadata,
        title=stored.title,
        tags=stored.tags,
        provenance=None if stored.provenance is None else _PROVENANCES[stored.provenance],
        run_id=stored.run_id,
        channel_id=stored.channel_id,
        agent_id=stored.agent_id,
        event_id=stored.event_id,
        last_recalled_at=None if recalled is None else time_of(recalled),
        times_recalled=usage.times_recalled,
        utility=Utility(used=usage.used, reward_sum=usage.reward_sum),
        type=_event_type(stored) if stored.type is msgspec.UNSET else stored.type,
        phase=stored.phase,
        updated_at=None if stored.updated_us is None else time_of(stored.updated_us),
        cached_from=None if stored.cached_from is None else _PROVENANCES[stored.cached_from],
    )


def _event_type(stored: _StoredRecord) -> str | None:
    """Return the type of a memory from version 0.1.0: its event's type, from the metadata."""
    event_type = stored.metadata.get("event_type")
    return event_type if stored.event_id is not None and isinstance(event_type, str) else None


def usage_of(record: MemoryRecord) -> Usage:
    recalled = record.last_recalled_at
    return Usage(
        record.times_recalled,
        None if recalled is None else microseconds(recalled, "last_recalled_at"),
        record.utility.used,
        record.utility.reward_sum,
    )


def unit_vector(vector: Embedding, ndim: int | None) -> Embedding:
    """Return a unit vector (d,), float32. Raises `InvalidInputError` for a wrong shape, NaN, infinity or zeros."""
    values = np.asarray(vector, dtype=np.float32)
    if values.ndim != 1 or values.size == 0 or (ndim is not None and values.size != ndim):
        raise InvalidInputError("vector", f"has shape {values.shape}, expected ({ndim or 'd'},)")
    largest = np.abs(values).max()
    if not np.isfinite(largest):
        raise InvalidInputError("vector", "is not finite")
    if largest == 0.0:
        raise InvalidInputError("vector", "has length zero")
    values = values / largest  # so that squares neither overflow nor underflow
    unit: Embedding = values / np.linalg.norm(values)
    return unit


def encode_vector(row: int, vector: Embedding) -> bytes:
    return with_checksum(row, vector.astype("<f2").tobytes())


def vector_body(row: int, value: bytes, ndim: int) -> bytes:
    """Return the float16 bytes of a stored vector. Raises `StoreDamagedError`."""
    body = without_checksum(row, value, "vector")
    if len(body) != vector_bytes(ndim):
        raise StoreDamagedError(f"vector {row} has {len(body)} bytes, expected {vector_bytes(ndim)}")
    return body


def vectors_of(bodies: list[bytes], ndim: int) -> Embedding:
    """Decode the bytes of n vectors to (n, d) float32."""
    return np.frombuffer(b"".join(bodies), dtype="<f2").reshape(len(bodies), ndim).astype(np.float32)


def vector_bytes(ndim: int) -> int:
    return 2 * ndim


def encode_passages(row: int, spans: npt.NDArray[np.int32], further: Embedding) -> bytes:
    """Return the stored form of the spans of a text's passages, (p, 2), and of the vectors of all passages but the
    first, (p - 1, d).
    """
    return with_checksum(row, spans.astype("<i4").tobytes() + further.astype("<f2").tobytes())


def passages_body(row: int, value: bytes, ndim: int) -> bytes:
    """Return the bytes of stored passages. Raises `StoreDamagedError`."""
    body = without_checksum(row, value, "passages")
    if not ndim or (len(body) + vector_bytes(ndim)) % (_SPAN_BYTES + vector_bytes(ndim)) or len(body) <= _SPAN_BYTES:
        raise StoreDamagedError(f"the passages of row {row} have an invalid length ({len(body)} bytes)")
    return body


def passages_of(body: bytes, ndim: int) -> tuple[npt.NDArray[np.int32], Embedding]:
    """Return the spans of all passages, (p, 2), and the vectors of all passages but the first, (p - 1, d)."""
    count = (len(body) + vector_bytes(ndim)) // (_SPAN_BYTES + vector_bytes(ndim))
    end = count * _SPAN_BYTES
    spans = np.frombuffer(body[:end], dtype="<i4").reshape(count, 2).astype(np.int32)
    return spans, np.frombuffer(body[end:], dtype="<f2").reshape(count - 1, ndim).astype(np.float32)


def encode_words(row: int, words: Words) -> bytes:
    return with_checksum(row, words.length.to_bytes(_LENGTH_BYTES, "little") + words.bits.tobytes())


def words_body(row: int, value: bytes, word_bytes: int) -> bytes:
    """Return the bytes of stored words. Raises `StoreDamagedError`."""
    body = without_checksum(row, value, "words")
    if len(body) < _LENGTH_BYTES or not word_bytes or (len(body) - _LENGTH_BYTES) % word_bytes:
        raise StoreDamagedError(f"the words of row {row} have an invalid length ({len(body)} bytes)")
    return body


def words_of(body: bytes, word_bytes: int) -> Words:
    bits = np.frombuffer(body, dtype=np.uint8, offset=_LENGTH_BYTES).reshape(-1, word_bytes)
    return Words(bits, int.from_bytes(body[:_LENGTH_BYTES], "little"))


def words_of_rows(rows: list[int], bodies: list[bytes], word_bytes: int) -> StoredWords:
    """Decode the stored words of many texts at once."""
    lengths = np.frombuffer(b"".join([body[:_LENGTH_BYTES] for body in bodies]), dtype="<i4").astype(np.int32)
    bits = np.frombuffer(b"".join([body[_LENGTH_BYTES:] for body in bodies]), dtype=np.uint8)
    counts = (np.fromiter(map(len, bodies), dtype=np.int64, count=len(bodies)) - _LENGTH_BYTES) // max(word_bytes, 1)
    return StoredWords(np.array(rows, dtype=np.int64), lengths, counts, bits.reshape(-1, max(word_bytes, 1)))


def encode_entry(change: int, entry: LogEntry) -> bytes:
    """Return the stored form of a change log entry. A deletion frees more space than its entry takes."""
    return with_checksum(change, bytes([OPS.index(entry.op)]) + row_key(entry.row))


def decode_entry(change: int, value: bytes) -> LogEntry:
    body = without_checksum(change, value, "change")
    if len(body) < _PLACE_BYTES or body[0] >= len(OPS):
        raise StoreDamagedError(f"change {change} is not a valid log entry")
    op, row = OPS[body[0]], row_number(body[1:_PLACE_BYTES])
    # In stores of version 0.1.0, the entry for a text update also contains the previous words.
    return LogEntry("reword" if op == "update" and len(body) > _PLACE_BYTES else op, row)


def encode_checked(number: int, value: object) -> bytes:
    return with_checksum(number, _encode(value))


def encode_packed(number: int, value: object) -> bytes:
    """Like `encode_checked`, but deflated if that saves space."""
    return with_checksum(number, _deflate(_encode(value)))


def decode_packed(decoder: msgspec.msgpack.Decoder[T], number: int, value: bytes, what: str) -> T:
    return decode(decoder, number, _inflate(number, without_checksum(number, value, what)), what)


def decode(decoder: msgspec.msgpack.Decoder[T], number: int, body: bytes, what: str) -> T:
    """Decode a body whose checksum was verified. Raises `StoreDamagedError`."""
    try:
        return decoder.decode(body)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise StoreDamagedError(f"{what} {number}: {error}") from error


def _encode(value: object) -> bytes:
    try:
        return _encoder.encode(value)
    except UnicodeEncodeError as error:
        raise InvalidInputError("record", "contains text that is not valid Unicode") from error
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise InvalidInputError("metadata", str(error)) from error


def _place(names: tuple[Any, ...], name: str, field: str) -> int:
    try:
        return names.index(name)
    except ValueError as error:
        raise InvalidInputError(field, f"must be one of {', '.join(names)}, not {name!r}") from error


def _deflate(body: bytes) -> bytes:
    if len(body) < _DEFLATE_FROM_BYTES:
        return _PLAIN + body
    deflated = zlib.compress(body)
    return _DEFLATED + deflated if len(deflated) < len(body) else _PLAIN + body


def _inflate(number: int, body: bytes) -> bytes:
    if body[:1] == _PLAIN:
        return body[1:]
    try:
        return zlib.decompress(body[1:])
    except zlib.error as error:
        raise StoreDamagedError(f"value {number}: {error}") from error
