"""A block (the answer to a recall that an event caused), and the event `memory.recalled` that carries it."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import msgspec

from memory_agent.errors import InvalidInputError, ProtocolError
from relay import LOCAL, SYSTEM_USER, JournalEntry, described

RECALLED = "memory.recalled"


class QuotedMemory(msgspec.Struct, frozen=True, kw_only=True):
    """A memory in a block. `score` is the raw cosine, or None if unknown; see `RetrievedMemory` for `relevance`."""

    id: str
    score: float | None = None
    relevance: float | None = None


class Block(msgspec.Struct, frozen=True, kw_only=True):
    """Memories for one role about one event. `text` is meant for a prompt; it is "" if no memory is relevant.

    `run_id` and `session_id` identify the event's run and session; `trigger` names the row of the table. `quotes`
    contains the ids of all memories whose text or time the block shows; erasing any of these memories erases the block.
    """

    trigger: str
    role: str
    cause_event_id: str
    recall_id: str
    text: str = msgspec.field(name="block")
    memories: tuple[QuotedMemory, ...] = ()
    run_id: str | None = None
    session_id: str | None = None
    degraded: tuple[str, ...] = ()
    quotes: tuple[str, ...] = ()

    def to_event(self, user_id: str) -> dict[str, Any]:
        """Return the block as an event for this user. The id is derived from the cause, so each cause has a single
        block.
        """
        digest = sha256(self.cause_event_id.encode(errors="surrogatepass")).hexdigest()[:32]
        return {
            "event_id": f"recalled-{digest}",
            "event_type": RECALLED,
            "user_id": user_id,
            "actor_id": "memory",
            "session_id": self.session_id,
            "payload": msgspec.to_builtins(self),
        }

    @classmethod
    def of_event(cls, data: bytes) -> Block:
        try:
            return _decoder.decode(data).payload
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise ProtocolError(f"a {RECALLED} event contains no block: {error}") from error


@dataclass(frozen=True)
class Wanted:
    """Selects the blocks to follow by role, run and session; None matches any value."""

    role: str | None = None
    run: str | None = None
    session: str | None = None

    def check(self, user_id: str) -> None:
        """Raise `InvalidInputError` if the user is `system` and no run or session is named."""
        if user_id == SYSTEM_USER and self.run is None and self.session is None:
            raise InvalidInputError("run", "system has no blocks of its own; specify a run, a session or a user")

    def block_in(self, entry: JournalEntry) -> Block | None:
        if entry.event_type != RECALLED or entry.origin is None or entry.origin.key_id != LOCAL:
            return None
        block = Block.of_event(entry.data)
        named = ((self.role, block.role), (self.run, block.run_id), (self.session, block.session_id))
        return block if all(wanted in (None, own) for wanted, own in named) else None


class _Event(msgspec.Struct):
    payload: Block


_decoder = msgspec.msgpack.Decoder(described(_Event))
