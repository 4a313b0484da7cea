"""Messages of the bus as frames: requests, replies, acks, and what plain PUB emitters send. Pure, no sockets.

A request is three frames: a correlation id that the reply repeats, a MessagePack map whose `op` names its type, and the
token of whoever asks (empty where the connection proved a CURVE key). A reply has the first two.
Events travel inside as the bytes they were encoded to, so that one malformed event cannot spoil its neighbours.
New fields go last and have defaults; a type never changes. Rejected: a frame per event, because each frame costs more
than the copy it saves at 1 KB.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any

import msgspec

from relay.access import Origin
from relay.errors import MalformedEventError, ProtocolError, RelayError, rebuild

VERSION = 1

Place = Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]
"""Far from the end of 64 bits: what is counted on from here, and told in a refusal, can still be written."""


class _Message(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="op"):
    """Root of all messages."""


class Publish(_Message, frozen=True, tag="publish"):
    """Events `first_seq`, `first_seq + 1`, … of a producer. `base_seq` is the lowest it has no ack for.

    `attempt` is repeated in the answer: a refusal of an earlier attempt is old news.
    """

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
    """Ask for a consumer's cursor; a new consumer is made durable, so that retention waits for it."""

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
    """What is to be erased: all events of a user, or those of the user's with these ids, of these sessions and runs.

    `system_seqs` are the numbers of events of `system` to erase with them, `quarantine_ids` entries of the quarantine
    that never got a number: whose those are is known to who asks. Any key may name any session, so a session alone says
    nothing about them.
    """

    user_id: str
    everything: bool = False
    event_ids: frozenset[str] = frozenset()
    session_ids: frozenset[str] = frozenset()
    run_ids: frozenset[str] = frozenset()
    system_seqs: frozenset[int] = frozenset()
    after_seq: int = 0
    quarantine_ids: frozenset[int] = frozenset()


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
    """What became of one event: its journal number, or why it was rejected (then `seq` is 0 and `code` is set)."""

    seq: int
    duplicate: bool = False
    code: str = ""
    field: str = ""
    reason: str = ""


class Ack(_Message, frozen=True, tag="ack"):
    """Cumulative: the events of this producer from `first_seq` on are on disk, or rejected for good."""

    epoch: int
    first_seq: int
    receipts: list[Receipt]


class Refusal(_Message, frozen=True, tag="refusal"):
    """Nothing of this attempt from `first_seq` on was taken; `code` says why, `expected_seq` from where to resend."""

    epoch: int
    attempt: int
    first_seq: int
    expected_seq: int
    code: str
    arguments: list[Any]


class Failure(_Message, frozen=True, tag="failure"):
    """A request could not be answered; `code` and `arguments` rebuild the error."""

    code: str
    arguments: list[Any]


class Answer(_Message, frozen=True, tag="answer"):
    """The answer to a request; its type follows from the request."""

    result: msgspec.Raw


class JournalEntry(msgspec.Struct, frozen=True, array_like=True):
    """An event in the journal. `data` is its canonical MessagePack (`event.read_event`)."""

    seq: int
    user_id: str
    event_type: str
    data: bytes
    origin: Origin | None = None

    @property
    def is_vouched(self) -> bool:
        """Whether a key for all users published it: what it says of whose something is counts for every user."""
        return self.origin is not None and self.origin.for_all


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """Entries in order, and where the journal began and ended when they were read.

    When `first_seq` is beyond the cursor + 1, retention was told to pass this consumer.
    """

    entries: list[JournalEntry]
    last_seq: int
    first_seq: int = 1


class QuarantineEntry(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes that could not become an event, or an event (`seq`) that could not be handled; `code`, `reason` say why."""

    id: int
    data: bytes
    code: str
    reason: str
    source: str
    quarantined_at: datetime
    seq: int | None = None


class ConsumerState(msgspec.Struct, frozen=True, kw_only=True):
    """A durable consumer: everything up to `seq` is done. `lag` counts the journal numbers after it."""

    name: str
    seq: int
    lag: int


class Erased(msgspec.Struct, frozen=True, kw_only=True):
    """The numbers of events that were erased, and how many entries of the quarantine. `next_after`: where to go on."""

    seqs: list[int]
    quarantined: int
    next_after: int | None = None


class JournalStats(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of a journal. `locked`: how often readers passed an entry whose key is gone, since it was opened."""

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
    """Figures of a relay; `counts` begin with the process, the journal's are durable."""

    version: int
    pid: int
    journal: JournalStats
    counts: dict[str, int]


_encoder = msgspec.msgpack.Encoder()
_request_decoder: msgspec.msgpack.Decoder[Request] = msgspec.msgpack.Decoder(Request)
_reply_decoder: msgspec.msgpack.Decoder[Answer | Failure] = msgspec.msgpack.Decoder(Answer | Failure)
_receipt_decoder: msgspec.msgpack.Decoder[Ack | Refusal] = msgspec.msgpack.Decoder(Ack | Refusal)


def refusal(publish: Publish, error: RelayError, expected_seq: int | None = None) -> Refusal:
    """Return the answer that nothing of this attempt was taken."""
    return Refusal(
        epoch=publish.epoch,
        attempt=publish.attempt,
        first_seq=publish.first_seq,
        expected_seq=publish.first_seq if expected_seq is None else expected_seq,
        code=error.code,
        arguments=list(error.args),
    )


def encode(message: _Message) -> bytes:
    """Return the body of a message."""
    return _encoder.encode(message)


def decode_request(body: bytes) -> Request:
    """Return the request in a body. Raises `ProtocolError`."""
    try:
        return _request_decoder.decode(body)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise ProtocolError(f"not a request: {error}") from error


def encode_answer(result: object) -> bytes:
    """Return the body of the answer to a request."""
    return _encoder.encode(Answer(result=msgspec.Raw(_encoder.encode(result))))


def encode_failure(error: RelayError) -> bytes:
    """Return the body that raises `error` again at whoever asked."""
    return _encoder.encode(Failure(code=error.code, arguments=list(error.args)))


def decode_reply(body: bytes, result_type: Any) -> Any:
    """Return what was answered, as `result_type`. Raises the error that was answered, or `ProtocolError`."""
    try:
        reply = _reply_decoder.decode(body)
        if isinstance(reply, Answer):
            return msgspec.msgpack.decode(reply.result, type=result_type)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise ProtocolError(f"not a reply: {error}") from error
    raise rebuild(reply.code, reply.arguments)


def decode_receipt(body: bytes) -> Ack | Refusal:
    """Return the relay's answer to a `Publish`. Raises `ProtocolError`."""
    try:
        return _receipt_decoder.decode(body)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise ProtocolError(f"neither ack nor refusal: {error}") from error


def encode_doorbell(last_seq: int) -> bytes:
    """Return the one frame of the feed: the journal's last number."""
    return last_seq.to_bytes(8, "big")


def decode_doorbell(frame: bytes) -> int:
    """Return the journal's last number from a frame of the feed."""
    return int.from_bytes(frame[:8], "big")


def event_in_frames(frames: Sequence[bytes]) -> bytes:
    """Return the bytes of the event that a plain PUB emitter sent.

    As `[topic, payload]` (frames between them are ignored), `[payload]`, or one frame `topic payload`. The topic only
    routes: type and user stand in the event. Raises `MalformedEventError` when there is nothing.
    """
    if len(frames) > 1:
        return frames[-1]
    frame = frames[0] if frames else b""
    if not frame.strip():
        raise MalformedEventError("event", "is empty")
    if _begins_an_object(frame[0]):
        return frame
    topic, blank, payload = frame.partition(b" ")
    return payload if blank and payload and b"\0" not in topic else frame


def _begins_an_object(first_byte: int) -> bool:
    """Whether this is the first byte of a JSON object, or of a MessagePack map."""
    return first_byte in b"{" or 0x80 <= first_byte <= 0x8F or first_byte in (0xDE, 0xDF)
