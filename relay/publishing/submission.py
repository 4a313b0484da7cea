"""Publishes the events of one request and returns their receipts, for callers that wait for the ack.

Events are not spooled; if no ack arrives, the caller sends them again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from uuid import uuid4

import msgspec

from relay.access import Identity, check_endpoint
from relay.config import EventLimits
from relay.errors import MalformedEventError, RelayUnavailableError, rebuild
from relay.event import sendable
from relay.net import AsyncClientSocket
from relay.wire import Publish, Receipt, Refusal, decode_receipt, encode

_MESSAGE_BYTES = 1 << 20


class Submitted(msgspec.Struct, frozen=True):
    """The id and the receipt of an event. The id is "" if the event was rejected before it was given an id."""

    event_id: str
    receipt: Receipt


class Checked(msgspec.Struct, frozen=True):
    """A valid event as bytes to send, or the receipt that rejects it."""

    event_id: str
    data: bytes
    receipt: Receipt | None = None


def check_events(events: Iterable[object], limits: EventLimits, now: datetime) -> list[Checked]:
    """Validate events, and encode the valid events. Adds missing ids and times, as a `Publisher` does.

    >>> checked = check_events([{"event_type": "user_input", "user_id": "alice"}, {}], EventLimits(), datetime.now(UTC))
    >>> [one.receipt for one in checked]
    [None, Receipt(seq=0, duplicate=False, code='malformed_event', field='user_id', reason='is missing')]
    """
    return [_checked(event, limits, now) for event in events]


async def submit(
    ingest: str, events: Sequence[Checked], *, identity: Identity, timeout_s: float = 5.0
) -> list[Submitted]:
    """Publish events in order; return their results when every event is durable or rejected permanently.

    Raises `RelayUnavailableError` if not all acks arrive within `timeout_s`, and the errors with which the relay
    rejects requests: `UnauthorizedError`, `ScopeMissingError`, `JournalPausedError` and `ConsumerBehindError`. Even if
    an error is raised, some events may have been stored.
    """
    valid = [one.data for one in events if one.receipt is None]
    receipts = iter(await _receipts(ingest, valid, identity, timeout_s) if valid else ())
    return [Submitted(one.event_id, next(receipts) if one.receipt is None else one.receipt) for one in events]


def _checked(event: object, limits: EventLimits, now: datetime) -> Checked:
    try:
        checked, data = sendable(event, limits, now)
    except MalformedEventError as error:
        return Checked("", b"", Receipt(0, False, error.code, error.field, error.reason))
    return Checked(checked.event_id, data)


async def _receipts(ingest: str, events: list[bytes], identity: Identity, timeout_s: float) -> list[Receipt]:
    socket = AsyncClientSocket(check_endpoint("ingest", ingest), identity)
    found: dict[int, Receipt] = {}
    try:
        async with asyncio.timeout(timeout_s):
            producer_id, epoch = uuid4().hex, time.time_ns()
            for first_seq, part in _parts(events):
                publish = Publish(
                    producer_id=producer_id, epoch=epoch, first_seq=first_seq, base_seq=0, attempt=0, events=part
                )
                await socket.send([b"", encode(publish)])
            while len(found) < len(events):
                reply = decode_receipt((await socket.receive())[-1])
                if isinstance(reply, Refusal):
                    raise rebuild(reply.code, reply.arguments)
                found |= dict(enumerate(reply.receipts, reply.first_seq))
    except TimeoutError as error:
        raise RelayUnavailableError(f"no ack from {ingest} within {timeout_s:.3g} s") from error
    finally:
        socket.close()
    return [found[index] for index in range(len(events))]


def _parts(events: list[bytes]) -> Iterator[tuple[int, list[bytes]]]:
    """Yield the events in parts of up to a megabyte, each with the index of its first event."""
    first, size = 0, 0
    for index, data in enumerate(events):
        if size and size + len(data) > _MESSAGE_BYTES:
            yield first, events[first:index]
            first, size = index, 0
        size += len(data)
    yield first, events[first:]
