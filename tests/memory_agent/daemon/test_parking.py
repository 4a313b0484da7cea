"""Events of `system` that wait for their owner."""

from __future__ import annotations

from memory_agent.daemon.dispatcher import Parked, Parking
from relay import SYSTEM_USER, JournalEntry


def parked(seq: int, *keys: str, until_s: float = 100.0) -> Parked:
    return Parked(JournalEntry(seq, SYSTEM_USER, "run.noted", b"event"), keys, until_s)


def test_an_event_is_claimed_once_by_any_of_its_keys_in_journal_order() -> None:
    parking = Parking(10)
    for event in (parked(3, "run:a"), parked(1, "run:a", "session:s"), parked(2, "run:b")):
        parking.park(event)
    assert [event.entry.seq for event in parking.claim(("run:a",))] == [1, 3]
    assert parking.claim(("session:s",)) == []
    assert parking.oldest() == 2


def test_an_expired_event_stays_until_it_is_removed() -> None:
    parking = Parking(10)
    parking.park(parked(1, until_s=5.0))
    parking.park(parked(2, until_s=50.0))
    assert [event.entry.seq for event in parking.expired(5.0)] == [1]
    assert len(parking) == 2
    parking.leave(1)
    parking.leave(1)
    assert len(parking) == 1


def test_the_oldest_above_the_limit_are_expired_first() -> None:
    parking = Parking(2)
    for seq in (1, 2, 3, 4):
        parking.park(parked(seq))
    assert [event.entry.seq for event in parking.expired(0.0)] == [1, 2]
