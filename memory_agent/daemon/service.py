"""The daemon's verbs, whatever carries the request: transport-free.

Verbs of one user go to the process that hosts the user, undecoded. Verbs of the daemon are answered here.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import structlog
from ulid import ULID

from memory_agent.daemon.dispatcher import Dispatcher
from memory_agent.daemon.erasing import DaemonEraser
from memory_agent.daemon.hosts import Hosts
from memory_agent.daemon.latency import LatencyWindow
from memory_agent.daemon.strangers import Strangers
from memory_agent.daemon.verbs import USER_METHODS
from memory_agent.errors import (
    DeadlineExceededError,
    InvalidInputError,
    MemoryAgentError,
    ScopeMissingError,
    UnauthorizedError,
    UnavailableError,
    UnknownMethodError,
    UserNotAllowedError,
)
from memory_agent.protocol import (
    DaemonStatus,
    EraseParams,
    HostAddress,
    IngestBatch,
    NoParams,
    QuarantinedEvent,
    QuarantineIdsParams,
    QuarantineParams,
    Request,
    RetryReport,
    WaitParams,
    decode,
    decode_reply,
    encode_fault,
    encode_result,
)
from memory_agent.quarantine import describe
from memory_agent.records import IngestReport, RecallResult
from memory_agent.trajectory import Trajectory
from relay import AsyncSubscriber, MalformedEventError, Principal, QuarantineEntry, RelayError, validate_user_id

log = structlog.get_logger()

_PAGE = 200


class Service:
    """Answers requests. Lives in one event loop."""

    def __init__(
        self,
        hosts: Hosts,
        dispatcher: Dispatcher,
        journal: AsyncSubscriber,
        eraser: DaemonEraser,
        strangers: Strangers,
        describe: Callable[[], Awaitable[DaemonStatus]],
    ) -> None:
        """`describe` tells what only the daemon knows: its parts and endpoints."""
        self._strangers = strangers
        self._hosts = hosts
        self._dispatcher = dispatcher
        self._journal = journal
        self._describe = describe
        self._eraser = eraser
        self.recall_latency = LatencyWindow()

    async def handle(self, request: Request, principal: Principal) -> bytes:
        """Return the encoded reply to what `principal` may ask (`scopes`); what goes wrong is in the reply."""
        started_s = time.monotonic()
        try:
            reply = await self._answer(request, principal)
        except (ScopeMissingError, UnauthorizedError, UserNotAllowedError) as error:
            # Of the daemon's key at the relay: the caller's key was checked before.
            return encode_fault(UnavailableError(f"relay: {error}"))
        except MemoryAgentError as error:
            return encode_fault(error)
        except RelayError as error:
            return encode_fault(UnavailableError(f"relay: {error}"))
        if request.method == "recall":
            self._note_recall(request.user_id, (time.monotonic() - started_s) * 1000)
        return reply

    async def _answer(self, request: Request, principal: Principal) -> bytes:
        user_id = _checked(request.user_id)
        if request.method not in METHODS:
            raise UnknownMethodError(request.method)
        unknown = self._strangers.answer(user_id, request.method, bytes(request.params))
        if unknown is not None:
            return unknown
        if request.method == "recall":
            return await self._recall(user_id, request)
        if request.method == "erase":
            params = decode(request.params, EraseParams)
            return encode_result(await self._eraser.erase(user_id, params, request.deadline_ms))
        if request.method in USER_METHODS:
            reply = await self._hosts.call(user_id, request.method, bytes(request.params), request.deadline_ms)
            if request.method == "run_begin":
                run = decode_reply(reply, Trajectory)
                self._dispatcher.claim_run(run.id, user_id, is_vouched=principal.origin.for_all)
            return reply
        params_type, answer = _VERBS[request.method]
        return encode_result(await answer(self, request, decode(request.params, params_type)))

    async def _recall(self, user_id: str, request: Request) -> bytes:
        """Return the answer of the user's memory, or an empty one where it does not come in time: recall is advice.

        A user who was asleep is awake for the next one, and it is said that this was why.
        """
        started_s = time.monotonic()
        was_awake = self._hosts.is_awake(user_id)
        try:
            reply = await self._hosts.call(user_id, "recall", bytes(request.params), request.deadline_ms)
        except DeadlineExceededError:
            took_ms = (time.monotonic() - started_s) * 1000
            log.warning("recall.not_answered", user_id=user_id, took_ms=round(took_ms, 2), was_awake=was_awake)
            nothing = RecallResult(recall_id=str(ULID()), memories=(), degraded=("deadline",), took_ms=took_ms)
            reply = encode_result(nothing)
        return reply if was_awake else _with_waking(reply)

    def _note_recall(self, user_id: str, took_ms: float) -> None:
        self.recall_latency.add(took_ms)
        log.info("recall.answered", user_id=user_id, took_ms=round(took_ms, 2))

    async def _status(self, _request: Request, _params: NoParams) -> DaemonStatus:
        return await self._describe()

    async def _address(self, request: Request, _params: NoParams) -> HostAddress:
        return await self._hosts.address(request.user_id, request.deadline_ms)

    async def _wait(self, request: Request, params: WaitParams) -> None:
        await self._dispatcher.wait(params.through, request.deadline_ms / 1000)

    async def _quarantine_list(self, _request: Request, params: QuarantineParams) -> list[QuarantinedEvent]:
        return [describe(entry) for entry in await self._journal.quarantined(params.after, params.limit)]

    async def _quarantine_drop(self, _request: Request, params: QuarantineIdsParams) -> int:
        entries = await self._chosen(params.ids)
        for entry in entries:
            await self._journal.drop_quarantined(entry.id)
        return len(entries)

    async def _quarantine_retry(self, _request: Request, params: QuarantineIdsParams) -> RetryReport:
        handled = failing = 0
        for entry in await self._chosen(params.ids):
            if await self._retry(entry):
                handled += 1
            else:
                failing += 1
        return RetryReport(handled=handled, still_failing=failing)

    async def _retry(self, entry: QuarantineEntry) -> bool:
        """Try one event again: unread ones at the relay, refused ones at the memory."""
        user_id = entry.source.removeprefix("memory:")
        if user_id == entry.source or entry.seq is None:
            return await self._journal.retry_quarantined(entry.id)
        batch = IngestBatch(events=((entry.seq, entry.data),), replay=True)
        try:
            report: IngestReport = await self._dispatcher.ingest(self._dispatcher.owner_of(user_id, entry.data), batch)
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


def _with_waking(reply: bytes) -> bytes:
    """Name the waking of its user in the reply to a recall that time was up for."""
    try:
        result = decode_reply(reply, RecallResult)
    except MemoryAgentError:
        return reply
    if "deadline" not in result.degraded:
        return reply
    return encode_result(msgspec.structs.replace(result, degraded=(*result.degraded, "waking")))


def _checked(user_id: str) -> str:
    try:
        return validate_user_id(user_id)
    except MalformedEventError as error:
        raise InvalidInputError("user_id", error.reason) from error


_VERBS: dict[str, tuple[type[Any], Callable[[Service, Request, Any], Awaitable[object]]]] = {
    "status": (NoParams, Service._status),
    "address": (NoParams, Service._address),
    "wait": (WaitParams, Service._wait),
    "quarantine_list": (QuarantineParams, Service._quarantine_list),
    "quarantine_retry": (QuarantineIdsParams, Service._quarantine_retry),
    "quarantine_drop": (QuarantineIdsParams, Service._quarantine_drop),
}
METHODS = USER_METHODS | frozenset(_VERBS) | {"erase"}
"""All that can be asked of a daemon."""
