"""The file of the vector index: our header and checksums around the bytes of usearch. Not fsynced; it is a cache.

usearch trusts every byte of its file, and a flipped bit kills the process, so all checksums are compared first.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import xxhash

from memory_agent.errors import IndexDamagedError
from relay import UndecipherableError
from relay.crypto import SEAL_BYTES, Cipher

_PART_BYTES = 64 << 20  # encrypted as one; AES-GCM takes less than 2 GB
_MAGIC = b"memory-agent index 2\n"  # 2: vectors are scaled before they become int8


class IndexHeader(msgspec.Struct, frozen=True, kw_only=True):
    """What was saved: the engine, the state of the store it belongs to, the size and checksum of the stored body.

    `key_id` names the key that encrypts the body; empty without encryption.
    """

    engine: str
    ndim: int
    count: int
    applied: int
    stamp: str
    lineage: str
    body_bytes: int = 0
    body_xxh3: bytes = b""
    key_id: bytes = b""


def write_index(path: Path, header: IndexHeader, body: bytes, cipher: Cipher | None = None) -> None:
    """Replace the file atomically, encrypted with a `cipher`; size, checksum and key id are filled in here.

    Raises `OSError`; the old file is then kept.
    """
    if cipher is not None:
        header = msgspec.structs.replace(header, key_id=cipher.key_id)
        body = _sealed(header, body, cipher)
    header = msgspec.structs.replace(header, body_bytes=len(body), body_xxh3=xxhash.xxh3_128_digest(body))
    content = msgspec.msgpack.encode(header)
    temporary = path.with_name(path.name + ".new")
    try:
        with temporary.open("wb") as file:
            file.write(_MAGIC + xxhash.xxh3_64_digest(content) + len(content).to_bytes(4, "big") + content)
            file.write(body)
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)  # do not leave half a file on a full disk
        raise


def parse_index(
    name: str, content: memoryview, engine: str, cipher: Cipher | None = None
) -> tuple[IndexHeader, memoryview]:
    """Return header and body of a saved file.

    Raises `IndexDamagedError` unless the file is intact, of this engine, and encrypted with this cipher, or with none.
    """
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
    if header.key_id != (b"" if cipher is None else cipher.key_id):
        raise IndexDamagedError(f"{name}: encrypted with another key, or with none")
    return header, body if cipher is None else _opened(name, header, body, cipher)


def _sealed(header: IndexHeader, body: bytes, cipher: Cipher) -> bytes:
    parts = _cut(memoryview(body), _PART_BYTES)
    return b"".join(cipher.seal(bytes(part), _about(header, i, len(parts))) for i, part in enumerate(parts))


def _opened(name: str, header: IndexHeader, body: memoryview, cipher: Cipher) -> memoryview:
    parts = _cut(body, _PART_BYTES + SEAL_BYTES)
    try:
        plain = [cipher.open(bytes(part), _about(header, i, len(parts))) for i, part in enumerate(parts)]
    except UndecipherableError as error:
        raise IndexDamagedError(f"{name}: the body cannot be deciphered") from error
    return memoryview(b"".join(plain))


def _cut(body: memoryview, size_bytes: int) -> list[memoryview]:
    """Return the body in parts, at least one, so that an empty body is authenticated too."""
    return [body[i : i + size_bytes] for i in range(0, max(1, len(body)), size_bytes)]


def _about(header: IndexHeader, part: int, parts: int) -> bytes:
    said = msgspec.structs.replace(header, body_bytes=0, body_xxh3=b"")
    return msgspec.msgpack.encode((_MAGIC, said, part, parts))
