"""Complete erasure as people and programs ask for it, of one user's memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from datetime import datetime
from typing import Any

import msgspec

from memory_agent.config import RetentionSettings
from memory_agent.erasure.aging import Aging
from memory_agent.erasure.eraser import Eraser
from memory_agent.erasure.forgetting import Forgetting
from memory_agent.erasure.history import History
from memory_agent.erasure.ledger import Intent
from memory_agent.erasure.receipt import ErasureReceipt
from memory_agent.erasure.rules import Rules
from memory_agent.erasure.selection import Selection
from memory_agent.errors import InvalidInputError, MemoryAgentError
from memory_agent.recall.inquiry import check_now
from memory_agent.records import MemoryFilter
from memory_agent.signals.table import SignalTable
from memory_agent.storage.archive import Archive
from memory_agent.storage.fence import Role

Call = Callable[[], AbstractContextManager[None]]
_AGED_AT_WAKING = 1_000
_LOOKED_AT_WAKING = 20_000


class ErasureFace:
    """Erases from one memory. Every method raises `StoreError` when the store failed or was closed."""

    def __init__(
        self,
        user_id: str,
        archive: Archive,
        forgetting: Forgetting,
        retention: RetentionSettings,
        table: SignalTable,
        call: Call,
    ) -> None:
        """`call` keeps the files open for one call. Raises `SettingsError` for rules that cannot be meant."""
        self._aging = Aging(archive.store, Rules(retention, table), retention.interval_s)
        self._eraser = Eraser(user_id, archive, forgetting, self._aging)
        self._call = call

    def erase(
        self,
        record_ids: Sequence[str] = (),
        *,
        session_id: str | None = None,
        filter: MemoryFilter | Mapping[str, Any] | None = None,
        dry_run: bool = False,
        now: datetime | None = None,
    ) -> ErasureReceipt:
        """Forget completely: nothing of these memories is left in any file of the folder. Durable on return.

        What is named by id, is of this session, or passes the filter goes, with its runs and recalls. Slower than
        `Memory.forget`: the lexicon is built anew (.15 s per 1,000 memories) and the file of the records is copied. A
        crash half way is made up for when the memory is opened again. With `dry_run`, only the receipt is made. Raises
        `InvalidInputError`. Events in a daemon's journal, where this is one of its folders, go at the daemon's next
        start, and the receipt says so.
        """
        moment = check_now(now)
        return self._erase(_selection(record_ids, session_id, filter), moment, dry_run=dry_run)

    def erase_expired(self, *, dry_run: bool = False, now: datetime | None = None) -> ErasureReceipt:
        """Forget completely what has reached the age of a rule of retention (`retention_settings`), as `erase`.

        With `dry_run`, only the receipt is made: `by_rule` says how many would go by which rule.
        """
        return self._erase(Selection(expired=True), check_now(now), dry_run=dry_run)

    def age(self, now: datetime, limit: int | None = None) -> int:
        """Forget what has reached its age, if it is time to look; return how many memories. See `Eraser.age`."""
        with self._call():
            return self._eraser.age(now, limit)

    def age_at_opening(self, now: datetime, role: Role) -> int:
        """As `age`; a host, whose user is waited for, looks through a small memory only and forgets a part at most.

        Its upkeep does the rest. Looking takes .3 s in 20,000 memories, a part as long. What cannot be done now keeps
        nobody from the memories.
        """
        with suppress(MemoryAgentError), self._call():
            limits = (None, None) if role == "library" else (_AGED_AT_WAKING, _LOOKED_AT_WAKING)
            return self._eraser.age(now, *limits)
        return 0

    @contextmanager
    def noting_age(self) -> Iterator[None]:
        """Close the archive within this, so that it is kept when something reaches its age next."""
        with suppress(MemoryAgentError):
            self._aging.finish()
        yield
        self._aging.save()

    def plan(self, selection: Selection, now: datetime) -> Intent:
        """Return the memories of a selection and the events they were made of. Raises `InvalidInputError`."""
        with self._call():
            return self._eraser.plan(selection, now)

    def begin(self, intent: Intent) -> Intent:
        """Write down what is about to be done, for who erases from the journal before `carry_out`; durable on return.

        Returns it with what was begun before and is not through.
        """
        with self._call():
            return self._eraser.begin(intent)

    def receipt(self, intent: Intent, now: datetime) -> ErasureReceipt:
        """Return what a dry run says."""
        return self._eraser.receipt(intent, now, dry_run=True)

    def carry_out(self, intent: Intent, now: datetime) -> ErasureReceipt:
        """Erase what was planned; may be done again."""
        with self._call():
            return self._eraser.carry_out(intent, now)

    def forgotten(self, record_ids: Sequence[str] = (), session_id: str | None = None) -> None:
        """Keep that these are about to be forgotten quickly; inside a call of the memory. See `Eraser.forgotten`."""
        selection = _selection(record_ids, session_id, None)
        if selection == Selection():
            return
        selection.check()
        self._eraser.forgotten(selection, check_now(None))

    def erase_again(
        self, history: History, made_at: datetime, event_ids: Sequence[str], now: datetime | None = None
    ) -> list[Intent]:
        """Forget what was erased before from files that came back, as they were at `made_at`; return what was found.

        `event_ids` are events of the journal that were erased: they are repeats from now on.
        """
        moment = check_now(now)
        with self._call():
            intents = self._eraser.plan_again(history, made_at, event_ids, moment)
            for intent in intents:
                self._eraser.carry_out(msgspec.structs.replace(intent, with_journal=True), moment)
            self._eraser.know_events(event_ids)
            return intents

    def resume(self) -> bool:
        """Finish an erasure that a crash or a full disk broke off; return whether there was one."""
        with self._call():
            return self._eraser.resume()

    def _erase(self, selection: Selection, now: datetime, *, dry_run: bool) -> ErasureReceipt:
        intent = self.plan(selection, now)
        if dry_run:
            return self._eraser.receipt(intent, now, dry_run=True).of_ids(selection.ids, intent.all_ids)
        with self._call():
            if self._eraser.leaves_journal:
                self._eraser.begin(intent)
            return self._eraser.carry_out(intent, now).of_ids(selection.ids, intent.all_ids)


def _selection(
    record_ids: Sequence[str], session_id: str | None, filter: MemoryFilter | Mapping[str, Any] | None
) -> Selection:
    if isinstance(record_ids, str):
        raise InvalidInputError("ids", "must be a list of ids")
    if isinstance(filter, Mapping):
        try:
            filter = msgspec.convert(filter, MemoryFilter)
        except msgspec.ValidationError as error:
            raise InvalidInputError("filter", str(error)) from error
    return Selection(ids=tuple(record_ids), session_id=session_id, filter=filter)
