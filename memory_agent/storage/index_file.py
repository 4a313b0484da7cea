"""The saved form of the vector index: our header and checksums around what the engine wrote. Knows no engine.

The engine believes every byte of its file, and a flipped bit kills the process; so all checksums are compared before it
sees one. Not fsynced, it is a cache.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import xxhash

from memory_agent.errors import IndexDamagedError

_MAGIC = b"memory-agent index 2\n"  # 2: vectors are scaled before they become int8


class IndexHeader(msgspec.Struct, frozen=True, kw_only=True):
    """What was saved: by which engine, of which state of which store, and the checksum of its body."""

    engine: str
    ndim: int
    count: int
    applied: int
    stamp: str
    lineage: str
    body_bytes: int
    body_xxh3: bytes


def write_index(path: Path, header: IndexHeader, body: bytes) -> None:
    """Replace the file as a whole. Raises `OSError`; the old file is kept then."""
    content = msgspec.msgpack.encode(header)
    temporary = path.with_name(path.name + ".new")
    try:
        with temporary.open("wb") as file:
            file.write(_MAGIC + xxhash.xxh3_64_digest(content) + len(content).to_bytes(4, "big") + content)
            file.write(body)
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)  # half a file helps nobody, least of all a full disk
        raise


def parse_index(name: str, content: memoryview, engine: str) -> tuple[IndexHeader, memoryview]:
    """Return header and body of a saved file. Raises `IndexDamagedError` unless it is whole and of this engine."""
    start = len(_MAGIC)
    length = int.from_bytes(content[start + 8 : start + 12], "big")
    encoded = content[start + 12 : start + 12 + length]
    if content[:start] != _MAGIC or xxhash.xxh3_64_digest(encoded) != content[start : start + 8]:
        raise IndexDamagedError(f"{name}: the header is damaged")
    try:
        header = msgspec.msgpack.decode(encoded, type=IndexHeader)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise IndexDamagedError(f"{name}: the header is damaged: {error}") from error
    body = content[start + 12 + length :]
    if header.engine != engine:
        raise IndexDamagedError(f"{name}: written by {header.engine}, this is {engine}")
    if len(body) != header.body_bytes or xxhash.xxh3_128_digest(body) != header.body_xxh3:
        raise IndexDamagedError(f"{name}: the body does not match its checksum")
    return header, body
