"""Deletes memories, sessions and expired runs from one user's archive.

Deleting a memory also removes it from runs and recalls, deletes patterns derived from these runs, and retrains the
learner.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from memory_agent.learning import RunRecords, UserLearner, remove_patterns
from memory_agent.records.arguments import check_not_blank
from memory_agent.storage.archive import Archive
from memory_agent.storage.batch import Batch
from memory_agent.storage.snapshot import Snapshot

_AT_ONCE = 1_000


class Forgetting:
    """Deletes from one user's archive. Each method is durable on return and works on a full disk."""

    def __init__(self, archive: Archive, run_records: RunRecords, learner: UserLearner) -> None:
        self._archive = archive
        self._run_records = run_records
        self._learner = learner

    def memories(self, record_ids: Sequence[str]) -> int:
        with self._archive.batch() as batch:
            count = self.remove(batch, _rows_of(batch, record_ids))
        self._learner.follow(from_scratch=True)
        return count

    def expired(self, by_rule: Mapping[str, Sequence[str]]) -> int:
        """Delete the memories that have expired under each retention rule. Count the deleted memories by rule; return
        their total number.
        """
        count = 0
        parts = (
            (rule, ids[at : at + _AT_ONCE]) for rule, ids in by_rule.items() for at in range(0, len(ids), _AT_ONCE)
        )
        for rule, part in parts:
            with self._archive.batch() as batch:
                removed = self.remove(batch, _rows_of(batch, part))
                batch.count(f"expired.{rule}", removed)
                count += removed
        if count:
            self._learner.follow(from_scratch=True)
        return count

    def session(self, session_id: str) -> int:
        """Delete a session's memories, runs and recalls; return the number of memories. Raises `InvalidInputError`."""
        check_not_blank("session_id", session_id)
        with self._archive.batch() as batch:
            rows = self._run_records.rows_of_session(batch, session_id)
            rows |= {row for row, record in batch.scan() if record.session_id == session_id}
            count = self.remove(batch, sorted(rows))
            self._run_records.forget_session(batch, session_id)
        self._learner.follow(from_scratch=True)
        return count

    def rows_of_session(self, snapshot: Snapshot, session_id: str) -> set[int]:
        """Return the rows of memories that belong to a session only through their run."""
        return self._run_records.rows_of_session(snapshot, session_id)

    def silent_runs(self, now: datetime) -> int:
        """Expire runs without recent events, and delete old recalls outside runs; return the number of expired runs."""
        store = self._archive.store
        with store.snapshot() as snapshot:
            if not store.has_waiting_notes and not self._run_records.has_upkeep(snapshot, now):
                return 0
        with self._archive.batch() as batch:
            return self._run_records.expire(batch, now)

    def linked_ids(self, snapshot: Snapshot, record_ids: Sequence[str]) -> list[str]:
        """Return the ids of other values that are deleted along with these memories."""
        return []

    def remove(self, batch: Batch, rows: Sequence[int]) -> int:
        if not rows:
            return 0
        patterns = remove_patterns(batch, rows)
        self._run_records.forget_rows(batch, [*rows, *patterns])
        for row in patterns:
            batch.delete(row)
        return sum(batch.delete(row) for row in rows)


def _rows_of(batch: Batch, record_ids: Sequence[str]) -> list[int]:
    rows = (batch.row_of_id(record_id) for record_id in dict.fromkeys(record_ids) if record_id)
    return [row for row in rows if row is not None]
