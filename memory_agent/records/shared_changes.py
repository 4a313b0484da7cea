"""What followers of shared items hear: events `global.published`, `global.unpublished` and `global.rated`.

They name no author, text or figure. An item that is gone is named by its fingerprint alone, which its events had
before too, and which follows from its id.
"""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime
from typing import Any, Literal

import msgspec

from memory_agent.records.shared import ContentType
from relay import SHARED_USER, Erasable, JournalEntry

ChangeKind = Literal["published", "unpublished", "rated"]
_PREFIX = "global."


class SharedChange(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What became of an item: a version was published, it went from those whom `access_policy` admits, or has a rating.

    `item` is the fingerprint of its id. `item_id`, `version` and `content_type` are None of one that is gone. `rated`:
    another rating was released, which counts five users at least; none says when a rating was withdrawn.
    """

    kind: ChangeKind
    item: str
    access_policy: str
    at: datetime
    item_id: str | None = None
    version: str | None = None
    content_type: ContentType | None = None

    def to_event(self, event_id: str) -> dict[str, Any]:
        """Return the event for those whom the policy admits. `quotes`: it is erased with the item."""
        quotes = {"quotes": [self.item]} if self.item_id is not None else {}
        return {
            "event_id": event_id,
            "event_type": _PREFIX + self.kind,
            "user_id": SHARED_USER,
            "actor_id": "memory",
            "audience": self.access_policy,
            "payload": msgspec.to_builtins(self) | quotes,
        }

    @classmethod
    def in_entry(cls, entry: JournalEntry) -> SharedChange | None:
        """Return the change in a journal entry, None if it tells of none."""
        if entry.user_id != SHARED_USER or not entry.event_type.startswith(_PREFIX):
            return None
        with suppress(msgspec.DecodeError, UnicodeDecodeError):
            return _decoder.decode(entry.data).payload
        return None


class Untold(msgspec.Struct, frozen=True, kw_only=True):
    """Changes that followers have not been told of, with the ids of their events; they end with entry `through`.

    `has_more`: there were further entries when these were read.
    """

    changes: tuple[tuple[str, SharedChange], ...] = ()
    through: int = 0
    has_more: bool = False

    @property
    def events(self) -> list[dict[str, Any]]:
        """The events to publish, in order, once `outdated` ones are erased."""
        return [change.to_event(event_id) for event_id, change in self.changes]

    @property
    def outdated(self) -> Erasable | None:
        """The journal's former events of items that went, None if none did.

        Without those of these changes: after a crash the journal may have them, and would not take them again.
        """
        gone = frozenset(change.item for _, change in self.changes if change.item_id is None)
        kept_ids = frozenset(event_id for event_id, _ in self.changes)
        return Erasable(user_id=SHARED_USER, quoted=gone, kept_ids=kept_ids) if gone else None


class _Event(msgspec.Struct):
    payload: SharedChange


_decoder = msgspec.msgpack.Decoder(_Event)
