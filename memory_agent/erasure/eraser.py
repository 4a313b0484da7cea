"""Takes memories out of every file of one user's folder: records, indexes, learner, set-aside files, free pages.

The order: the intent is on the disk first; then the records go in one transaction, then what is derived from them is
built without them, then the file is compacted, because pages that were given up keep their bytes. Each step may be done
again. What this does not do: the journal and what else the relay keeps (`relay.erasing`).
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from datetime import datetime

import msgspec
import structlog

from memory_agent.erasure.aging import Aging, Expired
from memory_agent.erasure.forgetting import Forgetting
from memory_agent.erasure.history import History, fingerprint, note_erasure, note_returned, read_history
from memory_agent.erasure.ledger import Intent, close_intent, is_through, note_journal_done, read_intent, write_intent
from memory_agent.erasure.receipt import ErasureReceipt
from memory_agent.erasure.selection import Selection
from memory_agent.erasure.users import has_journal, why_aside
from memory_agent.errors import MemoryAgentError, StoreError
from memory_agent.records import MemoryRecord
from memory_agent.storage.archive import Archive
from memory_agent.storage.snapshot import Snapshot

log = structlog.get_logger()

IN_JOURNAL = "events of it are still in the journal beside: they go with the daemon's next start, or the next `forget`"


class Eraser:
    """Erases from one user's archive; one erasure at a time."""

    def __init__(self, user_id: str, archive: Archive, forgetting: Forgetting, aging: Aging) -> None:
        self._user_id = user_id
        self._archive = archive
        self._forgetting = forgetting
        self._aging = aging
        self._erasing = threading.Lock()
        self._resumed: Intent | None = None  # done as far as it can be done here; the journal is waited for

    def plan(self, selection: Selection, now: datetime) -> Intent:
        """Return what a selection comes to. Raises `InvalidInputError`."""
        selection.check()
        if selection.expired:
            return self._aged(self._aging.expired(now), now)
        with self._archive.store.snapshot() as snapshot:
            found = {row: record for row, record in snapshot.scan() if selection.takes(record)}
            if selection.session_id is not None:
                for row in self._forgetting.rows_of_session(snapshot, selection.session_id) - set(found):
                    record = snapshot.record(row)
                    if record is not None:
                        found[row] = record
            event_ids = () if selection.everything else _event_ids(snapshot, found)
            runs = snapshot.newest_trajectories() if selection.session_id is not None else ()
            run_ids = tuple(run.id for run in runs if run.session_id == selection.session_id)
        return Intent(
            started_at=now,
            record_ids=tuple(sorted(record.id for record in found.values())),
            event_ids=event_ids,
            session_id=selection.session_id,
            run_ids=run_ids,
            everything=selection.everything,
        )

    def age(self, now: datetime, limit: int | None = None, among: int | None = None) -> int:
        """Forget what has reached its age, at most `limit`, if it is time to look; return how many memories.

        A store of more than `among` is not looked through. Nobody finds any more what went. Where there is a journal,
        the rest is left to whoever has that (`carry_out`). Raises `StoreError`.
        """
        folder = self._archive.store.folder
        with self._erasing:
            is_large = among is not None and self._archive.store.count > among
            if is_large or not self._aging.is_due(now):
                return 0
            expired = self._aging.expired(now, limit)
            if expired.by_rule:
                intent = self._aged(expired, now)
                intent = write_intent(
                    folder, msgspec.structs.replace(intent, with_journal=has_journal(folder)), self._archive.store.key
                )
                self._forget(intent)
                if not intent.with_journal and self._note(intent, now) is None and self._purge() is None:
                    close_intent(folder)
            self._aging.settle(expired, now)
            return sum(map(len, expired.by_rule.values()))

    def forgotten(self, selection: Selection, now: datetime) -> None:
        """Keep that these memories are about to be forgotten, quickly, so that no restore brings them back."""
        with self._archive.store.snapshot() as snapshot:
            rows = [snapshot.row_of_id(one) for one in selection.ids if one]
            found = {row: record for row in rows if row is not None and (record := snapshot.record(row)) is not None}
            event_ids = _event_ids(snapshot, found) if found else ()
        if selection.session_id is not None:
            intent = self.plan(selection, now)
        else:
            ids = tuple(record.id for record in found.values())
            intent = Intent(started_at=now, record_ids=ids, event_ids=event_ids)
        self._note(intent, now)

    def plan_again(self, history: History, made_at: datetime, event_ids: Sequence[str], now: datetime) -> list[Intent]:
        """Return what in this store was erased before: memories by id, sessions if that was at `made_at` or later.

        `event_ids`: what the journal holds of what was erased.
        """
        later = history.since(made_at)
        with self._archive.store.snapshot() as snapshot:
            found = {row: record for row, record in snapshot.scan() if self._print(record.id) in history.memories}
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

    def know_events(self, event_ids: Sequence[str]) -> None:
        """Let events be repeats of what was forgotten, so that the journal does not bring them back. Durable."""
        with self._archive.batch() as batch:
            news = [one for one in event_ids if batch.row_of_event(one) is None]
            if news:
                row = batch.allot_row()
                for one in news:
                    batch.link_event(one, row)

    def _print(self, id_: str) -> str:
        return fingerprint(self._user_id, id_)

    @property
    def leaves_journal(self) -> bool:
        """Whether there is a journal beside, whose events somebody else has to erase."""
        return has_journal(self._archive.store.folder)

    def begin(self, intent: Intent) -> Intent:
        """Write down what is about to be done in the journal and here, and return it with what was not through yet."""
        with self._erasing:
            store = self._archive.store
            return write_intent(store.folder, msgspec.structs.replace(intent, with_journal=True), store.key)

    def carry_out(self, intent: Intent, now: datetime) -> ErasureReceipt:
        """Erase; what a full disk or a long reader keeps from being done now is done at the next chance.

        An intent with `with_journal` says that its events are gone from the journal. What was begun before and waits
        for the journal stays begun. Raises `StoreError` when not even the records could be removed; the intent stays,
        too.
        """
        with self._erasing:
            folder, key = self._archive.store.folder, self._archive.store.key
            asked, intent = intent, write_intent(folder, intent, key)
            is_last = is_through(asked, intent)
            if is_last and intent.with_journal:
                intent = note_journal_done(folder, intent, key)
            self._forget(intent)
            reason = self._note(intent, now, once=True) or self._purge()
            if reason is None and is_last:
                close_intent(folder)
        waiting = IN_JOURNAL if not asked.with_journal and self.leaves_journal else None
        return self.receipt(intent, now, reason=reason or waiting or why_aside(folder))

    def resume(self) -> bool:
        """Go on with what was begun before; return whether something was finished. Raises `StoreError`.

        A disk that is still full keeps nobody from the memories: it is tried again the next time.
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
        """Keep what was erased, for restores to come, or say what is in the way: forgetting works on a full disk."""
        try:
            note_erasure(self._archive.store.folder, self._user_id, intent, now, once=once)
        except StoreError as error:
            return str(error)
        return None

    def _purge(self) -> str | None:
        """Leave nothing in any file, or say what is in the way."""
        try:
            self._archive.purge()
        except (MemoryAgentError, OSError) as error:
            if structlog.is_configured():
                log.warning("erasure.not_complete", user_id=self._user_id, error=type(error).__name__)
            return str(error)
        return None

    def _forget(self, intent: Intent) -> None:
        if intent.session_id is not None:
            self._forgetting.session(intent.session_id)
        self._forgetting.memories(intent.record_ids)
        self._forgetting.expired(intent.expired)

    def _aged(self, expired: Expired, now: datetime) -> Intent:
        store = self._archive.store
        with store.snapshot() as snapshot:
            rows = ((store.row_of_id(one), one) for ids in expired.by_rule.values() for one in ids)
            found = {row: record for row, _ in rows if row is not None and (record := snapshot.record(row)) is not None}
            return Intent(started_at=now, event_ids=_event_ids(snapshot, found), expired=expired.by_rule)


def note_brought_back(user_id: str, archive: Archive, now: datetime) -> None:
    """Keep which memories that had been erased were imported again since: no restore is to take them. `StoreError`."""
    folder = archive.store.folder
    gone = read_history(folder, user_id).memories
    if gone:
        with archive.store.snapshot() as snapshot:
            found = {row: record for row, record in snapshot.scan() if fingerprint(user_id, record.id) in gone}
            ids = (*(record.id for record in found.values()), *_event_ids(snapshot, found))
        note_returned(folder, user_id, ids, now)


def _event_ids(snapshot: Snapshot, found: Mapping[int, MemoryRecord]) -> tuple[str, ...]:
    """Return the ids of the events that went into memories; a long id is known of the record's own event alone."""
    named = (record.event_id for record in found.values() if record.event_id)
    return tuple(sorted({*named, *snapshot.events_of(found)}))
