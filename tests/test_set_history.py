"""Test that the history check detects each kind of violation."""

from __future__ import annotations

import pytest

from tests.set_history import Addition, History, Read, Removal

NOTE, EVENT, UNSURE = (
    Addition("alice", "note", 1, acked=2),
    Addition("alice", "event", 1, True, acked=2),
    Addition("alice", "unsure", 1),
)


def kinds(reads: list[Read], removals: list[Removal] | None = None) -> list[str]:
    return [found.kind for found in History([NOTE, EVENT, UNSURE], removals or [], reads).violations()]


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (("note", "event"), []),
        (("note", "event", "unsure"), []),
        (("note",), ["lost"]),
        (("note", "event", "event"), ["doubled"]),
        (("note", "event", "other"), ["foreign"]),
    ],
)
def test_a_read_contains_what_was_acknowledged_and_nothing_else(texts: tuple[str, ...], expected: list[str]) -> None:
    assert kinds([Read("alice", texts, 3, 4)]) == expected


def test_what_one_read_returned_the_next_returns_too() -> None:
    seen, unseen = ("note", "event", "unsure"), ("note", "event")
    assert kinds([Read("alice", seen, 3, 4), Read("alice", unseen, 5, 6)]) == ["lost"]
    assert kinds([Read("alice", seen, 3, 6), Read("alice", unseen, 5, 6)]) == []  # at the same time


def test_a_read_that_need_not_contain_events_still_contains_notes() -> None:
    assert kinds([Read("alice", ("note",), 3, 4, has_events=False)]) == []
    assert kinds([Read("alice", ("event",), 3, 4, has_events=False)]) == ["lost"]


def test_what_was_removed_never_returns() -> None:
    both, one = ("note", "event"), ("note",)
    acked, unsure = Removal("alice", "event", 3, 4), Removal("alice", "event", 3)
    assert kinds([Read("alice", one, 5, 6)], [acked]) == []
    assert kinds([Read("alice", both, 5, 6)], [acked]) == ["resurrected"]
    assert kinds([Read("alice", both, 5, 6), Read("alice", one, 7, 8)], [unsure]) == []
    assert kinds([Read("alice", one, 5, 6), Read("alice", both, 7, 8)], [unsure]) == ["resurrected"]
