"""Test that a crash of the process is counted only against the events that were being ingested."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from memory_agent.daemon.deliveries import Deliveries
from memory_agent.errors import HostDiedError

MOST = 3
_never_left: list[object] = []


def crash(folder: Path, user_id: str, seqs: Sequence[int]) -> None:
    """Leave a delivery unfinished, as a killed process would."""
    delivery = Deliveries(folder, MOST).of(user_id, seqs)
    delivery.__enter__()
    _never_left.append(delivery)  # otherwise garbage collection would exit the context


def refused(deliveries: Deliveries, user_id: str, seqs: Sequence[int]) -> bool:
    try:
        with deliveries.of(user_id, seqs):
            return False
    except HostDiedError:
        return True


def test_without_a_crash_nothing_is_refused_and_nothing_is_left(tmp_path: Path) -> None:
    for _ in range(MOST + 1):
        deliveries = Deliveries(tmp_path, MOST)
        with pytest.raises(ValueError, match="an error"), deliveries.of("alice", [4, 5]):
            raise ValueError("an error")
        assert not refused(deliveries, "alice", [4, 5])
    assert list(tmp_path.iterdir()) == []


def test_after_a_crash_the_events_of_the_batch_are_tried_one_by_one(tmp_path: Path) -> None:
    crash(tmp_path, "alice", [4, 5, 6])
    deliveries = Deliveries(tmp_path, MOST)
    assert refused(deliveries, "alice", [6, 7])
    assert refused(deliveries, "alice", [4, 5])
    assert not any(refused(deliveries, "alice", [seq]) for seq in (4, 5, 6))
    assert not refused(deliveries, "alice", [7, 8, 9])
    assert not refused(deliveries, "bob", [4, 5, 6])


def test_an_event_that_crashed_the_process_too_often_is_refused(tmp_path: Path) -> None:
    crash(tmp_path, "alice", [4, 5, 6])
    for _ in range(MOST):
        crash(tmp_path, "alice", [5])
    deliveries = Deliveries(tmp_path, MOST)
    assert refused(deliveries, "alice", [5])
    assert not refused(deliveries, "alice", [6])


def test_a_damaged_note_is_ignored_and_no_note_outlives_the_next_start(tmp_path: Path) -> None:
    crash(tmp_path, "alice", [4])
    (tmp_path / "torn").write_bytes(b"\x94")
    assert not refused(Deliveries(tmp_path, MOST), "alice", [4])
    assert list(tmp_path.iterdir()) == []
