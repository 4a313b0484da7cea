"""Stores named arrays in one file. A plain file is mapped; an encrypted file is decrypted into memory.

The file is a cache: it is replaced atomically, not fsynced, and every byte is checked before use. It consists of a
head of 64 bytes (magic, key id, nonce), the arrays, an index and a tail. Arrays begin at multiples of 64 bytes. The
index is in MessagePack, and includes the caller's header. The tail contains the length of the index, and a checksum of
head, index and length. With a cipher, the index and each block of an array are encrypted; the associated data are the
file's nonce and the position.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Iterator, Sequence
from math import prod
from pathlib import Path
from typing import Annotated, Any, BinaryIO, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt
import xxhash

from memory_agent.errors import IndexDamagedError
from memory_agent.storage.column import Arrays
from relay import UndecipherableError, described
from relay.crypto import SEAL_BYTES, Cipher

Array = npt.NDArray[Any]
Header = TypeVar("Header")

_MAGIC = b"memory-agent arrays 1\n"
_NO_KEY = bytes(8)
_NONCE_BYTES = 16
_ALIGNMENT = _HEAD_BYTES = 64
_TAIL_BYTES = 16
_BLOCK_BYTES = 4 << 20  # size of the blocks that are copied and encrypted
_DTYPES = frozenset({"|b1", "|i1", "|u1", "<i2", "<u2", "<i4", "<u4", "<i8", "<u8", "<f2", "<f4", "<f8"})


class _Entry(msgspec.Struct, frozen=True, array_like=True):
    """One array. `xxh3`: the checksum of the padded array; empty if encrypted."""

    name: str
    dtype: str
    shape: tuple[Annotated[int, msgspec.Meta(ge=0)], ...]
    xxh3: bytes = b""

    @property
    def plain_bytes(self) -> int:
        return _padded(prod(self.shape) * np.dtype(self.dtype).itemsize)


class _Index(msgspec.Struct, frozen=True):
    header: msgspec.Raw
    arrays: list[_Entry]


def write_arrays(path: Path, header: object, arrays: Arrays, cipher: Cipher | None = None) -> None:
    """Replace the file with one that contains `arrays` and a `header`. On an `OSError` the old file remains."""
    head = _MAGIC + (_NO_KEY if cipher is None else cipher.key_id) + os.urandom(_NONCE_BYTES)
    head = head.ljust(_HEAD_BYTES, b"\0")
    temporary = path.with_name(path.name + ".new")
    try:
        with temporary.open("wb") as file:
            file.write(head)
            entries = [_write_array(file, head, name, array, cipher) for name, array in arrays.items()]
            index = msgspec.msgpack.encode(_Index(msgspec.Raw(msgspec.msgpack.encode(header)), entries))
            if cipher is not None:
                index = cipher.seal(index, head)
            length = len(index).to_bytes(8, "little")
            file.write(index + length + xxhash.xxh3_64_digest(head + index + length))
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)  # do not leave a partial file on a full disk
        raise


def read_arrays(
    path: Path,
    header: type[Header],
    cipher: Cipher | None = None,
    is_copied: Callable[[str, Array], bool] = lambda name, array: False,
) -> tuple[Header, dict[str, Array]]:
    """Return the header and the arrays. The arrays are writable: a plain file is mapped copy-on-write.

    Arrays for which `is_copied(name, array)` is true are copied into private memory. Raises `IndexDamagedError` if the
    file is missing or damaged, or was not encrypted with this cipher.
    """
    try:
        with path.open("rb") as file:
            content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    except (OSError, ValueError) as error:  # mmap raises ValueError for an empty file
        raise IndexDamagedError(f"{path.name}: {error}") from error
    try:
        return _parsed(content, header, cipher, is_copied)
    except UndecipherableError as error:
        raise IndexDamagedError(f"{path.name}: cannot be decrypted") from error
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise IndexDamagedError(f"{path.name}: {error}") from error


def _write_array(
    file: BinaryIO, head: bytes, name: str, array: Array | Sequence[Array], cipher: Cipher | None
) -> _Entry:
    parts = [array] if isinstance(array, np.ndarray) else array
    dtype = parts[0].dtype.newbyteorder("<")
    assert dtype.str in _DTYPES, dtype
    shape = (sum(len(part) for part in parts), *parts[0].shape[1:])
    entry = _Entry(name, dtype.str, shape)
    checksum = xxhash.xxh3_128()
    for number, block in enumerate(_blocks([np.ascontiguousarray(part, dtype) for part in parts])):
        if cipher is None:
            checksum.update(block)
            file.write(block)
        else:
            file.write(cipher.seal(block, _about(head, entry, number)))
    return entry if cipher is not None else msgspec.structs.replace(entry, xxh3=checksum.digest())


def _blocks(parts: Sequence[Array]) -> Iterator[bytes]:
    """Yield the bytes of the arrays in fixed-size blocks; the last block is padded."""
    block = bytearray()
    for content in (part.reshape(-1).view(np.uint8).data for part in parts if part.size):
        start = 0
        while start < len(content):
            end = start + _BLOCK_BYTES - len(block)
            part, start = content[start:end], end
            if len(part) == _BLOCK_BYTES:
                yield bytes(part)
                continue
            block += part
            if len(block) == _BLOCK_BYTES:
                yield bytes(block)
                block.clear()
    if block:
        yield bytes(block.ljust(_padded(len(block)), b"\0"))


def _parsed(
    mapped: mmap.mmap, header: type[Header], cipher: Cipher | None, is_copied: Callable[[str, Array], bool]
) -> tuple[Header, dict[str, Array]]:
    content = memoryview(mapped)
    head, length, end = (
        bytes(content[:_HEAD_BYTES]),
        content[-_TAIL_BYTES : -_TAIL_BYTES + 8],
        len(content) - _TAIL_BYTES,
    )
    start = end - int.from_bytes(length, "little")
    if start < _HEAD_BYTES or xxhash.xxh3_64_digest(head + content[start:end] + length) != content[end + 8 :]:
        raise ValueError("the index does not match its checksum")
    if not head.startswith(_MAGIC + (_NO_KEY if cipher is None else cipher.key_id)):
        raise ValueError("wrong format or encryption key")
    stored = bytes(content[start:end])
    index = msgspec.msgpack.decode(stored if cipher is None else cipher.open(stored, head), type=described(_Index))
    arrays, place = {}, _HEAD_BYTES
    for entry in index.arrays:
        size = _stored_bytes(entry, cipher)
        if place + size > start:
            raise ValueError("the file is shorter than its arrays")
        region = content[place : place + size]
        array = _plain(region, entry) if cipher is None else _opened(region, head, entry, cipher)
        arrays[entry.name] = array.copy() if cipher is None and is_copied(entry.name, array) else array
        place += size
    if place != start:
        raise ValueError("the file is longer than its arrays")
    del content
    mapped.madvise(mmap.MADV_DONTNEED)  # drop the pages read for the check; pages that are used again become resident
    return msgspec.msgpack.decode(index.header, type=described(header)), arrays


def _plain(region: memoryview, entry: _Entry) -> Array:
    if xxhash.xxh3_128_digest(region) != entry.xxh3:
        raise ValueError(f"array {entry.name} does not match its checksum")
    return _shaped(np.frombuffer(region, dtype=np.uint8), entry)


def _opened(region: memoryview, head: bytes, entry: _Entry, cipher: Cipher) -> Array:
    plain = np.empty(entry.plain_bytes, dtype=np.uint8)
    step = _BLOCK_BYTES + SEAL_BYTES
    for number, start in enumerate(range(0, len(region), step)):
        block = cipher.open(bytes(region[start : start + step]), _about(head, entry, number))
        plain[number * _BLOCK_BYTES :][: len(block)] = np.frombuffer(block, dtype=np.uint8)
    return _shaped(plain, entry)


def _shaped(content: npt.NDArray[np.uint8], entry: _Entry) -> Array:
    count = prod(entry.shape) * np.dtype(entry.dtype).itemsize
    return content[:count].view(entry.dtype).reshape(entry.shape)


def _stored_bytes(entry: _Entry, cipher: Cipher | None) -> int:
    if entry.dtype not in _DTYPES:
        raise ValueError(f"array {entry.name} has an unknown type")
    sealed = 0 if cipher is None else SEAL_BYTES * -(-entry.plain_bytes // _BLOCK_BYTES)
    return entry.plain_bytes + sealed


def _about(head: bytes, entry: _Entry, block: int) -> bytes:
    return msgspec.msgpack.encode((head, entry.name, entry.dtype, entry.shape, block))


def _padded(size_bytes: int) -> int:
    return -(-size_bytes // _ALIGNMENT) * _ALIGNMENT
