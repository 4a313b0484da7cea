"""Test the acknowledged intake: order per producer, repeats, gaps, and malformed events."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from relays import LIMITS, NOW, event

from relay import Journal, JournalSettings, encode_event, read_event
from relay.access import publisher_for_all
from relay.intake.admission import Admission
from relay.intake.group_commit import Intake, Reply, Submission
from relay.wire import Ack, Publish, Receipt, Refusal


@pytest.fixture
def intake(journal: Journal) -> Intake:
    return Intake(journal, Admission(LIMITS), Counter())


def submit(first: int, count: int, base: int = 1, producer: str = "p", epoch: int = 1, attempt: int = 1) -> Submission:
    events = [encode_event(event(number, payload={"producer": producer})) for number in range(first, first + count)]
    if producer != "p":
        events = [encode_event(event(number, user_id=producer)) for number in range(first, first + count)]
    publish = Publish(producer_id=producer, epoch=epoch, first_seq=first, base_seq=base, attempt=attempt, events=events)
    return Submission(b"peer-" + producer.encode(), publish, publisher_for_all(producer))


def acks(replies: list[Reply]) -> list[tuple[bytes, int, list[int]]]:
    return [
        (reply.peer, reply.message.first_seq, [receipt.seq for receipt in reply.message.receipts])
        for reply in replies
        if isinstance(reply.message, Ack)
    ]


def refusals(replies: list[Reply]) -> list[tuple[str, int, int]]:
    return [
        (reply.message.code, reply.message.first_seq, reply.message.expected_seq)
        for reply in replies
        if isinstance(reply.message, Refusal)
    ]


def test_queued_publishes_get_one_ack_per_publisher(intake: Intake) -> None:
    replies = intake.take([submit(1, 2), submit(1, 1, producer="q"), submit(3, 1), submit(2, 1, producer="q")], NOW)
    assert acks(replies) == [(b"peer-p", 1, [1, 2, 4]), (b"peer-q", 1, [3, 5])]


def test_events_before_missing_ones_are_refused_until_these_come(intake: Intake, journal: Journal) -> None:
    assert refusals(intake.take([submit(3, 1)], NOW)) == [("sequence_gap", 3, 1)]
    assert refusals(intake.take([submit(1, 1), submit(3, 1)], NOW)) == [("sequence_gap", 3, 2)]
    assert acks(intake.take([submit(2, 2, base=2)], NOW)) == [(b"peer-p", 2, [2, 3])]
    numbers = [read_event(entry.data).payload for entry in journal.read(0, 10)]
    assert len(numbers) == 3


def test_a_relay_that_forgot_a_producer_continues_from_its_base(journal: Journal) -> None:
    Intake(journal, Admission(LIMITS), Counter()).take([submit(1, 3)], NOW)
    restarted = Intake(journal, Admission(LIMITS), Counter())
    assert refusals(restarted.take([submit(6, 1, base=4)], NOW)) == [("sequence_gap", 6, 4)]
    assert acks(restarted.take([submit(4, 3, base=4)], NOW)) == [(b"peer-p", 4, [4, 5, 6])]


def test_a_resend_is_acknowledged_again_and_stored_once(intake: Intake, journal: Journal) -> None:
    intake.take([submit(1, 3)], NOW)
    (reply,) = intake.take([submit(1, 4)], NOW)
    assert isinstance(reply.message, Ack)
    assert reply.message.receipts == [Receipt(1, True), Receipt(2, True), Receipt(3, True), Receipt(4, False)]
    assert journal.last_seq == 4


def test_a_superseded_publisher_is_refused(intake: Intake) -> None:
    intake.take([submit(1, 1, epoch=2)], NOW)
    assert refusals(intake.take([submit(2, 1, epoch=1)], NOW))[0][0] == "producer_superseded"
    assert acks(intake.take([submit(2, 1, epoch=2)], NOW)) == [(b"peer-p", 2, [2])]


def test_a_malformed_event_is_rejected_by_field_and_its_neighbours_are_taken(intake: Intake, journal: Journal) -> None:
    good = submit(1, 3)
    good.publish.events[1] = b'{"event_type": "a.b", "user_id": "../x"}'
    (reply,) = intake.take([good], NOW)
    assert isinstance(reply.message, Ack)
    first, bad, last = reply.message.receipts
    assert (first, last) == (Receipt(1), Receipt(2))
    assert (bad.seq, bad.code, bad.field) == (0, "malformed_event", "user_id")
    assert "unsafe" in bad.reason
    (quarantined,) = journal.quarantined()
    assert (quarantined.source, quarantined.data) == ("publisher:p", good.publish.events[1])


def test_a_full_journal_refuses_everything_and_forgets_nothing(tmp_path: Path) -> None:
    with Journal.open(tmp_path / "small", JournalSettings(map_size_bytes=1 << 20)) as journal:
        intake = Intake(journal, Admission(LIMITS), Counter())
        big = [event(number, payload={"text": "x" * 200_000}) for number in range(1, 10)]
        for number, one in enumerate(big, 1):
            publish = Publish(
                producer_id="p", epoch=1, first_seq=number, base_seq=1, attempt=1, events=[encode_event(one)]
            )
            (reply,) = intake.take([Submission(b"peer", publish, publisher_for_all("k"))], NOW)
            if isinstance(reply.message, Refusal):
                break
        assert isinstance(reply.message, Refusal)
        assert (reply.message.code, reply.message.expected_seq) == ("journal_full", number)
        assert journal.last_seq == number - 1 > 1


def test_forgetting_producers_beyond_the_limit_loses_nothing(intake: Intake) -> None:
    for number in range(10_050):
        publish = Publish(producer_id=f"p{number}", epoch=1, first_seq=1, base_seq=1, attempt=1, events=[])
        intake.take([Submission(b"peer", publish, publisher_for_all("k"))], NOW)
    assert acks(intake.take([submit(5, 1, base=5, producer="p0")], NOW)) == [(b"peer-p0", 5, [1])]
