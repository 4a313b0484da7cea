"""Test plain PUB emitters: message forms, best-effort delivery with counts, and the quarantine of invalid messages."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import zmq
from relays import RelayProcess, entries, mapping, wait_until

from relay import Broker, BrokerSettings, JournalSettings, Publisher, RelaySettings, Subscriber

LISTENING = BrokerSettings(pub_bind=("tcp://127.0.0.1:*",))


@pytest.fixture
def broker(data_dir: Path) -> Iterator[Broker]:
    with Broker(data_dir, RelaySettings(broker=LISTENING)) as broker:
        yield broker


@pytest.fixture
def emitter(broker: Broker) -> Iterator[zmq.Socket[bytes]]:
    """A PUB socket to which the relay has subscribed; an XPUB, because it receives subscriptions."""
    with zmq.Context() as context, context.socket(zmq.XPUB) as socket:
        socket.linger = 0
        socket.rcvtimeo = 20_000
        socket.connect(broker.pub_endpoints[0])
        assert socket.recv() == b"\x01"
        yield socket


def count(subscriber: Subscriber, name: str) -> int:
    return subscriber.stats().counts.get(name, 0)


def test_every_form_of_a_plain_emitter_is_journaled(emitter: zmq.Socket[bytes], subscriber: Subscriber) -> None:
    emitter.send_multipart([b"chat.user_msg", json.dumps(mapping(1)).encode()])
    emitter.send_multipart([b"chat.user_msg", msgspec.msgpack.encode(mapping(2))])
    emitter.send(json.dumps(mapping(3)).encode())
    emitter.send(msgspec.msgpack.encode(mapping(4)))
    emitter.send(b"chat.user_msg " + json.dumps(mapping(5)).encode())
    wait_until(lambda: count(subscriber, "pub_accepted") == 5)
    assert entries(subscriber) == [(number, f"event-{number:06d}") for number in range(1, 6)]


def test_an_emitter_that_repeats_itself_is_recognised(emitter: zmq.Socket[bytes], subscriber: Subscriber) -> None:
    written = json.dumps({"event_type": "a.b", "user_id": "alice", "payload": {"text": "no id"}}).encode()
    for _ in range(3):
        emitter.send(written)
    wait_until(lambda: count(subscriber, "pub_received") == 3)
    wait_until(lambda: count(subscriber, "pub_duplicates") == 2)
    assert len(entries(subscriber)) == 1


def test_bytes_that_are_not_an_event_are_quarantined_with_the_reason(
    emitter: zmq.Socket[bytes], broker: Broker, subscriber: Subscriber
) -> None:
    junk = {
        b"complete garbage": "event: is not MessagePack",
        b"\xff\xfe\x00": "event: is not MessagePack",
        b"{broken json": "event: is not JSON",
        b'{"event_type": "a", "user_id": "\xff"}': "event: is not UTF-8",
        b'{"user_id": "alice"}': "event_type: is missing",
        b'{"event_type": "a.b"}': "user_id: is missing",
        b'{"event_type": "a.b", "user_id": "../x"}': "user_id: '../x' is unsafe",
        b'{"event_type": "a.b", "user_id": ""}': "user_id: is missing",
        b'{"event_type": "a.b", "user_id": "%s"}' % (b"x" * 300): "user_id: has 300 characters",
        b'{"event_type": "a.b", "user_id": "a", "timestamp": "2999-01-01T00:00:00Z"}': "timestamp: is ",
        b'{"event_type": "a.b", "user_id": "a", "payload": 5}': "payload: expected an object",
        b'{"event_type": "a.b", "user_id": "a", "payload": {"x": "%s"}}' % (b"y" * 300_000): "event: has 300",
        b"": "event: is empty",
    }
    for number, data in enumerate(junk):
        emitter.send_multipart([b"topic", data] if data else [data])
        emitter.send(json.dumps(mapping(number)).encode())
    with Publisher(broker.endpoints.ingest) as publisher:
        publisher.publish(mapping(100))
        assert publisher.flush().acked == 1
    wait_until(lambda: count(subscriber, "pub_accepted") == len(junk))
    assert count(subscriber, "pub_malformed") == len(junk)
    assert len(entries(subscriber)) == len(junk) + 1
    quarantined = subscriber.quarantined()
    assert [(entry.data, entry.source) for entry in quarantined] == [(data, "pub") for data in junk]
    for entry, reason in zip(quarantined, junk.values(), strict=True):
        assert entry.reason.startswith(reason)


def test_a_flood_of_junk_fills_the_quarantine_and_no_more(data_dir: Path) -> None:
    settings = RelaySettings(broker=LISTENING, journal=JournalSettings(quarantine_max_entries=10))
    with (
        Broker(data_dir, settings) as broker,
        Subscriber(*broker.endpoints) as subscriber,
        zmq.Context() as context,
        context.socket(zmq.XPUB) as emitter,
    ):
        emitter.linger = 0
        emitter.connect(broker.pub_endpoints[0])
        emitter.recv()
        for number in range(50):
            emitter.send(b"junk %d" % number)
        wait_until(lambda: count(subscriber, "pub_malformed") == 50)
        stats = subscriber.stats().journal
        assert (stats.quarantined, stats.quarantine_refused) == (10, 40)


def test_the_relay_connects_to_an_emitter_that_is_bound(data_dir: Path) -> None:
    with zmq.Context() as context, context.socket(zmq.XPUB) as emitter:
        emitter.linger = 0
        emitter.rcvtimeo = 20_000
        port = emitter.bind_to_random_port("tcp://127.0.0.1")
        with (
            RelayProcess(data_dir, None, "--pub-connect", f"tcp://127.0.0.1:{port}") as relay,
            Subscriber(*relay.endpoints) as subscriber,
        ):
            assert emitter.recv() == b"\x01"
            emitter.send(json.dumps(mapping(1)).encode())
            wait_until(lambda: len(entries(subscriber)) == 1)


def test_sigterm_journals_what_has_arrived(data_dir: Path) -> None:
    with zmq.Context() as context, context.socket(zmq.XPUB) as emitter:
        emitter.linger = 1_000
        emitter.rcvtimeo = 20_000
        with RelayProcess(data_dir, None, "--pub-bind", "tcp://127.0.0.1:*") as relay:
            emitter.connect(relay.ready["pub"][0])
            emitter.recv()
            for number in range(200):
                emitter.send(json.dumps(mapping(number)).encode())
            with Subscriber(*relay.endpoints) as subscriber:
                wait_until(lambda: count(subscriber, "pub_received") > 0)
            assert relay.stop() == 0
        with relay, Subscriber(*relay.endpoints) as subscriber:
            found = [event_id for _, event_id in entries(subscriber)]
            assert found == [f"event-{number:06d}" for number in range(len(found))]
            assert found
