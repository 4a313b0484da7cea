"""Takes memories out of every file of one user's folder: records, indexes, learner, set-aside files, free pages.

The order: the intent is on the disk first; then the records go in one transaction, then what is derived from them is
built without them, then the file is compacted, because pages that were given up keep their bytes. Each step may be done
again. What this does not do: the journal and what else the relay keeps (`relay.erasing`).
"""

from __future__ import annotations

import threading
from datetime import datetime

import msgspec
import structlog

from memory_agent.erasure.ledger import Intent, close_intent, is_through, note_journal_done, read_intent, write_intent
from memory_agent.erasure.receipt import ErasureReceipt
from memory_agent.erasure.selection import Selection
from memory_agent.erasure.users import why_aside
from memory_agent.errors import MemoryAgentError
from memory_agent.forgetting import Forgetting
from memory_agent.storage.archive import Archive

log = structlog.get_logger()


class Eraser:
    """Erases from one user's archive; one erasure at a time."""

    def __init__(self, user_id: str, archive: Archive, forgetting: Forgetting) -> None:
        self._user_id = user_id
        self._archive = archive
        self._forgetting = forgetting
        self._erasing = threading.Lock()

    def plan(self, selection: Selection, now: datetime) -> Intent:
        """Return what a selection comes to. Raises `InvalidInputError`."""
        selection.check()
        store = self._archive.store
        with store.snapshot() as snapshot:
            found = {row: record for row, record in snapshot.scan() if selection.takes(record)}
            if selection.session_id is not None:
                for row in self._forgetting.rows_of_session(snapshot, selection.session_id) - set(found):
                    record = snapshot.record(row)
                    if record is not None:
                        found[row] = record
            event_ids = snapshot.events_of(found)
            runs = snapshot.newest_trajectories() if selection.session_id is not None else ()
            run_ids = tuple(run.id for run in runs if run.session_id == selection.session_id)
        named = (record.event_id for record in found.values() if record.event_id)
        return Intent(
            started_at=now,
            record_ids=tuple(sorted(record.id for record in found.values())),
            event_ids=tuple(sorted({*named, *event_ids})),
            session_id=selection.session_id,
            run_ids=run_ids,
        )

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
            reason = self._purge()
            if reason is None and is_last:
                close_intent(folder)
        return self.receipt(intent, now, reason=reason or why_aside(folder))

    def resume(self) -> bool:
        """Go on with what was begun before; return whether something was finished. Raises `StoreError`.

        A disk that is still full keeps nobody from the memories: it is tried again the next time.
        """
        with self._erasing:
            intent = read_intent(self._archive.store.folder, self._archive.store.key)
            if intent is None:
                return False
            self._forget(intent)
            is_done = self._purge() is None
            if is_done and not intent.with_journal:
                close_intent(self._archive.store.folder)
            return is_done

    def receipt(
        self, intent: Intent, now: datetime, *, dry_run: bool = False, reason: str | None = None
    ) -> ErasureReceipt:
        """Return the receipt of an erasure."""
        return ErasureReceipt.of(self._user_id, intent.record_ids, now, dry_run=dry_run, reason=reason)

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
