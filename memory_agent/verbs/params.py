"""Parameters of every verb. Pure.

Each struct is the wire format: new fields are added last, with defaults, and the type of a field never changes. A write
that may be repeated has an `event_id`. Each documented field is also an option of the verb's command.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta, timezone
from functools import cache
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, NamedTuple, Self, get_args, get_origin
from zoneinfo import ZoneInfo

import msgspec
from msgspec.structs import asdict
from ulid import ULID

from memory_agent.erasure.request import Intent, Selection
from memory_agent.errors import InvalidInputError
from memory_agent.recall.query import MOST_ANSWERS
from memory_agent.records.arguments import (
    MOST_LISTED,
    MOST_POINTS,
    MOST_SIMILAR_RUNS,
    check_deadline_ms,
    check_mode,
    check_options,
    check_text,
    joined,
)
from memory_agent.records.memories import (
    Dates,
    Kind,
    MemoryFilter,
    Mode,
    Order,
    Profile,
    Source,
    StatedProvenance,
    Tier,
    means,
)
from memory_agent.records.trajectories import RunEnd, RunState
from memory_agent.verbs.protocol import MEMORY_VERSION, OPTIONS_VERSION, PROTOCOL_VERSION, SCOPE_VERSION

AGED_AT_ONCE = 20_000
"""Maximum number of expired memories that one request forgets. Their ids in the journal take a few megabytes."""
_MOST_IMPORT_BYTES = 32 << 20
"""Far above the size of any learner. A frame over the socket's limit would close the socket without an answer."""


class OptionHelp(NamedTuple):
    """Documents a field for the command line only. `means` also documents it in the HTTP description."""

    description: str
    extra_json_schema: Mapping[str, Any] = MappingProxyType({})


MinRelevance = Annotated[
    float | None,
    means("Minimum relevance; 0 disables the threshold. Default: the setting recall.min_relevance.", 0, 1),
]
EventId = Annotated[str, means("An id that you choose. A request repeated with the same id takes effect once.")]


class Params(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    implied: ClassVar[frozenset[str]] = frozenset()
    """Fields that are derived from the other fields and the deadline. HTTP callers omit them."""

    @classmethod
    def of(cls, **arguments: Any) -> Self:
        """Build from call arguments. Raises `InvalidInputError` (with the argument's name)."""
        for field in _list_fields(cls):
            if field in arguments:
                arguments[field] = _listed(field, arguments[field])
        if "event_id" in cls.__struct_fields__ and arguments.get("event_id") is None:
            arguments["event_id"] = str(ULID())
        return cls(**arguments)

    @classmethod
    def stated(cls, fields: Mapping[str, Any], deadline_ms: float | None) -> Self:
        return cls.of(**fields)

    @classmethod
    def patience_ms(cls, arguments: Mapping[str, Any]) -> float | None:
        """Return the caller's timeout, or None for the verb's default. Raises `InvalidInputError`."""
        return None

    def arguments(self, remaining_ms: float, usual_ms: float) -> dict[str, Any]:
        """Return the keyword arguments for `Memory`'s method.

        `remaining_ms` is what remains of the caller's timeout, and `usual_ms` is the recall deadline in the settings.
        """
        return asdict(self)

    @property
    def protocol_version(self) -> int:
        """The lowest protocol version of a daemon that understands these parameters."""
        return PROTOCOL_VERSION

    @property
    def users(self) -> tuple[str, ...]:
        """The users named in the parameters, for a verb that names users."""
        return ()


class NoParams(Params, frozen=True, kw_only=True):
    pass


class JoinParams(Params, frozen=True, kw_only=True):
    """`again`: whether a machine rejoins automatically. `in_common`: the values, by name, that must be equal on all
    machines.
    """

    name: str
    address: str
    cores: int
    version: str
    model: str | None
    again: bool = False
    in_common: dict[str, int | str] = {}


class LeaveParams(Params, frozen=True, kw_only=True):
    name: str


class RecallParams(Params, frozen=True, kw_only=True):
    """Parameters of `recall`. A query with several parts is sent as one text.

    `usual_deadline`: whether the caller set no deadline. If so, the request's deadline or the deadline in the daemon's
    settings applies, whichever is shorter. Times on the wire are UTC, but days begin in the caller's time zone. This
    zone is given by `reference_offset_s` (the UTC offset of `reference_time`) and `reference_zone` (its IANA name, if
    any).
    """

    implied: ClassVar[frozenset[str]] = frozenset({"usual_deadline", "reference_offset_s", "reference_zone"})

    query: str | tuple[str, ...]
    top_k: Annotated[
        int | None, means("Maximum number of memories. Default: 5, or the profile's.", 1, MOST_ANSWERS)
    ] = None
    filter: MemoryFilter | None = None
    mode: Annotated[Mode | None, means("How to search. Default: the setting recall.mode.")] = None
    with_embedding: Annotated[bool, means("Include each record's vector.")] = False
    profile: Annotated[
        Profile | None,
        means(
            "The planner's situation, which sets the default number and kinds of memories: before_planning (5 of all "
            "kinds), document (3 findings and patterns), trajectory (5 strategies and patterns)."
        ),
    ] = None
    dates: Annotated[
        Dates | None,
        means(
            "How to use a time in the query: boost memories of that time, filter by it, or ignore it. "
            "Default: the setting recall.dates."
        ),
    ] = None
    reference_time: Annotated[datetime | None, means('The time that "last week" is relative to. Default: now.')] = None
    context_tokens: int | None = None
    usual_deadline: bool = False
    reference_offset_s: float | None = None
    reference_zone: str | None = None
    by_run: Annotated[
        str | None, means("The calling run. Its own memories are omitted, and those that it uses are credited.")
    ] = None
    by_session: Annotated[
        str | None,
        means("The calling session. Its most recent memories are omitted (see the setting recall.echo_minutes)."),
    ] = None
    by_event: Annotated[str | None, means("The event that causes this recall. Its memory is omitted.")] = None
    min_relevance: MinRelevance = None
    runs: Annotated[
        int | None,
        means(
            "Also return at most this many finished runs whose request resembles the query. "
            "Default: 2 in a block of the profiles before_planning and trajectory.",
            0,
            MOST_SIMILAR_RUNS,
        ),
    ] = None
    tiers: Annotated[
        tuple[Tier, ...] | None,
        means("Where to search: local (your own memories) or global (shared items). Default: local."),
    ] = None
    vector: tuple[float, ...] | None = None
    vector_model: str | None = None
    unlogged: Annotated[
        bool, means("Do not log the recall: its memories do not count as recalled, and nothing is learned from it.")
    ] = False

    @classmethod
    def of(cls, **arguments: Any) -> Self:
        named = {name: arguments.pop(name, None) for name in ("query", "top_k", "filter", "mode", "deadline_ms")}
        options: dict[str, Any] = {**check_options(arguments)}
        return cls(
            query=joined("query", "" if named["query"] is None else named["query"]),
            top_k=named["top_k"],
            filter=named["filter"],
            mode=check_mode(named["mode"]),
            usual_deadline=named["deadline_ms"] is None,
            **options,
            **_zone_fields(options.get("reference_time")),
        )

    @classmethod
    def stated(cls, fields: Mapping[str, Any], deadline_ms: float | None) -> Self:
        return cls.of(**fields, deadline_ms=deadline_ms)

    @classmethod
    def patience_ms(cls, arguments: Mapping[str, Any]) -> float | None:
        deadline_ms = arguments.get("deadline_ms")
        return None if deadline_ms is None else check_deadline_ms(deadline_ms)

    def arguments(self, remaining_ms: float, usual_ms: float) -> dict[str, Any]:
        given = {name: value for name, value in asdict(self).items() if name not in self.implied}
        deadline_ms = min(remaining_ms, usual_ms) if self.usual_deadline else remaining_ms
        return given | {"deadline_ms": deadline_ms, "reference_time": self.local_reference_time}

    @property
    def local_reference_time(self) -> datetime | None:
        """The reference time in the caller's zone. Raises `InvalidInputError` for an invalid zone."""
        if self.reference_time is None or self.reference_offset_s is None or self.reference_time.tzinfo is None:
            return self.reference_time
        try:
            fixed = self.reference_time.astimezone(timezone(timedelta(seconds=self.reference_offset_s)))
            named = _in_zone(fixed, self.reference_zone)
        except (ValueError, OverflowError) as error:
            raise InvalidInputError("reference_time", f"has an invalid time zone: {error}") from error
        return named if named.utcoffset() == fixed.utcoffset() else fixed

    @property
    def protocol_version(self) -> int:
        if self.vector is not None or self.unlogged:
            return SCOPE_VERSION
        newest = (self.by_session, self.by_event, self.min_relevance, self.runs, self.tiers)
        if any(value is not None for value in newest):
            return MEMORY_VERSION
        newer = (self.profile, self.dates, self.reference_time, self.context_tokens, self.by_run)
        return PROTOCOL_VERSION if all(value is None for value in newer) else OPTIONS_VERSION


class RememberParams(Params, frozen=True, kw_only=True):
    text: str
    kind: Annotated[Kind, means("The kind of memory.")] = "finding"
    source: Annotated[
        Source, means("Its origin: user_input, conductor_plan, worker_result, writer_revision, trajectory_outcome.")
    ] = "user_input"
    tags: Annotated[tuple[str, ...], means("A tag to filter by.")] = ()
    title: Annotated[str | None, means("A short title.")] = None
    provenance: Annotated[StatedProvenance | None, means("How well the memory is established.")] = None
    metadata: Annotated[
        dict[str, Any], means("A field to filter by; a value that is valid JSON is parsed as JSON.")
    ] = {}
    session_id: Annotated[str | None, means("Its session.")] = None
    id: Annotated[str | None, means("Replace the memory with this id, or store it under this id.")] = None
    type: Annotated[str | None, means("A type name that you choose, to filter by.")] = None
    phase: Annotated[str | None, means("The phase of the work that it belongs to.")] = None
    run_id: Annotated[str | None, means("Its run.")] = None
    channel_id: Annotated[str | None, means("Its channel.")] = None
    agent_id: Annotated[str | None, means("Its agent.")] = None
    timestamp: Annotated[datetime | None, means("When it happened. Default: now.")] = None
    quality_score: Annotated[float | None, means("How it ended.", 0, 1)] = None

    @classmethod
    def of(cls, **arguments: Any) -> Self:
        metadata = arguments.get("metadata")
        if metadata is not None and not isinstance(metadata, Mapping):
            raise InvalidInputError("metadata", "must be a mapping")
        return super().of(**{**arguments, "metadata": dict(metadata or {})})

    @property
    def protocol_version(self) -> int:
        """Version 3 if a field is set that older daemons would ignore."""
        names = (self.id, self.type, self.phase, self.run_id, self.channel_id, self.agent_id)
        newer = (*names, self.timestamp, self.quality_score)
        return PROTOCOL_VERSION if all(value is None for value in newer) else MEMORY_VERSION


class ListParams(Params, frozen=True, kw_only=True):
    filter: MemoryFilter | None = None
    order: Annotated[Order, means("Which memories come first.")] = "newest"
    limit: Annotated[int, means("Maximum number of memories.", 1, MOST_LISTED)] = 50
    after: Annotated[str | None, means("Continue after the page that returned this cursor, in the same order.")] = None


class SessionsParams(Params, frozen=True, kw_only=True):
    filter: MemoryFilter | None = None
    limit: Annotated[int, means("Maximum number of sessions.", 1, MOST_LISTED)] = 50
    after: Annotated[str | None, means("Continue after the page that returned this cursor.")] = None


class MapParams(Params, frozen=True, kw_only=True):
    limit: Annotated[int, means("Maximum number of memories.", 1, MOST_POINTS)] = 5_000


class StatsParams(Params, frozen=True, kw_only=True):
    filter: MemoryFilter | None = None

    @property
    def protocol_version(self) -> int:
        """Version 4 with a filter, which older daemons would ignore."""
        return PROTOCOL_VERSION if self.filter is None else SCOPE_VERSION


class RebuildParams(Params, frozen=True, kw_only=True):
    vectors: Annotated[bool, OptionHelp("Embed all memories again, after the model has changed.")] = False

    @property
    def protocol_version(self) -> int:
        """Version 2 with `vectors`, since a version 1 daemon would rebuild only the columns."""
        return OPTIONS_VERSION if self.vectors else PROTOCOL_VERSION


class GetParams(Params, frozen=True, kw_only=True):
    ids: tuple[str, ...]
    with_embedding: bool = False


class IdsParams(Params, frozen=True, kw_only=True):
    ids: tuple[str, ...]


class SessionParams(Params, frozen=True, kw_only=True):
    session_id: str


class FeedbackParams(Params, frozen=True, kw_only=True):
    recall_id: str
    event_id: EventId
    used: Annotated[tuple[str, ...], means("A recalled memory that was used.")] = ()
    quality: Annotated[float | None, means("The outcome: 0 failed, 1 approved.", 0, 1)] = None
    comment: Annotated[str | None, means("The reason, in words; it is stored as a memory.")] = None


class RunBeginParams(Params, frozen=True, kw_only=True):
    objective: str
    event_id: EventId
    run_id: Annotated[str | None, means("The run's id. Default: a new id, which is printed.")] = None
    session_id: Annotated[str | None, means("Its session.")] = None
    recall_ids: Annotated[
        tuple[str, ...], means("A recall that was used to plan the run (recall_id of recall --json).")
    ] = ()


class RunStepParams(Params, frozen=True, kw_only=True):
    run_id: str
    text: str
    event_id: EventId
    memory_ids: Annotated[tuple[str, ...], means("A memory that was used.")] = ()


class RunEndParams(Params, frozen=True, kw_only=True):
    run_id: str
    event_id: EventId
    outcome: Annotated[RunEnd, means("How it ended.")] = "completed"
    summary: Annotated[str | None, means("The result, or what went wrong.")] = None
    quality: Annotated[float | None, means("The quality of the result, if it was judged.", 0, 1)] = None
    memory_ids: Annotated[tuple[str, ...], means("A memory that was used.")] = ()


class RunIdParams(Params, frozen=True, kw_only=True):
    run_id: str


class RunListParams(Params, frozen=True, kw_only=True):
    state: Annotated[RunState | None, means("Only runs in this state.")] = None
    limit: Annotated[int, means("Maximum number of runs.", 1, MOST_LISTED)] = 50


class RunSimilarParams(Params, frozen=True, kw_only=True):
    query: str
    top_k: Annotated[int, means("Maximum number of runs.", 1, MOST_SIMILAR_RUNS)] = 5
    min_relevance: MinRelevance = None


class SonaImportParams(Params, frozen=True, kw_only=True):
    data: bytes

    @classmethod
    def of(cls, **arguments: Any) -> Self:
        size = len(arguments["data"])
        if size > _MOST_IMPORT_BYTES:
            raise InvalidInputError("data", f"has {size} bytes; the limit is {_MOST_IMPORT_BYTES}")
        return super().of(**arguments)


class EraseParams(Params, frozen=True, kw_only=True):
    """Parameters of `erase`, and of `erase_begin`, the first step of an erasure in a daemon."""

    selection: Selection
    dry_run: bool = False

    @classmethod
    def of(cls, **arguments: Any) -> Self:
        dry_run = arguments.pop("dry_run", False)
        selection = Selection.of(**arguments)
        selection.check()
        return cls(selection=selection, dry_run=dry_run)

    @classmethod
    def stated(cls, fields: Mapping[str, Any], deadline_ms: float | None) -> Self:
        params = cls(**fields)
        params.selection.check()
        return params


class EraseExpiredParams(EraseParams, frozen=True, kw_only=True):
    @classmethod
    def of(cls, **arguments: Any) -> Self:
        return cls(selection=Selection(expired=True), **arguments)


class EraseUserParams(EraseParams, frozen=True, kw_only=True):
    @classmethod
    def of(cls, **arguments: Any) -> Self:
        return cls(selection=Selection(everything=True), **arguments)


class EraseFinishParams(Params, Intent, frozen=True, kw_only=True):
    """The intent that `erase_begin` returned."""

    def arguments(self, remaining_ms: float, usual_ms: float) -> dict[str, Any]:
        return {"intent": Intent(**asdict(self))}


class OwnerParams(Params, frozen=True, kw_only=True):
    run_id: str | None = None
    session_id: str | None = None

    @classmethod
    def of(cls, **arguments: Any) -> Self:
        named = [name for name in ("run_id", "session_id") if arguments.get(name) is not None]
        if len(named) != 1:
            raise InvalidInputError("run_id", "exactly one of run_id and session_id is required")
        check_text(named[0], arguments[named[0]])
        return super().of(**arguments)


class ReactParams(Params, frozen=True, kw_only=True):
    event: bytes
    trigger: str

    def arguments(self, remaining_ms: float, usual_ms: float) -> dict[str, Any]:
        return asdict(self) | {"deadline_ms": remaining_ms}


class AgeParams(Params, frozen=True, kw_only=True):
    def arguments(self, remaining_ms: float, usual_ms: float) -> dict[str, Any]:
        return {"limit": AGED_AT_ONCE}


class WaitParams(Params, frozen=True, kw_only=True):
    """`through` maps each user to the journal number up to which events must be handled. The timeout is the request's
    deadline.
    """

    through: dict[str, int]

    @classmethod
    def of(cls, **arguments: Any) -> Self:
        through = arguments["through"]
        if not isinstance(through, Mapping):
            raise InvalidInputError("through", "must map users to journal numbers")
        return cls(through=dict(through))

    @classmethod
    def patience_ms(cls, arguments: Mapping[str, Any]) -> float | None:
        return float(arguments["timeout_s"]) * 1000

    @property
    def users(self) -> tuple[str, ...]:
        return tuple(self.through)


class QuarantineParams(Params, frozen=True, kw_only=True):
    after: Annotated[int, OptionHelp("Only entries with a higher id.", {"minimum": 0})] = 0
    limit: Annotated[int, OptionHelp("Maximum number of entries.", {"minimum": 1})] = 100


class QuarantineIdsParams(Params, frozen=True, kw_only=True):
    """Empty `ids` means every entry."""

    ids: tuple[int, ...] = ()


@cache
def _list_fields(params: type[Params]) -> tuple[str, ...]:
    types = ((field.name, (field.type, *get_args(field.type)[:1])) for field in msgspec.structs.fields(params))
    return tuple(name for name, forms in types if any(get_origin(form) is tuple for form in forms))


def _listed(field: str, values: Iterable[Any]) -> tuple[Any, ...]:
    """Return the values. Raises `InvalidInputError` for a single string, which would be split into characters."""
    if isinstance(values, str | bytes) or not isinstance(values, Iterable):
        raise InvalidInputError(field, "must be a list, not a single value")
    return tuple(values)


def _zone_fields(moment: datetime | None) -> dict[str, Any]:
    """Return the `RecallParams` fields that preserve the time zone of a reference time."""
    offset = None if moment is None else moment.utcoffset()
    if moment is None or offset is None:
        return {}
    zone = moment.tzinfo.key if isinstance(moment.tzinfo, ZoneInfo) else None
    return {"reference_offset_s": offset.total_seconds(), "reference_zone": zone}


def _in_zone(moment: datetime, zone: str | None) -> datetime:
    """Convert the moment to the zone, or return it unchanged if this machine does not support the zone."""
    if zone is None:
        return moment
    try:
        return moment.astimezone(ZoneInfo(zone))
    except (KeyError, ValueError, OSError):  # the name is unknown or invalid, or names a folder of zones
        return moment
