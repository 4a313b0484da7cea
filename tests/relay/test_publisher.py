"""Test `Publisher` over real sockets: acks, order, resending, back-pressure and invalid events."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import zmq
from relays import RelayProcess, entries, event, mapping, wait_until

from relay import (
    AsyncPublisher,
    Broker,
    EventLimits,
    EventTooLargeError,
    JournalSettings,
    MalformedEventError,
    ProducerSupersededError,
    Progress,
    Publisher,
    PublisherSettings,
    RelaySettings,
    RelayUnavailableError,
    Subscriber,
    relay_endpoints,
)
from relay.wire import Ack, Publish, Receipt, decode_receipt, decode_request, encode

IMPATIENT = PublisherSettings(ack_timeout_s=0.5, publish_timeout_s=0.2, full_pause_s=0.05)


def test_publish_returns_the_event_id_and_flush_the_outcome(publisher: Publisher) -> None:
    assert publisher.publish(mapping(1)) == "event-000001"
    derived = publisher.publish({"event_type": "a.b", "user_id": "bob", "payload": {"x": 1}})
    assert derived.startswith("derived-")
    publisher.publish(mapping(1))
    report = publisher.flush()
    assert (report.published, report.acked, report.duplicates, report.rejected) == (3, 2, 1, 0)
    assert (report.spooled, report.pending, report.rejections) == (0, 0, ())
    assert report.acked_through == publisher.acked_through == {"alice": 1, "bob": 2}


@pytest.mark.parametrize(
    ("flaw", "field"),
    [
        ({"event_type": None}, "event_type"),
        ({"user_id": "../x"}, "user_id"),
        ({"user_id": ""}, "user_id"),
        ({"user_id": "x" * 300}, "user_id"),
        ({"timestamp": "2999-01-01T00:00:00Z"}, "timestamp"),
        ({"payload": {"text": "\ud800"}}, "payload.text"),
        ({"payload": {"vector": [1.0, float("nan")]}}, "payload.vector[1]"),
        ({"payload": {"blob": b"\xff"}}, "payload.blob"),
    ],
)
def test_a_malformed_event_is_refused_at_once_without_affecting_others(
    publisher: Publisher, subscriber: Subscriber, flaw: dict[str, Any], field: str
) -> None:
    publisher.publish(mapping(1))
    with pytest.raises(MalformedEventError) as raised:
        publisher.publish({**mapping(2), **flaw})
    assert raised.value.field == field
    publisher.publish(mapping(3))
    assert publisher.flush().acked == 2
    assert [event_id for _, event_id in entries(subscriber)] == ["event-000001", "event-000003"]


def test_an_event_that_is_too_large_is_refused_at_once(publisher: Publisher) -> None:
    with pytest.raises(EventTooLargeError):
        publisher.publish(mapping(1, payload={"text": "x" * 300_000}))
    assert publisher.flush().published == 0


def test_a_relay_with_other_limits_rejects_by_field_and_takes_the_rest(data_dir: Path) -> None:
    strict = RelaySettings(events=EventLimits(max_bytes=300))
    with (
        Broker(data_dir, strict) as broker,
        Subscriber(*broker.endpoints) as subscriber,
        Publisher(broker.endpoints.ingest) as publisher,
    ):
        for number in range(4):
            publisher.publish(mapping(number, payload={"text": "x" * 400 * (number % 2)}))
        report = publisher.flush()
        assert (report.acked, report.rejected) == (2, 2)
        assert [(one.event_id, one.code, one.field) for one in report.rejections] == [
            ("event-000001", "event_too_large", "event"),
            ("event-000003", "event_too_large", "event"),
        ]
        assert [entry.code for entry in subscriber.quarantined()] == ["event_too_large"] * 2
        assert len(entries(subscriber)) == 2


@pytest.mark.parametrize("window", [1, 16, 256])
def test_order_is_kept_at_any_window(broker: Broker, subscriber: Subscriber, window: int) -> None:
    with Publisher(broker.endpoints.ingest, settings=PublisherSettings(window=window)) as publisher:
        for number in range(500):
            publisher.publish(mapping(number))
        assert publisher.flush().acked == 500
    assert entries(subscriber) == [(number + 1, f"event-{number:06d}") for number in range(500)]


def test_progress_is_reported_and_only_grows(broker: Broker) -> None:
    told: list[Progress] = []
    with Publisher(broker.endpoints.ingest, on_progress=told.append) as publisher:
        for number in range(300):
            publisher.publish(mapping(number))
        publisher.flush()
        wait_until(lambda: bool(told) and told[-1].acked == 300)
    assert [one.acked for one in told] == sorted(one.acked for one in told)
    assert (told[-1].published, told[-1].pending) == (300, 0)


def test_a_full_window_waits_and_then_raises(data_dir: Path) -> None:
    settings = PublisherSettings(window=3, ack_timeout_s=0.5, publish_timeout_s=0.2)
    publisher = Publisher(relay_endpoints(data_dir).ingest, settings=settings)
    for number in range(3):
        publisher.publish(mapping(number))
    with pytest.raises(RelayUnavailableError, match="3 events are still unacknowledged"):
        publisher.publish(mapping(3))
    assert publisher.try_publish(mapping(3)) is None
    report = publisher.flush(0.01)
    assert (report.published, report.acked, report.pending) == (3, 0, 3)
    with Broker(data_dir) as broker, Subscriber(*broker.endpoints) as subscriber:
        assert publisher.publish(mapping(3), timeout_s=20.0) == "event-000003"
        assert publisher.flush().acked == 4
        assert [seq for seq, _ in entries(subscriber)] == [1, 2, 3, 4]
    publisher.close()


def test_closing_with_lost_events_is_an_error(data_dir: Path) -> None:
    publisher = Publisher(relay_endpoints(data_dir).ingest, settings=IMPATIENT)
    publisher.publish(mapping(1))
    with pytest.raises(RelayUnavailableError) as of_one:
        publisher.close(0.05)
    with pytest.raises(RelayUnavailableError, match="closed"):
        publisher.publish(mapping(2))
    another = Publisher(relay_endpoints(data_dir).ingest, settings=IMPATIENT)
    another.publish(mapping(1))
    another.publish(mapping(2))
    with pytest.raises(RelayUnavailableError) as of_two:
        another.close(0.05)
    lost = "lost when this process exits; is the relay running? (memory-agent serve)"
    assert str(of_one.value) == f"1 event was not acknowledged and is {lost}"
    assert str(of_two.value) == f"2 events were not acknowledged and are {lost}"


def test_events_sent_to_a_killed_relay_are_resent_to_the_next(data_dir: Path) -> None:
    settings = PublisherSettings(window=50, ack_timeout_s=0.2)
    with RelayProcess(data_dir) as relay, Publisher(relay.endpoints.ingest, settings=settings) as publisher:
        for number in range(20):
            publisher.publish(mapping(number))
        publisher.flush()
        relay.kill()
        for number in range(20, 40):
            publisher.publish(mapping(number))
        relay.start()
        report = publisher.flush()
        assert report.acked + report.duplicates == 40  # an ack may have been lost when the relay was killed
        with Subscriber(*relay.endpoints) as subscriber:
            assert entries(subscriber) == [(number + 1, f"event-{number:06d}") for number in range(40)]


def test_a_full_journal_holds_a_publisher_back_and_loses_nothing(data_dir: Path) -> None:
    small = RelaySettings(journal=JournalSettings(map_size_bytes=2 << 20))
    publisher = Publisher(
        relay_endpoints(data_dir).ingest, settings=PublisherSettings(publish_timeout_s=0.2, full_pause_s=0.05)
    )
    with Broker(data_dir, small) as broker, Subscriber(*broker.endpoints) as subscriber:
        for number in range(40):
            publisher.publish(mapping(number, payload={"text": "x" * 100_000}))
            if number == 4:  # later events may share one transaction, which is rejected as a whole
                assert publisher.flush().acked == 5
        wait_until(lambda: subscriber.stats().counts.get("refused_full", 0) > 0)
        wait_until(lambda: publisher.flush(0.0).acked == len(entries(subscriber)))
        report = publisher.flush(0.0)
        assert 5 <= report.acked < 40
        assert report.acked + report.pending == 40
    with Broker(data_dir) as broker, Subscriber(*broker.endpoints) as subscriber:
        assert publisher.flush().pending == 0
        assert entries(subscriber) == [(number + 1, f"event-{number:06d}") for number in range(40)]
        publisher.close()


def test_a_newer_publisher_of_the_same_name_takes_over(broker: Broker) -> None:
    older = Publisher(broker.endpoints.ingest, producer_id="conductor")
    older.publish(mapping(1))
    older.flush()
    with Publisher(broker.endpoints.ingest, producer_id="conductor") as newer:
        newer.publish(mapping(2))
        assert newer.flush().acked == 1
        older.publish(mapping(3))
        with pytest.raises(ProducerSupersededError):
            older.flush()
        with pytest.raises(ProducerSupersededError):
            older.publish(mapping(4))
    with pytest.raises(RelayUnavailableError, match="1 event was not acknowledged"):
        older.close()


@pytest.fixture
def relay_of_ours(data_dir: Path) -> Iterator[zmq.Socket[bytes]]:
    """A socket on which the test acts as the relay."""
    (data_dir / "run").mkdir(parents=True)
    with zmq.Context() as context, context.socket(zmq.ROUTER) as socket:
        socket.linger = 0
        socket.rcvtimeo = 20_000
        socket.bind(relay_endpoints(data_dir).ingest)
        yield socket


def received(socket: zmq.Socket[bytes]) -> tuple[bytes, Publish]:
    peer, _, body, _ = socket.recv_multipart()
    request = decode_request(body)
    assert isinstance(request, Publish)
    return peer, request


def test_events_are_resent_when_an_ack_is_lost(data_dir: Path, relay_of_ours: zmq.Socket[bytes]) -> None:
    with Publisher(relay_endpoints(data_dir).ingest, settings=IMPATIENT) as publisher:
        publisher.publish(mapping(1))
        _, first = received(relay_of_ours)
        peer, again = received(relay_of_ours)
        assert (again.first_seq, again.events) == (first.first_seq, first.events)
        assert again.attempt > first.attempt
        ack = Ack(epoch=again.epoch, first_seq=again.first_seq, receipts=[Receipt(1, True)])
        relay_of_ours.send_multipart([peer, b"", encode(ack)])
        report = publisher.flush()
        assert (report.acked, report.duplicates) == (0, 1)


def test_replies_to_others_are_ignored(data_dir: Path, relay_of_ours: zmq.Socket[bytes]) -> None:
    with Publisher(relay_endpoints(data_dir).ingest) as publisher:
        publisher.publish(mapping(1))
        peer, sent = received(relay_of_ours)
        for body in (
            b"junk",
            encode(Ack(epoch=sent.epoch - 1, first_seq=1, receipts=[Receipt(9)])),
            encode(Ack(epoch=sent.epoch, first_seq=7, receipts=[Receipt(9)])),
            encode(Ack(epoch=sent.epoch, first_seq=-3, receipts=[Receipt(9)])),
        ):
            relay_of_ours.send_multipart([peer, b"", body])
        right = encode(Ack(epoch=sent.epoch, first_seq=1, receipts=[Receipt(5)]))
        relay_of_ours.send_multipart([peer, b"", right])
        assert publisher.flush().acked_through == {"alice": 5}
        assert isinstance(decode_receipt(right), Ack)


def test_small_messages_wait_while_another_is_on_its_way(data_dir: Path, relay_of_ours: zmq.Socket[bytes]) -> None:
    settings = PublisherSettings(window=16, ack_timeout_s=20.0)
    with Publisher(relay_endpoints(data_dir).ingest, settings=settings) as publisher:
        for number in range(16):
            publisher.publish(mapping(number))
        messages: list[Publish] = []
        while sum(len(one.events) for one in messages) < 13:  # the rest is less than a quarter of the window
            peer, message = received(relay_of_ours)
            messages.append(message)
        assert all(len(one.events) >= 4 for one in messages[1:])
        while (done := sum(len(one.events) for one in messages)) < 16:
            receipts = [Receipt(number + 1) for number in range(done)]
            relay_of_ours.send_multipart([peer, b"", encode(Ack(epoch=message.epoch, first_seq=1, receipts=receipts))])
            messages.append(received(relay_of_ours)[1])
        receipts = [Receipt(number + 1) for number in range(16)]
        relay_of_ours.send_multipart([peer, b"", encode(Ack(epoch=message.epoch, first_seq=1, receipts=receipts))])
        assert publisher.flush().acked_through == {"alice": 16}


def test_the_async_publisher_keeps_the_order_of_its_calls(broker: Broker, subscriber: Subscriber) -> None:
    async def publish() -> None:
        async with AsyncPublisher(broker.endpoints.ingest, settings=PublisherSettings(window=4)) as publisher:
            for number in range(100):
                assert await publisher.publish(mapping(number)) == f"event-{number:06d}"
            report = await publisher.flush()
            assert report.acked == 100
            assert publisher.acked_through == {"alice": 100}
            with pytest.raises(MalformedEventError, match="user_id"):
                await publisher.publish(mapping(1, user_id="../x"))

    asyncio.run(publish())
    assert [event_id for _, event_id in entries(subscriber)] == [f"event-{number:06d}" for number in range(100)]


def test_a_process_without_close_still_ends(broker: Broker) -> None:
    program = (
        "import json, sys; from relay import Publisher; publisher = Publisher(sys.argv[1]);"
        "publisher.publish(json.loads(sys.argv[2])); print(publisher.flush().acked)"
    )
    command = [sys.executable, "-c", program, broker.endpoints.ingest, json.dumps(mapping(1))]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    assert ended.stdout.strip() == "1"


def test_an_event_object_may_be_published_directly(publisher: Publisher, subscriber: Subscriber) -> None:
    publisher.publish(event(1, session_id="s-1", tenant="acme"))
    publisher.flush()
    (entry,) = subscriber.fetch(0, 1).entries
    assert b"acme" in entry.data


def test_threads_may_publish_while_acks_come_in(broker: Broker) -> None:
    """Regression: the window was counted outside the lock, which soon blocked a publisher with a large window."""
    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with Publisher(broker.endpoints.ingest, settings=PublisherSettings(window=5_000)) as publisher:

            def publish_some(thread: int) -> None:
                for number in range(6_000):
                    publisher.publish({"event_type": "a.b", "user_id": "u", "event_id": f"{thread}-{number}"})

            with ThreadPoolExecutor(4) as threads:
                list(threads.map(publish_some, range(4)))
            assert publisher.flush().acked == 24_000
    finally:
        sys.setswitchinterval(interval_s)
