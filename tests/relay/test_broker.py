"""Test a relay and its clients over real sockets: answers, errors, doorbell, private sockets, start and stop."""

from __future__ import annotations

import asyncio
import os
import stat
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
import zmq
from relays import NOW, RelayProcess, entries, event, mapping, wait_until

from relay import (
    AsyncSubscriber,
    Broker,
    BrokerSettings,
    CursorError,
    Endpoints,
    Erasable,
    Erased,
    Identity,
    Journal,
    JournalInUseError,
    JournalSettings,
    MalformedEventError,
    ProtocolError,
    Publisher,
    QuarantineEntryError,
    RelaySettings,
    RelaySettingsError,
    RelayUnavailableError,
    Subscriber,
    encode_event,
    journal_folder,
    read_event,
    relay_endpoints,
    wire,
)


def test_an_event_goes_from_publisher_to_subscriber(publisher: Publisher, subscriber: Subscriber) -> None:
    publisher.publish(event(1))
    assert publisher.flush().acked == 1
    batch = subscriber.fetch(0, 10)
    assert [read_event(entry.data) for entry in batch.entries] == [event(1)]
    assert (batch.first_seq, batch.last_seq) == (1, 1)
    assert subscriber.commit(1) == 1
    assert subscriber.cursor() == 1


def test_one_users_events_are_fetched_alone(publisher: Publisher, subscriber: Subscriber) -> None:
    for number in range(10):
        publisher.publish(event(number, user_id=("alice", "bob")[number % 2]))
    assert publisher.flush().acked_through == {"alice": 9, "bob": 10}
    assert [seq for seq, _ in entries(subscriber, "bob")] == [2, 4, 6, 8, 10]


def test_errors_of_the_relay_keep_their_class(subscriber: Subscriber) -> None:
    with pytest.raises(CursorError, match="beyond"):
        subscriber.commit(5)
    with pytest.raises(QuarantineEntryError):
        subscriber.drop_quarantined(9)
    with pytest.raises(ProtocolError, match="after_seq"):
        subscriber.fetch(-1, 5)
    with pytest.raises(MalformedEventError, match="user_id"):
        subscriber.fetch(0, 5, user_id="x" * 600)
    with pytest.raises(CursorError):
        subscriber.remove_consumer("x" * 600)
    assert subscriber.ping() == wire.VERSION


def test_a_new_consumer_is_registered_when_it_asks_for_its_cursor(subscriber: Subscriber) -> None:
    assert subscriber.cursor() == 0
    assert [one.name for one in subscriber.consumers()] == ["reader"]
    assert subscriber.remove_consumer("reader")
    assert subscriber.consumers() == []


def test_the_doorbell_wakes_a_reader(publisher: Publisher, subscriber: Subscriber) -> None:
    assert subscriber.fetch(0, 1).entries == []
    ringing = threading.Timer(0.05, publisher.publish, [event(1)])
    ringing.start()
    assert subscriber.wait(20.0)
    assert entries(subscriber) == [(1, "event-000001")]
    assert not subscriber.wait(0.01)
    ringing.join()


def test_a_late_reader_receives_the_end_of_the_journal(broker: Broker, publisher: Publisher) -> None:
    publisher.publish(event(1))
    publisher.flush()
    with Subscriber(*broker.endpoints) as late:
        assert late.wait(20.0)


def test_a_reader_may_follow_the_topics_it_wants(publisher: Publisher, subscriber: Subscriber) -> None:
    for number, topic in enumerate(["worker.task.done", "chat.user_msg", "worker.report", "worker"]):
        publisher.publish(event(number, event_type=topic))
    following = subscriber.follow(("worker.*",))
    assert [next(following).seq, next(following).seq] == [1, 3]
    publisher.publish(event(9, event_type="worker.late"))
    assert next(following).event_type == "worker.late"


def test_a_slow_reader_loses_nothing(broker: Broker, publisher: Publisher) -> None:
    """The reader reads nothing while thousands of doorbells are sent. PUB/SUB drops most of them."""
    with Subscriber(*broker.endpoints, consumer="slow") as slow:
        slow.cursor()
        for number in range(5_000):
            publisher.publish(event(number))
        publisher.flush()
        assert slow.wait(20.0)
        assert [seq for seq, _ in entries(slow)] == list(range(1, 5_001))


def test_quarantined_bytes_can_be_listed_retried_and_dropped(broker: Broker, subscriber: Subscriber) -> None:
    bad = subscriber.quarantine(b"junk", "malformed_event", "event: is not JSON", source="pub")
    good = subscriber.quarantine(encode_event(event(1)), "malformed_event", "timestamp: was ahead", source="pub")
    theirs = subscriber.quarantine(b"event", "unhandled", "no", source="memory:alice", seq=1)
    assert [entry.id for entry in subscriber.quarantined()] == [bad, good, theirs]
    assert not subscriber.retry_quarantined(bad)
    assert subscriber.retry_quarantined(good)
    with pytest.raises(QuarantineEntryError, match="only memory:alice can retry"):
        subscriber.retry_quarantined(theirs)
    assert entries(subscriber) == [(1, "event-000001")]
    subscriber.drop_quarantined(bad)
    assert [entry.id for entry in subscriber.quarantined()] == [theirs]
    assert subscriber.quarantined_entry(theirs).data == b"event"
    assert subscriber.stats().journal.quarantined == 1


def test_the_async_subscriber_answers_many_tasks_at_once(broker: Broker, publisher: Publisher) -> None:
    publisher.publish(event(1))
    publisher.flush()

    async def ask() -> None:
        async with AsyncSubscriber(*broker.endpoints, "memory") as subscriber:
            batches = await asyncio.gather(*(subscriber.fetch(0, 10) for _ in range(20)))
            assert {entry.seq for batch in batches for entry in batch.entries} == {1}
            assert await subscriber.commit(1) == 1
            assert await subscriber.cursor() == 1
            publisher.publish(event(2))
            assert await subscriber.wait(20.0)
            await subscriber.fetch(1, 10)
            assert not await subscriber.wait(0.01)
            entry_id = await subscriber.quarantine(b"x", "c", "r", source="memory:a", seq=1)
            assert [entry.id for entry in await subscriber.quarantined()] == [entry_id]
            assert (await subscriber.quarantined_entry(entry_id)).seq == 1
            await subscriber.drop_quarantined(entry_id)
            assert (await subscriber.stats()).journal.last_seq == 2
            assert await subscriber.ping() == wire.VERSION
            assert await subscriber.remove_consumer("memory")
            assert await subscriber.consumers() == []

    asyncio.run(ask())


def test_the_reply_to_an_abandoned_request_is_not_taken_for_the_next(broker: Broker) -> None:
    async def ask() -> None:
        async with AsyncSubscriber(*broker.endpoints, "memory") as subscriber:
            for _ in range(50):
                given_up = asyncio.create_task(subscriber.stats())
                await asyncio.sleep(0)
                given_up.cancel()
                assert await subscriber.ping() == wire.VERSION

    asyncio.run(ask())


def test_malformed_requests_get_a_fault_and_do_not_affect_others(broker: Broker, subscriber: Subscriber) -> None:
    with zmq.Context() as context, context.socket(zmq.DEALER) as stranger:
        stranger.linger = 0
        stranger.connect(broker.endpoints.ingest)
        for frames in ([b"c1", b"junk"], [b"c2"], [b"c3", b"\x81\xa2op\xa4boom"], [b"c4", b"", b"more"]):
            stranger.send_multipart(frames)
            correlation, body = stranger.recv_multipart()
            assert correlation == frames[0]
            with pytest.raises(ProtocolError):
                wire.decode_reply(body, int)
    assert subscriber.stats().counts["unreadable_requests"] == 4


def test_sockets_and_folders_are_private(broker: Broker, data_dir: Path) -> None:
    assert broker.endpoints == relay_endpoints(data_dir)
    assert stat.S_IMODE((data_dir / "run").stat().st_mode) == 0o700
    assert stat.S_IMODE((data_dir / "journal").stat().st_mode) == 0o700
    for name in ("relay.sock", "relay-feed.sock"):
        assert stat.S_IMODE((data_dir / "run" / name).stat().st_mode) == 0o600


def test_a_folder_has_one_relay(broker: Broker, data_dir: Path, subscriber: Subscriber) -> None:
    with pytest.raises(JournalInUseError, match=str(os.getpid())):
        Broker(data_dir)
    assert subscriber.ping() == wire.VERSION


def test_a_path_too_long_for_a_socket_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(RelaySettingsError, match=r"broker.ingest: .* bytes; socket paths allow 107"):
        Broker(tmp_path / ("x" * 120))


@pytest.mark.parametrize(
    ("setting", "endpoint"),
    [
        ("ingest", "tcp://0.0.0.0:5555"),
        ("ingest", "tcp://*:5555"),
        ("feed", "tcp://192.168.1.5:5555"),
        ("feed", "inproc://x"),
        ("ingest", "nonsense"),
        ("pub_bind", ("tcp://*:5555",)),
        ("pub_connect", ("tcp://example.org:5555",)),
    ],
)
def test_only_loopback_and_socket_files_are_listened_on(data_dir: Path, setting: str, endpoint: object) -> None:
    broker = msgspec.convert({setting: endpoint}, BrokerSettings)
    with pytest.raises(RelaySettingsError, match=f"broker.{setting}"):
        Broker(data_dir, RelaySettings(broker=broker))


def test_loopback_with_a_free_port_is_allowed(data_dir: Path) -> None:
    broker = BrokerSettings(ingest="tcp://127.0.0.1:*", feed="tcp://127.0.0.1:*")
    with Broker(data_dir, RelaySettings(broker=broker)) as relay:
        shown = Identity(file=data_dir / "token")
        with Subscriber(*relay.endpoints, identity=shown) as subscriber:
            assert subscriber.ping() == wire.VERSION


def test_an_absent_relay_is_a_retryable_error(data_dir: Path) -> None:
    endpoints = relay_endpoints(data_dir)
    (data_dir / "run").mkdir(parents=True)
    with Subscriber(*endpoints, timeout_s=0.1) as subscriber:
        with pytest.raises(RelayUnavailableError) as raised:
            subscriber.ping()
        assert raised.value.retryable
        with Broker(data_dir):
            subscriber_found = Subscriber(*endpoints)
            assert subscriber_found.ping() == wire.VERSION
            subscriber_found.close()


def test_a_reader_outlives_a_killed_relay(data_dir: Path) -> None:
    with RelayProcess(data_dir) as relay, Subscriber(*relay.endpoints, consumer="reader") as subscriber:
        with Publisher(relay.endpoints.ingest) as publisher:
            publisher.publish(event(1))
            publisher.flush()
        assert subscriber.commit(1) == 1
        relay.kill()
        relay.start()
        assert subscriber.cursor() == 1
        assert entries(subscriber) == [(1, "event-000001")]
        with Publisher(relay.endpoints.ingest) as publisher:
            publisher.publish(event(2))
            publisher.flush()
        assert subscriber.wait(20.0)


def test_an_erasure_waits_until_its_relay_runs(data_dir: Path) -> None:
    with Subscriber(*relay_endpoints(data_dir)) as subscriber, ThreadPoolExecutor(1) as thread:
        erasing = thread.submit(subscriber.erase, Erasable(user_id="alice"))
        with Broker(data_dir):
            assert erasing.result() == Erased(seqs=[], quarantined=0)


@contextmanager
def deaf_relay(data_dir: Path) -> Iterator[zmq.Socket[bytes]]:
    """A socket bound to the relay's endpoint, from which a test receives requests."""
    endpoint = relay_endpoints(data_dir).ingest
    Path(endpoint.removeprefix("ipc://")).parent.mkdir(parents=True)
    with zmq.Context() as context, context.socket(zmq.ROUTER) as router:
        router.bind(endpoint)
        router.rcvtimeo = 20_000
        yield router


def answer_ping(router: zmq.Socket[bytes]) -> None:
    peer, correlation, *_ = router.recv_multipart()
    answer = wire.Answer(result=msgspec.Raw(msgspec.msgpack.encode(wire.VERSION)))
    router.send_multipart([peer, correlation, wire.encode(answer)])


def test_an_erasure_is_not_repeated_when_its_connection_is_lost(data_dir: Path) -> None:
    with (
        deaf_relay(data_dir) as router,
        Subscriber(*relay_endpoints(data_dir)) as subscriber,
        ThreadPoolExecutor(1) as thread,
    ):
        erasing = thread.submit(subscriber.erase, Erasable(user_id="alice"))
        answer_ping(router)
        router.recv_multipart()
        router.close(linger=0)
        with pytest.raises(RelayUnavailableError, match="may have taken effect"):
            erasing.result()


def test_other_requests_do_not_wait_for_an_erasure(data_dir: Path) -> None:
    async def ask(router: zmq.Socket[bytes]) -> None:
        async with AsyncSubscriber(*relay_endpoints(data_dir)) as subscriber:
            erasing = asyncio.create_task(subscriber.erase(Erasable(user_id="alice")))
            await asyncio.to_thread(answer_ping, router)
            await asyncio.to_thread(router.recv_multipart)
            asking = asyncio.create_task(subscriber.ping())
            await asyncio.to_thread(answer_ping, router)
            assert await asking == wire.VERSION
            router.close(linger=0)
            with pytest.raises(RelayUnavailableError, match="may have taken effect"):
                await erasing

    with deaf_relay(data_dir) as router:
        asyncio.run(ask(router))


def test_sigterm_ends_it_cleanly_and_a_new_one_starts_on_the_same_sockets(data_dir: Path) -> None:
    with RelayProcess(data_dir) as relay:
        assert relay.ready["pub"] == []
        with Publisher(relay.endpoints.ingest) as publisher:
            publisher.publish(event(1))
            publisher.flush()
        assert relay.stop() == 0
    with relay, Subscriber(*relay.endpoints) as subscriber:
        assert entries(subscriber) == [(1, "event-000001")]


def test_without_a_relay_the_journal_can_be_read_from_its_files(data_dir: Path) -> None:
    with RelayProcess(data_dir) as relay, Subscriber(*relay.endpoints, consumer="memory") as subscriber:
        subscriber.cursor()
        subscriber.quarantine(b"junk", "c", "r", source="pub")
    with Journal.open(journal_folder(data_dir), readonly=True) as journal:
        assert [one.name for one in journal.consumers()] == ["memory"]
        assert [one.data for one in journal.quarantined()] == [b"junk"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[events]\nmax_bites = 5\n", "events.max_bites: no such setting"),
        ("[journal]\nmap_size_bytes = 5\n", "journal.map_size_bytes"),
        ("[broker]\ningest = 5\n", "broker.ingest"),
        ("[broker]\ningest = 'tcp://0.0.0.0:1'\n", "broker.ingest"),
        ("not toml", "is not valid TOML"),
    ],
)
def test_a_wrong_setting_ends_the_process_with_its_name(data_dir: Path, text: str, message: str) -> None:
    config = data_dir.parent / "bad.toml"
    config.write_text(text)
    relay = RelayProcess(data_dir, None, "--config", str(config))
    with pytest.raises(AssertionError, match="did not start"):
        relay.start()
    assert message in relay.log()
    assert "Traceback" not in relay.log()
    assert relay.exit_code == 2


def test_it_ends_with_its_parent(data_dir: Path) -> None:
    relay = RelayProcess(data_dir, None, "--parent-pid", str(os.getppid())).start()
    assert relay.wait() == 0


def test_a_successor_waits_for_the_relay_of_a_killed_parent(data_dir: Path) -> None:
    relay = RelayProcess(data_dir, None, "--parent-pid", str(os.getpid()))
    with Journal.open(journal_folder(data_dir)):
        starting = threading.Thread(target=relay.start)
        starting.start()
        wait_until(lambda: "relay.waiting" in relay.log())
        assert relay.ready == {}
    starting.join()
    assert relay.ready["ready"]
    assert relay.stop() == 0


def test_a_damaged_entry_is_set_aside_and_readers_get_past_it(data_dir: Path) -> None:
    with Journal.open(journal_folder(data_dir)) as journal:
        journal.append([event(1), event(2, payload={"text": "a needle"}), event(3)], NOW)
    file = journal_folder(data_dir) / "data.mdb"
    content = file.read_bytes()
    file.write_bytes(content.replace(b"needle", b"noodle"))
    with Broker(data_dir) as broker, Subscriber(*broker.endpoints) as subscriber:
        assert [seq for seq, _ in entries(subscriber)] == [1, 3]
        (aside,) = subscriber.quarantined()
        assert (aside.seq, aside.code) == (2, "entry_damaged")
        assert subscriber.stats().counts["damaged"] == 1


def test_retention_runs_by_itself_and_waits_for_consumers(data_dir: Path) -> None:
    settings = RelaySettings(
        journal=JournalSettings(retention_bytes=2_000), broker=BrokerSettings(upkeep_interval_s=0.02)
    )
    with Broker(data_dir, settings) as broker, Subscriber(*broker.endpoints, consumer="memory") as subscriber:
        subscriber.cursor()
        with Publisher(broker.endpoints.ingest) as publisher:
            for number in range(20):
                publisher.publish(mapping(number, payload={"text": "x" * 500}))
            publisher.flush()
        assert len(entries(subscriber)) == 20
        subscriber.commit(20)
        wait_until(lambda: subscriber.stats().journal.event_bytes <= 2_000)
        assert subscriber.fetch(0, 1).first_seq > 10


def test_endpoints_are_a_pair_to_unpack() -> None:
    ingest, feed = relay_endpoints(Path("/x"))
    assert Endpoints(ingest, feed) == ("ipc:///x/run/relay.sock", "ipc:///x/run/relay-feed.sock")
