"""What it costs to pass entries that no key is left for."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

from relays import NOW, event

from relay import Journal
from relay.key_ring import KeyRing


def test_what_is_passed_for_want_of_a_key_is_not_held_in_memory(tmp_path: Path) -> None:
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
