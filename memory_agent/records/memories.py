"""Public data types for memories, recalls and their answers.

They are serialised as MessagePack or JSON with field names: add new fields last with defaults, and never change the
type of a field.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Literal, cast, get_args

import msgspec

from memory_agent.errors import InvalidInputError
from memory_agent.records.shared import SharedOrigin
from memory_agent.records.trajectories import CommonStep, SimilarRun

Source = Literal["user_input", "conductor_plan", "worker_result", "writer_revision", "trajectory_outcome"]
Kind = Literal["episode", "strategy", "finding", "pattern"]
Provenance = Literal["verified", "cited", "assumed", "cached"]
StatedProvenance = Literal[
    "verified", "cited", "assumed", "cached", "cached:verified", "cached:cited", "cached:assumed"
]
"""A provenance in the form that callers use: `cached:verified` is a cached copy of a verified memory."""
Mode = Literal["hybrid", "vector", "lexical"]
Dates = Literal["boost", "filter", "ignore"]
Profile = Literal["before_planning", "document", "trajectory"]
Retrieval = Literal["vector", "lexical", "hybrid"]
Tier = Literal["local", "global"]
Order = Literal["newest", "oldest", "updated"]
MetadataValue = str | int | float | bool | None
"""A value of `MemoryFilter.metadata`: a JSON value that is neither an object nor a list."""

SOURCES: tuple[Source, ...] = get_args(Source)
KINDS: tuple[Kind, ...] = get_args(Kind)
PROVENANCES: tuple[Provenance, ...] = get_args(Provenance)
STATED_PROVENANCES: tuple[StatedProvenance, ...] = get_args(StatedProvenance)
"""`PROVENANCES`, followed by the compound provenances."""
MODES: tuple[Mode, ...] = get_args(Mode)
DATES: tuple[Dates, ...] = get_args(Dates)
PROFILES: tuple[Profile, ...] = get_args(Profile)
ORDERS: tuple[Order, ...] = get_args(Order)
TIERS: tuple[Tier, ...] = get_args(Tier)


def means(text: str, least: float | None = None, most: float | None = None) -> msgspec.Meta:
    """Return the documentation of a field, for option help and for schemas. The checks in `arguments` enforce the
    bounds.
    """
    bounds = {"minimum": least, "maximum": most}
    return msgspec.Meta(
        description=text, extra_json_schema={name: bound for name, bound in bounds.items() if bound is not None}
    )


class Utility(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How often a memory was used after a recall, and the summed quality of the runs that used it."""

    used: int = 0
    reward_sum: float = 0.0


class MemoryRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One memory.

    `quality_score` (0 to 1, or None) states how the episode ended, and `utility` whether recalling the memory helped.
    `embedding` is a unit vector (d,), or None if it is not requested or not present. `type` is the event's
    `event_type`, or any name that the caller chose. `updated_at` is the time at which `remember` last replaced the
    memory. `cached_from` is the provenance of the original of a `cached` memory, if known.
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
    type: str | None = None
    phase: str | None = None
    updated_at: datetime | None = None
    cached_from: Provenance | None = None

    @property
    def stated_provenance(self) -> str | None:
        """The provenance as the caller stated it, such as `cached:verified`."""
        return self.provenance if self.cached_from is None else f"{self.provenance}:{self.cached_from}"


class Exclusion(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Memories to exclude: those that match any field. `events` and `records` are ids; `since` excludes memories from
    that time on.
    """

    events: Annotated[tuple[str, ...], means("Not from this event.")] = ()
    records: Annotated[tuple[str, ...], means("Not this memory.")] = ()
    sessions: Annotated[tuple[str, ...], means("Not of this session.")] = ()
    runs: Annotated[tuple[str, ...], means("Not of this run.")] = ()
    since: Annotated[datetime | None, means("Nothing from this time or later.")] = None


class MemoryFilter(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The memories that an answer may contain. Every field that is set must match; an empty field matches every memory.

    `in_channel` matches memories of this channel and memories without a channel. Of several `tags`, at least one must
    match. `since` is inclusive, and `until` is exclusive. `min_quality` excludes memories without a quality.
    `min_score` is the minimum raw cosine; it excludes memories without a vector. `exclude` must not match. `metadata`
    maps a path to a value, or to several values, any of which may match (`memory_agent.records.metadata`).
    """

    kinds: Annotated[tuple[Kind, ...], means("Of this kind.")] = ()
    sources: Annotated[
        tuple[Source, ...],
        means("From this source: user_input, conductor_plan, worker_result, writer_revision, trajectory_outcome."),
    ] = ()
    since: Annotated[datetime | None, means("Since then: 2026-02-16 or 2026-02-16T10:00:00Z.")] = None
    until: Annotated[datetime | None, means("Before then.")] = None
    session_id: Annotated[str | None, means("Of this session.")] = None
    run_id: Annotated[str | None, means("Of this run.")] = None
    channel_id: Annotated[str | None, means("Of this channel.")] = None
    agent_id: Annotated[str | None, means("Of this agent.")] = None
    tags: Annotated[tuple[str, ...], means("With this tag; of several tags, at least one must match.")] = ()
    provenance: Annotated[
        tuple[StatedProvenance, ...], means("Of this provenance; cached also matches cached:verified and so on.")
    ] = ()
    min_quality: Annotated[float | None, means("With a known quality of at least this value.", 0, 1)] = None
    min_score: float | None = None
    exclude: Exclusion | None = None
    type: Annotated[str | None, means("Of this type: an event type, or a name that the caller chose.")] = None
    phase: Annotated[str | None, means("Of this phase.")] = None
    metadata: Annotated[
        dict[str, MetadataValue | tuple[MetadataValue, ...]],
        means(
            "With this metadata value, at a path such as report.status. If a path is repeated, one of its "
            "values must match; of several paths, each must match."
        ),
    ] = {}
    in_channel: Annotated[str | None, means("Of this channel, or without a channel.")] = None


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """The origin of a duplicate of a returned record."""

    id: str
    timestamp: datetime
    source: Source
    session_id: str | None = None
    run_id: str | None = None
    quality_score: float | None = None
    provenance: Provenance | None = None


class UnderstoodDate(msgspec.Struct, frozen=True, kw_only=True):
    """A phrase of the query, and the time range that it names, from `since` (inclusive) to `until` (exclusive)."""

    phrase: str
    since: datetime | None = None
    until: datetime | None = None


class RetrievedMemory(msgspec.Struct, frozen=True, kw_only=True):
    """A memory in an answer. `score` is the raw cosine (None without a vector); `sona_score` determines the rank.

    `relevance` is the probability, 0 to 1, that the memory is relevant to the query, or None if it is unknown.
    `learned` is the part of `sona_score` that learning added.

    Duplicates with the same kind and title are merged. `count` is the number of duplicates that pass the filter; their
    times range from `first_seen` to `last_seen`. `origins` are the newest duplicates, at most eight, excluding `record`
    itself. `failed` counts the failed runs of these duplicates, or of the earlier requests that this memory represents.
    `shared` is the origin of a memory in the tier `global`. `passage_at` is the offset of the `highlights` in the
    record's text.
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
    relevance: float | None = None
    learned: float = 0.0
    failed: int = 0
    shared: SharedOrigin | None = None
    passage_at: int = 0


class Judgement(msgspec.Struct, frozen=True, kw_only=True):
    """A judge's selection: the judge chose `selected` of the `offered` memories, which were the best by score.

    `left_out` contains the ids of memories that the judge left out, although their scores would have placed them in the
    answer. `notes` is text that the judge's model wrote, possibly influenced by memories. `is_cached`: whether the
    selection of an identical request was reused.
    """

    offered: int
    selected: int
    left_out: tuple[str, ...] = ()
    notes: str = ""
    is_cached: bool = False


class RecallResult(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a recall, best first. `degraded` names each part that was unavailable.

    An interleaved answer is not ordered by `sona_score`: each ranking (`explanation["arm"]`) has its own scores.
    `dates` are the times recognised in the query. `context`, if requested, is the block to insert into a prompt.
    `excluded` counts the memories excluded as the caller's own words, by reason: `event`, `run`, `session`, `echo`.
    `runs`, if requested, are finished runs whose request resembles the query; successful runs come first.
    `shared_steps` are the steps that several successful runs of similar requests have in common, in order.
    `failed_steps` are steps that only failed runs took. `total` is the number of the user's own memories that were
    searched. `judgement` is None if no judge selected the user's own memories; otherwise, they are in the judge's
    order.
    """

    recall_id: str
    memories: tuple[RetrievedMemory, ...]
    degraded: tuple[str, ...] = ()
    took_ms: float = 0.0
    dates: tuple[UnderstoodDate, ...] = ()
    context: str | None = None
    excluded: dict[str, int] = {}
    runs: tuple[SimilarRun, ...] = ()
    shared_steps: tuple[CommonStep, ...] = ()
    failed_steps: tuple[CommonStep, ...] = ()
    total: int = 0
    judgement: Judgement | None = None


class MemoryPage(msgspec.Struct, frozen=True, kw_only=True):
    """One page of a list of memories. `total` memories match the filter; `next_cursor` is None on the last page."""

    records: tuple[MemoryRecord, ...]
    total: int
    next_cursor: str | None = None


class SessionSummary(msgspec.Struct, frozen=True, kw_only=True):
    """One session: its memories from `first` to `last`, counted by kind, and the number of runs that they belong to.

    `channel_id` is the channel of its newest memory that has one. `title` is the beginning of its first user request
    or, without one, of its first memory.
    """

    session_id: str
    first: datetime
    last: datetime
    memories: int
    runs: int = 0
    kinds: dict[str, int] = {}
    channel_id: str | None = None
    title: str = ""


class SessionPage(msgspec.Struct, frozen=True, kw_only=True):
    """One page of a list of sessions. `total` sessions match the filter; `next_cursor` is None on the last page."""

    sessions: tuple[SessionSummary, ...]
    total: int
    next_cursor: str | None = None


class MemoryMap(msgspec.Struct, frozen=True, kw_only=True):
    """Memories as points in a plane, near each other if their vectors are similar. Each field with a plural name is a
    column.

    `x` and `y` range from -1 to 1. The quality of a point is the quality of its memory or run; its title is the
    beginning of the memory's title or text. `total` is the number of the user's memories. `explained` is the share (0
    to 1) of the vectors' variance that is explained linearly by `x` and `y`. `model` is the vectors' model.
    """

    ids: tuple[str, ...] = ()
    x: tuple[float, ...] = ()
    y: tuple[float, ...] = ()
    kinds: tuple[Kind, ...] = ()
    session_ids: tuple[str | None, ...] = ()
    qualities: tuple[float | None, ...] = ()
    timestamps: tuple[datetime, ...] = ()
    titles: tuple[str, ...] = ()
    total: int = 0
    explained: float = 0.0
    model: str | None = None


class RejectedEvent(msgspec.Struct, frozen=True, kw_only=True):
    """An event that can never become a memory; `position` is its index in the ingested batch."""

    position: int
    event_id: str
    reason: str


class IngestReport(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a batch of events. Each event is counted exactly once."""

    kept: int = 0
    duplicates: int = 0
    dropped: dict[str, int] = {}
    rejected: tuple[RejectedEvent, ...] = ()
    record_ids: tuple[str, ...] = ()


class ApiCounts(msgspec.Struct, frozen=True, kw_only=True):
    """The calls that a process has made to a model provider's API, for all its users, since the process started.

    `refused` calls were not sent, because the circuit breaker was open. `cost_usd` is computed from the reported
    tokens, and is 0 without a price in the settings.
    """

    provider: str
    calls: int = 0
    failed: int = 0
    retries: int = 0
    refused: int = 0
    tokens_read: int = 0
    tokens_written: int = 0
    cost_usd: float = 0.0
    problem: str = ""


class MemoryStats(msgspec.Struct, frozen=True, kw_only=True):
    """Statistics of one user's memory. `expired` counts the memories erased by each retention rule.

    `waiting` counts the memories that the model has yet to embed. While the model is being changed, `model` is still
    the former model. `provider` counts the calls to the model's server, if the model runs on a server. `rebuilt_at` is
    the time at which recall's search columns were last built from the records, if it is known. `judge` counts the
    recalls for which the judge was `asked`, was `skipped` (too little time), was not needed (`cached`) or `failed`. It
    also counts the tokens that the judge's model reported, and their cost.

    With a filter, `memories`, `by_kind`, `by_source`, `without_vector`, `waiting`, `oldest` and `newest` cover the
    memories that pass it. The other fields always cover the whole memory.
    """

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
    waiting: int = 0
    schema_version: int = 0
    created_at: datetime | None = None
    rebuilt_at: datetime | None = None
    ndim: int | None = None
    provider: ApiCounts | None = None
    judge: dict[str, float] = {}


class Compacted(msgspec.Struct, frozen=True, kw_only=True):
    """The size of a user's record file before and after compaction."""

    bytes_before: int
    bytes_after: int


def is_of_provenance(stated: str | None, wanted: Collection[str]) -> bool:
    """Whether a provenance is wanted. `cached` includes compounds such as `cached:verified`.

    >>> is_of_provenance("cached:verified", ["cached"]), is_of_provenance("cached:verified", ["verified"])
    (True, False)
    """
    return stated is not None and (stated in wanted or stated.partition(":")[0] in wanted)


def parted_provenance(stated: StatedProvenance | None) -> tuple[Provenance | None, Provenance | None]:
    """Return the fields `provenance` and `cached_from` for a stated provenance.

    >>> parted_provenance("cached:verified"), parted_provenance("cited")
    (('cached', 'verified'), ('cited', None))
    """
    if stated is None:
        return None, None
    provenance, _, origin = stated.partition(":")
    return cast(Provenance, provenance), cast(Provenance, origin) if origin else None


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def microseconds(time: datetime, field: str) -> int:
    """Return a time as exact microseconds since 1970. Raises `InvalidInputError` if it has no time zone."""
    if time.tzinfo is None:
        raise InvalidInputError(field, "has no time zone")
    return (time - _EPOCH) // _MICROSECOND


def time_of(microseconds_since_1970: int) -> datetime:
    return _EPOCH + microseconds_since_1970 * _MICROSECOND
