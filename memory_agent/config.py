"""The settings of each part: a struct each, with bounds, so that each part receives only its own.

Sizes are bytes, durations seconds or milliseconds, as the field's name says. Where the values come from is
`settings`'s business.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from memory_agent.records import Dates, Kind, Mode, Source

Fraction = Annotated[float, msgspec.Meta(ge=0.0, le=1.0)]
Positive = Annotated[float, msgspec.Meta(gt=0.0)]
Count = Annotated[int, msgspec.Meta(ge=1)]
NonNegative = Annotated[int, msgspec.Meta(ge=0)]


class EmbedderSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which model turns text into vectors. `folder` names a folder with the weights; empty: find them."""

    folder: str = ""
    scheme: Literal["auto", "int8", "float32"] = "auto"  # auto: int8 where the processor has VNNI
    max_tokens: Annotated[int, msgspec.Meta(ge=8, le=512)] = 256
    bulk_niceness: Annotated[int, msgspec.Meta(ge=0, le=19)] = 10
    query_cache: NonNegative = 1024
    allow_download: bool = True


class StoreSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One user's records. The map is sparse: it bounds the store and reserves no disk."""

    map_size_bytes: Annotated[int, msgspec.Meta(ge=1 << 20)] = 16 << 30
    reserve_bytes: NonNegative = 4 << 20
    exact_search_limit: Count = 20_000
    expansion_search: Count = 128
    takeover_after_s: Positive = 5.0


class IngestSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What becomes a memory. `signals` is a TOML file with rows added to, or taken from, the default table."""

    signals: str = ""
    min_text_chars: NonNegative = 4
    max_text_chars: Count = 8_000


class RecallSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How memories are ranked.

    `vector_weight` is the weight of the vector side in the fusion, the words have the rest; `contiguity` the share of
    their score that the best matches lend to their neighbours in the session; `context_words` the weight of the query's
    words that a memory and its neighbours hold between them; `dates` says what a time in the query does, `date_weight`
    how much a memory of that time gains; `diversity` how much a memory loses by being like a better one. 0 is off.
    """

    mode: Mode = "hybrid"
    vector_weight: Fraction = 0.6
    min_score: Annotated[float, msgspec.Meta(ge=-1.0, le=1.0)] = -1.0
    centering: bool = True
    candidates: Count = 200
    max_query_chars: Count = 100_000
    deadline_ms: Positive = 2_000.0
    contiguity: Fraction = 0.6
    context_words: Fraction = 0.2
    dates: Dates = "boost"
    date_weight: Fraction = 0.3
    diversity: Fraction = 0.5


class LearningSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How runs are followed and learnt from.

    `mode`: `auto`, the learned ranking acts once contests have shown that it helps; `on`, it always acts; `off`,
    nothing is learnt. What it adds to a score: `association` for a memory that was used for requests like this one,
    in shares of its own score; `recurrence` besides where the request itself comes again; `shift` for lying where the
    query is moved to; `outcome` between a run that failed and one that was approved, about equally close ones; `prior`
    for what helped whatever was asked. 0 is off. `retry_similarity` is the cosine of two requests from which the later
    one is the earlier one in other words, `request_similarity` that of a recall and a request from which they are the
    same."""

    mode: Literal["auto", "on", "off"] = "auto"
    association: Fraction = 0.5
    recurrence: Fraction = 0.4
    shift: Fraction = 0.3
    outcome: Fraction = 0.1
    prior: Fraction = 0.0
    retry_window_s: Positive = 1_800.0
    retry_similarity: Annotated[float, msgspec.Meta(ge=-1.0, le=1.0)] = 0.8
    request_window_s: Positive = 600.0
    request_similarity: Annotated[float, msgspec.Meta(ge=-1.0, le=1.0)] = 0.9
    expire_after_s: Positive = 604_800.0
    keep_recalls: NonNegative = 2_000
    keep_recalls_s: Positive = 604_800.0
    patterns: bool = True


class RetentionRule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Memories that go when they are `age_s` old; 0 keeps them for ever.

    What is named must all hold. `events` are patterns of event types as in the table of signals, `signals` names of its
    rows; neither fits a memory that comes from no event."""

    name: Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9][a-z0-9_-]{0,63}$")]
    kinds: tuple[Kind, ...] = ()
    sources: tuple[Source, ...] = ()
    events: tuple[str, ...] = ()
    signals: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    age_s: Annotated[float, msgspec.Meta(ge=0.0, le=1e10)] = 0.0


class RetentionSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How long memories are kept: the first rule that fits decides, and without one they stay. No rule is off.

    A user is looked at once in `interval_s` at most, and only when something has reached its age."""

    rules: tuple[RetentionRule, ...] = ()
    interval_s: Positive = 86_400.0


class DaemonSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The daemon. `listen` adds endpoints to the socket file, beyond loopback with CURVE alone; `dedicated_hosts` users
    at a time get a process of their own, the others share `shared_hosts`; `spare_hosts` whose users sleep are kept for
    the next to wake. At most `most_awake` users are awake at a time. `owner_claims`: whose word makes a user
    the owner of a run or session, to whom events of `system` then go: `vouched`, that of keys for all users alone;
    `any`, that of users' own keys too, who can name another's run first."""

    listen: tuple[str, ...] = ()
    dedicated_hosts: NonNegative = 8
    shared_hosts: Count = 2
    spare_hosts: NonNegative = 1
    most_awake: Count = 1_000
    idle_sleep_s: Positive = 900.0
    batch_events: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 64
    batch_bytes: Annotated[int, msgspec.Meta(ge=1024, le=1 << 20)] = 90_000
    lane_events: Count = 1_000
    owner_wait_s: Positive = 60.0
    owner_claims: Literal["vouched", "any"] = "vouched"
    parked_events: Count = 10_000
    ingest_timeout_s: Positive = 120.0
    crashes_before_quarantine: Count = 3
    requests_in_flight: Count = 512
    requests_bytes: Count = 256 << 20
    upkeep_interval_s: Positive = 15.0
