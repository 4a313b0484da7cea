"""A memory as a line of JSON and back, bit for bit: record, use, vector, and the events that went into it. Pure.

The first line tells whose memories follow and which embedder their vectors come from. A vector is the base64 of its
float16 values, as they are stored. Metadata that JSON cannot hold exactly (bytes, NaN) goes as base64 of MessagePack.
An event id that is too long to be kept in full is known by its digest only. What this does not do: runs and what was
learned from them, which `memory-agent sona export` carries.
"""

from __future__ import annotations

import base64
import math
from binascii import Error as NotBase64
from typing import Any

import msgspec
import numpy as np

from memory_agent.errors import InvalidInputError
from memory_agent.records import MemoryRecord
from memory_agent.storage.codec import encode_record, name_key, usage_of

FORMAT = 1
LONGEST_LINE_BYTES = 64 << 20

_LENGTH_ERROR = 0.01  # of a unit vector in float16


class Head(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The first line."""

    memory_agent_export: int
    user_id: str
    stamp: str | None = None
    ndim: int | None = None
    memories: int = 0


class Line(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A memory with its events; without a record, events whose memory was deleted, and which stay known."""

    record: MemoryRecord | None = None
    vector: str | None = None
    metadata_msgpack: str | None = None
    events: tuple[str, ...] = ()
    event_digests: tuple[str, ...] = ()


_heads = msgspec.json.Decoder(Head)
_lines = msgspec.json.Decoder(Line)


def encode_line(record: MemoryRecord | None, vector: bytes | None, events: list[bytes]) -> bytes:
    """Return the line of a memory; `vector` and `events` as they are stored."""
    metadata = None
    if record is not None and not _is_exact(record.metadata):
        metadata = _base64(msgspec.msgpack.encode(record.metadata))
        record = msgspec.structs.replace(record, metadata={})
    line = Line(
        record=record,
        vector=None if vector is None else _base64(vector),
        metadata_msgpack=metadata,
        events=tuple(key.decode() for key in events if not _is_digest(key)),
        event_digests=tuple(key.hex() for key in events if _is_digest(key)),
    )
    return msgspec.json.encode(line)


def decode_head(data: bytes) -> Head:
    """Return the first line. Raises `InvalidInputError`."""
    try:
        head = _heads.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidInputError("line 1", f"the file is no export of `memory-agent export`: {error}") from error
    if head.memory_agent_export > FORMAT:
        raise InvalidInputError(
            "line 1", f"has format {head.memory_agent_export}, this version reads {FORMAT}: take a newer one"
        )
    if head.ndim is not None and not 0 < head.ndim <= 1 << 16:
        raise InvalidInputError("line 1", f"{head.ndim} dimensions")
    return head


def decode_line(number: int, data: bytes, ndim: int | None) -> tuple[MemoryRecord | None, bytes | None, list[bytes]]:
    """Return the memory, its vector and its events as they are stored. Raises `InvalidInputError` naming the line."""
    try:
        line = _lines.decode(data)
        record = line.record if line.metadata_msgpack is None else _with_metadata(line)
        if record is not None:
            _require_storable(record)
        events = [name_key(event, "events") for event in line.events]
        events += [_digest(text) for text in line.event_digests]
        return record, None if line.vector is None else _vector(line.vector, ndim), events
    except InvalidInputError as error:
        raise InvalidInputError(f"line {number}", f"{error.field} {error.reason}") from error
    except (msgspec.DecodeError, NotBase64, RecursionError, ValueError) as error:
        raise InvalidInputError(f"line {number}", str(error)) from error


def _require_storable(record: MemoryRecord) -> None:
    """Raise `InvalidInputError` for whatever the store would refuse."""
    name_key(record.id, "id")
    if record.event_id is not None:
        name_key(record.event_id, "event_id")
    encode_record(0, record)
    usage = usage_of(record)
    if min(usage.times_recalled, usage.used) < 0 or not math.isfinite(usage.reward_sum):
        raise InvalidInputError("utility", "is none that a memory can have")
    if max(usage.times_recalled, usage.used) >= 1 << 62:
        raise InvalidInputError("utility", "is none that a memory can have")


def _with_metadata(line: Line) -> MemoryRecord:
    if line.record is None or line.record.metadata:
        raise InvalidInputError("metadata_msgpack", "stands beside other metadata, or beside none")
    decoded: Any = msgspec.msgpack.decode(_bytes(line.metadata_msgpack or ""), type=dict[str, Any])
    return msgspec.structs.replace(line.record, metadata=decoded)


def _vector(text: str, ndim: int | None) -> bytes:
    body = _bytes(text)
    values = np.frombuffer(body, dtype="<f2").astype(np.float64)
    if values.size != ndim:
        raise InvalidInputError("vector", f"has {values.size} dimensions, the first line says {ndim}")
    if not np.isfinite(values).all() or abs(float(np.linalg.norm(values)) - 1) > _LENGTH_ERROR:
        raise InvalidInputError("vector", "is not of unit length")
    return body


def _digest(text: str) -> bytes:
    key = bytes.fromhex(text)
    if not _is_digest(key) or len(key) != 17:
        raise InvalidInputError("event_digests", "holds what is none")
    return key


def _is_digest(key: bytes) -> bool:
    return key[:1] == b"\xff"  # no UTF-8 begins so


def _is_exact(metadata: dict[str, Any]) -> bool:
    try:
        return bool(_same(msgspec.json.decode(msgspec.json.encode(metadata)), metadata))
    except (msgspec.MsgspecError, TypeError, ValueError):
        return False


def _same(one: Any, other: Any) -> bool:
    """Equal, and of equal types: 1, 1.0 and True are three values."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return list(one) == list(other) and all(_same(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(_same, one, other))
    return bool(one == other) and str(one) == str(other)  # -0.0 is not 0.0


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _bytes(text: str) -> bytes:
    return base64.b64decode(text, validate=True)
