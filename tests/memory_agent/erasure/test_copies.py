"""Test the list of backups and exports in a receipt."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

from memory_agent.erasure.copies import COPIES_FILE, note_copy, with_copies
from memory_agent.erasure.request import NOT_COVERED, ErasureReceipt

NOW = datetime(2026, 11, 28, tzinfo=UTC)
DAY = timedelta(days=1)


def named(data_dir: Path, user_id: str = "alice") -> list[str]:
    not_covered = with_copies(ErasureReceipt.of(user_id, (), NOW), data_dir).not_covered
    assert not_covered[-len(NOT_COVERED) :] == NOT_COVERED
    return [Path(line.split()[1]).name for line in not_covered[: -len(NOT_COVERED)]]


def test_a_receipt_names_older_copies_of_the_user_that_still_exist(tmp_path: Path) -> None:
    for name in ("monday", "alice.jsonl", "bob.jsonl", "replaced.jsonl", "later"):
        (tmp_path / name).write_text("copied")
    note_copy(tmp_path, "backup", tmp_path / "monday", None, NOW - 3 * DAY)
    note_copy(tmp_path, "backup", tmp_path / "deleted", None, NOW - 2 * DAY)
    note_copy(tmp_path, "export", tmp_path / "replaced.jsonl", "alice", NOW - 2 * DAY)
    note_copy(tmp_path, "export", tmp_path / "alice.jsonl", "alice", NOW - DAY)
    note_copy(tmp_path, "export", tmp_path / "bob.jsonl", "bob", NOW - DAY)
    note_copy(tmp_path, "export", tmp_path / "replaced.jsonl", "alice", NOW + DAY)
    note_copy(tmp_path, "backup", tmp_path / "later", None, NOW + DAY)
    assert named(tmp_path) == ["alice.jsonl", "monday"]
    assert named(tmp_path, "bob") == ["bob.jsonl", "monday"]
    assert (tmp_path / COPIES_FILE).stat().st_mode & 0o777 == 0o600


def test_a_torn_line_loses_only_itself_and_many_copies_are_counted(tmp_path: Path) -> None:
    (tmp_path / COPIES_FILE).write_bytes(b'{"kind": "backup", "pa\n')
    for number in range(25):
        (tmp_path / f"b-{number}").touch()
        note_copy(tmp_path, "backup", tmp_path / f"b-{number}", None, NOW - DAY * (30 - number))
    assert named(tmp_path) == [*(f"b-{24 - number}" for number in range(20)), "older"]
