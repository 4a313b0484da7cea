"""Test that the journal bench measures plain and encrypted journals, and that encryption adds the expected size."""

from __future__ import annotations

from ops.bench import encrypted_journal
from relay.crypto import NAME_BYTES, SEAL_BYTES


def test_both_kinds_are_measured_and_an_event_takes_as_much_more_room_as_its_seals() -> None:
    figures = encrypted_journal.measure(rounds=1, events=1_000)
    assert set(figures["plain"]) - set(figures["encrypted"]) == {"convert_per_s"}
    assert all(figure["least"] > 0 for kind in figures.values() for figure in kind.values())
    more = figures["encrypted"]["bytes_per_event"]["median"] - figures["plain"]["bytes_per_event"]["median"]
    assert 0 < more < 4 * (SEAL_BYTES + NAME_BYTES)
