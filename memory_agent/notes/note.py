"""A memory read from a file, with the id under which it is stored."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from hashlib import sha256
from typing import Any

import msgspec

DIGEST = "digest"
"""The metadata field by which an unchanged note is recognised."""
FILE = "file"
HEADING = "heading"


class Note(msgspec.Struct, frozen=True, kw_only=True):
    """A memory in a file. `place` is its position in the file; `fields` contains additional arguments of `remember`."""

    id: str
    text: str
    place: str
    title: str | None = None
    timestamp: datetime | None = None
    metadata: Mapping[str, Any] = {}
    fields: Mapping[str, Any] = {}

    @property
    def digest(self) -> str:
        return digest_of(self.text, self.title, self.metadata, self.fields)


def digest_of(*values: Any) -> str:
    return sha256(msgspec.json.encode(values, order="deterministic")).hexdigest()[:32]
