"""The bus settings: one struct for each part, read once by an entry point.

Every value can be written in TOML, so no default is None: 0 and the empty string mean "off". If a name is unknown or a
value is out of bounds, the error names the setting.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Self

import msgspec

from relay.decoding import described
from relay.errors import RelaySettingsError

Positive = Annotated[float, msgspec.Meta(gt=0.0)]
NonNegativeSeconds = Annotated[float, msgspec.Meta(ge=0.0)]
Count = Annotated[int, msgspec.Meta(ge=1)]
NonNegative = Annotated[int, msgspec.Meta(ge=0)]
SqlName = Annotated[str, msgspec.Meta(pattern="^[A-Za-z_][A-Za-z0-9_]{0,127}$")]


class EventLimits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits of an event. `max_bytes` limits the size of the received event, and `max_id_bytes` the size of each id."""

    max_bytes: Annotated[int, msgspec.Meta(ge=256, le=16 << 20)] = 262_144
    max_future_s: Annotated[float, msgspec.Meta(ge=0.0, le=1e12)] = 300.0
    max_depth: Annotated[int, msgspec.Meta(ge=1, le=128)] = 64
    max_id_bytes: Annotated[int, msgspec.Meta(ge=16, le=256)] = 200


class JournalSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The size and retention of the journal.

    The map is sparse: it limits the journal's size but does not reserve disk space. `reserve_bytes` of the map (at most
    half) and a file of `disk_reserve_bytes` are set aside, so that deletions are still possible when the map or the
    disk is full. A retention of 0 means no limit. Retention stops at the slowest consumer unless
    `retention_ignores_consumers` is set. A repeated event is recognised as long as the original is in the journal, and
    at least for `repeat_horizon_s` after the original was received.
    """

    map_size_bytes: Annotated[int, msgspec.Meta(ge=1 << 20, le=1 << 44)] = 64 << 30
    reserve_bytes: NonNegative = 64 << 20
    disk_reserve_bytes: NonNegative = 8 << 20
    retention_age_s: NonNegativeSeconds = 0.0
    retention_bytes: NonNegative = 0
    retention_ignores_consumers: bool = False
    repeat_horizon_s: NonNegativeSeconds = 7 * 86_400.0
    quarantine_max_entries: Count = 100_000
    quarantine_max_bytes: Count = 256 << 20


class TableTail(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An event table in an SQLite file that another program writes.

    The cursor is stored under `name`; changing the name rereads the table from the beginning. Rows without a user
    belong to `default_user`.
    """

    name: Annotated[str, msgspec.Meta(pattern="^[A-Za-z0-9_-]{1,64}$")]
    path: Annotated[str, msgspec.Meta(min_length=1)]
    table: SqlName = "events"
    default_user: str = ""
    poll_interval_s: Positive = 0.25


class BrokerSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The relay process. If `ingest` or `feed` is empty, a socket file under the data folder is used.

    `listen` and `feed_listen` are additional endpoints, such as `curve+tcp://HOST:PORT` for other machines. Plain PUB
    emitters connect to `pub_bind`, or bind to `pub_connect`. They present no key. If `pub_user` is set, only that
    user's events are accepted from them. `max_batch` and `max_batch_bytes` bound one group commit, `queue_bytes` the
    queue of each peer, and `pub_queue_bytes` the queue of each PUB emitter. If a consumer has more than `max_lag`
    unread events (0: no limit), publishers and tables wait, and PUB events are dropped and counted.
    """

    ingest: str = ""
    feed: str = ""
    listen: tuple[str, ...] = ()
    feed_listen: tuple[str, ...] = ()
    pub_bind: tuple[str, ...] = ()
    pub_connect: tuple[str, ...] = ()
    pub_user: str = ""
    tables: tuple[TableTail, ...] = ()
    max_batch: Count = 1_000
    max_batch_bytes: Count = 16 << 20
    queue_bytes: Count = 64 << 20
    pub_queue_bytes: Count = 256 << 20
    max_lag: NonNegative = 0
    fetch_max_events: Count = 10_000
    fetch_max_bytes: Count = 4 << 20
    upkeep_interval_s: Positive = 30.0
    drain_s: Positive = 5.0


class PublisherSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits of a publisher. `window` bounds the number of unacknowledged events; `spool_max_bytes` is approximate."""

    window: Annotated[int, msgspec.Meta(ge=1, le=100_000)] = 256
    message_bytes: Annotated[int, msgspec.Meta(ge=1, le=16 << 20)] = 1 << 20
    ack_timeout_s: Positive = 2.0
    full_pause_s: Positive = 0.5
    publish_timeout_s: Positive = 30.0
    spool_max_bytes: Annotated[int, msgspec.Meta(ge=1 << 20)] = 256 << 20


PersonalKind = Literal["phone", "card", "iban"]


class MaskingSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Masking of secrets before storage.

    A match is left unmasked if a pattern in `allow` matches all of it. `patterns` maps names to additional patterns.
    The running time of a pattern with catastrophic backtracking is not bounded. `personal` lists kinds of numbers to
    mask in addition to secrets.
    """

    enabled: bool = True
    allow: tuple[str, ...] = ()
    patterns: dict[str, str] = {}
    personal: tuple[PersonalKind, ...] = ()


class EncryptionSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Encryption at rest. `keys_folder` contains the users' keys and is outside the data folder; if it is empty,
    encryption is off.
    """

    keys_folder: str = ""


class BusSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    events: EventLimits = EventLimits()
    journal: JournalSettings = JournalSettings()
    broker: BrokerSettings = BrokerSettings()
    publisher: PublisherSettings = PublisherSettings()
    masking: MaskingSettings = MaskingSettings()


class RelaySettings(BusSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All settings of a relay: the bus settings, and the settings shared with a daemon on the same data folder."""

    encryption: EncryptionSettings = EncryptionSettings()

    @classmethod
    def of(cls, bus: BusSettings, encryption: EncryptionSettings) -> Self:
        """Return the settings of a relay inside a daemon, with the daemon's `encryption`."""
        return cls(**{name: getattr(bus, name) for name in BusSettings.__struct_fields__}, encryption=encryption)


class Endpoints(NamedTuple):
    """A relay's endpoints: `ingest` for requests and acknowledged events, `feed` for doorbells."""

    ingest: str
    feed: str


def relay_endpoints(data_dir: Path) -> Endpoints:
    run = Path(data_dir).absolute() / "run"
    return Endpoints(f"ipc://{run / 'relay.sock'}", f"ipc://{run / 'relay-feed.sock'}")


def journal_folder(data_dir: Path) -> Path:
    return Path(data_dir).absolute() / "journal"


def load_settings(file: Path) -> RelaySettings:
    """Read the settings from a TOML file. Raises `RelaySettingsError` (with the setting's name)."""
    tree = read_toml(file, RelaySettingsError)
    try:
        return msgspec.convert(tree, described(RelaySettings))
    except msgspec.ValidationError as error:
        raise RelaySettingsError(*setting_at_fault(error)) from error


def read_toml(file: Path, failure: Callable[[str, str], Exception]) -> dict[str, Any]:
    """Return the tables of a TOML settings file. Raises `failure` with `--config` and the reason."""
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise failure("--config", f"cannot read {file}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise failure("--config", f"{file} is not valid TOML: {error}") from error


def setting_at_fault(error: msgspec.ValidationError) -> tuple[str, str]:
    """Return the path of the setting that msgspec rejected, and the reason."""
    reason, _, place = str(error).partition(" - at `")
    path = place.rstrip("`").removeprefix("$").removeprefix(".")
    if "unknown field" in reason:
        unknown = reason.rpartition("unknown field ")[2].strip("`")
        return ".".join(filter(None, (path, unknown))), "no such setting"
    return path or "settings", reason
