"""Erasure in a running daemon: from the hooks' files, the journal, the lanes and the memories, on request and by
retention rules.

After a crash, `DaemonEraser.resume` continues from the intent in the user's folder. `RetentionRounds` wakes sleeping
users who have expired memories, one at a time. Hosts erase the expired memories of awake users during upkeep.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext, suppress
from datetime import UTC, datetime
from pathlib import Path
from weakref import WeakValueDictionary

import msgspec

from memory_agent.archiving import read_placement
from memory_agent.daemon.dispatcher import Dispatcher
from memory_agent.daemon.hosts import Hosts
from memory_agent.daemon.reactor import Reactor
from memory_agent.erasure.copies import with_copies
from memory_agent.erasure.hook_events import erase_hook_events
from memory_agent.erasure.logs import read_intent
from memory_agent.erasure.request import (
    ErasureReceipt,
    Intent,
    erasable,
    intent_for_absent_user,
    left_in_journal,
    left_shared,
    with_journal,
    with_shared,
)
from memory_agent.erasure.retention import RetentionRules, is_due_while_closed
from memory_agent.erasure.user_removal import (
    erase_user_files,
    finish_removals,
    moved_aside_reason,
    note_absent_user_erased,
)
from memory_agent.errors import (
    ArchiveDamagedError,
    DeadlineExceededError,
    EncryptionKeyMissingError,
    MemoryAgentError,
    StoreDamagedError,
    StoreError,
    StoreOwnedElsewhereError,
)
from memory_agent.records.placement import HOME
from memory_agent.records.shared_requests import Caller, ForgetUser, SharedPart
from memory_agent.settings import RetentionSettings, Settings
from memory_agent.signals import SignalTable
from memory_agent.storage.environment import open_user_key
from memory_agent.storage.folders import known_users, user_folder
from memory_agent.storage.owners import keys_of
from memory_agent.verbs.params import EraseParams, NoParams
from memory_agent.verbs.protocol import DEFAULT_USER, LONGEST_DEADLINE_MS, decode_reply, encode, encode_fields
from memory_agent.verbs.shared_params import AskSharedParams
from relay import SHARED_USER, AsyncSubscriber, Erasable, Erased, RelayError
from relay.log import log

_LANE_PATIENCE_S = 60.0
_COMPACTED_WITHIN_S = 45.0  # the relay compacts its file at once, or after a pause if it has just done so
_POLL_S = 0.2
_ROUND_S = 600.0


class DaemonEraser:
    """Carries out erasures for the users of one daemon. Must be used from a single event loop.

    A user on another node is first moved back to the daemon's node, because intents and erasure histories are files on
    the daemon's own machine.
    """

    def __init__(
        self,
        hosts: Hosts,
        dispatcher: Dispatcher,
        reactor: Reactor,
        journal: AsyncSubscriber,
        data_dir: Path,
        settings: Settings,
        publish_changes: Callable[[], Awaitable[None]],
    ) -> None:
        """`publish_changes` erases the events of withdrawn items from the journal (`Announcer.publish_changes`)."""
        self._publish_changes = publish_changes
        self._hosts = hosts
        self._dispatcher = dispatcher
        self._reactor = reactor
        self._journal = journal
        self._data_dir = data_dir
        self._settings = settings
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def erase(self, user_id: str, params: EraseParams, deadline_ms: float) -> ErasureReceipt:
        """Carry out the erasure; return its receipt.

        Idempotent: a repeat continues. Raises the errors of the memory and the relay.

        Also erases the hooks' events that are waiting in the data folder, and published blocks that quote an erased
        memory. No block is published during the erasure.
        """
        receipt = await self._erase(user_id, params, deadline_ms)
        return await asyncio.to_thread(with_copies, receipt, self._data_dir)

    async def _erase(self, user_id: str, params: EraseParams, deadline_ms: float) -> ErasureReceipt:
        quiet = nullcontext() if params.dry_run else self._reactor.paused(user_id)
        async with self._lock_of(user_id), quiet, self._hosts.kept_home(user_id):
            if params.selection.everything:
                params.selection.check()
                return await self._erase_user(user_id, params, deadline_ms)
            if not user_folder(self._data_dir, user_id).exists():
                receipt = await self._erase_absent(user_id, params)
                if not user_folder(self._data_dir, user_id).exists():  # no event arrived in the meantime
                    return receipt.of_ids(params.selection.ids, ())
            reply = await self._hosts.call(user_id, "erase_begin", encode_fields(params), deadline_ms)
            intent = decode_reply(reply, Intent)
            receipt = await self._carry_out(user_id, intent, dry_run=params.dry_run, deadline_ms=deadline_ms)
            return receipt.of_ids(params.selection.ids, intent.all_ids)

    async def resume(self) -> None:
        await self._finish_removals()
        await self.finish(list(known_users(self._data_dir)))

    async def finish(self, user_ids: Iterable[str]) -> None:
        """For these users, complete the erasures that have not reached the journal yet.

        These erasures were interrupted by a crash, or were started by retention rules.
        """
        for user_id in user_ids:
            try:
                async with self._lock_of(user_id):
                    key = open_user_key(self._settings.encryption, self._data_dir, user_id)
                    intent = await asyncio.to_thread(read_intent, user_folder(self._data_dir, user_id), key)
                    if intent is not None and intent.with_journal:
                        async with self._reactor.paused(user_id), self._hosts.kept_home(user_id):
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
        return await self._carry_out(user_id, intent, dry_run=False, deadline_ms=LONGEST_DEADLINE_MS, wait_s=0.0)

    async def _erase_absent(self, user_id: str, params: EraseParams) -> ErasureReceipt:
        """Erase the events of a user without a folder, and create no folder."""
        intent = intent_for_absent_user(params.selection, _now())
        erased = await self._erase_events(user_id, intent, dry_run=params.dry_run)
        if params.dry_run:
            return with_journal(_dry(user_id, intent), erased, is_compact=False)
        await asyncio.to_thread(note_absent_user_erased, self._data_dir, user_id, intent, erased, _now())
        receipt = ErasureReceipt.of(user_id, (), _now())
        return with_journal(receipt, erased, is_compact=await self._is_compacted(_COMPACTED_WITHIN_S))

    async def _erase_user(self, user_id: str, params: EraseParams, deadline_ms: float) -> ErasureReceipt:
        """A folder that is damaged, or whose key is missing, is removed without being read."""
        ids: tuple[str, ...] = ()
        if user_folder(self._data_dir, user_id).exists():
            with suppress(ArchiveDamagedError, EncryptionKeyMissingError, StoreDamagedError):
                reply = await self._hosts.call(user_id, "erase_begin", encode_fields(params), deadline_ms)
                ids = decode_reply(reply, Intent).all_ids
        if params.dry_run:
            erased = await self._journal.erase(await self._everything(user_id), dry_run=True)
            shared, _ = await self._forgotten_shared(user_id, dry_run=True)
            receipt = with_shared(ErasureReceipt.of(user_id, ids, _now(), dry_run=True), shared)
            return with_journal(receipt, erased, is_compact=False)
        return await self._remove(user_id, ids, wait_s=_COMPACTED_WITHIN_S)

    async def _remove(self, user_id: str, ids: Collection[str], *, wait_s: float) -> ErasureReceipt:
        """Pause the user's lane, so that no earlier event is ingested; then close the memory and remove its files."""
        folder = user_folder(self._data_dir, user_id)
        async with AsyncExitStack() as stack:
            async with _lane_timeout(user_id):
                note_erased = await stack.enter_async_context(self._dispatcher.holding(user_id))
            wanted = await self._everything(user_id)
            await self._erase_hook_events(wanted)
            erased = await self._journal.erase(wanted)
            note_erased(erased.seqs)
            self._dispatcher.forget_owner(user_id)
            await stack.enter_async_context(self._hosts.kept_asleep(user_id))
            shared, left = await self._forgotten_shared(user_id)  # while the user cannot publish
            await self._hosts.erase_archive(user_id)
            await asyncio.to_thread(erase_user_files, self._data_dir, user_id, _now(), self._settings.index)
        log.info("user.erased", user_id=user_id, memories=len(ids), events=len(erased.seqs))
        reason = left or moved_aside_reason(folder, whole_user=True)
        receipt = with_shared(ErasureReceipt.of(user_id, ids, _now(), reason=reason), shared)
        return with_journal(receipt, erased, is_compact=await self._is_compacted(wait_s))

    async def _forgotten_shared(self, user_id: str, *, dry_run: bool = False) -> tuple[SharedPart, str | None]:
        """Withdraw the user's shared items, unless `dry_run`; return the counts, and the reason if items remain.

        The user's own memories can be erased even if the store of shared items is unreadable or the journal is full.
        """
        try:
            shared = await self._forget_shared(user_id, dry_run)
        except StoreOwnedElsewhereError:
            raise
        except (EncryptionKeyMissingError, StoreError) as error:
            log.warning("erasure.without_shared", user_id=user_id, code=error.code)
            return SharedPart(), left_shared(error.code)
        if not dry_run:
            try:
                await self._publish_changes()
            except (MemoryAgentError, RelayError) as error:
                log.warning("changes.not_told", code=error.code)
                return shared, left_in_journal(error.code)
        return shared, None

    async def _forget_shared(self, user_id: str, dry_run: bool) -> SharedPart:
        """Withdraw the user's items and contributions to figures, or only count them (`dry_run`)."""
        if not await asyncio.to_thread(user_folder(self._data_dir, SHARED_USER).exists):
            return SharedPart()
        asked = AskSharedParams(caller=Caller(user_id=user_id), ask=ForgetUser(dry_run=dry_run))
        reply = await self._hosts.call(SHARED_USER, "ask_shared", encode_fields(asked), LONGEST_DEADLINE_MS)
        return decode_reply(reply, SharedPart)

    async def _everything(self, user_id: str) -> Erasable:
        return await self._with_system(user_id, Erasable(user_id=user_id, everything=True), None)

    async def _with_system(self, user_id: str, wanted: Erasable, among: frozenset[str] | None) -> Erasable:
        """Add the `system` events of this user's runs and sessions, or only of the runs and sessions in `among`."""
        return msgspec.structs.replace(
            wanted,
            system_seqs=await self._dispatcher.system_events_of(user_id, among),
            quarantine_ids=await self._dispatcher.system_quarantine_of(user_id, among),
        )

    def _lock_of(self, user_id: str) -> asyncio.Lock:
        """Return the user's lock. Without it, a concurrent erasure would clear the intent of the first erasure."""
        return self._locks.setdefault(user_id, asyncio.Lock())

    async def _finish_removals(self) -> None:
        try:
            if await asyncio.to_thread(finish_removals, self._data_dir):
                log.info("removals.finished")
        except MemoryAgentError as error:
            log.warning("removals.not_finished", code=error.code)

    async def _carry_out(
        self, user_id: str, intent: Intent, *, dry_run: bool, deadline_ms: float, wait_s: float = _COMPACTED_WITHIN_S
    ) -> ErasureReceipt:
        erased = await self._erase_events(user_id, intent, dry_run=dry_run)
        if dry_run:
            return with_journal(_dry(user_id, intent), erased, is_compact=False)
        reply = await self._hosts.call(user_id, "erase_finish", encode(intent), deadline_ms)
        receipt = decode_reply(reply, ErasureReceipt)
        return with_journal(receipt, erased, is_compact=await self._is_compacted(wait_s))

    async def _erase_events(self, user_id: str, intent: Intent, *, dry_run: bool) -> Erased:
        """Erase the user's events from the hooks' files, the journal and the lanes."""
        among = keys_of(intent.session_id, intent.run_ids)
        wanted = await self._with_system(user_id, erasable(user_id, intent), among)
        if not dry_run:
            await self._erase_hook_events(wanted)
        erased = await self._journal.erase(wanted, dry_run=dry_run)
        if not dry_run:
            async with _lane_timeout(user_id):
                await self._dispatcher.forget(user_id, erased.seqs)
        return erased

    async def _erase_hook_events(self, wanted: Erasable) -> None:
        await asyncio.to_thread(erase_hook_events, self._data_dir, wanted, DEFAULT_USER)

    async def _is_compacted(self, wait_s: float) -> bool:
        end_s = time.monotonic() + wait_s
        while (await self._journal.stats()).journal.uncompacted:
            if time.monotonic() >= end_s:
                return False
            await asyncio.sleep(_POLL_S)
        return True


@asynccontextmanager
async def _lane_timeout(user_id: str) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(_LANE_PATIENCE_S):
            yield
    except TimeoutError as error:
        raise DeadlineExceededError(f"{user_id}: a batch is still being ingested") from error


def _now() -> datetime:
    return datetime.now(UTC)


def _dry(user_id: str, intent: Intent) -> ErasureReceipt:
    return ErasureReceipt.of(user_id, intent.all_ids, _now(), dry_run=True, expired=intent.expired)


class RetentionRounds:
    """Erases expired memories of users who are asleep or on other nodes. Must be used from a single event loop."""

    def __init__(
        self, hosts: Hosts, eraser: DaemonEraser, data_dir: Path, settings: RetentionSettings, table: SignalTable
    ) -> None:
        self._hosts = hosts
        self._eraser = eraser
        self._data_dir = data_dir
        self._interval_s = settings.interval_s
        self._rules = RetentionRules(settings, table)

    async def run(self) -> None:
        """Visit users in rounds until cancelled; return immediately if there is no rule."""
        while not self._rules.is_off:
            await self.go_round(datetime.now(UTC))
            await asyncio.sleep(min(_ROUND_S, self._interval_s))

    async def go_round(self, now: datetime) -> None:
        for user_id in await asyncio.to_thread(self._due, now, self._awake_at_home()):
            if user_id in self._awake_at_home():
                continue  # woken in the meantime
            try:
                await self._visit(user_id)
            except MemoryAgentError as error:
                log.warning("memory.not_aged", user_id=user_id, code=error.code)
            await self._hosts.sleep(user_id)

    async def _visit(self, user_id: str) -> None:
        forgotten = -1
        async with self._hosts.kept_home(user_id):
            while forgotten:
                reply = await self._hosts.call(user_id, "age", encode(NoParams()), LONGEST_DEADLINE_MS)
                forgotten = decode_reply(reply, int)
                await self._eraser.finish((user_id,))

    def _due(self, now: datetime, awake: Collection[str]) -> list[str]:
        ageless = (*awake, SHARED_USER)  # no rule applies to shared items
        asleep = (user_id for user_id in known_users(self._data_dir) if user_id not in ageless)
        return [user_id for user_id in asleep if self._is_due(user_folder(self._data_dir, user_id), now)]

    def _is_due(self, folder: Path, now: datetime) -> bool:
        """Whether to visit a user not awake on this machine. Users on other nodes are visited once per interval."""
        try:
            placement = read_placement(folder)
        except StoreError:
            return True  # opening the store reports the error
        if placement.node != HOME:
            return now.timestamp() - placement.epoch >= self._interval_s
        return is_due_while_closed(folder, self._rules, self._interval_s, now)

    def _awake_at_home(self) -> list[str]:
        return [user_id for user_id in self._hosts.awake() if not self._hosts.is_away(user_id)]
