"""Complete erasure in a running daemon: the intent first, then the journal, the lanes and finally the memory.

After a crash in between, `resume` continues from the intent in the user's folder at the daemon's next start.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Iterable
from contextlib import AsyncExitStack, nullcontext, suppress
from datetime import UTC, datetime
from pathlib import Path
from weakref import WeakValueDictionary

import msgspec

from memory_agent.daemon.dispatcher import Dispatcher
from memory_agent.daemon.hosts import Hosts
from memory_agent.daemon.reactor import Reactor
from memory_agent.erasure.intent_log import Intent, erasable, read_intent
from memory_agent.erasure.receipt import ErasureReceipt, left_in_journal, left_shared, with_journal, with_shared
from memory_agent.erasure.selection import intent_for_absent_user
from memory_agent.erasure.user_removal import (
    erase_user_files,
    finish_removals,
    moved_aside_reason,
    note_absent_user_erased,
)
from memory_agent.errors import DeadlineExceededError, EncryptionKeyMissingError, MemoryAgentError, StoreDamagedError
from memory_agent.records.shared_requests import SharedPart
from memory_agent.storage.folders import known_users, user_folder
from memory_agent.storage.owners import keys_of
from memory_agent.storage.user_key import open_user_key
from memory_agent.verbs.params import EraseParams
from memory_agent.verbs.protocol import decode_reply, encode, encode_fields
from relay import AsyncSubscriber, EncryptionSettings, Erasable, Erased, RelayError
from relay.log import log

_LANE_PATIENCE_S = 60.0
_CLEARED_WITHIN_S = 45.0  # the relay clears its file at once, or after a rest where it just did
_LOOK_EVERY_S = 0.2
_DEADLINE_MS = 600_000.0


class DaemonEraser:
    """Erases for the users of one daemon. Lives in one event loop."""

    def __init__(
        self,
        hosts: Hosts,
        dispatcher: Dispatcher,
        reactor: Reactor,
        journal: AsyncSubscriber,
        data_dir: Path,
        encryption: EncryptionSettings,
        forget_shared: Callable[[str, bool], Awaitable[SharedPart]],
        tell_changes: Callable[[], Awaitable[None]],
    ) -> None:
        """`forget_shared` takes away what a user shared, and the user's part in all figures, or counts it (dry run).

        `tell_changes` takes the events of items that went from the journal (`Announcer.tell`).
        """
        self._forget_shared = forget_shared
        self._tell_changes = tell_changes
        self._hosts = hosts
        self._dispatcher = dispatcher
        self._reactor = reactor
        self._journal = journal
        self._data_dir = data_dir
        self._encryption = encryption
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def erase(self, user_id: str, params: EraseParams, deadline_ms: float) -> ErasureReceipt:
        """Erase and return the receipt. Idempotent: a repeat continues. Raises what the memory and the relay raise.

        Blocks that quote what is erased go with it, so none is published meanwhile.
        """
        quiet = nullcontext() if params.dry_run else self._reactor.paused(user_id)
        async with self._lock_of(user_id), quiet:
            if params.selection.everything:
                params.selection.check()
                return await self._erase_user(user_id, params, deadline_ms)
            if not user_folder(self._data_dir, user_id).exists():
                receipt = await self._erase_absent(user_id, params)
                if not user_folder(self._data_dir, user_id).exists():  # else an event arrived meanwhile
                    return receipt.of_ids(params.selection.ids, ())
            reply = await self._hosts.call(user_id, "erase_begin", encode_fields(params), deadline_ms)
            intent = decode_reply(reply, Intent)
            receipt = await self._carry_out(user_id, intent, dry_run=params.dry_run, deadline_ms=deadline_ms)
            return receipt.of_ids(params.selection.ids, intent.all_ids)

    async def resume(self) -> None:
        """Continue every erasure that a crash interrupted."""
        await self._finish_removals()
        await self.finish(list(known_users(self._data_dir)))

    async def finish(self, user_ids: Iterable[str]) -> None:
        """Continue the erasures of these users that wait for the journal, after a crash or by retention."""
        for user_id in user_ids:
            try:
                async with self._lock_of(user_id):
                    key = open_user_key(self._encryption, self._data_dir, user_id)
                    intent = await asyncio.to_thread(read_intent, user_folder(self._data_dir, user_id), key)
                    if intent is not None and intent.with_journal:
                        async with self._reactor.paused(user_id):
                            receipt = await self._finish(user_id, intent)
                        log.info(
                            "erasure.finished",
                            user_id=user_id,
                            memories=receipt.memories,
                            events=receipt.events,
                            by_rule=receipt.by_rule,
                        )
            except (MemoryAgentError, RelayError) as error:
                log.warning("erasure.not_finished", user_id=user_id, code=error.code)

    async def _finish(self, user_id: str, intent: Intent) -> ErasureReceipt:
        if intent.everything:
            return await self._remove(user_id, intent.all_ids, wait_s=0.0)
        return await self._carry_out(user_id, intent, dry_run=False, deadline_ms=_DEADLINE_MS, wait_s=0.0)

    async def _erase_absent(self, user_id: str, params: EraseParams) -> ErasureReceipt:
        """Erase the journal's events of a user without a store, without waking or creating the user."""
        intent = intent_for_absent_user(params.selection, _now())
        erased = await self._erase_events(user_id, intent, dry_run=params.dry_run)
        if params.dry_run:
            return with_journal(_dry(user_id, intent), erased, is_compact=False)
        await asyncio.to_thread(note_absent_user_erased, self._data_dir, user_id, intent, erased, _now())
        receipt = ErasureReceipt.of(user_id, (), _now())
        return with_journal(receipt, erased, is_compact=await self._is_cleared(_CLEARED_WITHIN_S))

    async def _erase_user(self, user_id: str, params: EraseParams, deadline_ms: float) -> ErasureReceipt:
        """Erase a whole user. An unreadable folder, damaged or without its key, is removed unread."""
        ids: tuple[str, ...] = ()
        if user_folder(self._data_dir, user_id).exists():
            with suppress(EncryptionKeyMissingError, StoreDamagedError):
                reply = await self._hosts.call(user_id, "erase_begin", encode_fields(params), deadline_ms)
                ids = decode_reply(reply, Intent).all_ids
        if params.dry_run:
            erased = await self._journal.erase(await self._everything(user_id), dry_run=True)
            shared, _ = await self._forgotten_shared(user_id, dry_run=True)
            receipt = with_shared(ErasureReceipt.of(user_id, ids, _now(), dry_run=True), shared)
            return with_journal(receipt, erased, is_compact=False)
        return await self._remove(user_id, ids, wait_s=_CLEARED_WITHIN_S)

    async def _remove(self, user_id: str, ids: Collection[str], *, wait_s: float) -> ErasureReceipt:
        """Pause the lane, so that no earlier event is handled any more; then keep the user asleep and remove it."""
        folder = user_folder(self._data_dir, user_id)
        async with AsyncExitStack() as stack:
            note_erased = await self._held(stack, user_id)
            erased = await self._journal.erase(await self._everything(user_id))
            note_erased(erased.seqs)
            self._dispatcher.forget_owner(user_id)
            await stack.enter_async_context(self._hosts.kept_asleep(user_id))
            shared, left = await self._forgotten_shared(user_id)  # while nothing of the user is being published
            await asyncio.to_thread(erase_user_files, self._data_dir, user_id, _now())
        log.info("user.erased", user_id=user_id, memories=len(ids), events=len(erased.seqs))
        reason = left or moved_aside_reason(folder, whole_user=True)
        receipt = with_shared(ErasureReceipt.of(user_id, ids, _now(), reason=reason), shared)
        return with_journal(receipt, erased, is_compact=await self._is_cleared(wait_s))

    async def _forgotten_shared(self, user_id: str, *, dry_run: bool = False) -> tuple[SharedPart, str | None]:
        """Return what the user shared, taken away unless `dry_run`, and why any is left or named in the journal.

        A store that cannot be read does not keep the user's own memories from being erased, nor does a full journal.
        """
        try:
            shared = await self._forget_shared(user_id, dry_run)
        except (EncryptionKeyMissingError, StoreDamagedError) as error:
            log.warning("erasure.without_shared", user_id=user_id, code=error.code)
            return SharedPart(), left_shared(error.code)
        if not dry_run:
            try:
                await self._tell_changes()
            except (MemoryAgentError, RelayError) as error:
                log.warning("changes.not_told", code=error.code)
                return shared, left_in_journal(error.code)
        return shared, None

    async def _held(self, stack: AsyncExitStack, user_id: str) -> Callable[[Iterable[int]], None]:
        try:
            async with asyncio.timeout(_LANE_PATIENCE_S):
                return await stack.enter_async_context(self._dispatcher.holding(user_id))
        except TimeoutError as error:
            raise DeadlineExceededError(f"{user_id}: a batch is under way and does not end") from error

    async def _everything(self, user_id: str) -> Erasable:
        return await self._with_system(user_id, Erasable(user_id=user_id, everything=True), None)

    async def _with_system(self, user_id: str, wanted: Erasable, among: frozenset[str] | None) -> Erasable:
        """Add the `system` events of this user, of these runs and sessions."""
        return msgspec.structs.replace(
            wanted,
            system_seqs=await self._dispatcher.system_events_of(user_id, among),
            quarantine_ids=await self._dispatcher.system_quarantine_of(user_id, among),
        )

    def _lock_of(self, user_id: str) -> asyncio.Lock:
        """Return the user's lock: a second erasure would close the first one's intent."""
        return self._locks.setdefault(user_id, asyncio.Lock())

    async def _finish_removals(self) -> None:
        try:
            if await asyncio.to_thread(finish_removals, self._data_dir):
                log.info("removals.finished")
        except MemoryAgentError as error:
            log.warning("removals.not_finished", code=error.code)

    async def _carry_out(
        self, user_id: str, intent: Intent, *, dry_run: bool, deadline_ms: float, wait_s: float = _CLEARED_WITHIN_S
    ) -> ErasureReceipt:
        erased = await self._erase_events(user_id, intent, dry_run=dry_run)
        if dry_run:
            return with_journal(_dry(user_id, intent), erased, is_compact=False)
        reply = await self._hosts.call(user_id, "erase_finish", encode(intent), deadline_ms)
        receipt = decode_reply(reply, ErasureReceipt)
        return with_journal(receipt, erased, is_compact=await self._is_cleared(wait_s))

    async def _erase_events(self, user_id: str, intent: Intent, *, dry_run: bool) -> Erased:
        """Erase from the journal and from the lanes."""
        among = keys_of(intent.session_id, intent.run_ids)
        wanted = await self._with_system(user_id, erasable(user_id, intent), among)
        erased = await self._journal.erase(wanted, dry_run=dry_run)
        if dry_run:
            return erased
        try:
            async with asyncio.timeout(_LANE_PATIENCE_S):
                await self._dispatcher.forget(user_id, erased.seqs)
        except TimeoutError as error:
            raise DeadlineExceededError(f"{user_id}: a batch is under way and does not end") from error
        return erased

    async def _is_cleared(self, wait_s: float) -> bool:
        """Wait until the relay has compacted its file; return whether it did."""
        end_s = time.monotonic() + wait_s
        while (await self._journal.stats()).journal.uncompacted:
            if time.monotonic() >= end_s:
                return False
            await asyncio.sleep(_LOOK_EVERY_S)
        return True


def _now() -> datetime:
    return datetime.now(UTC)


def _dry(user_id: str, intent: Intent) -> ErasureReceipt:
    return ErasureReceipt.of(user_id, intent.all_ids, datetime.now(UTC), dry_run=True, expired=intent.expired)
