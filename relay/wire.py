"""The messages of the bus as frames: requests, replies, acks, and messages from plain PUB emitters. Pure.

A request has three frames: a correlation id that the reply repeats, a MessagePack map whose `op` names its type, and
the client's token (empty if the connection proved a CURVE key). A reply has a correlation id and a map, but no token.
New fields are added at the end, with defaults; types never change.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Annotated, Any, TypeVar

import msgspec

from relay.access import Origin
from relay.decoding import described
from relay.errors import MalformedEventError, ProtocolError, RelayError, rebuild
from relay.histogram import Histogram

VERSION = 1
_Result = TypeVar("_Result")

Place = Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]
"""A number small enough that counting up from it does not overflow 64 bits."""


class _Message(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="op"):
    pass


class Publish(_Message, frozen=True, tag="publish"):
    """Events numbered from `first_seq`; `base_seq` is the lowest unacknowledged number. Replies repeat `attempt`."""

    producer_id: str
    epoch: Place
    first_seq: Place
    base_seq: Place
    attempt: Place
    events: list[bytes]


class Fetch(_Message, frozen=True, tag="fetch"):
    after_seq: int
    limit: int
    max_bytes: int
    user_id: str | None = None


class Cursor(_Message, frozen=True, tag="cursor"):
    consumer: str


class Commit(_Message, frozen=True, tag="commit"):
    consumer: str
    seq: int


class Consumers(_Message, frozen=True, tag="consumers"):
    pass


class RemoveConsumer(_Message, frozen=True, tag="remove_consumer"):
    consumer: str


class Quarantine(_Message, frozen=True, tag="quarantine"):
    data: bytes
    code: str
    reason: str
    source: str
    seq: int | None = None


class Quarantined(_Message, frozen=True, tag="quarantined"):
    after: int
    limit: int


class QuarantinedEntry(_Message, frozen=True, tag="quarantined_entry"):
    id: int


class DropQuarantined(_Message, frozen=True, tag="drop_quarantined"):
    id: int


class RetryQuarantined(_Message, frozen=True, tag="retry_quarantined"):
    id: int


class Erasable(msgspec.Struct, frozen=True, kw_only=True):
    """Selects events to erase: all events of a user, or the user's events with these ids, sessions or runs.

    Events whose payload lists an id from `quoted` under `quotes` are also erased, unless their own id is in `kept_ids`.
    `system_seqs` contains the numbers of additional `system` events. `quarantine_ids` contains the ids of quarantine
    entries that have no number. The caller must verify that these events and entries belong to the user, because a key
    may name any session.
    """

    user_id: str
    everything: bool = False
    event_ids: frozenset[str] = frozenset()
    session_ids: frozenset[str] = frozenset()
    run_ids: frozenset[str] = frozenset()
    system_seqs: frozenset[int] = frozenset()
    after_seq: int = 0
    quarantine_ids: frozenset[int] = frozenset()
    quoted: frozenset[str] = frozenset()
    kept_ids: frozenset[str] = frozenset()

    def selects(self, fields: Mapping[str, Any]) -> bool:
        """Whether this selects an event of its user by id, session or run. `fields` need not be a valid event."""
        if self.everything or _is_among(fields.get("event_id"), self.event_ids):
            return True
        payload = fields.get("payload")
        run_id = payload.get("run_id") if isinstance(payload, dict) else None
        return self.is_of(fields.get("session_id"), run_id, fields.get("actor_id"))

    def is_of(self, session_id: object, run_id: object, actor_id: object) -> bool:
        """Whether an event belongs to one of the sessions or runs. The values are unchecked."""
        if not isinstance(run_id, str) and isinstance(actor_id, str) and actor_id.startswith("conductor:"):
            run_id = actor_id.removeprefix("conductor:")
        return _is_among(session_id, self.session_ids) or _is_among(run_id, self.run_ids)


def _is_among(value: object, ids: frozenset[str]) -> bool:
    return isinstance(value, str) and value in ids


class Erase(_Message, frozen=True, tag="erase"):
    wanted: Erasable
    dry_run: bool = False


class Stats(_Message, frozen=True, tag="stats"):
    pass


class Ping(_Message, frozen=True, tag="ping"):
    pass


Request = (
    Publish
    | Fetch
    | Cursor
    | Commit
    | Consumers
    | RemoveConsumer
    | Quarantine
    | Quarantined
    | QuarantinedEntry
    | DropQuarantined
    | RetryQuarantined
    | Erase
    | Stats
    | Ping
)


class Receipt(msgspec.Struct, frozen=True, array_like=True):
    """The outcome of one event: its journal number, or 0 and the `code`, `field` and `reason` of its rejection."""

    seq: int
    duplicate: bool = False
    code: str = ""
    field: str = ""
    reason: str = ""


class Ack(_Message, frozen=True, tag="ack"):
    """Each of the producer's events from `first_seq` onwards is either durable or permanently rejected. Cumulative."""

    epoch: int
    first_seq: int
    receipts: list[Receipt]


class Refusal(_Message, frozen=True, tag="refusal"):
    """None of this attempt's events from `first_seq` onwards were journaled; resend from `expected_seq`."""

    epoch: int
    attempt: int
    first_seq: int
    expected_seq: int
    code: str
    arguments: list[Any]


class Failure(_Message, frozen=True, tag="failure"):
    code: str
    arguments: list[Any]


class Answer(_Message, frozen=True, tag="answer"):
    result: msgspec.Raw


class JournalEntry(msgspec.Struct, frozen=True, array_like=True):
    """An event in the journal. `data` is the event in canonical MessagePack; `received_ms` is 0 if not reported."""

    seq: int
    user_id: str
    event_type: str
    data: bytes
    origin: Origin | None = None
    received_ms: int = 0

    @property
    def is_vouched(self) -> bool:
        """Whether the event was published with a key for all users. Only such events may name their owner."""
        return self.origin is not None and self.origin.for_all


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """Entries in order, and the journal's first and last entry numbers at the time of reading.

    A `first_seq` greater than the cursor + 1 means that retention deleted unread entries. If `has_more` is true, many
    entries for other audiences were skipped; continue after `last_seq`.
    """

    entries: list[JournalEntry]
    last_seq: int
    first_seq: int = 1
    has_more: bool = False


class QuarantineEntry(msgspec.Struct, frozen=True, kw_only=True):
    """Malformed bytes, or a journal event (with a `seq`) that could not be handled, with the error code and reason."""

    id: int
    data: bytes
    code: str
    reason: str
    source: str
    quarantined_at: datetime
    seq: int | None = None


class ConsumerState(msgspec.Struct, frozen=True, kw_only=True):
    """A durable consumer that has handled everything up to `seq`. `lag` counts the journal numbers above `seq`."""

    name: str
    seq: int
    lag: int


class Erased(msgspec.Struct, frozen=True, kw_only=True):
    """The erased events, the number of erased quarantine entries, and the `after_seq` of the next part."""

    seqs: list[int]
    quarantined: int
    next_after: int | None = None


class JournalStats(msgspec.Struct, frozen=True, kw_only=True):
    """Statistics of a journal. `locked` counts reads of entries whose key is missing."""

    first_seq: int
    last_seq: int
    entries: int
    event_bytes: int
    used_bytes: int
    file_bytes: int
    quarantined: int
    quarantined_bytes: int
    quarantine_refused: int
    consumers: list[ConsumerState]
    uncompacted: int = 0
    locked: int = 0


class RelayStats(msgspec.Struct, frozen=True, kw_only=True):
    """Statistics of a relay since its start. `acks` contains the times from the receipt of published events to their
    ack.
    """

    version: int
    pid: int
    journal: JournalStats
    counts: dict[str, int]
    acks: Histogram = msgspec.field(default_factory=Histogram)


_encoder = msgspec.msgpack.Encoder()
_request_decoder: msgspec.msgpack.Decoder[Request] = msgspec.msgpack.Decoder(described(Request))
_reply_decoder: msgspec.msgpack.Decoder[Answer | Failure] = msgspec.msgpack.Decoder(described(Answer | Failure))
_receipt_decoder: msgspec.msgpack.Decoder[Ack | Refusal] = msgspec.msgpack.Decoder(described(Ack | Refusal))


def refusal(publish: Publish, error: RelayError, expected_seq: int | None = None) -> Refusal:
    return Refusal(
        epoch=publish.epoch,
        attempt=publish.attempt,
        first_seq=publish.first_seq,
        expected_seq=publish.first_seq if expected_seq is None else expected_seq,
        code=error.code,
        arguments=list(error.args),
    )


def encode(message: _Message) -> bytes:
    return _encoder.encode(message)


def decode_request(body: bytes) -> Request:
    with _decoding("not a request"):
        return _request_decoder.decode(body)


@contextmanager
def _decoding(failure: str) -> Iterator[None]:
    try:
        yield
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise ProtocolError(f"{failure}: {error}") from error


def encode_answer(result: object) -> bytes:
    return _encoder.encode(Answer(result=msgspec.Raw(_encoder.encode(result))))


def encode_failure(error: RelayError) -> bytes:
    """Return a reply body for which `decode_reply` raises `error`."""
    return _encoder.encode(Failure(code=error.code, arguments=list(error.args)))


def decode_reply(body: bytes, result_type: type[_Result]) -> _Result:
    """Return the result in a reply, or raise its error. Raises `ProtocolError` if the reply is malformed."""
    with _decoding("not a reply"):
        reply = _reply_decoder.decode(body)
        if isinstance(reply, Answer):
            return msgspec.msgpack.decode(reply.result, type=described(result_type))
    raise rebuild(reply.code, reply.arguments)


def decode_receipt(body: bytes) -> Ack | Refusal:
    """Decode the reply to a `Publish`. Raises `ProtocolError`."""
    with _decoding("neither an ack nor a refusal"):
        return _receipt_decoder.decode(body)


def encode_doorbell(last_seq: int) -> bytes:
    return last_seq.to_bytes(8, "big")


def decode_doorbell(frame: bytes) -> int:
    return int.from_bytes(frame[:8], "big")


def event_in_frames(frames: Sequence[bytes]) -> bytes:
    """Return the bytes of the event in a message from a plain PUB emitter.

    Accepts the frames `[topic, ..., payload]` or `[payload]`, and a single frame `topic payload`. Raises
    `MalformedEventError` for an empty message.
    """
    if len(frames) > 1:
        return frames[-1]
    frame = frames[0] if frames else b""
    if not frame.strip():
        raise MalformedEventError("event", "is empty")
    if frame[0] in b"{" or 0x80 <= frame[0] <= 0x8F or frame[0] in (0xDE, 0xDF):  # a JSON object or MessagePack map
        return frame
    topic, blank, payload = frame.partition(b" ")
    return payload if blank and payload and b"\0" not in topic else frame
