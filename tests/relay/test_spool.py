"""Test the spool: undelivered events go to disk, in order, and are sent before newer events."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from relays import LIMITS, NOW, RelayProcess, entries, event, later, mapping, wait_until

from relay import (
    Broker,
    EventLimits,
    FlushReport,
    Journal,
    JournalInUseError,
    Publisher,
    PublisherSettings,
    RelaySettings,
    SpoolFullError,
    Subscriber,
    decode_event,
    encode_event,
    relay_endpoints,
)
from relay.publishing.delivery import Outgoing
from relay.publishing.spool import Spool

IMPATIENT = PublisherSettings(window=8, ack_timeout_s=0.5)


def ids(first: int, last: int) -> list[str]:
    return [f"event-{number:06d}" for number in range(first, last)]


def journaled(broker: Broker) -> list[str]:
    with Subscriber(*broker.endpoints) as subscriber:
        return [event_id for _, event_id in entries(subscriber)]


def taken(report: FlushReport) -> int:
    """Return the number of delivered events. In the report, events that were sent again count as duplicates."""
    return report.acked + report.duplicates


def test_while_the_relay_is_away_events_go_to_disk_and_then_on_in_order(data_dir: Path, tmp_path: Path) -> None:
    with Publisher(relay_endpoints(data_dir).ingest, settings=IMPATIENT, spool=tmp_path / "spool") as publisher:
        for number in range(100):
            publisher.publish(mapping(number))
        report = publisher.flush(0.01)
        assert (report.published, report.acked, report.spooled, report.pending) == (100, 0, 100, 0)
        with Broker(data_dir) as broker:
            for number in range(100, 120):
                publisher.publish(mapping(number))
            report = publisher.flush()
            assert (taken(report), report.spooled, report.pending) == (120, 0, 0)
            assert journaled(broker) == ids(0, 120)


def test_the_next_process_delivers_what_remains_in_the_spool(data_dir: Path, tmp_path: Path) -> None:
    spool = tmp_path / "spool"
    with Publisher(relay_endpoints(data_dir).ingest, settings=IMPATIENT, spool=spool) as first:
        for number in range(50):
            first.publish(mapping(number))
    with Broker(data_dir) as broker, Publisher(broker.endpoints.ingest, settings=IMPATIENT, spool=spool) as second:
        for number in range(50, 60):
            second.publish(mapping(number))
        report = second.flush()
        assert (report.published, taken(report), report.spooled) == (10, 60, 0)
        assert journaled(broker) == ids(0, 60)


def test_a_killed_relay_in_the_middle_changes_nothing(data_dir: Path, tmp_path: Path) -> None:
    with (
        RelayProcess(data_dir) as relay,
        Publisher(relay.endpoints.ingest, settings=IMPATIENT, spool=tmp_path / "spool") as publisher,
    ):
        for number in range(300):
            if number in (100, 200):
                relay.kill()
            if number in (150, 250):
                relay.start()
            publisher.publish(mapping(number))
        report = publisher.flush()
        assert (report.acked + report.duplicates, report.spooled, report.pending) == (300, 0, 0)
        with Subscriber(*relay.endpoints) as subscriber:
            assert [event_id for _, event_id in entries(subscriber)] == ids(0, 300)


def publish_until_refused(publisher: Publisher) -> None:
    for number in range(1_000):
        publisher.publish(mapping(number, payload={"text": "x" * 20_000}))


def is_taken(publisher: Publisher, number: int) -> bool:
    try:
        publisher.publish(mapping(number))
    except SpoolFullError:
        return False
    return True


def test_a_full_spool_refuses_events_and_keeps_the_accepted_ones(data_dir: Path, tmp_path: Path) -> None:
    settings = PublisherSettings(window=2, ack_timeout_s=0.05, spool_max_bytes=1 << 20)
    with Publisher(relay_endpoints(data_dir).ingest, settings=settings, spool=tmp_path / "spool") as publisher:
        with pytest.raises(SpoolFullError) as raised:
            publish_until_refused(publisher)
        assert raised.value.retryable
        taken = publisher.flush(0.01).published
        assert 20 < taken < 60
        with Broker(data_dir) as broker:
            for number in range(taken, taken + 5):
                wait_until(partial(is_taken, publisher, number))
            assert publisher.flush().spooled == 0
            assert journaled(broker) == ids(0, taken + 5)


def test_a_repeat_in_the_spool_is_counted_and_sent_once(data_dir: Path, tmp_path: Path) -> None:
    settings = PublisherSettings(window=1, ack_timeout_s=0.5)
    with Publisher(relay_endpoints(data_dir).ingest, settings=settings, spool=tmp_path / "spool") as publisher:
        for number in (1, 2, 3, 2, 3, 1):
            publisher.publish(mapping(number))
        with Broker(data_dir) as broker:
            report = publisher.flush()
            assert (report.published, report.acked, report.duplicates, report.spooled) == (6, 3, 3, 0)
            assert journaled(broker) == ["event-000001", "event-000002", "event-000003"]


def test_events_the_relay_rejects_leave_the_spool_and_are_reported(data_dir: Path, tmp_path: Path) -> None:
    with Publisher(relay_endpoints(data_dir).ingest, settings=IMPATIENT, spool=tmp_path / "spool") as publisher:
        for number in range(20):
            publisher.publish(mapping(number, payload={"text": "x" * (800 if number == 7 else 1)}))
        with Broker(data_dir, RelaySettings(events=EventLimits(max_bytes=600))) as broker:
            report = publisher.flush()
            assert (report.acked, report.spooled) == (19, 0)
            assert [(one.event_id, one.code) for one in report.rejections] == [("event-000007", "event_too_large")]
            assert journaled(broker) == ids(0, 7) + ids(8, 20)


def test_only_one_publisher_uses_a_spool(data_dir: Path, tmp_path: Path) -> None:
    with (
        Broker(data_dir) as broker,
        Publisher(broker.endpoints.ingest, spool=tmp_path / "spool"),
        pytest.raises(JournalInUseError),
    ):
        Publisher(broker.endpoints.ingest, spool=tmp_path / "spool")


def test_an_event_damaged_on_disk_is_reported_and_the_others_are_sent(data_dir: Path, tmp_path: Path) -> None:
    spool = tmp_path / "spool"
    with Publisher(relay_endpoints(data_dir).ingest, settings=IMPATIENT, spool=spool) as first:
        for number in range(20):
            first.publish(mapping(number, payload={"text": f"needle {number}."}))
    content = (spool / "data.mdb").read_bytes()
    for number in (5, 19):
        content = content.replace(f"needle {number}.".encode(), f"noodle {number}.".encode())
    (spool / "data.mdb").write_bytes(content)
    with Broker(data_dir) as broker, Publisher(broker.endpoints.ingest, settings=IMPATIENT, spool=spool) as second:
        report = second.flush()
        assert [one.code for one in report.rejections] == ["entry_damaged", "entry_damaged"]
        assert (report.acked, report.spooled, report.pending) == (18, 0, 0)
        assert journaled(broker) == ids(0, 5) + ids(6, 19)


def outgoing(number: int) -> Outgoing:
    one = event(number)
    return Outgoing(one.event_id, one.user_id, encode_event(one))


def test_events_taken_from_the_spool_stay_on_disk_until_released(tmp_path: Path) -> None:
    spool = Spool(tmp_path, 1 << 20)
    for number in range(10):
        spool.add(event(number), NOW)
    first = spool.take(4)
    assert [decode_event(one.data, LIMITS, NOW) for one in first] == [event(number) for number in range(4)]
    assert (spool.untaken, spool.unreleased) == (6, 10)
    spool.release(first[1].spool_seq, later(1))
    assert spool.unreleased == 8
    spool.close()
    reopened = Spool(tmp_path, 1 << 20)
    assert [one.event_id for one in reopened.take(100)] == ids(2, 10)
    reopened.release(reopened.taken_through, later(2))
    reopened.close()
    with Journal.open(tmp_path) as journal:
        assert journal.stats().entries == 0


def test_a_spooled_window_stays_ahead_of_later_events(tmp_path: Path) -> None:
    spool = Spool(tmp_path, 1 << 20)
    window = [outgoing(1), outgoing(2)]
    spool.keep(window, NOW)
    spool.add(event(3), NOW)
    spool.keep(window, NOW)
    assert [one.spool_seq for one in window] == [1, 2]
    assert [one.event_id for one in spool.take(10)] == ["event-000003"]
    spool.close()
