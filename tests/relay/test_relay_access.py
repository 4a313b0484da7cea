"""Test that a key gives access to the relay only for its user and scopes, and that access requires a key."""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
import zmq
from relays import event, mapping, wait_until

from relay import (
    ALL_SCOPES,
    AsyncSubscriber,
    Broker,
    BrokerSettings,
    Identity,
    Publisher,
    PublisherSettings,
    RelaySettings,
    RelaySettingsError,
    RelayUnavailableError,
    Scope,
    ScopeMissingError,
    Subscriber,
    UnauthorizedError,
    UserNotAllowedError,
    create_key,
    curve_pair,
    encode_event,
    ensure_local_key,
    identity_of,
    read_key_file,
    relay_endpoints,
    revoke_key,
    server_pair,
    wire,
)
from relay.disk import write_private

IMPATIENT = PublisherSettings(ack_timeout_s=0.2)
CURVE = BrokerSettings(listen=("curve+tcp://127.0.0.1:*",), feed_listen=("curve+tcp://127.0.0.1:*",))


def key(data_dir: Path, name: str, user_id: str | None, *scopes: Scope, curve: bool = False) -> Identity:
    pair = curve_pair() if curve else None
    made = identity_of(create_key(data_dir, name, user_id, frozenset(scopes or ALL_SCOPES), pair))
    return made._replace(server=server_pair(data_dir, curve_pair).public) if curve else made


@pytest.fixture
def filled(broker: Broker) -> Broker:
    """A relay that holds one event from alice and one from bob."""
    with Publisher(broker.endpoints.ingest) as publisher:
        publisher.publish(mapping(1))
        publisher.publish(mapping(2, user_id="bob"))
        assert publisher.flush().acked == 2
    return broker


def asking(broker: Broker, identity: Identity, timeout_s: float = 20.0) -> Subscriber:
    return Subscriber(*broker.endpoints, consumer="reader", identity=identity, timeout_s=timeout_s)


EVERY_REQUEST: list[Callable[[Subscriber], object]] = [
    lambda subscriber: subscriber.ping(),
    lambda subscriber: subscriber.fetch(0, 10),
    lambda subscriber: subscriber.fetch(0, 10, user_id="alice"),
    lambda subscriber: subscriber.cursor(),
    lambda subscriber: subscriber.commit(1),
    lambda subscriber: subscriber.consumers(),
    lambda subscriber: subscriber.remove_consumer("reader"),
    lambda subscriber: subscriber.quarantine(b"data", "code", "reason", source="test"),
    lambda subscriber: subscriber.quarantined(),
    lambda subscriber: subscriber.quarantined_entry(1),
    lambda subscriber: subscriber.drop_quarantined(1),
    lambda subscriber: subscriber.retry_quarantined(1),
    lambda subscriber: subscriber.stats(),
]


@pytest.mark.parametrize("identity", [Identity(), Identity(token="wrong")], ids=["none", "wrong"])
def test_without_a_known_token_no_request_is_answered(filled: Broker, identity: Identity) -> None:
    with asking(filled, identity) as stranger:
        for ask in EVERY_REQUEST:
            with pytest.raises(UnauthorizedError):
                ask(stranger)


def test_a_publisher_without_a_known_token_gets_an_error_and_nothing_is_stored(filled: Broker) -> None:
    publisher = Publisher(filled.endpoints.ingest, identity=Identity(token="wrong"))
    publisher.publish(mapping(3))
    with pytest.raises(UnauthorizedError):
        publisher.flush()
    with pytest.raises(RelayUnavailableError, match="1 event was not acknowledged"):
        publisher.close()
    with Subscriber(*filled.endpoints) as subscriber:
        assert subscriber.fetch(0, 10).last_seq == 2


def test_a_key_for_one_user_reads_that_users_events_and_nothing_else(filled: Broker, data_dir: Path) -> None:
    with asking(filled, key(data_dir, "a", "alice")) as alice:
        assert [entry.user_id for entry in alice.fetch(0, 10, user_id="alice").entries] == ["alice"]
        for ask in EVERY_REQUEST:
            if ask is not EVERY_REQUEST[0] and ask is not EVERY_REQUEST[2]:
                with pytest.raises(UserNotAllowedError):
                    ask(alice)
        answers = []
        for user_id in ("bob", "nobody-at-all"):
            with pytest.raises(UserNotAllowedError) as raised:
                alice.fetch(0, 10, user_id=user_id)
            answers.append(raised.value.args)
        assert answers[0] == answers[1]


def test_each_request_needs_its_scope(filled: Broker, data_dir: Path) -> None:
    with asking(filled, key(data_dir, "r", None, Scope.RECALL)) as reader:
        assert len(reader.fetch(0, 10, user_id="bob").entries) == 1
        for ask in (EVERY_REQUEST[1], *EVERY_REQUEST[3:]):
            with pytest.raises(ScopeMissingError, match="admin"):
                ask(reader)
    with asking(filled, key(data_dir, "p", "alice", Scope.PUBLISH)) as writer, pytest.raises(ScopeMissingError):
        writer.fetch(0, 10, user_id="alice")
    publisher = Publisher(filled.endpoints.ingest, identity=key(data_dir, "q", None, Scope.RECALL))
    publisher.publish(mapping(3))
    with pytest.raises(ScopeMissingError, match="publish"):
        publisher.flush()
    with pytest.raises(RelayUnavailableError):
        publisher.close()


def test_a_publisher_with_a_key_for_one_user_fills_it_in_and_cannot_name_another(
    filled: Broker, data_dir: Path
) -> None:
    unnamed = {name: value for name, value in mapping(5).items() if name != "user_id"}
    with Publisher(filled.endpoints.ingest, identity=key(data_dir, "b", "bob", Scope.PUBLISH)) as publisher:
        publisher.publish(unnamed)
        publisher.publish(mapping(6, user_id="alice"))
        publisher.publish(mapping(7, user_id="system"))
        report = publisher.flush()
    assert (report.acked, [rejection.code for rejection in report.rejections]) == (1, ["user_not_allowed"] * 2)
    with Subscriber(*filled.endpoints) as subscriber:
        assert [entry.user_id for entry in subscriber.fetch(2, 10).entries] == ["bob"]
        assert subscriber.quarantined() == []
        assert subscriber.stats().counts["foreign"] == 2


def test_a_revoked_key_is_refused_on_an_open_connection(filled: Broker, data_dir: Path) -> None:
    identity = key(data_dir, "a", None)
    with asking(filled, identity) as subscriber, Publisher(filled.endpoints.ingest, identity=identity) as publisher:
        assert subscriber.ping() == wire.VERSION
        publisher.publish(mapping(3))
        assert publisher.flush().acked == 1
        revoke_key(data_dir, "a")
        with pytest.raises(UnauthorizedError):
            subscriber.ping()
        publisher.publish(mapping(4))
        with pytest.raises(UnauthorizedError):
            publisher.flush()
        with pytest.raises(RelayUnavailableError):
            publisher.close()


def test_a_publisher_started_before_the_token_exists_finds_it(data_dir: Path) -> None:
    with Publisher(relay_endpoints(data_dir).ingest, settings=IMPATIENT) as publisher:
        publisher.publish(mapping(1))
        with Broker(data_dir):
            assert publisher.flush().acked + publisher.flush().duplicates == 1


def test_a_reader_follows_a_token_that_was_replaced(broker: Broker, data_dir: Path) -> None:
    async def ask() -> None:
        async with AsyncSubscriber(*broker.endpoints, "memory") as subscriber:
            assert await subscriber.ping() == wire.VERSION
            (data_dir / "token").unlink()
            ensure_local_key(data_dir)
            assert await subscriber.ping() == wire.VERSION

    asyncio.run(ask())


@pytest.fixture
def guarded(data_dir: Path) -> Iterator[Broker]:
    with Broker(data_dir, RelaySettings(broker=CURVE)) as broker:
        yield broker


def test_events_pass_over_tcp_with_curve(guarded: Broker, data_dir: Path, tmp_path: Path) -> None:
    """The key file is from `create_key`, and the doorbell is sent through the feed's CURVE socket."""
    pair, server = curve_pair(), server_pair(data_dir, curve_pair).public
    document = create_key(data_dir, "planner", None, ALL_SCOPES, pair)
    write_private(tmp_path / "planner.key", msgspec.json.encode(msgspec.structs.replace(document, server=server)))
    identity = identity_of(read_key_file(tmp_path / "planner.key"))
    with Subscriber(guarded.listen[0], guarded.feed_listen[0], "reader", 20.0, identity=identity) as subscriber:
        assert subscriber.fetch(0, 10).entries == []
        with Publisher(guarded.listen[0], identity=identity) as publisher:
            publisher.publish(mapping(1))
            assert publisher.flush().acked == 1
        assert subscriber.wait(20.0)
        assert [entry.user_id for entry in subscriber.fetch(0, 10).entries] == ["alice"]


def test_a_curve_key_has_its_user_and_scopes(guarded: Broker, data_dir: Path) -> None:
    identity = key(data_dir, "a", "alice", Scope.RECALL, curve=True)
    with Subscriber(guarded.listen[0], guarded.feed_listen[0], "r", 20.0, identity=identity) as alice:
        assert alice.fetch(0, 10, user_id="alice").entries == []
        with pytest.raises(UserNotAllowedError):
            alice.fetch(0, 10, user_id="bob")
        revoke_key(data_dir, "a")
        with pytest.raises(UnauthorizedError):  # although the connection stays open
            alice.fetch(0, 10, user_id="alice")


def test_a_curve_key_that_is_not_known_gets_no_byte_through(guarded: Broker, data_dir: Path) -> None:
    local = (data_dir / "token").read_text()
    stranger = Identity(token=local, curve=curve_pair(), server=server_pair(data_dir, curve_pair).public)
    with (
        Subscriber(guarded.listen[0], guarded.feed_listen[0], timeout_s=1.0, identity=stranger) as subscriber,
        pytest.raises(RelayUnavailableError),
    ):
        subscriber.ping()
    with Subscriber(*guarded.endpoints) as own:
        assert own.stats().counts.get("unauthorized", 0) == 0


def test_a_peer_without_curve_gets_no_byte_through_where_curve_guards(guarded: Broker, data_dir: Path) -> None:
    token = (data_dir / "token").read_bytes()
    with zmq.Context() as context, context.socket(zmq.DEALER) as plain:
        plain.linger = 0
        plain.connect(guarded.listen[0].removeprefix("curve+"))
        plain.send_multipart([b"c", wire.encode(wire.Ping()), token])
        assert not plain.poll(1_000)


def test_a_user_id_claimed_in_the_handshake_is_ignored(data_dir: Path) -> None:
    """Without CURVE, a peer can claim any property, even a `User-Id`, in its greeting, so only the token is trusted."""
    pair = curve_pair()
    create_key(data_dir, "planner", None, ALL_SCOPES, pair)
    broker = BrokerSettings(ingest="tcp://127.0.0.1:*", listen=("curve+tcp://127.0.0.1:*",))
    with Broker(data_dir, RelaySettings(broker=broker)) as relay:
        body = wire.encode(wire.Ping())
        assert b"unauthorized" in greet_as(relay.endpoints.ingest, pair.public, body)
        assert b"answer" in greet_as(relay.endpoints.ingest, pair.public, body, data_dir)


def greet_as(endpoint: str, user_id: str, body: bytes, data_dir: Path | None = None) -> bytes:
    """Send a request over raw ZMTP 3.0, with a `User-Id` in the READY command; return the reply."""
    host, port = endpoint.removeprefix("tcp://").split(":")
    token = (data_dir / "token").read_bytes() if data_dir is not None else b""
    properties = b"".join(
        bytes([len(name)]) + name + len(value).to_bytes(4, "big") + value
        for name, value in ((b"Socket-Type", b"DEALER"), (b"Identity", b""), (b"User-Id", user_id.encode()))
    )
    ready = b"\x05READY" + properties
    with socket.create_connection((host, int(port)), 20) as peer:
        peer.sendall(b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + b"\0" + bytes(31))
        peer.sendall(b"\x04" + bytes([len(ready)]) + ready)
        received(peer, rb"READY")
        for more, frame in ((1, b"c"), (1, body), (0, token)):
            peer.sendall(bytes([more, len(frame)]) + frame)
        return received(peer, rb"answer|failure").partition(b"\xa2op")[2]


def received(peer: socket.socket, pattern: bytes) -> bytes:
    peer.settimeout(20)
    data = b""
    while not re.search(pattern, data):
        chunk = peer.recv(4096)
        assert chunk, data
        data += chunk
    return data


@pytest.mark.parametrize("setting", ["ingest", "feed", "listen", "feed_listen", "pub_bind"])
@pytest.mark.parametrize("endpoint", ["tcp://0.0.0.0:7441", "tcp://*:7441", "tcp://192.0.2.1:7441", "tcp://[::]:7441"])
def test_listening_beyond_loopback_without_curve_is_refused_by_name(
    data_dir: Path, setting: str, endpoint: str
) -> None:
    named = (endpoint,) if setting in ("listen", "feed_listen", "pub_bind") else endpoint
    with pytest.raises(RelaySettingsError, match=rf"broker\.{setting}.*loopback.*curve\+tcp"):
        Broker(data_dir, RelaySettings(broker=BrokerSettings(**{setting: named})))


@pytest.mark.parametrize("setting", ["ingest", "feed", "pub_bind"])
def test_curve_is_for_the_endpoints_that_can_have_it(data_dir: Path, setting: str) -> None:
    endpoint = "curve+tcp://127.0.0.1:*"
    named = (endpoint,) if setting == "pub_bind" else endpoint
    with pytest.raises(RelaySettingsError, match=rf"broker\.{setting}"):
        Broker(data_dir, RelaySettings(broker=BrokerSettings(**{setting: named})))


def test_a_client_without_curve_keys_names_what_is_missing(data_dir: Path) -> None:
    with pytest.raises(RelaySettingsError, match="keys create --curve"):
        Publisher("curve+tcp://127.0.0.1:7441")


def test_plain_pub_is_of_any_user_unless_a_setting_names_one(data_dir: Path) -> None:
    broker = BrokerSettings(pub_bind=("tcp://127.0.0.1:*",), pub_user="alice")
    with (
        Broker(data_dir, RelaySettings(broker=broker)) as relay,
        zmq.Context() as context,
        context.socket(zmq.PUB) as emitter,
        Subscriber(*relay.endpoints) as subscriber,
    ):
        emitter.linger = 0
        emitter.connect(relay.pub_endpoints[0])
        numbers = iter(range(100_000))

        def both_came() -> bool:
            emitter.send(encode_event(event(next(numbers), user_id="bob")))
            emitter.send(encode_event(event(next(numbers), user_id="alice")))
            counts = subscriber.stats().counts
            return counts.get("pub_accepted", 0) > 0 and counts.get("pub_foreign", 0) > 0

        wait_until(both_came)
        assert {entry.user_id for entry in subscriber.fetch(0, 10_000).entries} == {"alice"}
        assert subscriber.quarantined() == []
