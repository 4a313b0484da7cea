"""The stored form of the journal's entries, counters and times, with their keys, values and checksums. Pure.

A value consists of an 8-byte XXH3 checksum of its key and content, followed by the content. This also detects an entry
that is stored under the wrong number. Numbers are 8 bytes, big-endian, so that LMDB sorts them by value. The checksum
of an encrypted entry is not encrypted, so that damage cannot be mistaken for a missing key.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TypeVar

import msgspec
import xxhash

from relay.access import Origin
from relay.decoding import described
from relay.disk import Transaction

T = TypeVar("T")
COUNTERS = "counters"
DATABASES = ("events", "users", "ids", "forgotten", "consumers", "sources", "quarantine", "unread", COUNTERS)
"""`users` contains the pairs of user and seq, for reading one user's events. `ids` maps user and event_id to seq.
`forgotten` contains the ids of deleted events that are still recognised. `sources` contains the read position in each
table. `unread` contains the digests of quarantine entries.
"""


class StoredEvent(msgspec.Struct, frozen=True, array_like=True):
    """An encoded event, with copies of the fields that the journal reads without decoding the event."""

    received_ms: int
    user_id: str
    event_id: str
    event_type: str
    data: bytes
    origin: Origin | None = None  # None in old entries, and in journals not written by a relay, such as a spool

    @property
    def id_key(self) -> bytes:
        return id_key(self.user_id, self.event_id)

    @property
    def size_bytes(self) -> int:
        return len(self.data)


class SealedEvent(msgspec.Struct, frozen=True, array_like=True):
    """An encrypted event. `name` (its id) and `sealed` (its content) are encrypted with the key of `owner` or, if that
    is empty, with the key of the event's user.
    """

    received_ms: int
    user_id: str
    name: bytes
    key_id: bytes
    sealed: bytes
    owner: str = ""

    @property
    def id_key(self) -> bytes:
        return user_key(self.user_id) + self.name

    @property
    def size_bytes(self) -> int:
        return len(self.sealed)


class StoredQuarantine(msgspec.Struct, frozen=True, array_like=True):
    data: bytes
    code: str
    reason: str
    source: str
    quarantined_ms: int
    seq: int | None
    digest: bytes

    @property
    def size_bytes(self) -> int:
        return len(self.data)


class SealedQuarantine(msgspec.Struct, frozen=True, array_like=True):
    user_id: str
    key_id: bytes
    sealed: bytes
    quarantined_ms: int
    seq: int | None
    digest: bytes

    @property
    def size_bytes(self) -> int:
        return len(self.sealed)


AnyEvent = StoredEvent | SealedEvent
AnyQuarantine = StoredQuarantine | SealedQuarantine

_SEALED = b"\xc1"  # the first byte of encrypted content; no MessagePack content starts with it
_encoder = msgspec.msgpack.Encoder()
_event_decoder = msgspec.msgpack.Decoder(described(StoredEvent))
_sealed_event_decoder = msgspec.msgpack.Decoder(described(SealedEvent))
_quarantine_decoder = msgspec.msgpack.Decoder(described(StoredQuarantine))
_sealed_quarantine_decoder = msgspec.msgpack.Decoder(described(SealedQuarantine))


def id_key(user_id: str, event_id: str) -> bytes:
    return user_key(user_id) + event_id.encode()


def user_key(user_id: str, seq: int | None = None) -> bytes:
    return user_id.encode() + b"\0" + (b"" if seq is None else number_key(seq))


def number_key(number: int) -> bytes:
    return number.to_bytes(8, "big")


def number(key: bytes) -> int:
    """Return the number at the end of a key or value."""
    return int.from_bytes(key[-8:], "big")


def pack(content: AnyEvent | AnyQuarantine) -> bytes:
    encoded = _encoder.encode(content)
    return _SEALED + encoded if isinstance(content, (SealedEvent, SealedQuarantine)) else encoded


def dump_entry(key: bytes, content: AnyEvent | AnyQuarantine) -> bytes:
    packed = pack(content)
    return xxhash.xxh3_64_digest(key + packed) + packed


def load_event(key: bytes, value: bytes) -> AnyEvent | None:
    """Return the event stored under `key`, or None if it is damaged."""
    packed = _checked(key, value)
    return None if packed is None else unpack_event(packed)


def load_quarantine(key: bytes, value: bytes) -> AnyQuarantine | None:
    packed = _checked(key, value)
    return None if packed is None else unpack_quarantine(packed)


def unpack_event(packed: bytes) -> AnyEvent | None:
    """Decode the result of `pack`; return None for anything else."""
    if packed[:1] == _SEALED:
        return _decoded(_sealed_event_decoder, packed[1:])
    return _decoded(_event_decoder, packed)


def unpack_quarantine(packed: bytes) -> AnyQuarantine | None:
    if packed[:1] == _SEALED:
        return _decoded(_sealed_quarantine_decoder, packed[1:])
    return _decoded(_quarantine_decoder, packed)


def _checked(key: bytes, value: bytes) -> bytes | None:
    packed = value[8:]
    return packed if value[:8] == xxhash.xxh3_64_digest(key + packed) else None


def _decoded(decoder: msgspec.msgpack.Decoder[T], packed: bytes) -> T | None:
    try:
        return decoder.decode(packed)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return None


def milliseconds(moment: datetime) -> int:
    return int(moment.timestamp() * 1000)


def moment(milliseconds_since_1970: int) -> datetime:
    return datetime.fromtimestamp(milliseconds_since_1970 / 1000, UTC)


def counter(transaction: Transaction, name: str) -> int:
    """Return the value of a durable counter, or 0 if it was never set."""
    value = transaction.get(COUNTERS, name.encode())
    return 0 if value is None else number(value)


def set_counter(transaction: Transaction, name: str, value: int) -> None:
    transaction.put(COUNTERS, name.encode(), number_key(value))


def add_to_counter(transaction: Transaction, name: str, by: int) -> int:
    """Add `by` to a durable counter, which never falls below 0; return the new value."""
    value = max(0, counter(transaction, name) + by)
    set_counter(transaction, name, value)
    return value
