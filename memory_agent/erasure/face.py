"""Complete erasure as people and programs ask for it, of one user's memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from typing import Any

import msgspec

from memory_agent.erasure.eraser import Eraser
from memory_agent.erasure.ledger import Intent
from memory_agent.erasure.receipt import ErasureReceipt
from memory_agent.erasure.selection import Selection
from memory_agent.errors import InvalidInputError
from memory_agent.forgetting import Forgetting
from memory_agent.recall.inquiry import check_now
from memory_agent.records import MemoryFilter
from memory_agent.storage.archive import Archive

Call = Callable[[], AbstractContextManager[None]]


class ErasureFace:
    """Erases from one memory. Every method raises `StoreError` when the store failed or was closed."""

    def __init__(self, user_id: str, archive: Archive, forgetting: Forgetting, call: Call) -> None:
        """`call` keeps the files open for as long as it takes."""
        self._eraser = Eraser(user_id, archive, forgetting)
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
        `InvalidInputError`.
        """
        moment = check_now(now)
        intent = self.plan(_selection(record_ids, session_id, filter), moment)
        if dry_run:
            return self._eraser.receipt(intent, moment, dry_run=True)
        return self.carry_out(intent, moment)

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

    def resume(self) -> bool:
        """Finish an erasure that a crash or a full disk broke off; return whether there was one."""
        with self._call():
            return self._eraser.resume()


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
