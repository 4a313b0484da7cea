"""Answers admitted requests, independently of the transport.

Requests to a user's memory are forwarded undecoded to the process that hosts the user. Each verb that the daemon or the
relay answers has a method here: `answer_` followed by its wire name.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import msgspec
from ulid import ULID

from memory_agent.daemon.absent_users import AbsentUsers
from memory_agent.daemon.dispatcher import Dispatcher
from memory_agent.daemon.erasure import DaemonEraser
from memory_agent.daemon.hosts import Hosts
from memory_agent.daemon.latency import LatencyWindow
from memory_agent.daemon.nodes import Nodes
from memory_agent.daemon.open_runs import OpenRuns
from memory_agent.erasure.request import ErasureReceipt
from memory_agent.errors import (
    DeadlineExceededError,
    InvalidInputError,
    MemoryAgentError,
    NothingSharedError,
    ProtocolError,
    ScopeMissingError,
    UnauthorizedError,
    UnavailableError,
    UnknownMethodError,
    UserNotAllowedError,
)
from memory_agent.records.memories import MemoryRecord, RecallResult, Utility
from memory_agent.records.shared_requests import Rights, rights_of
from memory_agent.records.trajectories import Trajectory
from memory_agent.verbs.params import (
    EraseParams,
    JoinParams,
    LeaveParams,
    NoParams,
    OwnerParams,
    QuarantineIdsParams,
    QuarantineParams,
    RememberParams,
    RunEndParams,
    WaitParams,
)
from memory_agent.verbs.protocol import (
    DaemonStatus,
    HostAddress,
    IngestBatch,
    JoinGrant,
    QuarantinedEvent,
    Request,
    RetryReport,
    decode,
    decode_reply,
    encode_fault,
    encode_result,
    fault_in,
    is_fault,
)
from memory_agent.verbs.table import BY_NAME, OF_ANY_STORE, Verb
from relay import (
    SHARED_USER,
    AsyncSubscriber,
    MalformedEventError,
    Principal,
    QuarantineEntry,
    RelayError,
    Scope,
    validate_event_user,
)
from relay.log import log

_PAGE = 200
_WRITES_SHARED = ("publish_confirm", "offer", "shared_name")
"""Verbs that create the store of shared items."""
_CHANGES_SHARED = ("publish_confirm", "unpublish")
"""Verbs that publish a change to the followers of shared items."""


@dataclass(frozen=True)
class Deployment:
    """The daemon as a whole: its status, its figures as text (`metrics`), and the other machines of its cluster."""

    describe: Callable[[], Awaitable[DaemonStatus]]
    measure: Callable[[], Awaitable[str]]
    nodes: Nodes


class _Judged(msgspec.Struct):
    is_cached: bool = False


class _Outcome(msgspec.Struct):
    """The fields of `RecallResult` that are counted. The others are not decoded."""

    degraded: tuple[str, ...] = ()
    judgement: _Judged | None = None


class Service:
    """Answers requests. Must be used from a single event loop."""

    def __init__(
        self,
        hosts: Hosts,
        dispatcher: Dispatcher,
        journal: AsyncSubscriber,
        eraser: DaemonEraser,
        absent_users: AbsentUsers,
        on_shared: Callable[[], None],
        deployment: Deployment,
    ) -> None:
        """`on_shared` is called after each request that may have changed shared items, including failed ones."""
        self._absent_users = absent_users
        self._hosts = hosts
        self._dispatcher = dispatcher
        self._journal = journal
        self._on_shared = on_shared
        self._eraser = eraser
        self._deployment = deployment
        self.open_runs: OpenRuns | None = None
        self.recall_latency = LatencyWindow()
        self.requests: Counter[tuple[str, bool]] = Counter()
        """The number of answered requests, by verb and by whether the answer is a fault."""
        self.degraded: Counter[str] = Counter()
        self.judged: Counter[bool] = Counter()
        """The number of recalls whose memories a judge selected, by whether the selection was cached."""

    async def handle(self, request: Request, principal: Principal) -> bytes:
        """Return the encoded reply to an admitted request; an error is encoded as a fault."""
        reply = await self._handle(request, principal)
        self.requests[request.method if request.method in BY_NAME else "unknown", is_fault(reply)] += 1
        return reply

    async def _handle(self, request: Request, principal: Principal) -> bytes:
        started_s = time.monotonic()
        try:
            reply = await self._answer(request, principal)
        except (ProtocolError, ScopeMissingError, UnauthorizedError, UserNotAllowedError) as error:
            # These errors concern the daemon's own request to the relay; the caller's request was checked earlier.
            return encode_fault(UnavailableError(f"relay: {error}"))
        except MemoryAgentError as error:
            return encode_fault(error)
        except RelayError as error:
            return encode_fault(UnavailableError(f"relay: {error}"))
        finally:
            if request.method in _CHANGES_SHARED:
                self._on_shared()
        if request.method == "recall":
            took_ms = (time.monotonic() - started_s) * 1000
            asyncio.get_running_loop().call_soon(self._note_recall, request.user_id, took_ms, reply)  # after the reply
        return reply

    async def _answer(self, request: Request, principal: Principal) -> bytes:
        user_id = _checked(request)
        verb = BY_NAME.get(request.method)
        if verb is None or verb.scope is None:
            raise UnknownMethodError(request.method)
        if verb.answered_by != "memory":
            answer = getattr(self, f"answer_{verb.name}")
            return encode_result(await answer(request, decode(request.params, verb.params)))
        rights = rights_of(principal)
        if verb.repeat != "read" or not self._hosts.is_awake(user_id):
            absent = await self._absent_users.answer(user_id, verb, request, rights)
            if absent is not None:
                return absent
        if verb.name == "recall":
            return await self._recall(user_id, request, rights)
        if verb.name in _WRITES_SHARED:
            return await self._write_shared(user_id, verb, request, rights)
        reply = await self._hosts.call(user_id, verb.name, bytes(request.params), request.deadline_ms, rights)
        if verb.name == "remember" and Scope.RECALL not in principal.scopes:
            return _as_stated(reply, decode(request.params, RememberParams))
        if verb.name == "run_begin":
            run = decode_reply(reply, Trajectory)
            self._dispatcher.claim_run(run.id, user_id, is_vouched=principal.origin.for_all)
            if self.open_runs is not None:
                self.open_runs.begin(user_id, run.id, run.session_id)
        if verb.name == "run_end" and self.open_runs is not None:
            self.open_runs.end(user_id, decode(request.params, RunEndParams).run_id)
        return reply

    async def _write_shared(self, user_id: str, verb: Verb, request: Request, rights: Rights) -> bytes:
        """Return the reply from the user's memory to a verb that writes to the store of shared items.

        Wakes the store first, because the user's host connects to it directly. Creates the store only if the memory
        would otherwise accept the request.
        """
        started_s = time.monotonic()
        is_known = not self._absent_users.is_absent(SHARED_USER)
        if is_known:
            await self._hosts.wake(SHARED_USER, request.deadline_ms)
        reply = await self._hosts.call(user_id, verb.name, bytes(request.params), request.deadline_ms, rights)
        if is_known or not _misses_store(reply):
            return reply
        await self._hosts.wake(SHARED_USER, request.deadline_ms)
        left_ms = request.deadline_ms - (time.monotonic() - started_s) * 1000
        return await self._hosts.call(user_id, verb.name, bytes(request.params), left_ms, rights)

    async def _recall(self, user_id: str, request: Request, rights: Rights) -> bytes:
        """After the deadline, the answer is empty, because recall is advisory.

        If the user was asleep, `degraded` also contains `waking`; the user is awake by the next recall.
        """
        started_s = time.monotonic()
        was_awake = self._hosts.is_awake(user_id)
        try:
            reply = await self._hosts.call(user_id, "recall", bytes(request.params), request.deadline_ms, rights)
        except DeadlineExceededError:
            took_ms = (time.monotonic() - started_s) * 1000
            log.warning("recall.not_answered", user_id=user_id, took_ms=round(took_ms, 2), was_awake=was_awake)
            nothing = RecallResult(recall_id=str(ULID()), memories=(), degraded=("deadline",), took_ms=took_ms)
            reply = encode_result(nothing)
        return reply if was_awake else _with_waking(reply)

    def _note_recall(self, user_id: str, took_ms: float, reply: bytes) -> None:
        self.recall_latency.add(took_ms)
        if not is_fault(reply):
            outcome = decode_reply(reply, _Outcome)
            self.degraded.update(outcome.degraded)
            if outcome.judgement is not None:
                self.judged[outcome.judgement.is_cached] += 1
        log.info("recall.answered", user_id=user_id, took_ms=round(took_ms, 2))

    async def answer_erase(self, request: Request, params: EraseParams) -> ErasureReceipt:
        return await self._eraser.erase(request.user_id, params, request.deadline_ms)

    async def answer_status(self, _request: Request, _params: NoParams) -> DaemonStatus:
        return await self._deployment.describe()

    async def answer_metrics(self, _request: Request, _params: NoParams) -> str:
        return await self._deployment.measure()

    async def answer_address(self, request: Request, _params: NoParams) -> HostAddress:
        return await self._hosts.address(request.user_id, request.deadline_ms)

    async def answer_join(self, _request: Request, params: JoinParams) -> JoinGrant:
        """Only encrypted connections and connections from this machine reach the gateway."""
        return await self._deployment.nodes.join(params)

    async def answer_leave(self, _request: Request, params: LeaveParams) -> None:
        await self._deployment.nodes.leave(params.name)

    async def answer_wait(self, request: Request, params: WaitParams) -> None:
        await self._dispatcher.wait(params.through, request.deadline_ms / 1000)

    async def answer_owner(self, _request: Request, params: OwnerParams) -> str | None:
        return self._dispatcher.owner(params.run_id, params.session_id)

    async def answer_quarantine_list(self, _request: Request, params: QuarantineParams) -> list[QuarantinedEvent]:
        return [QuarantinedEvent.of(entry) for entry in await self._journal.quarantined(params.after, params.limit)]

    async def answer_quarantine_drop(self, _request: Request, params: QuarantineIdsParams) -> int:
        entries = await self._chosen(params.ids)
        for entry in entries:
            await self._journal.drop_quarantined(entry.id)
        return len(entries)

    async def answer_quarantine_retry(self, _request: Request, params: QuarantineIdsParams) -> RetryReport:
        handled = [await self._retry(entry) for entry in await self._chosen(params.ids)]
        return RetryReport(handled=handled.count(True), still_failing=handled.count(False))

    async def _retry(self, entry: QuarantineEntry) -> bool:
        """Retry one event: send it to the relay if the relay refused it, and to the memory otherwise."""
        user_id = entry.source.removeprefix("memory:")
        if user_id == entry.source or entry.seq is None:
            return await self._journal.retry_quarantined(entry.id)
        batch = IngestBatch(events=((entry.seq, entry.data),), replay=True)
        try:
            owner = self._dispatcher.owner_of(user_id, entry.data)
            report = await self._hosts.ingest(owner, batch)
            if self._hosts.is_away(owner):
                await self._hosts.archive(owner)  # the quarantine is the only other copy
        except MemoryAgentError as error:
            log.warning("quarantine.retry_failed", id=entry.id, code=error.code)
            return False
        if report.rejected:
            return False
        await self._journal.drop_quarantined(entry.id)
        return True

    async def _chosen(self, ids: tuple[int, ...]) -> list[QuarantineEntry]:
        entries: list[QuarantineEntry] = []
        after = 0
        while page := await self._journal.quarantined(after, _PAGE):
            entries += [entry for entry in page if not ids or entry.id in ids]
            after = page[-1].id
        missing = set(ids) - {entry.id for entry in entries}
        if missing:
            raise InvalidInputError("ids", f"not in quarantine: {sorted(missing)}")
        return entries


def _as_stated(reply: bytes, params: RememberParams) -> bytes:
    """Return the reply to `remember` for a key without the scope `recall`. It contains only the fields of a new memory.

    A memory that replaced another keeps fields of the earlier one, which the holder of such a key must not see.
    """
    record = decode_reply(reply, MemoryRecord)
    timestamp = record.timestamp if params.timestamp is not None else record.updated_at or record.timestamp
    stated = msgspec.structs.replace(
        record,
        timestamp=timestamp,
        event_id=None,
        last_recalled_at=None,
        times_recalled=0,
        utility=Utility(),
        updated_at=None,
    )
    return encode_result(stated)


def _misses_store(reply: bytes) -> bool:
    fault = fault_in(reply)
    return fault is not None and fault.code == NothingSharedError.code


def _with_waking(reply: bytes) -> bytes:
    """Add `waking` to the reply of a recall that missed its deadline because the user was asleep."""
    try:
        result = decode_reply(reply, RecallResult)
    except MemoryAgentError:
        return reply
    if "deadline" not in result.degraded:
        return reply
    return encode_result(msgspec.structs.replace(result, degraded=(*result.degraded, "waking")))


def _checked(request: Request) -> str:
    """For some verbs the store of shared items counts as a user."""
    if request.user_id == SHARED_USER and request.method in OF_ANY_STORE:
        return SHARED_USER
    try:
        return validate_event_user(request.user_id)
    except MalformedEventError as error:
        raise InvalidInputError("user_id", error.reason) from error
