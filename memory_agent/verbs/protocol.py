"""The daemon's requests and replies, as MessagePack. Pure, without sockets.

The gateway forwards the verb's parameters (`params`) to the user's host without decoding them. A reply is a result or a
fault; for a fault, the client raises the same exception with the same arguments. New fields are added last, with
defaults; the type of a field never changes. If an older daemon would ignore an option, a request with this option
states the version that introduced it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from functools import cache
from typing import Any, Literal, Self, TypeVar, cast

import msgspec
from msgspec.structs import replace

from memory_agent import errors
from memory_agent.records.arguments import located
from memory_agent.records.memories import ApiCounts
from memory_agent.records.placement import Placement
from memory_agent.records.shared_requests import NO_RIGHTS, Rights
from relay import MalformedEventError, QuarantineEntry, described, read_event

PROTOCOL_VERSION = 1
"""The version assumed for a request that does not specify one."""
OPTIONS_VERSION = 2
"""Adds the profile, dates, reference time, context tokens and run of a recall. A version 1 daemon would ignore them."""
MEMORY_VERSION = 3
"""Adds more fields of `remember`, and the session, event and runs of a recall. Older daemons ignore them."""
SCOPE_VERSION = 4
"""Adds three fields: the filter of `stats`, the vector of a recall, and whether the recall is logged. Older daemons
ignore them.
"""
NEWEST_VERSION = SCOPE_VERSION
HOST_PROTOCOL = 1
"""The version of all data exchanged between a daemon and the hosts on other machines.

A daemon accepts only machines with the same number as its own, regardless of their product versions. Increment the
number with every change to the structs below, a verb's parameters or result, a method of `HostActor`, requests for
shared items, or stored values that hosts rewrite. This includes a change of meaning, and a new field with a default,
which the other side would ignore or drop. It does not include new settings (`daemon.compatibility`).
`tests/memory_agent/daemon/test_compatibility.py` fails if a structure changes but this number does not.
"""
DEFAULT_USER = "default"
LONGEST_DEADLINE_MS = 600_000.0
"""The longest deadline of a request. A request occupies a request slot while it waits."""

T = TypeVar("T")


class Request(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A client's request. `deadline_ms` is the time that remained when the request was sent. `traceparent` is a W3C
    trace context.

    If `user_id` is empty, the request is for the key's user, or for `default` if the key is for all users.
    """

    method: str
    user_id: str = ""
    deadline_ms: float = 5_000.0
    params: msgspec.Raw = msgspec.Raw(b"\x80")
    token: str = ""
    version: int = PROTOCOL_VERSION
    traceparent: str = ""


class Fault(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An error on the wire: its stable code and its constructor arguments."""

    code: str
    args: tuple[Any, ...] = ()
    message: str = ""
    retryable: bool = False


class Reply(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A result, or a fault."""

    result: msgspec.Raw = msgspec.Raw(b"\xc0")
    fault: Fault | None = None


class QuarantinedEvent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An event that could not be handled: its identity and the reason, without its content."""

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
        """Describe an entry. Bytes that are not an event have no user, type or event id."""
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
    """One user's journal entries, for the user's host. With `replay`, repeated events are recognised only by their ids.

    `ahead` contains the entries of the next batch, which are embedded in advance; it is empty with `replay`.
    """

    events: tuple[tuple[int, bytes], ...]
    replay: bool = False
    ahead: tuple[tuple[int, bytes], ...] = ()


class HostEndpoints(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The endpoints of a host process: for requests, for batches of events, and for requests from other machines."""

    answer: str
    ingest: str
    remote: str = ""


class HostRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The first frame of a request to a host. The second frame holds the verb's parameters or, without a verb, a batch.

    `sent_at_s` is wall time, or 0 if the request comes from another machine, whose clock may differ. `rights` are the
    rights of the caller's key. `placement` is the user's placement in a cluster. `traceparent`: as in `Request`.
    """

    user_id: str
    method: str = ""
    deadline_ms: float = 0.0
    sent_at_s: float = 0.0
    rights: Rights = NO_RIGHTS
    placement: Placement = Placement()
    traceparent: str = ""

    def remaining_ms(self, now_s: float) -> float:
        """Return the deadline minus the time since the request was sent, if that is known."""
        if not self.sent_at_s:
            return self.deadline_ms
        return self.deadline_ms - max(0.0, now_s - self.sent_at_s) * 1000


class PartStatus(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One of the daemon's processes."""

    name: str
    state: Literal["running", "restarting", "stopped"]
    pid: int | None = None
    restarts: int = 0
    resident_bytes: int = 0


class HostFigures(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The figures that a host reports after each round of upkeep: sums over its open memories. Names no user.

    `waiting` counts memories without vectors (`MemoryStats.waiting`), and `gates` counts users by the state of their
    gate. `resident_bytes` is 0 for a host within the daemon's process. `embedder` and `judge` count the calls that the
    embedder's and the judge's processes make to a model server.
    """

    memories: int = 0
    waiting: int = 0
    store_bytes: int = 0
    gates: dict[str, int] = {}
    resident_bytes: int = 0
    embedder: ApiCounts | None = None
    judge: ApiCounts | None = None


class Node(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Another machine in the daemon's cluster, with its IP address and its number of awake users.

    `is_full` is true if the machine's disk is full; a full machine receives no users.
    """

    name: str
    address: str
    cores: int
    version: str
    joined_at: datetime
    state: Literal["joining", "up", "leaving"] = "up"
    users: int = 0
    is_full: bool = False


class Certificate(msgspec.Struct, frozen=True, kw_only=True):
    """A machine's certificate with its private key, and the certificate of the authority, as PEM."""

    authority: str
    certificate: str
    private_key: str


class JoinGrant(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a machine needs to join the cluster. It contains secrets.

    `gcs` is the address of the daemon's Ray cluster, and `token` is the cluster's key. `curve` is the key pair (public,
    secret) that all hosts in the cluster use, and `shared` is the endpoint of the host of shared items. `now_s` is the
    time on the daemon's clock (seconds since 1970); the machine's clock may differ by `clock_tolerance_s`.
    `keys_folder` and `ring` identify the encryption keys, if the daemon's folder is encrypted. `settings` contains the
    daemon's settings (`daemon.compatibility.encode_settings`).
    """

    gcs: str
    token: str
    certificate: Certificate
    curve: tuple[str, str]
    shared: str
    now_s: float = 0.0
    clock_tolerance_s: float = 0.0
    keys_folder: str = ""
    ring: bytes = b""
    settings: bytes = b"\x80"


class DaemonStatus(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The state of the daemon.

    `limits` gives the maximum numbers of hosts, threads and requests (`daemon.capacity`). `triggers` counts the
    published blocks and, for each reason, the causes that were dropped. `form` indicates whether the daemon runs as
    several processes with Ray, or as one process (`serve --light`). `nodes` lists the other machines in the cluster.
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
    form: Literal["full", "light"] = "full"
    nodes: tuple[Node, ...] = ()


NOT_DONE = b""
"""The reply of a host that did nothing because it has no lease."""
OUTCOME_UNKNOWN = b"\0"
"""The reply of a host whose lease ended during a request."""

_FAULT = b"\x81\xa5fault"
"""The first bytes of each reply that reports a fault: a map with one field."""
_encoder = msgspec.msgpack.Encoder()
_request_decoder = msgspec.msgpack.Decoder(described(Request))
_host_request_decoder = msgspec.msgpack.Decoder(described(HostRequest))
_reply_decoder = msgspec.msgpack.Decoder(described(Reply))
_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_UNFIT = (TypeError, ValueError, OverflowError, RecursionError)


def encode(value: object) -> bytes:
    return _encoder.encode(value)


def encode_fields(fields: msgspec.Struct) -> bytes:
    """Encode a caller's fields. Raises `InvalidInputError` with the name of the field that cannot be encoded."""
    try:
        return _encoder.encode(fields)
    except _UNFIT as error:
        unfit = next(filter(lambda name: _is_unfit(getattr(fields, name)), fields.__struct_fields__), "params")
        raise errors.InvalidInputError(unfit, _why_unfit(error)) from error


def decode(data: bytes | msgspec.Raw, type_: type[T]) -> T:
    """Decode `data` as `type_`. Raises `InvalidInputError` with the name of the invalid field."""
    try:
        return msgspec.msgpack.decode(data, type=described(type_))
    except _UNREADABLE as error:
        field, reason = located(str(error), type_)
        raise errors.InvalidInputError(field or "params", reason) from error


def decode_request(data: bytes) -> Request:
    """Decode a request and limit its deadline. Raises `ProtocolError`, also for an unknown version."""
    request = _conforming(_request_decoder.decode, data, "not a request")
    if not PROTOCOL_VERSION <= request.version <= NEWEST_VERSION:
        spoken = f"{PROTOCOL_VERSION} to {NEWEST_VERSION}"
        raise errors.ProtocolError(
            f"protocol version {request.version} is not supported; this daemon supports {spoken}"
        )
    if 0.0 <= request.deadline_ms <= LONGEST_DEADLINE_MS:
        return request
    bounded_ms = 0.0 if request.deadline_ms < 0.0 else LONGEST_DEADLINE_MS  # also for NaN
    return msgspec.structs.replace(request, deadline_ms=bounded_ms)


def decode_host_request(frames: Sequence[bytes]) -> tuple[HostRequest, bytes]:
    """Return the two frames of a request to a host; the first frame is decoded. Raises `ProtocolError`."""
    if len(frames) != 2:
        raise errors.ProtocolError(f"a request to a host must have 2 frames, not {len(frames)}")
    return _conforming(_host_request_decoder.decode, frames[0], "not a request to a host"), frames[1]


def encode_result(value: object) -> bytes:
    return _encoder.encode(Reply(result=msgspec.Raw(_encoder.encode(value))))


def encode_fault(error: errors.MemoryAgentError) -> bytes:
    """Encode a reply that raises `error` in the client."""
    fault = Fault(code=error.code, args=error.args, message=str(error), retryable=error.retryable)
    return _encoder.encode(Reply(fault=fault))


def is_fault(reply: bytes) -> bool:
    return reply.startswith(_FAULT)


def fault_in(reply: bytes) -> Fault | None:
    """Return the fault of a reply that this module encoded, or None."""
    return _reply_decoder.decode(reply).fault if is_fault(reply) else None


def decode_reply(data: bytes, type_: type[T]) -> T:
    """Return the result of a reply, or raise its fault. Raises `ProtocolError` for an invalid reply."""
    reply = _conforming(_reply_decoder.decode, data, "not a reply")
    if reply.fault is not None:
        raise _raised(reply.fault)
    return cast(T, _conforming(_decoder_of(cast(Any, type_)).decode, reply.result, "unexpected result"))


def _conforming(decode: Callable[[Any], T], data: bytes | msgspec.Raw, problem: str) -> T:
    try:
        return decode(data)
    except _UNREADABLE as error:
        raise errors.ProtocolError(f"{problem}: {error}") from error


@cache
def _decoder_of(type_: Any) -> msgspec.msgpack.Decoder[Any]:
    """Return a cached decoder for a verb's result; creating a decoder for a list takes a third of the decoding time."""
    return msgspec.msgpack.Decoder(described(type_))


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
