"""Test that a comparison with the ledger finds each kind of broken promise, and ignores unacknowledged writes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ops.soak.ledger import Held, Ledger

USER = "soak-00"


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    """A new ledger."""
    ledger = Ledger(tmp_path / "ledger.sqlite")
    yield ledger
    ledger.close()


def held(*marks: str) -> list[Held]:
    return [Held("finding", f"The spare key is under the third stone ({mark})") for mark in marks]


def found(ledger: Ledger, *marks: str) -> list[tuple[str, str]]:
    return [(finding.kind, finding.what) for finding in ledger.compare(USER, "m", held(*marks))]


def test_acknowledged_writes_are_due_once_and_others_at_most_once(ledger: Ledger) -> None:
    kept, late, unknown = (ledger.send(USER) for _ in range(3))
    ledger.keep([kept])
    assert found(ledger, kept, late) == []
    assert found(ledger, kept) == [("lost", late)]  # once found, an event must be found again
    assert found(ledger, kept, kept, late, unknown, unknown) == [
        ("doubled", f"{kept} finding"),
        ("doubled", f"{unknown} finding"),
    ]


def test_a_removed_write_must_not_return_and_one_being_removed_may_be_there(ledger: Ledger) -> None:
    kept, removed, leaving = (ledger.send(USER) for _ in range(3))
    ledger.keep([kept, removed, leaving])
    ledger.leave(USER, [removed, leaving])
    ledger.remove(USER, [removed])
    assert found(ledger, kept) == found(ledger, kept, leaving) == []
    assert found(ledger, kept, removed) == [("risen", removed)]
    ledger.leave(USER)
    ledger.remove(USER)
    assert found(ledger, kept) == [("risen", kept)]
    assert ledger.send(USER) not in {kept, removed, leaving}


def test_anothers_mark_is_foreign_and_shared_items_are_compared_separately(ledger: Ledger) -> None:
    other, item = ledger.send("soak-01"), ledger.send(USER, "i")
    ledger.keep([other, item])
    assert found(ledger, other) == [("foreign", f"{other} in the store")]
    assert ledger.compare(USER, "i", []) == [("lost", USER, item)]


def test_the_ledger_continues_in_its_file(ledger: Ledger, tmp_path: Path) -> None:
    mark = ledger.send(USER)
    ledger.keep([mark])
    again = Ledger(tmp_path / "ledger.sqlite")
    assert again.of(USER) == {mark: "kept"}
    assert again.send(USER) > mark
    again.close()
