"""A small text file that tells when it was damaged: what it holds, and on a line behind that its SHA-256. Pure.

A flipped bit in JSON is often other JSON: another user's name in a key, another id in what is to be erased. A file
without that line is taken as it is; none of ours loses it by damage and stays readable. Against whoever changes a file
on purpose this does nothing.
"""

from __future__ import annotations

from hashlib import sha256


def sealed(content: bytes) -> bytes:
    """Return what is written to the file."""
    return content + b"\n" + _line(content)


def unsealed(data: bytes) -> bytes:
    """Return what the file holds. Raises `ValueError` when it is not what was written."""
    content, newline, line = data.removesuffix(b"\n").rpartition(b"\n")
    if not newline or not line.startswith(b'"'):
        return data
    if line + b"\n" != _line(content):
        raise ValueError("its last line is not the SHA-256 of what stands above: it was damaged, or edited")
    return content


def _line(content: bytes) -> bytes:
    return b'"%s"\n' % sha256(content).hexdigest().encode()
