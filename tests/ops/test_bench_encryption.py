"""Test that the benchmark measures plain and encrypted memories, and that its page has a row for each figure."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from ops.bench import encrypted_journal, encryption


def test_both_kinds_are_measured_and_every_figure_is_on_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encryption, "QUERIES", 20)
    memory = encryption.measure(rounds=1, memories=200)
    assert set(memory["plain"]) - set(memory["encrypted"]) == {"encrypt_s"}
    assert all(figure["least"] > 0 for kind in memory.values() for figure in kind.values())
    assert memory["encrypted"]["records_bytes"]["median"] > memory["plain"]["records_bytes"]["median"]
    journal = encrypted_journal.measure(rounds=1, events=200)
    page = encryption.page({kind: memory[kind] | journal[kind] for kind in memory}, datetime(2026, 2, 16, tzinfo=UTC))
    rows = [line for line in page.splitlines() if line.startswith("| ")]
    assert len(rows) == 1 + len(memory["plain"].keys() | journal["plain"].keys())
