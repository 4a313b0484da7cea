"""What a memory is, what a recall asks and what it answers: plain data, no behaviour that needs an engine.

These types are the public contract. They travel as MessagePack or JSON with their field names, so new fields go
last and have defaults, and the type of a field never changes.

Shapes: d = dimensions of an embedding (384 with the default model).
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal, get_args

import msgspec
import numpy as np
import numpy.typing as npt

Embedding = npt.NDArray[np.float32]

Source = Literal["user_input", "conductor_plan", "worker_result", "writer_revision", "trajectory_outcome"]
Kind = Literal["episode", "strategy", "finding", "pattern"]
Provenance = Literal["verified", "cited", "assumed", "cached"]
Mode = Literal["hybrid", "vector", "lexical"]
Dates = Literal["boost", "filter", "ignore"]
Profile = Literal["before_planning", "document", "trajectory"]
Retrieval = Literal["vector", "lexical", "hybrid"]
Tier = Literal["local", "global"]

SOURCES: tuple[Source, ...] = get_args(Source)
KINDS: tuple[Kind, ...] = get_args(Kind)
PROVENANCES: tuple[Provenance, ...] = get_args(Provenance)
MODES: tuple[Mode, ...] = get_args(Mode)
DATES: tuple[Dates, ...] = get_args(Dates)
PROFILES: tuple[Profile, ...] = get_args(Profile)


class Utility(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What happened when a memory was recalled: how often it was used, and the summed outcome of those runs."""

    used: int = 0
    reward_sum: float = 0.0


class MemoryRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One memory.

    `quality_score` says how the episode ended (0..1, or none); `utility` says what happened when it was recalled.
    `embedding` is (d,) float32 of unit length as a list, and None where it was not asked for or does not exist yet.
    """

    id: str
    text: str
    source: Source
    kind: Kind
    timestamp: datetime
    embedding: list[float] | None = None
    quality_score: float | None = None
    session_id: str | None = None
    metadata: dict[str, Any] = {}
    title: str | None = None
    tags: tuple[str, ...] = ()
    provenance: Provenance | None = None
    run_id: str | None = None
    channel_id: str | None = None
    agent_id: str | None = None
    event_id: str | None = None
    last_recalled_at: datetime | None = None
    times_recalled: int = 0
    utility: Utility = Utility()


class MemoryFilter(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which memories may answer. Every field that is set must hold; empty means no condition.

    `tags`: at least one of them. `since` inclusive, `until` exclusive. `min_quality` leaves out memories without a
    quality. `min_score` is a floor on the raw cosine; memories without a vector are left out by it.
    """

    kinds: tuple[Kind, ...] = ()
    sources: tuple[Source, ...] = ()
    since: datetime | None = None
    until: datetime | None = None
    session_id: str | None = None
    run_id: str | None = None
    channel_id: str | None = None
    agent_id: str | None = None
    tags: tuple[str, ...] = ()
    provenance: tuple[Provenance, ...] = ()
    min_quality: float | None = None
    min_score: float | None = None


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """One of the records that say the same: which, when, and where it came from."""

    id: str
    timestamp: datetime
    source: Source
    session_id: str | None = None
    run_id: str | None = None
    quality_score: float | None = None
    provenance: Provenance | None = None


class UnderstoodDate(msgspec.Struct, frozen=True, kw_only=True):
    """Words of the query that name a time, and the time: `since` inclusive, `until` exclusive, None where open."""

    phrase: str
    since: datetime | None = None
    until: datetime | None = None


class RetrievedMemory(msgspec.Struct, frozen=True, kw_only=True):
    """A memory in an answer. `score` is the raw cosine (None without a vector); `sona_score` ranked it.

    Records of one kind and title that say the same are one memory here: `count` of them pass the filter, from
    `first_seen` to `last_seen`, and `origins` are the newest of them, at most eight, `record` aside.
    """

    record: MemoryRecord
    score: float | None
    lexical_score: float | None
    sona_score: float
    retrieval: Retrieval
    tier: Tier = "local"
    highlights: tuple[str, ...] = ()
    explanation: dict[str, Any] = {}
    count: int = 1
    first_seen: datetime | None = None
    last_seen: datetime | None = None
    origins: tuple[Origin, ...] = ()


class RecallResult(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a recall, best first. `degraded` names each part that could not take part, and is empty else.

    Where two rankings are woven into one answer, each has scores of its own (`explanation["arm"]`): then the order is
    that of the answer, and not that of `sona_score`. `dates` are the times that the query was understood to name.
    `context` is the block for a prompt, where one was asked for.
    """

    recall_id: str
    memories: tuple[RetrievedMemory, ...]
    degraded: tuple[str, ...] = ()
    took_ms: float = 0.0
    dates: tuple[UnderstoodDate, ...] = ()
    context: str | None = None


class RejectedEvent(msgspec.Struct, frozen=True, kw_only=True):
    """An event that can never become a memory; `position` is its place in the batch that was ingested."""

    position: int
    event_id: str
    reason: str


class IngestReport(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a batch of events: every event is in exactly one of the counts."""

    kept: int = 0
    duplicates: int = 0
    dropped: dict[str, int] = {}
    rejected: tuple[RejectedEvent, ...] = ()
    record_ids: tuple[str, ...] = ()


class MemoryStats(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of one user's memory. `expired`: how many memories went by each rule of retention."""

    user_id: str
    memories: int
    by_kind: dict[str, int]
    by_source: dict[str, int]
    without_vector: int
    events_kept: int
    events_duplicate: int
    events_dropped: dict[str, int]
    cursor: int
    oldest: datetime | None
    newest: datetime | None
    model: str | None
    index: str
    disk_bytes: int
    masked: dict[str, int] = {}
    expired: dict[str, int] = {}
    dropped_types: dict[str, int] = {}


class Compacted(msgspec.Struct, frozen=True, kw_only=True):
    """The size of the file of a user's records, before and after what was deleted left it."""

    bytes_before: int
    bytes_after: int
