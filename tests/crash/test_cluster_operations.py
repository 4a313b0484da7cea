"""Test which events must appear in reads before and after a daemon dies, according to the cluster campaign."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from .cluster_operations import ClusterOperations

LIVES = ((0, 100), (200, 300))
PUBLISHED = [
    {"what": "add", "user": "alice", "id": "event", "event": True, "at": 1},
    {"what": "added", "user": "alice", "id": "event", "at": 2},
    {"what": "add", "user": "alice", "id": "note", "at": 3},
    {"what": "added", "user": "alice", "id": "note", "at": 4},
]
WAITED = {"what": "wait", "user": "alice", "begun": 5, "at": 6}
WAITED_AGAIN = {"what": "wait", "user": "alice", "begun": 210, "at": 220}


def read(begun: int, *ids: str) -> dict[str, object]:
    return {"what": "read", "user": "alice", "begun": begun, "at": begun + 5, "ids": ids}


@pytest.mark.parametrize(
    ("reads", "kinds"),
    [
        ([read(5, "note")], []),  # not waited for yet
        ([WAITED, read(10, "note", "event")], []),
        ([WAITED, read(10, "note")], ["lost"]),
        ([WAITED, read(98, "note")], []),  # the daemon died during the read
        ([WAITED, read(98, "event")], ["lost"]),
        ([WAITED, read(205, "note")], []),  # the next daemon has not delivered the event again yet
        ([WAITED, read(205, "event")], ["lost"]),
        ([WAITED, WAITED_AGAIN, read(230, "note")], ["lost"]),
        ([WAITED, WAITED_AGAIN, read(230, "note", "event")], []),
    ],
)
def test_reads_contain_events_once_they_were_waited_for(
    tmp_path: Path, reads: list[dict[str, object]], kinds: list[str]
) -> None:
    operations = ClusterOperations(tmp_path)
    for name, lines in (("read-alice", reads), ("write-alice", PUBLISHED)):
        (tmp_path / f"{name}.ops").write_text("".join(json.dumps(line) + "\n" for line in lines))
    operations.update()
    assert [found.kind for found in operations.violations(LIVES)] == kinds


def test_an_outage_is_the_longest_time_without_an_answer_since_the_fault(tmp_path: Path) -> None:
    seconds = (1, 2, 7, 9)
    lines = [read(second * 10**9 - 5, "note") for second in seconds]
    (tmp_path / "read-alice.ops").write_text("".join(json.dumps(line) + "\n" for line in lines))
    operations = ClusterOperations(tmp_path)
    operations.update()
    assert operations.outage_s("alice", "read", 2 * 10**9 + 5 * 10**8) == 4.5
    assert operations.outage_s("alice", "read", 7 * 10**9) == 2.0
