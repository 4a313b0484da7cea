"""Test that Ctrl-C at any point in the main thread leaves publishers, subscribers, journals and locks usable."""

from __future__ import annotations

import contextlib
import threading
from itertools import count
from pathlib import Path

import pytest
from interrupting import interrupt_everywhere
from relays import NOW, event, mapping

import relay.disk.environment
import relay.journal.journal
import relay.locks
import relay.net.bus
import relay.net.zeromq
import relay.publishing.delivery
import relay.publishing.publisher
import relay.subscriber
from relay import (
    Broker,
    Journal,
    Publisher,
    PublisherSettings,
    RelayUnavailableError,
    Subscriber,
    read_event,
    relay_endpoints,
)
from relay.locks import Condition, ReadWriteLock

PUBLISHING = (relay.publishing.publisher, relay.locks, relay.publishing.delivery, contextlib, threading)
LOCKING = (relay.locks, contextlib, threading)
IMPATIENT = PublisherSettings(window=8, ack_timeout_s=0.05)
NUMBERS = count()


def publish_another(publisher: Publisher) -> None:
    """Publish from another thread; check that everything is acknowledged and counted, and that closing returns."""
    publisher.publish(mapping(next(NUMBERS)))
    report = publisher.flush()
    assert (report.acked, report.pending, report.spooled) == (report.published, 0, 0)
    publisher.close()


def test_publishing(broker: Broker) -> None:
    places = interrupt_everywhere(
        PUBLISHING,
        lambda: Publisher(broker.endpoints.ingest),
        lambda publisher: publisher.publish(mapping(next(NUMBERS))),
        publish_another,
    )
    assert len(places) > 15


def test_publishing_into_a_full_window(broker: Broker) -> None:
    def publish_three(publisher: Publisher) -> None:
        for _ in range(3):
            publisher.publish(mapping(next(NUMBERS)))

    places = interrupt_everywhere(
        PUBLISHING,
        lambda: Publisher(broker.endpoints.ingest, settings=PublisherSettings(window=1)),
        publish_three,
        publish_another,
    )
    assert len(places) > 15


def test_publishing_onto_the_disk(data_dir: Path, tmp_path: Path) -> None:
    """The disk contains every published event, and possibly the event being published when the interrupt occurred."""
    spools = count()

    def away() -> Publisher:
        publisher = Publisher(relay_endpoints(data_dir).ingest, settings=IMPATIENT, spool=tmp_path / str(next(spools)))
        publisher.publish(mapping(next(NUMBERS)))
        publisher._condition.wait_for(lambda: publisher._is_spooling)
        return publisher

    def publish_another_onto_the_disk(publisher: Publisher) -> None:
        publisher.publish(mapping(next(NUMBERS)))
        report = publisher.flush(0.0)
        assert report.spooled == report.published in (2, 3)
        publisher.close()

    places = interrupt_everywhere(
        PUBLISHING, away, lambda publisher: publisher.publish(mapping(next(NUMBERS))), publish_another_onto_the_disk
    )
    assert len(places) > 15


def test_flushing(broker: Broker) -> None:
    def published() -> Publisher:
        publisher = Publisher(broker.endpoints.ingest)
        publisher.publish(mapping(next(NUMBERS)))
        return publisher

    assert len(interrupt_everywhere(PUBLISHING, published, Publisher.flush, publish_another)) > 5


def test_closing_keeps_what_is_in_the_spool(data_dir: Path, tmp_path: Path) -> None:
    """After a second `close`, the spool can be opened immediately and contains every event."""
    spools: list[Path] = []

    def published() -> Publisher:
        spools.append(tmp_path / str(len(spools)))
        publisher = Publisher(relay_endpoints(data_dir).ingest, settings=IMPATIENT, spool=spools[-1])
        for _ in range(3):
            publisher.publish(mapping(next(NUMBERS)))
        return publisher

    def close_again(publisher: Publisher) -> None:
        publisher.close()
        with Publisher(relay_endpoints(data_dir).ingest, settings=IMPATIENT, spool=spools[-1]) as next_one:
            assert next_one.flush(0.0).spooled == 3

    assert len(interrupt_everywhere(PUBLISHING, published, Publisher.close, close_again)) > 5


def test_closing_without_a_spool_reports_lost_events(data_dir: Path) -> None:
    """Only the first call of `close` reports lost events."""

    def published() -> Publisher:
        publisher = Publisher(relay_endpoints(data_dir).ingest)
        publisher.publish(mapping(next(NUMBERS)))
        return publisher

    def close(publisher: Publisher) -> None:
        with contextlib.suppress(RelayUnavailableError):
            publisher.close(0.0)

    def close_again(publisher: Publisher) -> None:
        close(publisher)
        publisher.close()

    assert len(interrupt_everywhere(PUBLISHING, published, close, close_again)) > 5


def test_requesting_and_reconnecting(broker: Broker) -> None:
    """Afterwards, the subscriber's next request succeeds, and the subscriber can be closed twice."""

    def ask_in_vain(subscriber: Subscriber) -> None:
        with contextlib.suppress(RelayUnavailableError):
            subscriber.ping()

    def ask_again(subscriber: Subscriber) -> None:
        subscriber._timeout_s = 5.0
        assert subscriber.ping() == 1
        subscriber.close()

    places = interrupt_everywhere(
        (relay.subscriber, relay.net.bus),
        lambda: Subscriber(*broker.endpoints, timeout_s=0.0),
        ask_in_vain,
        ask_again,
    )
    assert len(places) > 15


def test_closing_a_subscriber(broker: Broker) -> None:
    places = interrupt_everywhere(
        (relay.subscriber, relay.net.bus, relay.net.zeromq),
        lambda: Subscriber(*broker.endpoints),
        Subscriber.close,
        Subscriber.close,
    )
    assert len(places) > 3


@pytest.mark.slow
def test_writing_and_reading_a_journal(tmp_path: Path) -> None:
    """Afterwards, another thread can write and read, and the interrupted events are either all present or all
    absent.
    """
    folders = count()

    def append_and_read(journal: Journal) -> None:
        journal.append([event(1), event(2)], NOW)
        journal.read(0, 10)

    def append_another(journal: Journal) -> None:
        journal.append([event(3)], NOW)
        found = [read_event(entry.data).event_id for entry in journal.read(0, 10)]
        assert found in (["event-000001", "event-000002", "event-000003"], ["event-000003"])
        journal.compact()
        journal.close()

    places = interrupt_everywhere(
        (relay.disk.environment, relay.locks, relay.journal.journal, contextlib, threading),
        lambda: Journal.open(tmp_path / str(next(folders))),
        append_and_read,
        append_another,
    )
    assert len(places) > 50


def test_waiting_for_writes_before_a_compaction(tmp_path: Path) -> None:
    """Afterwards, another thread can write and compact."""
    folders = count()

    def wait(journal: Journal) -> None:
        with journal._environment._without_writes(1):
            pass

    def append(journal: Journal) -> None:
        journal.append([event(1)], NOW)
        journal.compact()
        journal.close()

    places = interrupt_everywhere(
        (relay.disk.environment, *LOCKING), lambda: Journal.open(tmp_path / str(next(folders))), wait, append
    )
    assert len(places) > 15


def use_alone(lock: ReadWriteLock) -> None:
    with lock.exclusive(10.0):
        pass
    with lock.shared():
        pass


def test_reading_under_a_lock() -> None:
    def read(lock: ReadWriteLock) -> None:
        with lock.shared(), lock.shared():
            pass

    assert len(interrupt_everywhere(LOCKING, ReadWriteLock, read, use_alone)) > 15


def test_writing_under_a_lock() -> None:
    def write(lock: ReadWriteLock) -> None:
        with lock.exclusive(10.0):
            pass

    assert len(interrupt_everywhere(LOCKING, ReadWriteLock, write, use_alone)) > 15


def test_waiting_for_a_change() -> None:
    """A waiting thread is notified even if another waiting thread was interrupted."""

    class Counted(Condition):
        number = 0

    def wait(condition: Counted) -> None:
        condition.wait_for(lambda: condition.number > 0, 0.001)

    def change(condition: Counted) -> None:
        waiting = threading.Thread(target=condition.wait_for, args=(lambda: condition.number > 0,))
        waiting.start()
        with condition.lock:
            condition.number += 1
            condition.notify_all()
        waiting.join()
        assert not condition._waiting

    assert len(interrupt_everywhere((relay.locks,), Counted, wait, change)) > 5
