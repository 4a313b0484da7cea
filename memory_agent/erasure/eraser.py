"""`Memory.erasure`: erases memories from all of one user's files, including indexes, the learner and free pages.

The intent is written first. Then the records are deleted in one transaction, derived files are rebuilt, and the record
file is compacted. Every step is idempotent. The owner of the journal erases the events from it
(`relay.journal.erasure`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from functools import partial
from typing import Any

import msgspec

from memory_agent.archiving import remove_copies
from memory_agent.erasure import logs
from memory_agent.erasure.copies import with_copies
from memory_agent.erasure.forgetting import Forgetting
from memory_agent.erasure.request import ErasureReceipt, Intent, Selection, with_excluded_memories
from memory_agent.erasure.retention import Expired, RetentionRules, RetentionSchedule
from memory_agent.erasure.user_removal import has_journal, moved_aside_reason
from memory_agent.errors import MemoryAgentError, StoreError
from memory_agent.recall.query import check_now
from memory_agent.records.memories import MemoryFilter, MemoryRecord
from memory_agent.settings import RetentionSettings
from memory_agent.signals import SignalTable
from memory_agent.storage.archive import Archive, InUse
from memory_agent.storage.folders import data_dir_of
from memory_agent.storage.snapshot import Snapshot
from relay.disk import Role
from relay.log import log

_IN_JOURNAL = "its events are still in the journal: the daemon's next start or the next `forget` erases them"
_EXPIRED_AT_OPENING = 1_000
_SCANNED_AT_OPENING = 20_000


class Erasure:
    """Erases memories completely from one user's files. Only a daemon can erase the whole user.

    Erasures run one at a time. Every method raises `StoreError` if the store has failed or is closed.
    """

    def __init__(
        self,
        user_id: str,
        archive: Archive,
        forgetting: Forgetting,
        retention: RetentionSettings,
        table: SignalTable,
        in_use: InUse,
    ) -> None:
        """Raises `SettingsError`."""
        self._user_id = user_id
        self._archive = archive
        self._forgetting = forgetting
        self._schedule = RetentionSchedule(archive.store, RetentionRules(retention, table), retention.interval_s)
        self._in_use = in_use
        self._erasing = threading.Lock()
        self._resumed: Intent | None = None  # completed in this store, but not yet in the journal
        self._gone: tuple[int, frozenset[str]] = (0, frozenset())  # the size of the history, and the erased ids in it

    def erase(
        self,
        record_ids: Sequence[str] = (),
        *,
        session_id: str | None = None,
        filter: MemoryFilter | Mapping[str, Any] | None = None,
        dry_run: bool = False,
        now: datetime | None = None,
    ) -> ErasureReceipt:
        """Erase memories, with their runs and recalls, from every file. Durable on return.

        Selects memories by id, by session or by filter. This is slower than `forget`: it compacts and saves the columns
        (0.1 s per 10,000 memories), and copies the record file. If a crash interrupts an erasure, the next open
        completes it. `dry_run` erases nothing and only returns the receipt. A daemon also erases the events from its
        journal. For an embedded memory in a daemon's folder, the daemon erases the events at its next start, as the
        receipt states. Raises `InvalidInputError`.

        >>> record = memory.remember("Ann is on leave until May", tags=["hr"])
        >>> receipt = memory.erasure.erase(filter={"tags": ["hr"]})
        >>> receipt.memories, receipt.complete
        (1, True)
        """
        moment = check_now(now)
        return self._erase(Selection.of(record_ids, session_id, filter), moment, dry_run=dry_run)

    def erase_expired(self, *, dry_run: bool = False, now: datetime | None = None) -> ErasureReceipt:
        """Erase memories that have expired under a retention rule; the receipt counts them in `by_rule`.

        >>> rules = (RetentionRule(name="a-month", age_s=30 * 86_400),)
        >>> with Memory.open("data/bob", settings=Settings(retention=RetentionSettings(rules=rules))) as bob:
        ...     record = bob.remember("Ann is on leave until May")
        ...     bob.erasure.erase_expired(now=datetime.now(UTC) + timedelta(days=31)).by_rule
        {'a-month': 1}
        """
        return self._erase(Selection(expired=True), check_now(now), dry_run=dry_run)

    def age(self, now: datetime | None = None, limit: int | None = None) -> int:
        """Erase expired memories, at most `limit`, if a scan is due; return their number."""
        with self._in_use():
            return self._expire(check_now(now), limit)

    def age_at_opening(self, now: datetime, role: Role) -> int:
        """Like `age`, but suppress errors, so that the memory always opens.

        Callers wait while a host opens a memory, so a host scans at most 20,000 memories (0.3 s) and erases at most
        1,000 (0.3 s).
        """
        with suppress(MemoryAgentError), self._in_use():
            if role == "library":
                return self._expire(now)
            if self._archive.store.counts().memories <= _SCANNED_AT_OPENING:
                return self._expire(now, _EXPIRED_AT_OPENING)
        return 0

    @contextmanager
    def noting_age(self) -> Iterator[None]:
        """On exit, save the time of the next expiry. Callers close the archive within the context."""
        with suppress(MemoryAgentError):
            self._schedule.finish()
        yield
        self._schedule.save()

    def start(self, selection: Selection, *, dry_run: bool = False) -> Intent:
        """Plan an erasure and, unless `dry_run`, record it."""
        intent = self.plan(selection, check_now(None))
        return intent if dry_run else self.begin(intent)

    def plan(self, selection: Selection, now: datetime) -> Intent:
        """Return the intent to erase the memories, runs and events of a selection. Raises `InvalidInputError`."""
        with self._in_use():
            return self._plan(selection, now)

    def begin(self, intent: Intent) -> Intent:
        """Record an intent, merged with any unfinished one, and return it. Durable on return."""
        with self._in_use(), self._erasing:
            store = self._archive.store
            return logs.write_intent(store.folder, msgspec.structs.replace(intent, with_journal=True), store.key)

    def receipt(self, intent: Intent, now: datetime) -> ErasureReceipt:
        return self._receipt(intent, now, dry_run=True)

    def carry_out(self, intent: Intent, now: datetime | None = None) -> ErasureReceipt:
        """Erase everything that an intent lists. Idempotent. Durable on return.

        If the intent is `with_journal`, its events must already be erased from the journal. A step prevented by a full
        disk or a long read is done later, as the receipt states. Raises `StoreError`, and keeps the intent, if the
        records could not be deleted.
        """
        with self._in_use():
            return self._carry_out(intent, check_now(now))

    def forgotten(self, record_ids: Sequence[str] = (), session_id: str | None = None) -> None:
        """Add memories to the history before `Memory.forget` deletes them, so that restores do not bring them back."""
        selection = Selection.of(record_ids, session_id)
        if selection == Selection():
            return
        selection.check()
        now = check_now(None)
        if session_id is not None:
            intent = self._plan(selection, now)
        else:
            with self._archive.store.snapshot() as snapshot:
                rows = [snapshot.row_of_id(one) for one in selection.ids if one]
                found = {row: one for row in rows if row is not None and (one := snapshot.record(row)) is not None}
                event_ids = _event_ids(snapshot, found) if found else ()
                ids = [record.id for record in found.values()]
                ids += self._forgetting.linked_ids(snapshot, ids)
            intent = Intent(started_at=now, record_ids=tuple(ids), event_ids=event_ids)
        self._note(intent, now)

    def is_forgotten(self, record_id: str, now: datetime) -> bool:
        """Return whether an id was forgotten and has not been stored again since. Raises `StoreError`."""
        size = logs.history_bytes(self._archive.store.folder, self._user_id)
        if size != self._gone[0]:  # reading an entry takes 8 us
            self._gone = (size, logs.read_history(self._archive.store.folder, self._user_id).memories_in(now))
        return self._print(record_id) in self._gone[1]

    @contextmanager
    def admitting(self, record_id: str, now: datetime) -> Iterator[Callable[[], None]]:
        """Allow storing a memory under an id that may have been forgotten. Blocks erasures until exit.

        Yields a function to call inside the transaction before the memory is added. The function protects the new
        memory from restores, and from an erasure that is waiting for the journal.
        """
        with self._erasing:
            yield partial(self._admit, record_id, now)

    def erase_again(
        self, history: logs.History, made_at: datetime, event_ids: Sequence[str], now: datetime | None = None
    ) -> list[Intent]:
        """Repeat erasures after a backup made at `made_at` has been restored; return the repeated ones.

        Sessions are matched only if they were erased at `made_at` or later. `event_ids` are erased journal events,
        which count as duplicates from now on.
        """
        moment = check_now(now)
        with self._in_use():
            intents = self._plan_again(history, made_at, event_ids, moment)
            for intent in intents:
                self._carry_out(msgspec.structs.replace(intent, with_journal=True), moment)
            self._mark_events_seen(event_ids)
            return intents

    def resume(self) -> bool:
        """Resume an interrupted erasure; return whether the store's part was completed. Raises `StoreError`."""
        with self._in_use(), self._erasing:
            intent = logs.read_intent(self._archive.store.folder, self._archive.store.key)
            if intent is None or intent == self._resumed:
                return False
            self._forget(intent)
            is_done = self._note(intent, intent.started_at, once=True) is None and self._purge() is None
            if is_done and not intent.with_journal:
                logs.close_intent(self._archive.store.folder)
            elif is_done:
                self._resumed = intent
            return is_done

    def _erase(self, selection: Selection, now: datetime, *, dry_run: bool) -> ErasureReceipt:
        intent, folder = self.plan(selection, now), self._archive.store.folder
        if dry_run:
            receipt = self.receipt(intent, now)
        else:
            with self._in_use():
                if has_journal(folder):
                    self.begin(intent)
                receipt = self._carry_out(intent, now)
        receipt, data_dir = receipt.of_ids(selection.ids, intent.all_ids), data_dir_of(folder)
        return receipt if data_dir is None else with_copies(receipt, data_dir)

    def _plan(self, selection: Selection, now: datetime) -> Intent:
        selection.check()
        if selection.expired:
            return self._expired_intent(self._schedule.expired(now), now)
        with self._archive.store.snapshot() as snapshot:
            if selection.filter is not None:
                filter = with_excluded_memories(selection.filter, snapshot)
                selection = msgspec.structs.replace(selection, filter=filter)
            found = {row: record for row, record in snapshot.scan() if selection.includes(record)}
            if selection.session_id is not None:
                for row in self._forgetting.rows_of_session(snapshot, selection.session_id) - set(found):
                    record = snapshot.record(row)
                    if record is not None:
                        found[row] = record
            event_ids = () if selection.everything else _event_ids(snapshot, found)
            run_ids, of_runs = _runs_of(snapshot, selection.session_id)
            ids = sorted(record.id for record in found.values())
            ids += self._forgetting.linked_ids(snapshot, ids)
        return Intent(
            started_at=now,
            record_ids=tuple(ids),
            event_ids=tuple(dict.fromkeys((*event_ids, *of_runs))),
            session_id=selection.session_id,
            run_ids=run_ids,
            everything=selection.everything,
        )

    def _plan_again(
        self, history: logs.History, made_at: datetime, event_ids: Sequence[str], now: datetime
    ) -> list[Intent]:
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
            *(self._plan(Selection(session_id=one), now) for one in sessions),
        ]

    def _expire(self, now: datetime, limit: int | None = None) -> int:
        folder = self._archive.store.folder
        with self._erasing:
            if not self._schedule.is_due(now):
                return 0
            expired = self._schedule.expired(now, limit)
            if expired.by_rule:
                intent = self._expired_intent(expired, now, with_journal=has_journal(folder))
                intent = logs.write_intent(folder, intent, self._archive.store.key)
                self._forget(intent)
                if not intent.with_journal and self._note(intent, now) is None and self._purge() is None:
                    logs.close_intent(folder)
            self._schedule.settle(expired, now)
            return sum(map(len, expired.by_rule.values()))

    def _expired_intent(self, expired: Expired, now: datetime, *, with_journal: bool = False) -> Intent:
        store = self._archive.store
        with store.snapshot() as snapshot:
            rows = (store.row_of_id(one) for ids in expired.by_rule.values() for one in ids)
            found = {row: one for row in rows if row is not None and (one := snapshot.record(row)) is not None}
            ids = _event_ids(snapshot, found)
            return Intent(started_at=now, event_ids=ids, expired=expired.by_rule, with_journal=with_journal)

    def _carry_out(self, requested: Intent, now: datetime) -> ErasureReceipt:
        with self._erasing:
            folder, key = self._archive.store.folder, self._archive.store.key
            intent = logs.write_intent(folder, requested, key)
            is_last = requested.covers_journal_of(intent)
            if is_last and intent.with_journal:
                intent = msgspec.structs.replace(intent, with_journal=False)
                logs.replace_intent(folder, intent, key)
            self._forget(intent)
            reason = self._note(intent, now, once=True) or self._purge()
            if reason is None and is_last:
                logs.close_intent(folder)
        waiting = _IN_JOURNAL if not requested.with_journal and has_journal(folder) else None
        return self._receipt(intent, now, reason=reason or waiting or moved_aside_reason(folder))

    def _receipt(
        self, intent: Intent, now: datetime, *, dry_run: bool = False, reason: str | None = None
    ) -> ErasureReceipt:
        return ErasureReceipt.of(
            self._user_id, intent.all_ids, now, dry_run=dry_run, reason=reason, expired=intent.expired
        )

    def _admit(self, record_id: str, now: datetime) -> None:
        store = self._archive.store
        intent = logs.read_intent(store.folder, store.key)
        if intent is not None and record_id in intent.all_ids:
            spared = intent.without(record_id)
            logs.replace_intent(store.folder, spared, store.key)
            self._resumed = spared if self._resumed == intent else self._resumed
        if self.is_forgotten(record_id, now):
            logs.note_renewed_id(store.folder, self._user_id, record_id, now)

    def _mark_events_seen(self, event_ids: Sequence[str]) -> None:
        with self._archive.batch() as batch:
            unseen = [one for one in event_ids if batch.row_of_event(one) is None]
            if unseen:
                row = batch.allot_row()
                for one in unseen:
                    batch.link_event(one, row)

    def _note(self, intent: Intent, now: datetime, *, once: bool = False) -> str | None:
        """Add an intent to the history; on failure, return the reason, since erasure must work even on a full disk."""
        try:
            logs.note_erasure(self._archive.store.folder, self._user_id, intent, now, once=once)
        except StoreError as error:
            return str(error)
        return None

    def _purge(self) -> str | None:
        """Rebuild and compact the files, and remove copies of them; on failure, return the reason."""
        try:
            remove_copies(self._archive.store.folder)
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

    def _print(self, id_: str) -> str:
        return logs.fingerprint(self._user_id, id_)


def note_reimported(user_id: str, archive: Archive, now: datetime) -> None:
    """Record which erased memories an import brought back, so that restores keep them. Raises `StoreError`."""
    folder = archive.store.folder
    gone = logs.read_history(folder, user_id).memories_in(now)
    if gone:
        with archive.store.snapshot() as snapshot:
            found = {row: record for row, record in snapshot.scan() if logs.fingerprint(user_id, record.id) in gone}
            ids = (*(record.id for record in found.values()), *_event_ids(snapshot, found))
        logs.note_reimported_ids(folder, user_id, ids, now)


def _runs_of(snapshot: Snapshot, session_id: str | None) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the ids of a session's runs. For a run that shares its id with a run of another session, return its event
    ids instead.
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
    named = (record.event_id for record in found.values() if record.event_id)
    return tuple(sorted({*named, *snapshot.events_of(found)}))
