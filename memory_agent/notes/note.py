"""A memory as a file states it, with the id under which it is stored."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from hashlib import sha256
from typing import Any

import msgspec

DIGEST = "digest"
"""The field of a memory's metadata by which an unchanged note is recognised."""
FILE = "file"
HEADING = "heading"


class Note(msgspec.Struct, frozen=True, kw_only=True):
    """A memory that a file states. `fields` are further arguments of `remember`; `place` is where it stands."""

    id: str
    text: str
    place: str
    title: str | None = None
    timestamp: datetime | None = None
    metadata: Mapping[str, Any] = {}
    fields: Mapping[str, Any] = {}

    @property
    def digest(self) -> str:
        """A hash of all that is stored."""
        return digest_of(self.text, self.title, self.metadata, self.fields)


class BadNote(msgspec.Struct, frozen=True, kw_only=True):
    """Something in a file that is no memory, and why."""

    file: str
    place: str
    reason: str

    def __str__(self) -> str:
        return ": ".join(filter(None, (self.file, self.place, self.reason)))


def digest_of(*values: Any) -> str:
    """Return a hash of values, the same in every process."""
    return sha256(msgspec.json.encode(values, order="deterministic")).hexdigest()[:32]
