"""Test how long it takes to skip entries whose key is missing, and what an unreadable key blocks."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest
from relays import NOW, event

from relay import Journal, KeysUnavailableError
from relay.crypto import KeyRing
from relay.errors import KeyFileError


def test_entries_skipped_without_a_key_are_not_held_in_memory(tmp_path: Path) -> None:
    size_bytes, count = 20_000, 300
    keys = KeyRing(tmp_path / "keys")
    with Journal.open(tmp_path / "journal", keys=keys) as journal:
        journal.append([event(number, payload={"text": "x" * size_bytes}) for number in range(count)], NOW)
        keys.destroy("alice")
        tracemalloc.start()
        try:
            assert journal.read(0, 10) == []
            assert tracemalloc.get_traced_memory()[1] < size_bytes * count / 4
        finally:
            tracemalloc.stop()


def test_a_damaged_key_blocks_its_events_until_it_is_repaired_or_destroyed(tmp_path: Path) -> None:
    keys = KeyRing(tmp_path / "keys")
    with Journal.open(tmp_path / "journal", keys=keys) as journal:
        journal.append([event(1), event(2, "bob")], NOW)
        before = set(keys.folder.iterdir())
        journal.append([event(3, "carol")], NOW)
        (file,) = set(keys.folder.iterdir()) - before
        content = file.read_bytes()
        file.write_bytes(content[:-40])
        with pytest.raises(KeyFileError):
            journal.read(2, 10)
        with pytest.raises(KeysUnavailableError):
            journal.append([event(4, "carol"), event(5, "bob")], NOW)
        assert [one.user_id for one in journal.read(0, 10, user_id="bob")] == ["bob"]
        file.write_bytes(content)
        assert [one.user_id for one in journal.read(0, 10)] == ["alice", "bob", "carol"]
        file.write_bytes(content[:-40])
        assert keys.destroy("carol")
        assert [one.user_id for one in journal.read(0, 10)] == ["alice", "bob"]
