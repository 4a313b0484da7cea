"""The validated arguments of a recall, and its deadline."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from math import isfinite
from typing import Any, Literal, NamedTuple, get_args

import msgspec

from memory_agent.errors import InvalidInputError
from memory_agent.records import arguments
from memory_agent.records.memories import Dates, Exclusion, Kind, MemoryFilter, Mode, Profile, Tier, microseconds
from memory_agent.records.metadata import check_conditions
from memory_agent.records.shared_requests import SentVector
from memory_agent.settings import RecallSettings
from relay import described

MOST_ANSWERS = 1_000
MOST_VALUES = 1_000  # maximum number of values in one filter field; a longer list is considered a mistake
_NO_FILTER = MemoryFilter()
_NAMES = ("session_id", "run_id", "channel_id", "in_channel", "agent_id", "type", "phase")
_LISTS = ("kinds", "sources", "tags", "provenance")
_EXCLUDED = ("events", "records", "sessions", "runs")


Reason = Literal[
    "no_model",  # there is no embedding model: lexical search only
    "embedder_timeout",  # the embedder was late: lexical search only
    "model_changed",  # the stored vectors come from a different model: lexical search only, until they are rebuilt
    "script_unknown",  # the model does not support the query's script: lexical search only
    "vectors_pending",  # some memories have no vector yet: these are found by lexical search only
    "word_vectors_pending",  # some memories have no word vectors yet: these are ranked without word vectors
    "index_rebuilding",  # the columns were missing or damaged and are being rebuilt: only some memories are searched
    "index_unavailable",  # the vector index does not respond or is incomplete: lexical search only
    "global_unavailable",  # shared items were requested, but their store is unavailable or late
    "judge_unavailable",  # the judge failed, or too many recalls wait for it: ranked by score
    "judge_timeout",  # the judge was late, or not called because too little time was left: ranked by score
    "judge_invalid",  # the judge's reply was not a selection of the offered memories: ranked by score
    "deadline",  # time ran out: some or all parts were skipped
    "waking",  # daemon only: time ran out while the user's memory was being opened
]
REASONS: tuple[Reason, ...] = get_args(Reason)


class Deadline:
    """The deadline of one recall, measured from its creation on the monotonic clock, and the reasons why the recall is
    degraded."""

    def __init__(self, deadline_ms: float) -> None:
        self._started_s = time.monotonic()
        self.limit_s = deadline_ms / 1000
        self.degraded: list[Reason] = []

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self._started_s

    @property
    def remaining_s(self) -> float:
        """Seconds until the deadline; negative once it has passed."""
        return self.limit_s - self.elapsed_s

    def expired(self) -> bool:
        """Return whether the deadline has passed; if so, record that as a reason."""
        if self.remaining_s > 0:
            return False
        self.degrade("deadline")
        return True

    def degrade(self, reason: Reason) -> None:
        """Record why a part of the recall is missing. Idempotent."""
        if reason not in self.degraded:
            self.degraded.append(reason)


class Query(msgspec.Struct, frozen=True, kw_only=True):
    """A validated recall. `Memory.recall` describes the fields that have no comment."""

    text: str
    top_k: int
    filter: MemoryFilter | None
    mode: Mode
    floor: float | None  # the minimum raw cosine
    insists: bool  # whether the caller set the floor; if so, no memory without a cosine reaches it
    min_relevance: float
    deadline_ms: float
    dates: Dates
    reference_time: datetime
    context_tokens: int | None
    with_embedding: bool
    by_run: str | None = None
    by_session: str | None = None
    by_event: str | None = None  # the event that caused the recall
    by_trigger: bool = False  # whether a trigger, not a caller, caused it
    context_heading: str = ""
    stored_text: str = ""  # `text` as an event would store it
    present_us: tuple[int, int] | None = None  # echoes from this time span are omitted
    runs: int = 0
    tiers: tuple[Tier, ...] = ("local",)
    is_noted: bool = True  # whether the recall is logged
    is_explained: bool = True  # whether memories come with an explanation and their other occurrences
    is_marked: bool = True  # whether short texts have highlights; `highlights.marked` adds them later
    within: MemoryFilter | None = None  # no number in an answer reveals that memories outside this filter exist
    without: MemoryFilter | None = None  # memories that match it are omitted, in addition to `filter`
    vector: tuple[float, ...] | None = None
    vector_model: str = ""
    pool: int = 0  # the number of memories to rank for a judge
    embedded: SentVector | None = None  # the query's vector, if another process embedded it

    @property
    def ranked(self) -> int:
        """The number of memories to rank: the larger of the answer's size and the number that a judge receives."""
        return max(self.top_k, self.pool)

    @property
    def needs_vector(self) -> bool:
        return self.mode != "lexical" or self.floor is not None


class QueryDefaults(NamedTuple):
    """The settings, the current time, and a function that returns a text as an event would store it."""

    settings: RecallSettings
    now: datetime
    stored_text: Callable[[str], str] = str


def make_query(
    query: str,
    top_k: int | None,
    filter: MemoryFilter | Mapping[str, Any] | None,
    mode: Mode | None,
    deadline_ms: float | None,
    options: arguments.RecallOptions,
    usual: QueryDefaults,
) -> Query:
    """Return the validated query, with the defaults of its profile and of the settings. Raises `InvalidInputError`."""
    given, settings = arguments.check_options(options), usual.settings
    defaults = profile_defaults(given.get("profile"))
    chosen = _with_kinds(check_filter(filter), defaults)
    mode = arguments.check_mode(mode) or settings.mode
    floor = None if chosen is None else chosen.min_score
    default_floor = settings.min_score if settings.min_score > -1.0 and mode != "lexical" else None
    least, runs = given.get("min_relevance"), given.get("runs")
    if runs is None:
        runs = 0 if given.get("context_tokens") is None else defaults.runs
    tiers = tuple(given.get("tiers") or ("local",))
    vector = given.get("vector")
    if vector is not None and mode == "lexical":
        raise InvalidInputError("mode", "lexical cannot be combined with a vector")
    is_by_vector = vector is not None and tiers == ("local",)  # shared items are searched by the text
    text = _check_query(query, settings.max_query_chars, may_be_empty=is_by_vector)
    return Query(
        text=text,
        top_k=arguments.check_whole("top_k", defaults.top_k if top_k is None else top_k, MOST_ANSWERS),
        filter=_without_floor(chosen),
        mode=mode,
        floor=default_floor if floor is None else floor,
        insists=floor is not None,
        min_relevance=settings.min_relevance if least is None else least,
        deadline_ms=arguments.check_deadline_ms(settings.deadline_ms if deadline_ms is None else deadline_ms),
        dates=given.get("dates") or settings.dates,
        reference_time=given.get("reference_time") or usual.now,
        context_tokens=given.get("context_tokens"),
        with_embedding=given.get("with_embedding") or False,
        by_run=given.get("by_run"),
        by_session=given.get("by_session"),
        by_event=given.get("by_event"),
        stored_text=usual.stored_text(text),
        present_us=_around(usual.now, settings.echo_minutes),
        runs=runs,
        tiers=tiers,
        vector=None if vector is None else tuple(vector),
        vector_model=given.get("vector_model") or "",
        is_noted=not given.get("unlogged"),
    )


def check_now(now: datetime | None) -> datetime:
    """Validate and return `now`, or return the current time if it is None. Recall reads the wall clock only here."""
    return datetime.now(UTC) if now is None else arguments.check_time("now", now)


def _around(now: datetime, minutes: float) -> tuple[int, int] | None:
    """Return the time span in which the caller's own words may have been stored.

    The span ends after `now`, since events may arrive late, and a clock may be fast.
    """
    now_us, reach_us = microseconds(now, "now"), round(minutes * 60_000_000)
    return (now_us - reach_us, now_us + reach_us) if reach_us else None


def check_filter(filter: MemoryFilter | Mapping[str, Any] | None, *, is_query: bool = True) -> MemoryFilter | None:
    """Return the validated filter without duplicate values. A mapping of its fields is accepted too.

    An empty name matches everything. Raises `InvalidInputError`, for example if a field has more than 1,000 different
    values, or if `min_score` is given and `is_query` is false.
    """
    if filter is None:
        return None
    fields = msgspec.structs.asdict(filter) if isinstance(filter, MemoryFilter) else filter
    if not isinstance(fields, Mapping):
        raise InvalidInputError("filter", f"must be a MemoryFilter or a mapping, not {type(filter).__name__}")
    try:
        chosen = msgspec.convert(dict(fields), described(MemoryFilter))
    except msgspec.ValidationError as error:
        field, reason = arguments.located(str(error), MemoryFilter)
        raise InvalidInputError(f"filter.{field}".rstrip("."), reason) from error
    for field in ("since", "until"):
        time = getattr(chosen, field)
        if time is not None and time.tzinfo is None:
            raise InvalidInputError(f"filter.{field}", "has no time zone")
    for field in (*_NAMES, *_LISTS):
        _check_unicode(field, getattr(chosen, field))
    check_conditions("filter.metadata", chosen.metadata)
    exclude = None if chosen.exclude is None else _check_exclusion(chosen.exclude)
    _check_floor("min_quality", chosen.min_quality, least=0.0)
    _check_floor("min_score", chosen.min_score, least=-1.0)
    if not is_query and chosen.min_score is not None:
        raise InvalidInputError("filter.min_score", "cannot be used here, because there is no query")
    lists = {field: _distinct(field, getattr(chosen, field)) for field in _LISTS}
    names = {name: getattr(chosen, name) or None for name in _NAMES}
    return msgspec.structs.replace(chosen, **lists, **names, exclude=exclude)


def _check_exclusion(exclude: Exclusion) -> Exclusion | None:
    """Return the exclusion without duplicate and empty names, or None if it excludes nothing."""
    if exclude.since is not None and exclude.since.tzinfo is None:
        raise InvalidInputError("filter.exclude.since", "has no time zone")
    lists: dict[str, Any] = {}
    for field in _EXCLUDED:
        names = getattr(exclude, field)
        _check_unicode(f"exclude.{field}", names)
        lists[field] = _distinct(f"exclude.{field}", tuple(filter(None, names)))
    chosen = msgspec.structs.replace(exclude, **lists)
    return None if chosen == Exclusion() else chosen


def _check_unicode(field: str, value: str | tuple[str, ...] | None) -> None:
    """Raise `InvalidInputError` for a lone surrogate, which the recall's log entry cannot store."""
    try:
        "".join(value or ()).encode()
    except UnicodeEncodeError as error:
        raise InvalidInputError(f"filter.{field}", "is not valid Unicode") from error


def _distinct(field: str, values: tuple[str, ...]) -> tuple[str, ...]:
    different = tuple(dict.fromkeys(values))
    if len(different) > MOST_VALUES:
        raise InvalidInputError(f"filter.{field}", f"has {len(different)} values; at most {MOST_VALUES} are allowed")
    return different


def _with_kinds(filter: MemoryFilter | None, defaults: ProfileDefaults) -> MemoryFilter | None:
    if not defaults.kinds or (filter is not None and filter.kinds):
        return filter
    return msgspec.structs.replace(filter or _NO_FILTER, kinds=defaults.kinds)


def _without_floor(filter: MemoryFilter | None) -> MemoryFilter | None:
    """Return the filter without its floor, or None if no other condition remains."""
    if filter is None:
        return None
    rest = msgspec.structs.replace(filter, min_score=None)
    return None if rest == _NO_FILTER else rest


def _check_query(query: object, most_chars: int, *, may_be_empty: bool) -> str:
    arguments.check_text("query", query)
    assert isinstance(query, str)
    if not (query.strip() or may_be_empty):
        raise InvalidInputError("query", "is empty")
    if len(query) > most_chars:
        raise InvalidInputError("query", f"has {len(query)} characters; at most {most_chars} are allowed")
    return query


def _check_floor(field: str, value: float | None, least: float) -> None:
    if value is None or least <= value <= 1.0:
        return
    reason = f"must be between {least:g} and 1" if isfinite(value) else "must be a finite number"
    raise InvalidInputError(f"filter.{field}", reason)


class ProfileDefaults(msgspec.Struct, frozen=True, kw_only=True):
    """A profile's defaults, for arguments that the caller omits. No `kinds` means all kinds."""

    top_k: int
    kinds: tuple[Kind, ...] = ()
    runs: int = 0


NO_PROFILE = ProfileDefaults(top_k=5)

PROFILE_DEFAULTS: dict[Profile, ProfileDefaults] = {
    # New input, before planning: memories of any kind.
    "before_planning": ProfileDefaults(top_k=5, runs=2),
    # While writing a document: findings and patterns, not episodes.
    "document": ProfileDefaults(top_k=3, kinds=("finding", "pattern")),
    # After a run: how such runs were planned and how they ended.
    "trajectory": ProfileDefaults(top_k=5, kinds=("strategy", "pattern"), runs=2),
}


def profile_defaults(profile: Profile | None) -> ProfileDefaults:
    return NO_PROFILE if profile is None else PROFILE_DEFAULTS[profile]
