"""Requests and replies of the daemon, as MessagePack. Pure, no sockets.

A request names a verb and carries its parameters (`params`) undecoded, so that the gateway forwards them to the process
that owns the user without reading them. A reply is a result or a fault; a fault is raised as the same exception on the
other side, with the same arguments. New fields go last with defaults; the type of a field never changes. A request that
sets an option which an older daemon would ignore carries the version that introduced the option.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Literal, Self, TypeVar

import msgspec
from msgspec.structs import replace

from memory_agent import errors
from memory_agent.records.arguments import located
from memory_agent.records.shared_requests import NO_RIGHTS, Rights
from relay import MalformedEventError, QuarantineEntry, read_event

PROTOCOL_VERSION = 1
"""The version of a request that does not name one."""
OPTIONS_VERSION = 2
"""Adds a recall's profile, dates, reference time, context tokens and run; a daemon of version 1 would ignore them."""
MEMORY_VERSION = 3
"""Adds the id and the further fields of what is remembered, and the session and the event of a recall, whose words it
leaves out, and its runs; an older daemon would ignore them."""
NEWEST_VERSION = MEMORY_VERSION
DEFAULT_USER = "default"
LONGEST_DEADLINE_MS = 600_000.0
"""The longest deadline of a request: it holds a request slot while it waits."""

T = TypeVar("T")


class Request(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a client sends. `deadline_ms` is the rest of the caller's patience at the time of sending.

    An empty `user_id` means the user of the key, or `default` with a key for all users.
    """

    method: str
    user_id: str = ""
    deadline_ms: float = 5_000.0
    params: msgspec.Raw = msgspec.Raw(b"\x80")
    token: str = ""
    version: int = PROTOCOL_VERSION


class Fault(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An error on the wire: its stable code and the arguments of its constructor."""

    code: str
    args: tuple[Any, ...] = ()
    message: str = ""
    retryable: bool = False


class Reply(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A result, or a fault."""

    result: msgspec.Raw = msgspec.Raw(b"\xc0")
    fault: Fault | None = None


class QuarantinedEvent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An event that could not be handled: why, and which event it is; of its content only `size_bytes`."""

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

    @classmethod
    def of(cls, entry: QuarantineEntry) -> Self:
        """Describe an entry; bytes that are no event have no user, type or event id."""
        described = cls(
            id=entry.id,
            code=entry.code,
            reason=entry.reason,
            source=entry.source,
            quarantined_at=entry.quarantined_at,
            seq=entry.seq,
            size_bytes=len(entry.data),
        )
        try:
            event = read_event(entry.data)
        except MalformedEventError:
            return described
        return replace(described, user_id=event.user_id, event_type=event.event_type, event_id=event.event_id)


class RetryReport(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The outcome of retrying quarantined events."""

    handled: int = 0
    still_failing: int = 0


class HostAddress(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The Ray actor that hosts a user's memory."""

    actor: str
    namespace: str


class IngestBatch(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Journal entries of one user for its host. With `replay`, only event ids tell repeats, not journal order.

    `ahead` are those of the next batch, to be embedded meanwhile; not with `replay`.
    """

    events: tuple[tuple[int, bytes], ...]
    replay: bool = False
    ahead: tuple[tuple[int, bytes], ...] = ()


class HostEndpoints(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where a host process takes requests, and where batches of events."""

    answer: str
    ingest: str


class HostRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the daemon asks a host, in front of a verb's parameters or, for no verb, of an encoded `IngestBatch`.

    `sent_at_s` is wall time, which processes share. `rights` are those of the caller's key.
    """

    user_id: str
    method: str = ""
    deadline_ms: float = 0.0
    sent_at_s: float = 0.0
    rights: Rights = NO_RIGHTS

    def remaining_ms(self, now_s: float) -> float:
        """Return the rest of the deadline; the time since sending has passed of it."""
        return self.deadline_ms - max(0.0, now_s - self.sent_at_s) * 1000


class PartStatus(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A process of the daemon."""

    name: str
    state: Literal["running", "restarting", "stopped"]
    pid: int | None = None
    restarts: int = 0
    resident_bytes: int = 0


class DaemonStatus(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The state of the daemon.

    `limits`: what it starts and runs at most (`daemon.capacity`). `triggers`: blocks that were published, and causes
    that were dropped, by reason.
    """

    version: str
    uptime_s: float
    endpoints: dict[str, str | list[str]]
    parts: tuple[PartStatus, ...]
    active_users: tuple[str, ...]
    journal: dict[str, Any]
    dispatched: dict[str, int]
    recalls: dict[str, float]
    model: str | None
    limits: dict[str, int] = {}
    triggers: dict[str, float] = {}


_encoder = msgspec.msgpack.Encoder()
_request_decoder = msgspec.msgpack.Decoder(Request)
_host_request_decoder = msgspec.msgpack.Decoder(HostRequest)
_reply_decoder = msgspec.msgpack.Decoder(Reply)
_UNFIT = (TypeError, ValueError, OverflowError, RecursionError)


def encode(value: object) -> bytes:
    """Encode one value."""
    return _encoder.encode(value)


def encode_fields(fields: msgspec.Struct) -> bytes:
    """Encode the fields of a caller. Raises `InvalidInputError` naming the field that cannot be encoded."""
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
        field, reason = located(str(error), type_)
        raise errors.InvalidInputError(field or "params", reason) from error


def decode_request(data: bytes) -> Request:
    """Decode a request and bound its deadline. Raises `ProtocolError`, also for an unknown version."""
    try:
        request = _request_decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise errors.ProtocolError(f"not a request: {error}") from error
    if not PROTOCOL_VERSION <= request.version <= NEWEST_VERSION:
        spoken = f"{PROTOCOL_VERSION} to {NEWEST_VERSION}"
        raise errors.ProtocolError(f"protocol version {request.version}, this daemon speaks {spoken}")
    if 0.0 <= request.deadline_ms <= LONGEST_DEADLINE_MS:
        return request
    bounded_ms = 0.0 if request.deadline_ms < 0.0 else LONGEST_DEADLINE_MS  # also for NaN
    return msgspec.structs.replace(request, deadline_ms=bounded_ms)


def decode_host_request(frames: Sequence[bytes]) -> tuple[HostRequest, bytes]:
    """Return a request to a host and what follows it. Raises `ProtocolError`."""
    if len(frames) != 2:
        raise errors.ProtocolError(f"a request to a host has 2 frames, not {len(frames)}")
    try:
        return _host_request_decoder.decode(frames[0]), frames[1]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise errors.ProtocolError(f"not a request to a host: {error}") from error


def encode_result(value: object) -> bytes:
    """Encode a reply with a result."""
    return _encoder.encode(Reply(result=msgspec.Raw(_encoder.encode(value))))


def encode_fault(error: errors.MemoryAgentError) -> bytes:
    """Encode a reply that raises `error` at the client."""
    fault = Fault(code=error.code, args=error.args, message=str(error), retryable=error.retryable)
    return _encoder.encode(Reply(fault=fault))


def decode_reply(data: bytes, type_: type[T]) -> T:
    """Return the result of a reply, or raise its fault. Raises `ProtocolError` for anything else."""
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
