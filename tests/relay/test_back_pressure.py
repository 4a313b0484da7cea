"""Test that a slow consumer slows down publishers: nothing is lost, queues stay bounded, and reads continue."""

from __future__ import annotations

import json
from pathlib import Path

import zmq
from relays import RelayProcess, entries, mapping, wait_until
from test_table_tail import create, insert, row, tail

from relay import (
    BrokerSettings,
    PublisherSettings,
    RelaySettings,
    RelayUnavailableError,
    Subscriber,
    relay_endpoints,
)
from relay import Publisher as RelayPublisher

EVENTS = 600
LIMIT = 100
PATIENT = PublisherSettings(window=50, full_pause_s=0.02, publish_timeout_s=0.5)


def slowed(**broker: object) -> RelaySettings:
    return RelaySettings(broker=BrokerSettings(max_lag=LIMIT, **broker))  # type: ignore[arg-type]


def published_until_refused(publisher: RelayPublisher, first: int = 0) -> int:
    for number in range(first, EVENTS):
        try:
            publisher.publish(mapping(number))
        except RelayUnavailableError:
            return number
    raise AssertionError("nothing slowed the publisher down")


def test_a_publisher_is_slowed_by_a_consumer_that_does_not_move_and_loses_nothing(data_dir: Path) -> None:
    relay = RelayProcess(data_dir, slowed()).start()
    endpoints = relay_endpoints(data_dir)
    with (
        Subscriber(*endpoints, consumer="memory") as memory,
        RelayPublisher(endpoints.ingest, settings=PATIENT) as publisher,
    ):
        assert memory.cursor() == 0
        published = most = 0
        while not memory.stats().counts.get("refused_behind", 0):  # on a busy machine, events may be rejected earlier
            published = published_until_refused(publisher, published)
        stored = memory.stats().journal.last_seq
        assert LIMIT < stored <= LIMIT + PATIENT.window  # exceeded by one batch at most
        assert published <= stored + PATIENT.window
        while published < EVENTS or publisher.flush(0.0).pending:
            most = max(most, memory.stats().journal.consumers[0].lag)
            batch = memory.fetch(memory.cursor(), 30)
            if batch.entries:
                memory.commit(batch.entries[-1].seq)
            while published < EVENTS and publisher.try_publish(mapping(published)) is not None:
                published += 1
        assert most <= LIMIT + PATIENT.window
        report = publisher.flush()
        assert (report.acked, report.duplicates, report.rejected) == (EVENTS, 0, 0)
        assert entries(memory) == [(number + 1, f"event-{number:06d}") for number in range(EVENTS)]
    relay.stop()


def test_a_publisher_with_a_spool_continues_meanwhile(data_dir: Path, tmp_path: Path) -> None:
    relay = RelayProcess(data_dir, slowed()).start()
    endpoints = relay_endpoints(data_dir)
    with (
        Subscriber(*endpoints, consumer="memory") as memory,
        RelayPublisher(endpoints.ingest, settings=PATIENT, spool=tmp_path / "spool") as publisher,
    ):
        assert memory.cursor() == 0
        for number in range(EVENTS):
            publisher.publish(mapping(number), timeout_s=20.0)
        wait_until(lambda: publisher.flush(0.0).spooled > EVENTS // 2)
        while publisher.flush(0.0).spooled:
            memory.commit(memory.stats().journal.last_seq)
        assert entries(memory) == [(number + 1, f"event-{number:06d}") for number in range(EVENTS)]
    relay.stop()


def test_events_dropped_from_plain_emitters_are_counted(data_dir: Path) -> None:
    relay = RelayProcess(data_dir, slowed(pub_bind=("tcp://127.0.0.1:*",))).start()
    with Subscriber(*relay_endpoints(data_dir), consumer="memory") as memory, zmq.Context() as context:
        assert memory.cursor() == 0
        emitter = context.socket(zmq.XPUB)
        emitter.linger = 0
        emitter.rcvtimeo = 20_000
        emitter.connect(relay.ready["pub"][0])
        assert emitter.recv() == b"\x01"
        sent = 0

        def counts() -> dict[str, int]:
            return memory.stats().counts

        def send_until(name: str) -> None:
            nonlocal sent
            before = counts().get(name, 0)
            while counts().get(name, 0) == before:
                emitter.send(json.dumps(mapping(sent)).encode())
                sent += 1

        send_until("pub_dropped")
        wait_until(lambda: counts()["pub_received"] == sent)
        wait_until(lambda: counts()["pub_accepted"] + counts()["pub_dropped"] == sent)
        assert memory.stats().journal.last_seq == counts()["pub_accepted"]
        memory.commit(memory.stats().journal.last_seq)
        send_until("pub_accepted")
        emitter.close()
    relay.stop()


def test_reading_a_table_resumes_when_the_consumer_has_caught_up(data_dir: Path, tmp_path: Path) -> None:
    file = tmp_path / "events.db"
    create(file)
    relay = RelayProcess(data_dir, slowed(tables=(tail(file),))).start()
    with Subscriber(*relay_endpoints(data_dir), consumer="memory") as memory:
        assert memory.cursor() == 0
        for number in range(LIMIT + 1):
            insert(file, **row(number))
        wait_until(lambda: memory.stats().journal.last_seq == LIMIT + 1)
        insert(file, **row(LIMIT + 1))
        waits = memory.stats().counts.get("table_waits", 0)
        wait_until(lambda: memory.stats().counts.get("table_waits", 0) > waits + 1)
        assert memory.stats().journal.last_seq == LIMIT + 1
        memory.commit(LIMIT + 1)
        wait_until(lambda: memory.stats().journal.last_seq == LIMIT + 2)
        assert memory.stats().counts["table_accepted"] == LIMIT + 2
    relay.stop()
