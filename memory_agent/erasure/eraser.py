"""Erase memories from every file of one user's folder: records, indexes, learner, set-aside files, free pages.

The intent is written first. Then the records are deleted in one transaction, derived files are rebuilt without them,
and the file is compacted, because freed pages keep their bytes. Every step is idempotent. The journal is erased from by
its owner (`relay.erasing`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import partial

import msgspec

from memory_agent.erasure.forgetting import Forgetting
from memory_agent.erasure.history import (
    History,
    fingerprint,
    history_bytes,
    note_erasure,
    note_reimported_ids,
    note_renewed_id,
    read_history,
)
from memory_agent.erasure.intent_log import (
    Intent,
    close_intent,
    covers_journal,
    mark_journal_done,
    read_intent,
    spare_memory,
    write_intent,
)
from memory_agent.erasure.receipt import ErasureReceipt
from memory_agent.erasure.retention import Expired, RetentionSchedule
from memory_agent.erasure.selection import Selection, with_excluded_memories
from memory_agent.erasure.user_removal import has_journal, moved_aside_reason
from memory_agent.errors import MemoryAgentError, StoreError
from memory_agent.records.memories import MemoryRecord
from memory_agent.storage.archive import Archive
from memory_agent.storage.snapshot import Snapshot
from relay.log import log

_IN_JOURNAL = "its events are still in the journal: they are erased at the daemon's next start, or by the next `forget`"


class Eraser:
    """Erases from one user's archive; one erasure at a time."""

    def __init__(self, user_id: str, archive: Archive, forgetting: Forgetting, schedule: RetentionSchedule) -> None:
        self._user_id = user_id
        self._archive = archive
        self._forgetting = forgetting
        self._schedule = schedule
        self._erasing = threading.Lock()
        self._resumed: Intent | None = None  # done here, waiting for the journal
        self._gone: tuple[int, frozenset[str]] = (0, frozenset())  # erased ids, by the size of the history

    def plan(self, selection: Selection, now: datetime) -> Intent:
        """Return the memories, runs and events of a selection. Raises `InvalidInputError`."""
        selection.check()
        if selection.expired:
            return self._expired_intent(self._schedule.expired(now), now)
        with self._archive.store.snapshot() as snapshot:
            if selection.filter is not None:
                filter = with_excluded_memories(selection.filter, snapshot)
                selection = msgspec.structs.replace(selection, filter=filter)
            found = {row: record for row, record in snapshot.scan() if selection.takes(record)}
            if selection.session_id is not None:
                for row in self._forgetting.rows_of_session(snapshot, selection.session_id) - set(found):
                    record = snapshot.record(row)
                    if record is not None:
                        found[row] = record
            event_ids = () if selection.everything else _event_ids(snapshot, found)
            run_ids, of_runs = _runs_of(snapshot, selection.session_id)
            ids = sorted(record.id for record in found.values())
            ids += self._forgetting.goes_with(snapshot, ids)
        return Intent(
            started_at=now,
            record_ids=tuple(ids),
            event_ids=tuple(dict.fromkeys((*event_ids, *of_runs))),
            session_id=selection.session_id,
            run_ids=run_ids,
            everything=selection.everything,
        )

    def expire(self, now: datetime, limit: int | None = None, among: int | None = None) -> int:
        """Erase at most `limit` expired memories if a scan is due; return their number. Raises `StoreError`.

        A store of more than `among` memories is not scanned. Where there is a journal, its owner erases the events and
        then completes the erasure (`carry_out`).
        """
        folder = self._archive.store.folder
        with self._erasing:
            is_large = among is not None and self._archive.store.counts().memories > among
            if is_large or not self._schedule.is_due(now):
                return 0
            expired = self._schedule.expired(now, limit)
            if expired.by_rule:
                intent = self._expired_intent(expired, now)
                intent = write_intent(
                    folder, msgspec.structs.replace(intent, with_journal=has_journal(folder)), self._archive.store.key
                )
                self._forget(intent)
                if not intent.with_journal and self._note(intent, now) is None and self._purge() is None:
                    close_intent(folder)
            self._schedule.settle(expired, now)
            return sum(map(len, expired.by_rule.values()))

    def note_forgotten(self, selection: Selection, now: datetime) -> None:
        """Add memories to the history before they are deleted without erasure, so that no restore brings them back."""
        with self._archive.store.snapshot() as snapshot:
            rows = [snapshot.row_of_id(one) for one in selection.ids if one]
            found = {row: record for row in rows if row is not None and (record := snapshot.record(row)) is not None}
            event_ids = _event_ids(snapshot, found) if found else ()
            ids = [record.id for record in found.values()]
            ids += self._forgetting.goes_with(snapshot, ids)
        if selection.session_id is not None:
            intent = self.plan(selection, now)
        else:
            intent = Intent(started_at=now, record_ids=tuple(ids), event_ids=event_ids)
        self._note(intent, now)

    @contextmanager
    def admitting(self, record_id: str, now: datetime) -> Iterator[Callable[[], None]]:
        """Yield what to call inside a transaction before it adds a memory under a caller's id, which may be forgotten.

        A restore and an erasure that waits for the journal then leave the new memory alone. Within the block no erasure
        goes on.
        """
        with self._erasing:
            yield partial(self._admit, record_id, now)

    def is_forgotten(self, record_id: str, now: datetime) -> bool:
        """Whether the history names an id that was not stored or imported again since. Raises `StoreError`."""
        size = history_bytes(self._archive.store.folder, self._user_id)
        if size != self._gone[0]:  # an entry takes 8 us to read
            self._gone = (size, read_history(self._archive.store.folder, self._user_id).memories_in(now))
        return self._print(record_id) in self._gone[1]

    def _admit(self, record_id: str, now: datetime) -> None:
        store = self._archive.store
        intent = read_intent(store.folder, store.key)
        if intent is not None and record_id in intent.all_ids:
            spared = spare_memory(store.folder, intent, record_id, store.key)
            self._resumed = spared if self._resumed == intent else self._resumed
        if self.is_forgotten(record_id, now):
            note_renewed_id(store.folder, self._user_id, record_id, now)

    def plan_reapply(
        self, history: History, made_at: datetime, event_ids: Sequence[str], now: datetime
    ) -> list[Intent]:
        """Return intents that erase from a restored store what `history` says was erased.

        Memories are matched by id, sessions only where they were erased at `made_at`, the time of the backup, or later.
        `event_ids`: erased events that the journal still holds.
        """
        later = history.since(made_at)
        with self._archive.store.snapshot() as snapshot:
            gone = history.memories_in(made_at)
            found = {row: record for row, record in snapshot.scan() if self._print(record.id) in gone}
            named = {record.session_id for _, record in snapshot.scan()} if later.sessions else set()
            named |= {run.session_id for run in snapshot.newest_trajectories()} if later.sessions else set()
            own = _event_ids(snapshot, found) if found else ()
        ids = tuple(sorted(record.id for record in found.values()))
        every = tuple(dict.fromkeys((*own, *event_ids)))
        sessions = sorted(one for one in named if one is not None and self._print(one) in later.sessions)
        return [
            Intent(started_at=now, record_ids=ids, event_ids=every),
            *(self.plan(Selection(session_id=one), now) for one in sessions),
        ]

    def mark_events_seen(self, event_ids: Sequence[str]) -> None:
        """Mark events as seen, so that the journal does not bring erased memories back. Durable on return."""
        with self._archive.batch() as batch:
            unseen = [one for one in event_ids if batch.row_of_event(one) is None]
            if unseen:
                row = batch.allot_row()
                for one in unseen:
                    batch.link_event(one, row)

    def _print(self, id_: str) -> str:
        return fingerprint(self._user_id, id_)

    @property
    def leaves_journal(self) -> bool:
        """Whether the data folder has a journal, whose owner has to erase the events."""
        return has_journal(self._archive.store.folder)

    def begin(self, intent: Intent) -> Intent:
        """Write an intent for journal and store; return it merged with an unfinished one. Durable on return."""
        with self._erasing:
            store = self._archive.store
            return write_intent(store.folder, msgspec.structs.replace(intent, with_journal=True), store.key)

    def carry_out(self, intent: Intent, now: datetime) -> ErasureReceipt:
        """Erase an intent; `with_journal` says that its events are erased from the journal already. Durable on return.

        What a full disk or a long reader prevents is done later, and the receipt says so. An unfinished intent that
        waits for the journal stays open. Raises `StoreError` when the records could not be deleted; the intent stays.
        """
        with self._erasing:
            folder, key = self._archive.store.folder, self._archive.store.key
            requested, intent = intent, write_intent(folder, intent, key)
            is_last = covers_journal(requested, intent)
            if is_last and intent.with_journal:
                intent = mark_journal_done(folder, intent, key)
            self._forget(intent)
            reason = self._note(intent, now, once=True) or self._purge()
            if reason is None and is_last:
                close_intent(folder)
        waiting = _IN_JOURNAL if not requested.with_journal and self.leaves_journal else None
        return self.receipt(intent, now, reason=reason or waiting or moved_aside_reason(folder))

    def resume(self) -> bool:
        """Continue an unfinished erasure; return whether the store's part was completed. Raises `StoreError`.

        A disk that is still full does not keep the memory from opening: the next call tries again.
        """
        with self._erasing:
            intent = read_intent(self._archive.store.folder, self._archive.store.key)
            if intent is None or intent == self._resumed:
                return False
            self._forget(intent)
            is_done = self._note(intent, intent.started_at, once=True) is None and self._purge() is None
            if is_done and not intent.with_journal:
                close_intent(self._archive.store.folder)
            elif is_done:
                self._resumed = intent
            return is_done

    def receipt(
        self, intent: Intent, now: datetime, *, dry_run: bool = False, reason: str | None = None
    ) -> ErasureReceipt:
        """Return the receipt of an erasure."""
        return ErasureReceipt.of(
            self._user_id, intent.all_ids, now, dry_run=dry_run, reason=reason, expired=intent.expired
        )

    def _note(self, intent: Intent, now: datetime, *, once: bool = False) -> str | None:
        """Add an intent to the history; return the reason if that fails, since erasing works on a full disk."""
        try:
            note_erasure(self._archive.store.folder, self._user_id, intent, now, once=once)
        except StoreError as error:
            return str(error)
        return None

    def _purge(self) -> str | None:
        """Rebuild and compact the files; return the reason if that fails."""
        try:
            self._archive.purge()
        except (MemoryAgentError, OSError) as error:
            log.warning("erasure.not_complete", user_id=self._user_id, error=type(error).__name__)
            return str(error)
        return None

    def _forget(self, intent: Intent) -> None:
        if intent.session_id is not None:
            self._forgetting.session(intent.session_id)
        self._forgetting.memories(intent.record_ids)
        self._forgetting.expired(intent.expired)

    def _expired_intent(self, expired: Expired, now: datetime) -> Intent:
        store = self._archive.store
        with store.snapshot() as snapshot:
            rows = ((store.row_of_id(one), one) for ids in expired.by_rule.values() for one in ids)
            found = {row: record for row, _ in rows if row is not None and (record := snapshot.record(row)) is not None}
            return Intent(started_at=now, event_ids=_event_ids(snapshot, found), expired=expired.by_rule)


def note_reimported(user_id: str, archive: Archive, now: datetime) -> None:
    """Note in the history which erased memories an import brought back, so that restores keep them. `StoreError`."""
    folder = archive.store.folder
    gone = read_history(folder, user_id).memories_in(now)
    if gone:
        with archive.store.snapshot() as snapshot:
            found = {row: record for row, record in snapshot.scan() if fingerprint(user_id, record.id) in gone}
            ids = (*(record.id for record in found.values()), *_event_ids(snapshot, found))
        note_reimported_ids(folder, user_id, ids, now)


def _runs_of(snapshot: Snapshot, session_id: str | None) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the ids of a session's runs, by which their events are found.

    A run that shares its id with one of another session is left out of these; second come the ids of its events.
    """
    runs = snapshot.newest_trajectories() if session_id is not None else ()
    own = [run for run in runs if run.session_id == session_id]
    known = {run.id for run in own}
    shared = {
        run.name
        for run in own
        if any(other.id not in known and not other.is_forgotten for other in snapshot.runs_named(run.name))
    }
    events = (mark.event_id for run in own if run.name in shared for mark in run.marks)
    return tuple(dict.fromkeys(run.name for run in own if run.name not in shared)), tuple(events)


def _event_ids(snapshot: Snapshot, found: Mapping[int, MemoryRecord]) -> tuple[str, ...]:
    """Return the ids of the events behind memories; of ids too long to store, only the record's own event."""
    named = (record.event_id for record in found.values() if record.event_id)
    return tuple(sorted({*named, *snapshot.events_of(found)}))
