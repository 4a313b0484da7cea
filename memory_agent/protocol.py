"""Requests and replies of the daemon, as MessagePack: pure, no sockets.

A request names a method and carries its parameters undecoded, so that the gateway hands them on to the process that
owns the user without reading them. A reply is a result or a fault; a fault becomes the same exception on the other
side, with the same arguments. New fields go last with defaults; the type of a field never changes. What must not be
passed over by a daemon that does not know it raises the version of the requests that say it, and of no others.
"""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any, Literal, TypeVar
from zoneinfo import ZoneInfo

import msgspec

from memory_agent import errors
from memory_agent.erasure.selection import Selection
from memory_agent.records import Dates, Kind, MemoryFilter, Mode, Profile, Provenance, Source

PROTOCOL_VERSION = 1
"""What a request speaks that does not say; so it stays as it is."""
OPTIONS_VERSION = 2
"""Since this, a recall may name a profile, dates, a reference time and the tokens of a block; a daemon that speaks 1
would answer as if nothing had been said."""
NEWEST_VERSION = OPTIONS_VERSION
DEFAULT_USER = "default"
LONGEST_DEADLINE_MS = 600_000.0
"""What a request may ask for at most: it holds a place in the gateway as long as it waits."""

T = TypeVar("T")


class Request(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a client sends. `deadline_ms` is what is left of the caller's patience when it was sent.

    `user_id` is empty where nobody was named: a key for one user stands for that one then, any other for `default`.
    """

    method: str
    user_id: str = ""
    deadline_ms: float = 5_000.0
    params: msgspec.Raw = msgspec.Raw(b"\x80")
    token: str = ""
    version: int = PROTOCOL_VERSION


class Fault(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An error as it travels: its stable code and the arguments that make it again."""

    code: str
    args: tuple[Any, ...] = ()
    message: str = ""
    retryable: bool = False


class Reply(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A result, or a fault."""

    result: msgspec.Raw = msgspec.Raw(b"\xc0")
    fault: Fault | None = None


class NoParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """For methods that need nothing but their name."""


class RecallParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Parameters of `recall`. With `usual_deadline` the caller named none, and that of the settings holds, if it is
    shorter than the request's.

    A time on the wire is UTC, and "yesterday" is not everybody's: `reference_offset_s` is what the zone of
    `reference_time` is ahead of UTC then, `reference_zone` its IANA name where it has one, which alone knows when the
    clocks change.
    """

    query: str
    top_k: int | None = None
    filter: MemoryFilter | None = None
    mode: Mode | None = None
    with_embedding: bool = False
    profile: Profile | None = None
    dates: Dates | None = None
    reference_time: datetime | None = None
    context_tokens: int | None = None
    usual_deadline: bool = False
    reference_offset_s: float | None = None
    reference_zone: str | None = None
    by_run: str | None = None

    @property
    def local_reference_time(self) -> datetime | None:
        """The reference time in its zone, as the caller gave it. Raises `InvalidInputError` for an impossible one."""
        if self.reference_time is None or self.reference_offset_s is None or self.reference_time.tzinfo is None:
            return self.reference_time
        try:
            fixed = self.reference_time.astimezone(timezone(timedelta(seconds=self.reference_offset_s)))
            named = _in_zone(fixed, self.reference_zone)
        except (ValueError, OverflowError) as error:
            raise errors.InvalidInputError("reference_time", f"there is no such zone: {error}") from error
        return named if named.utcoffset() == fixed.utcoffset() else fixed

    @property
    def version(self) -> int:
        """The version of a daemon that understands these."""
        newer = (self.profile, self.dates, self.reference_time, self.context_tokens, self.by_run)
        return PROTOCOL_VERSION if all(value is None for value in newer) else OPTIONS_VERSION


class RememberParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Parameters of `remember`."""

    text: str
    kind: Kind = "finding"
    source: Source = "user_input"
    tags: tuple[str, ...] = ()
    title: str | None = None
    provenance: Provenance | None = None
    metadata: dict[str, Any] = {}
    session_id: str | None = None


class EraseParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Parameters of `erase`."""

    selection: Selection
    dry_run: bool = False


class IdsParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Parameters of `get` and `forget`: ids of records."""

    ids: tuple[str, ...]


class WaitParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Parameters of `wait`: for each user the journal number that must have been handled."""

    through: dict[str, int]


class QuarantineParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Parameters of `quarantine_list`: entries after `after`, at most `limit`."""

    after: int = 0
    limit: int = 100


class QuarantineIdsParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Parameters of `quarantine_retry` and `quarantine_drop`; empty `ids` means every entry."""

    ids: tuple[int, ...] = ()


class QuarantinedEvent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One event that could not be handled. `size_bytes` stands for its content, which is not shown."""

    id: int
    code: str
    reason: str
    source: str
    quarantined_at: datetime
    seq: int | None = None
    user_id: str | None = None
    event_type: str | None = None
    event_id: str | None = None
    size_bytes: int = 0


class RetryReport(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What became of quarantined events that were tried again."""

    handled: int = 0
    still_failing: int = 0


class HostAddress(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where a user's memory lives inside Ray."""

    actor: str
    namespace: str


class IngestBatch(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Journal entries of one user for its host. With `replay`, journal order is not what recognises repeats."""

    events: tuple[tuple[int, bytes], ...]
    replay: bool = False


class PartStatus(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A process of the daemon."""

    name: str
    state: Literal["running", "restarting", "stopped"]
    pid: int | None = None
    restarts: int = 0
    resident_bytes: int = 0


class DaemonStatus(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the daemon is doing."""

    version: str
    uptime_s: float
    endpoints: dict[str, str | list[str]]
    parts: tuple[PartStatus, ...]
    active_users: tuple[str, ...]
    journal: dict[str, Any]
    dispatched: dict[str, int]
    recalls: dict[str, float]
    model: str | None


_encoder = msgspec.msgpack.Encoder()
_request_decoder = msgspec.msgpack.Decoder(Request)
_reply_decoder = msgspec.msgpack.Decoder(Reply)
_UNFIT = (TypeError, ValueError, OverflowError, RecursionError)


def encode(value: object) -> bytes:
    """Encode one value."""
    return _encoder.encode(value)


def encode_fields(fields: msgspec.Struct) -> bytes:
    """Encode what a caller filled in. Raises `InvalidInputError` naming the field that has no form on the wire."""
    try:
        return _encoder.encode(fields)
    except _UNFIT as error:
        unfit = next(filter(lambda name: _is_unfit(getattr(fields, name)), fields.__struct_fields__), "params")
        raise errors.InvalidInputError(unfit, _why_unfit(error)) from error


def decode(data: bytes | msgspec.Raw, type_: type[T]) -> T:
    """Decode `data` as `type_`. Raises `InvalidInputError` naming the field that does not fit."""
    try:
        return msgspec.msgpack.decode(data, type=type_)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        field, reason = _locate(str(error))
        raise errors.InvalidInputError(field, reason) from error


def decode_request(data: bytes) -> Request:
    """Decode a request, its deadline bounded. Raises `ProtocolError`, also for a version this side does not speak."""
    try:
        request = _request_decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise errors.ProtocolError(f"not a request: {error}") from error
    if not PROTOCOL_VERSION <= request.version <= NEWEST_VERSION:
        spoken = f"{PROTOCOL_VERSION} to {NEWEST_VERSION}"
        raise errors.ProtocolError(f"protocol version {request.version}, this daemon speaks {spoken}")
    if 0.0 <= request.deadline_ms <= LONGEST_DEADLINE_MS:
        return request
    bounded_ms = 0.0 if request.deadline_ms < 0.0 else LONGEST_DEADLINE_MS  # also for one that is no number
    return msgspec.structs.replace(request, deadline_ms=bounded_ms)


def zone_fields(moment: datetime | None) -> dict[str, Any]:
    """Return the fields of `RecallParams` that keep the zone of a reference time."""
    offset = None if moment is None else moment.utcoffset()
    if moment is None or offset is None:
        return {}
    zone = moment.tzinfo.key if isinstance(moment.tzinfo, ZoneInfo) else None
    return {"reference_offset_s": offset.total_seconds(), "reference_zone": zone}


def encode_result(value: object) -> bytes:
    """Encode a reply that carries `value`."""
    return _encoder.encode(Reply(result=msgspec.Raw(_encoder.encode(value))))


def encode_fault(error: errors.MemoryAgentError) -> bytes:
    """Encode a reply that raises `error` on the other side."""
    fault = Fault(code=error.code, args=error.args, message=str(error), retryable=error.retryable)
    return _encoder.encode(Reply(fault=fault))


def decode_reply(data: bytes, type_: type[T]) -> T:
    """Return the result of a reply, or raise the error that it carries."""
    try:
        reply = _reply_decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise errors.ProtocolError(f"not a reply: {error}") from error
    if reply.fault is not None:
        raise _raised(reply.fault)
    try:
        return msgspec.msgpack.decode(reply.result, type=type_)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise errors.ProtocolError(f"unexpected result: {error}") from error


def _raised(fault: Fault) -> errors.MemoryAgentError:
    error_type = errors.ERRORS.get(fault.code)
    if error_type is None:
        return errors.MemoryAgentError(fault.message)
    try:
        return error_type(*fault.args)
    except TypeError:
        return errors.MemoryAgentError(fault.message)


def _in_zone(moment: datetime, zone: str | None) -> datetime:
    """Return the moment in the zone, or as it is where this machine does not know the zone."""
    if zone is None:
        return moment
    try:
        return moment.astimezone(ZoneInfo(zone))
    except (KeyError, ValueError, OSError):  # not there; no name at all; a folder of zones
        return moment


def _is_unfit(value: object) -> bool:
    try:
        _encoder.encode(value)
    except _UNFIT:
        return True
    return False


def _why_unfit(error: Exception) -> str:
    if isinstance(error, UnicodeEncodeError):
        return f"is not valid Unicode: lone surrogate at {error.start}"
    return f"cannot be sent: {error}"


def _locate(message: str) -> tuple[str, str]:
    """Split msgspec's "reason - at `$.field`" into field and reason."""
    reason, _, path = message.partition(" - at `")
    return path.rstrip("`").removeprefix("$.").removeprefix("$") or "params", reason
