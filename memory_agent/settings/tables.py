"""The settings as structs, one for each table of the TOML file, with their defaults and bounds.

`ops/SETTINGS.md` describes each field. Sizes are in bytes; durations are in seconds (`_s`) or milliseconds (`_ms`).
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


KeyReference = Annotated[str, msgspec.Meta(pattern=r"^(\$\{\w+\})?$")]
"""The environment variable that holds a key, as in `${OPENAI_API_KEY}`, or "". A key itself is rejected."""
HeaderReference = Annotated[str, msgspec.Meta(pattern=r"^(\w+ )?\$\{\w+\}$")]
"""A header that contains such a variable, possibly after the name of a scheme, as in `Bearer ${TOKEN}`."""


class EmbedderSettings(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="type", tag="local"
):
    """An embedding model that runs on this machine (`embedder.type` is `local`, the default)."""

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
    """A model behind the HTTP API of a server, which receives the texts of memories and queries."""

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


class StoreSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One user's records. The LMDB map is sparse: it limits the store's size but does not reserve disk space."""

    map_size_bytes: Annotated[int, msgspec.Meta(ge=1 << 20)] = 16 << 30
    reserve_bytes: NonNegative = 4 << 20
    exact_search_limit: Count = 250_000
    expansion_search: Count = 128
    takeover_after_s: Positive = 5.0


class IndexSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where a new user's vectors are searched; `memory-agent migrate` moves existing users."""

    engine: Literal["builtin", "sqlite-vec", "pgvector", "lancedb"] = "builtin"
    url: str = ""
    database_schema: Annotated[str, msgspec.Meta(pattern=r"^[a-z_][a-z0-9_]{0,39}$")] = "memory_agent"
    timeout_s: Positive = 5.0
    hnsw_from: Count = 20_000
    allow_plain: bool = False


class ArchiveSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The archive, to which changes to each user's store are uploaded. Without a `url` nothing is archived."""

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

    At the default of `min_relevance`, 9 of 10 correct answers are returned, and most questions without an answer in
    memory return nothing (decision 0014).
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
    """The judge: a model that selects up to `most` memories for an answer, from the best `candidates` memories."""

    server: Annotated[str, msgspec.Meta(pattern=r"^(off|openai|anthropic|[\w.]+:\w+)$")] = "off"
    url: str = ""  # "": the URL of OpenAI or Anthropic
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

    Weights scale with the spread of the scores; 0 means no effect.
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
    """Memories that expire when they are `age_s` old; 0 retains them forever. All conditions must hold.

    `events` and `signals` match only memories that come from an event.
    """

    name: Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9][a-z0-9_-]{0,63}$")]
    kinds: tuple[Kind, ...] = ()
    sources: tuple[Source, ...] = ()
    events: tuple[str, ...] = ()
    signals: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    age_s: Annotated[float, msgspec.Meta(ge=0.0, le=1e10)] = 0.0


class RetentionSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How long memories are retained. The first matching rule decides; memories that match no rule are retained."""

    rules: tuple[RetentionRule, ...] = ()
    interval_s: Positive = 86_400.0


class QuotaSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The maximum number of memories per user, by tier."""

    tiers: dict[str, Count] = msgspec.field(default_factory=lambda: {"standard": 10_000, "large": 100_000})
    default: str = ""
    users: dict[str, str] = {}
    when_full: Literal["refuse", "forget"] = "refuse"

    def __post_init__(self) -> None:
        unknown = {self.default, *self.users.values()} - {"", *self.tiers}
        if unknown:
            raise ValueError(f"{min(unknown)} is not one of the tiers: {', '.join(self.tiers)}")


class TriggerSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Recalls triggered by events. The daemon publishes the recalled blocks (`memory.recalled`)."""

    enabled: bool = True
    table: str = ""
    off_for: tuple[str, ...] = ()
    at_once: Count = 2
    waiting: Count = 256
    lag_events: Count = 500


class SharedSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits for shared items, and their ranking."""

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
    """The HTTP server. Beyond loopback, `certificate` and `private_key` are required."""

    listen: str = "127.0.0.1:0"
    certificate: str = ""
    private_key: str = ""
    hosts: tuple[str, ...] = ()
    body_bytes: Count = 48 << 20
    timeout_s: Positive = 30.0
    heartbeat_s: Positive = 15.0
    streams: Count = 64


class TracingSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Traces for OpenTelemetry. Without an `endpoint` nothing is traced."""

    endpoint: str = ""
    headers: dict[str, HeaderReference] = {}
    sample_ratio: Fraction = 1.0
    ids: bool = False
    interval_s: Annotated[float, msgspec.Meta(ge=0.05, le=60.0)] = 5.0


Reembed = Literal["local", "always", "never"]


class DaemonSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The daemon: its endpoints, processes, limits and upkeep."""

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
    """Other machines that host users (`memory-agent join`)."""

    listen: str = ""
    clock_tolerance_s: Positive = 5.0
    lease_s: Positive = 3.0


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All settings: one struct for each table of the TOML file."""

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
    """Return `former_embedder` or, if it is not set, the bundled model; None if this is the current model."""
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
