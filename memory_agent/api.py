"""The one protocol behind which every way to a memory stands: embedded, over ZeroMQ, or inside Ray."""

from __future__ import annotations

from datetime import datetime
from typing import Protocol, TypedDict, Unpack, runtime_checkable

from memory_agent.records import Dates, MemoryFilter, Mode, Profile, RecallResult


class RecallOptions(TypedDict, total=False):
    """What a recall may be told besides.

    `profile`: the moment at which a planner asks; it says how many memories of which kinds, where the caller does not.
    `dates`: what a time that the query names does: `boost` memories of that time, `filter` by it, or `ignore` it.
    `reference_time`: what "last week" is relative to, the present unless given; with a time zone, which decides where
    days begin. `context_tokens`: render the block for a prompt in at most so many tokens of the embedding model.
    `with_embedding`: keep each record's vector.
    """

    profile: Profile | None
    dates: Dates | None
    reference_time: datetime | None
    context_tokens: int | None
    with_embedding: bool


@runtime_checkable
class MemoryProvider(Protocol):
    """Answers recalls for one user. `Memory`, `MemoryClient` and `ActorMemoryProvider` satisfy it."""

    def recall(
        self,
        query: str,
        top_k: int | None = None,
        filter: MemoryFilter | None = None,
        mode: Mode | None = None,
        deadline_ms: float | None = None,
        **options: Unpack[RecallOptions],
    ) -> RecallResult:
        """Return at most `top_k` memories (5, or what the profile says), best first; `mode` is the settings' (hybrid).

        Raises `InvalidInputError` for an unusable argument. A part that is missing or late is named in `degraded`
        and is no error.
        """
        ...
