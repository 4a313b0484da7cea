"""The settings as structs, one for each table of the TOML file, with their defaults and bounds.

Sizes are in bytes; durations are in seconds or milliseconds, according to the field's suffix.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from types import UnionType
from typing import Annotated, Any, Literal, TypedDict, get_args

import msgspec

from memory_agent.records.memories import Dates, Kind, Mode, Source
from relay import BusSettings, EncryptionSettings, EventLimits, MaskingSettings
from relay.log import Level

Fraction = Annotated[float, msgspec.Meta(ge=0.0, le=1.0)]
Positive = Annotated[float, msgspec.Meta(gt=0.0)]
Count = Annotated[int, msgspec.Meta(ge=1)]
NonNegative = Annotated[int, msgspec.Meta(ge=0)]
Auto = Literal["auto"]
"""The value is chosen to suit the machine."""


KeyReference = Annotated[str, msgspec.Meta(pattern=r"^(\$\{\w+\})?$")]
"""The environment variable that holds a key, as in `${OPENAI_API_KEY}`, or "". A key itself is rejected."""
HeaderReference = Annotated[str, msgspec.Meta(pattern=r"^(\w+ )?\$\{\w+\}$")]
"""The same for a header, with the name of a scheme before it, as in `Bearer ${TOKEN}`."""


class EmbedderSettings(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="type", tag="local"
):
    """An embedding model that runs on this machine (`embedder.type` is `local`, the default).

    `model` is the bundled one (`minilm`), another name in `embedders.weights`, or a repository of the model hub as
    OWNER/NAME. `folder` holds the weights; if empty, the default locations are searched. `query_prefix` and
    `passage_prefix` are prepended to queries and memories. `auto` uses the prefixes that the model was trained with,
    recognised by its name, and none for unknown models.
    """

    model: Annotated[str, msgspec.Meta(pattern=r"^[\w.-]+(/[\w.-]+)?$")] = "minilm"
    folder: str = ""
    scheme: Literal["auto", "int8", "float32"] = "auto"  # auto: int8 if the processor has VNNI
    max_tokens: Annotated[int, msgspec.Meta(ge=8, le=512)] = 256
    bulk_niceness: Annotated[int, msgspec.Meta(ge=0, le=19)] = 10
    query_cache: NonNegative = 1024
    allow_download: bool = True
    query_prefix: str = "auto"
    passage_prefix: str = "auto"

    def __post_init__(self) -> None:
        if self.folder and self.model != "minilm":
            raise ValueError("model and folder both name a model; remove one of them")


class RemoteEmbedder(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="type"):
    """A model behind the HTTP API of a server, which receives the texts of memories and queries.

    Texts longer than `passage_chars` get several vectors. `dimensions` of 0 are the model's own. A request has at most
    `batch` texts.
    """

    model: str
    url: str
    api_key: KeyReference = ""
    dimensions: Annotated[int, msgspec.Meta(ge=0, le=65_536)] = 0
    batch: Annotated[int, msgspec.Meta(ge=1, le=2_048)] = 32
    timeout_s: Annotated[float, msgspec.Meta(gt=0.0, le=600.0)] = 30.0
    passage_chars: Annotated[int, msgspec.Meta(ge=200, le=100_000)] = 1_500
    query_cache: NonNegative = 1024
    query_prefix: str = "auto"
    passage_prefix: str = "auto"
    usd_per_million_tokens: Annotated[float, msgspec.Meta(ge=0.0)] = 0.0


class OllamaEmbedder(RemoteEmbedder, frozen=True, kw_only=True, tag="ollama"):
    """An Ollama server."""

    model: str = "nomic-embed-text"
    url: str = "http://127.0.0.1:11434"


class OpenAIEmbedder(RemoteEmbedder, frozen=True, kw_only=True, tag="openai"):
    """OpenAI, or a server with the same API."""

    model: str = "text-embedding-3-small"
    url: str = "https://api.openai.com/v1"
    api_key: KeyReference = "${OPENAI_API_KEY}"
    batch: Annotated[int, msgspec.Meta(ge=1, le=2_048)] = 2_048


class GeminiEmbedder(RemoteEmbedder, frozen=True, kw_only=True, tag="gemini"):
    """The Gemini API."""

    model: str = "gemini-embedding-001"
    url: str = "https://generativelanguage.googleapis.com/v1beta"
    api_key: KeyReference = "${GEMINI_API_KEY}"
    dimensions: Annotated[int, msgspec.Meta(ge=0, le=65_536)] = 768
    batch: Annotated[int, msgspec.Meta(ge=1, le=100)] = 100


AnyEmbedder = EmbedderSettings | OllamaEmbedder | OpenAIEmbedder | GeminiEmbedder
"""The settings of an embedder, by `type`."""


class StoreSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One user's records. The map is sparse: it bounds the store but does not reserve disk space."""

    map_size_bytes: Annotated[int, msgspec.Meta(ge=1 << 20)] = 16 << 30
    reserve_bytes: NonNegative = 4 << 20
    exact_search_limit: Count = 250_000
    expansion_search: Count = 128
    takeover_after_s: Positive = 5.0


class IndexSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where the vectors of a new user are searched; `memory-agent migrate` moves existing users.

    `url` is the PostgreSQL database of pgvector, where a `${VARIABLE}` stands for a variable of the environment.
    `database_schema` must belong to one data folder. A statement may take `timeout_s`. From `hnsw_from` passages on, a
    user's vectors in pgvector get an HNSW graph. `allow_plain` permits engines that store vectors unencrypted although
    encryption is on.
    """

    engine: Literal["builtin", "sqlite-vec", "pgvector", "lancedb"] = "builtin"
    url: str = ""
    database_schema: Annotated[str, msgspec.Meta(pattern=r"^[a-z_][a-z0-9_]{0,39}$")] = "memory_agent"
    timeout_s: Positive = 5.0
    hnsw_from: Count = 20_000
    allow_plain: bool = False


class ArchiveSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The archive, to which changes of each user's store are uploaded. Without a `url` nothing is archived.

    `options` are passed to the file system of the URL's protocol (`fsspec`); they may contain secrets. An operation may
    take `timeout_s`, and one second more for each megabyte. `journal`: acknowledge events only once the archive
    contains them, too.
    """

    url: str = ""
    interval_s: Positive = 5.0
    timeout_s: Positive = 30.0
    options: dict[str, Any] = {}
    journal: bool = False


class IngestSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which events become memories. `signals` is a TOML file that adds rows to the default table or removes them."""

    signals: str = ""
    min_text_chars: NonNegative = 4
    max_text_chars: Count = 16_000


class RecallSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How memories are ranked.

    `vector_weight`: the weight of cosine similarity in a memory's own score; words have the remaining weight.
    `contiguity`: if the query is a question, a memory that is a question passes this share of its surplus to the next
    memory. `context_words`: the weight of the query's words that a memory and its neighbours in the session contain
    together. `speaker_weight`: how much less agents' intermediate messages count, such as an assistant's. `dates`: how
    a time in the query is used. `date_weight`: the boost for a memory of that time. `kind_weight`: the boost for a
    memory of a kind that the query asks for, such as a command. `echo_minutes`: the time for which answers omit the
    calling session's own messages, and requests with the query's words. `min_relevance`: memories below this relevance
    are omitted, even if none remain; 0 is off. At the default, 9 of 10 correct answers are returned, and most questions
    without an answer in memory return nothing: 9 of 10 on conversations, 8 of 10 for agents of other projects (decision
    0014). `outcome`: how far a memory of an approved run is ranked above a similar match from a failed run, as a share
    of the best score.
    """

    mode: Mode = "hybrid"
    vector_weight: Fraction = 0.31
    min_score: Annotated[float, msgspec.Meta(ge=-1.0, le=1.0)] = -1.0
    min_relevance: Fraction = 0.6
    candidates: Count = 30
    max_query_chars: Count = 100_000
    deadline_ms: Positive = 2_000.0
    contiguity: Fraction = 1.0
    context_words: Fraction = 0.75
    speaker_weight: Fraction = 0.08
    dates: Dates = "boost"
    date_weight: Fraction = 0.3
    echo_minutes: Annotated[float, msgspec.Meta(ge=0.0, le=1e6)] = 10.0
    outcome: Fraction = 0.4
    kind_weight: Fraction = 0.6


class JudgeSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The judge: a model that selects the memories of an answer from the best `candidates`, at most `most`.

    `server` is the protocol of a language model's server, `openai` (chat completions) or `anthropic` (messages), or
    MODULE:NAME of a caller's own function (`memory_agent.Reranker`). `api_key` names an environment variable, as in
    `${OPENAI_API_KEY}`. `parameters` are further fields of a request's body. If the judge fails, is late or replies
    with nonsense, the answer has the best `fallback` memories by score. It is not called if less than `least_ms` remain
    before the deadline, or while `at_once` requests of this process wait for it.
    """

    server: Annotated[str, msgspec.Meta(pattern=r"^(off|openai|anthropic|[\w.]+:\w+)$")] = "off"
    url: str = ""  # "": that of OpenAI or Anthropic
    model: str = ""
    api_key: str = ""
    candidates: Annotated[int, msgspec.Meta(ge=2, le=200)] = 50
    snippet_chars: Annotated[int, msgspec.Meta(ge=20, le=4_000)] = 200
    most: Count = 10
    fallback: Count = 8
    least_ms: Positive = 300.0
    at_once: Count = 4
    cache: NonNegative = 256
    reply_tokens: Count = 1_000
    parameters: dict[str, Any] = {}
    usd_per_million_read: Annotated[float, msgspec.Meta(ge=0.0)] = 0.0
    usd_per_million_written: Annotated[float, msgspec.Meta(ge=0.0)] = 0.0


class LearningSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the memory follows runs and learns from them.

    `mode`: `auto` applies the learned ranking once the use of memories in runs has shown that it helps, `on` always
    applies it, and `off` learns nothing. `engine` is `sona`, or MODULE:NAME of a class or function that returns a
    custom engine (`memory_agent.learning.LearningEngine`). The weights scale with the spread of the scores; 0 is off.
    `association` applies to memories used in similar requests, as a share of their own score; `recurrence` is added
    when the same request recurs; `shift` applies to the similarity to the adapted query; `prior` applies to memories
    that helped, regardless of the query. At a cosine of `retry_similarity` or more, the later of two requests counts as
    a rewording of the earlier; at `request_similarity` or more, a recall and a request count as the same.
    """

    mode: Literal["auto", "on", "off"] = "auto"
    association: Fraction = 0.5
    recurrence: Fraction = 0.4
    shift: Fraction = 0.3
    prior: Fraction = 0.0
    retry_window_s: Positive = 1_800.0
    retry_similarity: Annotated[float, msgspec.Meta(ge=-1.0, le=1.0)] = 0.8
    request_window_s: Positive = 600.0
    request_similarity: Annotated[float, msgspec.Meta(ge=-1.0, le=1.0)] = 0.9
    expire_after_s: Positive = 604_800.0
    keep_recalls: NonNegative = 2_000
    keep_recalls_s: Positive = 604_800.0
    patterns: bool = True
    engine: Annotated[str, msgspec.Meta(pattern=r"^(sona|[\w.]+:\w+)$")] = "sona"


class RetentionRule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Memories that expire at the age of `age_s`; 0 retains them forever.

    All conditions must hold. `events` lists patterns of event types as in the signal table, and `signals` lists names
    of its rows. Neither matches a memory that does not come from an event.
    """

    name: Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9][a-z0-9_-]{0,63}$")]
    kinds: tuple[Kind, ...] = ()
    sources: tuple[Source, ...] = ()
    events: tuple[str, ...] = ()
    signals: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    age_s: Annotated[float, msgspec.Meta(ge=0.0, le=1e10)] = 0.0


class RetentionSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How long memories are retained. The first matching rule decides; memories that match no rule are retained.

    Each user is checked at most once per `interval_s`, and only if a memory has expired.
    """

    rules: tuple[RetentionRule, ...] = ()
    interval_s: Positive = 86_400.0


class QuotaSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The maximum number of memories of a user, by tier.

    `users` maps users to tiers; others have the tier `default`, and "" is no quota. At the limit, new memories and
    events are refused (`refuse`), or the user's oldest unused memories are forgotten (`forget`).
    """

    tiers: dict[str, Count] = msgspec.field(default_factory=lambda: {"standard": 10_000, "large": 100_000})
    default: str = ""
    users: dict[str, str] = {}
    when_full: Literal["refuse", "forget"] = "refuse"

    def __post_init__(self) -> None:
        unknown = {self.default, *self.users.values()} - {"", *self.tiers}
        if unknown:
            raise ValueError(f"{min(unknown)} is not one of the tiers: {', '.join(self.tiers)}")


class TriggerSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Recalls triggered by events. The daemon publishes their blocks (`memory.recalled`).

    `table` is a TOML file that changes the default table of triggers. `off_for` lists users for whom no recall is
    triggered. At most `at_once` recalls run concurrently and at most `waiting` triggers are queued; beyond that, the
    oldest are dropped. No recall starts while more than `lag_events` events await ingestion, counting at most 200 per
    user.
    """

    enabled: bool = True
    table: str = ""
    off_for: tuple[str, ...] = ()
    at_once: Count = 2
    waiting: Count = 256
    lag_events: Count = 500


class SharedSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits and ranking of shared items.

    An author may have `items_per_author` items with a total of `bytes_per_author`. A user may search `searches` times
    in a burst and `searches_per_s` times a second on average. A run's use of items is reported `report_after_s` after
    the run ends, so that late verdicts count. `prior` is the mean quality of all runs, which a proven item exceeds. A
    pattern that `offers_together` users offer in the same words is shown to other users. In figures, all users of a
    person, or of an organisation, have one vote (`one_vote_per`), which counts `votes_after_days` after the first of
    their keys was created.
    """

    items_per_author: Count = 1_000
    bytes_per_author: Count = 64 << 20
    searches: Count = 40
    searches_per_s: Positive = 10.0
    report_after_s: Annotated[float, msgspec.Meta(ge=0.0, le=1e6)] = 600.0
    prior: Annotated[float, msgspec.Meta(ge=0.05, le=0.95)] = 0.6
    offers_together: Annotated[int, msgspec.Meta(ge=5)] = 5
    one_vote_per: Literal["person", "organisation"] = "person"
    votes_after_days: Annotated[float, msgspec.Meta(ge=0.0, le=3650.0)] = 7.0


class HttpSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The HTTP server.

    `listen` is HOST:PORT. Port 0 selects the former port or a free one, and "" turns the server off. Beyond loopback,
    the PEM files `certificate` and `private_key` are required. `hosts` lists additional names that requests may use for
    this machine. A connection is closed if a request or its answer makes no progress for `timeout_s`.
    """

    listen: str = "127.0.0.1:0"
    certificate: str = ""
    private_key: str = ""
    hosts: tuple[str, ...] = ()
    body_bytes: Count = 48 << 20
    timeout_s: Positive = 30.0
    heartbeat_s: Positive = 15.0
    streams: Count = 64


class TracingSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Traces for OpenTelemetry. Without an `endpoint` nothing is traced.

    `endpoint` is the address of a collector, which receives spans at ENDPOINT/v1/traces. The values of `headers` name
    an environment variable, as in `Bearer ${TOKEN}`. `sample_ratio` is the share of requests without a trace context
    for which a trace begins. With `ids`, spans contain the ids of users and memories. Spans are exported every
    `interval_s`, or when 512 are waiting.
    """

    endpoint: str = ""
    headers: dict[str, HeaderReference] = {}
    sample_ratio: Fraction = 1.0
    ids: bool = False
    interval_s: Annotated[float, msgspec.Meta(ge=0.05, le=60.0)] = 5.0


Reembed = Literal["local", "always", "never"]


class DaemonSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The daemon.

    `listen` adds endpoints to the socket file; endpoints beyond loopback require CURVE. At most `dedicated_hosts` users
    at a time have their own process; all others share `shared_hosts` processes. `spare_hosts` idle processes are kept
    ready for the next users. `auto` depends on the cores and the memory (`daemon.capacity`). At most `most_awake` users
    are awake at a time. `owner_claims` determines which keys may assign a run or session, and with it the events of
    `system`, to a user. `vouched` permits only keys for all users; `any` also permits users' own keys, which could
    claim another user's run first. After a change of model, upkeep replaces the vectors of awake users if `reembed`
    permits it: `local` only if neither model is on a server. With `light` the daemon runs as one process without Ray;
    all users share one host. A daemon that a client such as a coding agent started ends after `idle_end_min` minutes
    without requests, events or work of its own, unless `listen` has endpoints; 0 is never.
    """

    listen: tuple[str, ...] = ()
    light: bool = False
    dedicated_hosts: NonNegative | Auto = "auto"
    shared_hosts: Count | Auto = "auto"
    spare_hosts: NonNegative | Auto = "auto"
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
    requests_in_flight: Count | Auto = "auto"
    requests_bytes: Count = 256 << 20
    upkeep_interval_s: Positive = 15.0
    reembed: Reembed = "local"
    idle_end_min: Annotated[float, msgspec.Meta(ge=0.0)] = 60.0
    http: HttpSettings = HttpSettings()


class ClusterSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Other machines that host users (`memory-agent join`).

    `listen` is the IP address of this machine at which they reach the daemon's Ray and hosts; "" is no cluster. A
    machine whose clock differs by more than `clock_tolerance_s` may not join. Users of a machine that does not answer
    for `lease_s` wake on another one.
    """

    listen: str = ""
    clock_tolerance_s: Positive = 5.0
    lease_s: Positive = 3.0


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All settings: one struct for each table of the TOML file.

    `former_embedder` is the embedder that `embedder` replaced. It embeds queries until all memories have new vectors.
    """

    data_dir: str = ""
    log_level: Level = "info"
    encryption: EncryptionSettings = EncryptionSettings()
    relay: BusSettings = BusSettings()
    embedder: AnyEmbedder = EmbedderSettings()
    former_embedder: AnyEmbedder | None = None
    store: StoreSettings = StoreSettings()
    index: IndexSettings = IndexSettings()
    archive: ArchiveSettings = ArchiveSettings()
    ingest: IngestSettings = IngestSettings()
    recall: RecallSettings = RecallSettings()
    judge: JudgeSettings = JudgeSettings()
    learning: LearningSettings = LearningSettings()
    retention: RetentionSettings = RetentionSettings()
    quota: QuotaSettings = QuotaSettings()
    triggers: TriggerSettings = TriggerSettings()
    shared: SharedSettings = SharedSettings()
    daemon: DaemonSettings = DaemonSettings()
    tracing: TracingSettings = TracingSettings()
    cluster: ClusterSettings = ClusterSettings()


def setting_names(struct: type[msgspec.Struct] = Settings, prefix: str = "") -> Iterator[str]:
    """Yield the dotted names of all settings, as in `--set NAME=VALUE`.

    >>> list(setting_names())[:3]
    ['data_dir', 'log_level', 'encryption.keys_folder']
    """
    for field in msgspec.structs.fields(struct):
        kinds = get_args(field.type) if isinstance(field.type, UnionType) else (field.type,)
        if all(isinstance(kind, type) and issubclass(kind, msgspec.Struct) for kind in kinds):
            names = chain.from_iterable(setting_names(kind, f"{prefix}{field.name}.") for kind in kinds)
            yield from dict.fromkeys([f"{prefix}{field.name}.type", *names] if len(kinds) > 1 else names)
        else:
            yield prefix + field.name


def former_of(settings: Settings) -> AnyEmbedder | None:
    """Return `former_embedder` or, if it is not set, the bundled model unless that is also the current one."""
    if settings.former_embedder is not None:
        return settings.former_embedder
    own, bundled = settings.embedder, EmbedderSettings(allow_download=False)
    names = ("model", "folder", "query_prefix", "passage_prefix")
    is_bundled = isinstance(own, EmbedderSettings) and all(getattr(own, one) == getattr(bundled, one) for one in names)
    return None if is_bundled else bundled


class SettingsKeywords(TypedDict, total=False):
    """Tables of `Settings` as keyword arguments of `Memory.open`, for compatibility. None leaves a table unchanged."""

    embedder_settings: AnyEmbedder | None
    store_settings: StoreSettings | None
    ingest_settings: IngestSettings | None
    recall_settings: RecallSettings | None
    event_limits: EventLimits | None
    learning_settings: LearningSettings | None
    masking_settings: MaskingSettings | None
    encryption_settings: EncryptionSettings | None
    retention_settings: RetentionSettings | None


_OF_RELAY = {"event_limits": "events", "masking_settings": "masking"}


def with_keywords(settings: Settings, keywords: SettingsKeywords) -> Settings:
    """Return `settings` with the tables in `keywords` replaced. Raises `TypeError` for an unknown keyword."""
    unknown = keywords.keys() - SettingsKeywords.__annotations__.keys()
    if unknown:
        raise TypeError(f"Memory.open() got an unexpected keyword argument {min(unknown)!r}")
    given = {name: table for name, table in keywords.items() if table is not None}
    relay = {table: given.pop(name) for name, table in _OF_RELAY.items() if name in given}
    tables = {name.removesuffix("_settings"): table for name, table in given.items()}
    return msgspec.structs.replace(settings, relay=msgspec.structs.replace(settings.relay, **relay), **tables)
