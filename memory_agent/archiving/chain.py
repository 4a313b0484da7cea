"""The objects of an archive: their names, headers and bodies, and the link from each object to the previous object.

An object is named `<epoch>/<number>.<kind>`. Its header contains a checksum of its body and the digest of the previous
object's header. Readers can thus detect missing, altered and moved objects, but not forged objects. Copies of derived
files may be stored beside the objects, as `<epoch>/<number>.<file>`, so that a restored store need not rebuild them.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Iterator, Sequence
from hashlib import sha256
from typing import Literal, NamedTuple, get_args

import msgspec

from memory_agent.errors import ArchiveDamagedError
from memory_agent.records.placement import Position
from relay import described
from relay.disk import StoredChange

Kind = Literal["snapshot", "increment", "base"]
KINDS: tuple[Kind, ...] = get_args(Kind)
FORMAT = 1

_MAGIC = b"MEMARCHV"
_header = struct.Struct(">8sHBxQQQ32s32s32s")
_DIGEST_BYTES = 32
HEADER_BYTES = _header.size + _DIGEST_BYTES
_NAME = re.compile(rf"(\d{{12}})\.({'|'.join(KINDS)})")
_DERIVED = re.compile(r"(\d{12})\.([a-z-]+\.arrays)")
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(described(list[StoredChange]))
_length = struct.Struct(">I")
_position = struct.Struct(">QQ")


class Restored(NamedTuple):
    """The restored state. `continued` lists the earlier positions from which the archive's base objects continue."""

    position: Position
    digest: bytes
    snapshot_bytes: int
    increments: int
    increment_bytes: int
    continued: tuple[Position, ...]


class Header(NamedTuple):
    """The header of an object. `previous` is the digest of the previous object's header, or zeros."""

    kind: Kind
    position: Position
    user_id: str
    body_bytes: int
    body_sha256: bytes
    previous: bytes

    def encode(self) -> bytes:
        fields = _header.pack(
            _MAGIC,
            FORMAT,
            KINDS.index(self.kind),
            self.position.epoch,
            self.position.number,
            self.body_bytes,
            sha256(self.user_id.encode()).digest(),
            self.body_sha256,
            self.previous,
        )
        return fields + sha256(fields).digest()

    @property
    def digest(self) -> bytes:
        return self.encode()[-_DIGEST_BYTES:]


NO_PREVIOUS = bytes(_DIGEST_BYTES)


def object_name(number: int, kind: Kind) -> str:
    return f"{number:012}.{kind}"


def parse_name(name: str) -> tuple[int, Kind] | None:
    found = _NAME.fullmatch(name)
    return None if found is None else (int(found[1]), KINDS[KINDS.index(found[2])])


def derived_name(number: int, file_name: str) -> str:
    """Return the name under which a copy of a derived file is stored; the copy contains no changes after the object
    `number`."""
    return f"{number:012}.{file_name}"


def parse_derived(name: str) -> tuple[int, str] | None:
    found = _DERIVED.fullmatch(name)
    return None if found is None else (int(found[1]), found[2])


def read_header(data: bytes, kind: Kind, position: Position, user_id: str) -> Header:
    """Return the header at the start of an object. Raises `ArchiveDamagedError` for the header of another object."""
    what = f"object {position}.{kind}"
    fields = data[: _header.size]
    if len(data) < HEADER_BYTES or sha256(fields).digest() != data[_header.size : HEADER_BYTES]:
        raise ArchiveDamagedError(f"{what}: the header is damaged")
    magic, version, code, epoch, number, body_bytes, user, body_sha256, previous = _header.unpack(fields)
    if magic == _MAGIC and version > FORMAT:
        raise ArchiveDamagedError(f"{what} has format {version}; this version supports up to {FORMAT}")
    header = Header(kind, position, user_id, body_bytes, body_sha256, previous)
    is_same = magic == _MAGIC and (code, epoch, number) == (KINDS.index(kind), position.epoch, position.number)
    if not is_same or user != sha256(user_id.encode()).digest():
        raise ArchiveDamagedError(f"{what} is an object of another user, position or kind")
    return header


def read_body(data: bytes, header: Header) -> memoryview:
    """Return the body of an object. Raises `ArchiveDamagedError` if it does not match the header."""
    body = memoryview(data)[HEADER_BYTES:]
    if len(body) != header.body_bytes or sha256(body).digest() != header.body_sha256:
        raise ArchiveDamagedError(f"object {header.position}.{header.kind} is damaged")
    return body


def make_object(kind: Kind, position: Position, user_id: str, body: bytes, previous: bytes) -> tuple[Header, bytes]:
    header = Header(kind, position, user_id, len(body), sha256(body).digest(), previous)
    return header, header.encode() + body


def encode_changes(changes: Sequence[StoredChange]) -> bytes:
    return _encoder.encode(changes)


def increment_body(transactions: Iterable[bytes]) -> bytes:
    return b"".join(_length.pack(len(one)) + one for one in transactions)


def read_changes(body: memoryview, header: Header) -> Iterator[StoredChange]:
    """Yield the changes in the body of an increment. Raises `ArchiveDamagedError`."""
    try:
        start = 0
        while start < len(body):
            end = start + _length.size + _length.unpack_from(body, start)[0]
            yield from _decoder.decode(body[start + _length.size : end])
            start = end
    except (struct.error, msgspec.DecodeError) as error:  # although the checksum matches
        raise ArchiveDamagedError(f"object {header.position}.{header.kind}: {error}") from error


def base_body(continued: Position, owner: bytes = b"") -> bytes:
    """Return the body of a base. The body names the object that the base's epoch continues, and the `owner`."""
    return _position.pack(continued.epoch, continued.number) + owner


def read_base(body: memoryview, header: Header) -> Position:
    """Return the position from which a base continues. Raises `ArchiveDamagedError`."""
    is_whole = len(body) >= _position.size
    if not is_whole or (continued := Position(*_position.unpack_from(body))).epoch >= header.position.epoch:
        raise ArchiveDamagedError(f"object {header.position}.{header.kind} does not name an earlier epoch")
    return continued


def read_owner(body: memoryview) -> bytes:
    return bytes(body[_position.size :])
