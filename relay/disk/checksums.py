"""Checksums of stored values and of small text files; they detect damage, not forgery.

JSON with a flipped bit is often valid JSON: another user's name in a key, another id in a list to erase. So a text file
ends with a line that holds its SHA-256. A file without that line is from an older version and is read without a check;
no damage was seen that removes the line and leaves the rest readable.
"""

from __future__ import annotations

from hashlib import sha256

import xxhash

CHECKSUM_BYTES = 8


def checksum(number: int, body: bytes) -> bytes:
    """Return the 8 bytes stored before `body`. They depend on `number`, its key, so a moved value is noticed."""
    return xxhash.xxh3_64_digest(body, seed=number)


def add_checksum(content: bytes) -> bytes:
    """Return the content of a text file with the line of its checksum."""
    return content + b"\n" + _line(content)


def verify_checksum(data: bytes) -> bytes:
    """Return the content of a file that `add_checksum` made. Raises `ValueError` when the checksum does not match."""
    content, newline, line = data.removesuffix(b"\n").rpartition(b"\n")
    if not newline or not line.startswith(b'"'):
        return data
    if line + b"\n" != _line(content):
        raise ValueError("its last line is not the SHA-256 of the lines above it: it was damaged, or edited")
    return content


def _line(content: bytes) -> bytes:
    return b'"%s"\n' % sha256(content).hexdigest().encode()
