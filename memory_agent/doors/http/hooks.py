"""Answers the hooks of coding agents, which forward their input unparsed.

Publishes the events in the input, and recalls memories for it. The daemon does this work because imports and
computation take longer in a hook's own process.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any, NamedTuple, TypeVar

import msgspec

from memory_agent.doors.bodies import request_of
from memory_agent.doors.http.publishing import EventsRequest, Intake, publish_events
from memory_agent.doors.reception import Credential, Reception
from memory_agent.errors import InvalidInputError, MemoryAgentError
from memory_agent.hooks.current_sessions import CurrentSessions
from memory_agent.hooks.inputs import LISTENED
from memory_agent.hooks.report import Json, Origin, Report, encoded, read_report
from memory_agent.hooks.waiting import Batch, Waiting
from memory_agent.records.memories import RecallResult
from memory_agent.verbs import protocol
from memory_agent.verbs.table import BY_NAME
from relay import Principal, RelayError, described
from relay.access import LOCAL
from relay.log import log

STORED, UNSURE = 200, 202
"""STORED: the events are in the journal. UNSURE: the hook must send them again."""
LONGEST_MS = 60_000.0
_LATE_MS = 5_000.0
"""How long a recall may take. A late block is returned to the session's next hook.

With a shorter deadline, a slow recall would omit stages, and fewer blocks would arrive in time (55 of 100 instead of
80, measured).
"""
_MOST_LATE, _LATE_FOR_S = 256, 600.0
_ON_THE_WAY_S = 0.02

T = TypeVar("T")
Session = tuple[str, str, str, str]


class HookCall(msgspec.Struct, frozen=True, kw_only=True):
    """The query parameters of a hook (see `Origin`): its answer is due within `left_ms`, and `parent` started it."""

    client: str
    left_ms: float
    project: str = ""
    working: str = ""
    channel: str | None = None
    user: str | None = None
    parent: int | None = None

    @classmethod
    def of(cls, named: Mapping[str, str]) -> HookCall:
        try:
            call = msgspec.convert(named, described(cls), strict=False)
        except msgspec.ValidationError as error:
            raise InvalidInputError("query", str(error)) from error
        if call.client not in LISTENED:
            raise InvalidInputError("client", f"must be one of {', '.join(LISTENED)}")
        if not 0 <= call.left_ms <= LONGEST_MS:
            raise InvalidInputError("left_ms", f"must be from 0 to {LONGEST_MS:g}")
        return call


class Answered(NamedTuple):
    """The status, and the hook's output once it is known: a line, or nothing."""

    status: int
    line: Awaitable[bytes]


class _Late(NamedTuple):
    """A recall that missed the hook's deadline, the time of the deadline, and the number of removals before the recall
    began."""

    recall: asyncio.Task[str]
    since_s: float
    removals: int


class HookDoor:
    def __init__(self, reception: Reception, intake: Intake) -> None:
        self._reception = reception
        self._intake = intake
        self._sessions = CurrentSessions(intake.layout.agents)
        self._tasks: set[asyncio.Task[Any]] = set()
        self._late: dict[Session, _Late] = {}

    async def answer(self, data: bytes, call: HookCall, principal: Principal, credential: Credential) -> Answered:
        """Answer one input within its time limit. An invalid input yields no events and no answer.

        The recall comes first, because publishing and ingesting take three times as much processor time. Until the
        events are published, they are in a file, as if the hook had stored them. A late block is returned to the
        session's next hook.
        """
        until_s = asyncio.get_running_loop().time() + call.left_ms / 1000
        report = read_report(data, Origin(call.client, call.project, call.working, call.channel, call.user))
        events = [] if report is None else report.events()
        if report is not None and call.parent is not None and principal.key_id == LOCAL:
            self._sessions.set(call.parent, report.session)
        own = self._keep(events, principal)
        line = self._begin(self._line(report, events, call, credential, until_s))
        publishing = self._begin(self._publish(line, own, principal, credential))
        is_stored = bool(own.files) or not events or (await _is_done(publishing, until_s) and publishing.result())
        return Answered(STORED if is_stored else UNSURE, asyncio.shield(line))

    async def _line(
        self, report: Report | None, events: list[Json], call: HookCall, credential: Credential, until_s: float
    ) -> bytes:
        if report is None:
            return b""
        asked = report.recall(events, max(call.left_ms, _LATE_MS))
        session = (credential.token, call.user or "", call.client, report.session)
        self._drop_outdated()
        if asked is None:
            return report.answer(self._late_block(session) if report.takes_context else "")
        self._late.pop(session, None)
        removals = self._reception.removals
        recall = self._begin(self._recall(asked, call, credential))
        if await _is_done(recall, until_s - _ON_THE_WAY_S):
            return report.answer(recall.result())
        if report.session:
            self._late[session] = _Late(recall, asyncio.get_running_loop().time(), removals)
            if len(self._late) > _MOST_LATE:
                del self._late[next(iter(self._late))]
        return b""

    def _begin(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.create_task(work)
        self._tasks.add(task)  # an unreferenced task may be garbage-collected
        task.add_done_callback(self._tasks.discard)
        return task

    def _late_block(self, session: Session) -> str:
        """Return the late block for the session's last prompt if it is ready. Each block is returned once."""
        late = self._late.get(session)
        if late is None or not late.recall.done():
            return ""
        del self._late[session]
        return "" if late.recall.exception() else late.recall.result()

    def _drop_outdated(self) -> None:
        """Drop the late blocks that are old, or may contain memories that have been removed since."""
        oldest_s, removals = asyncio.get_running_loop().time() - _LATE_FOR_S, self._reception.removals
        outdated = [key for key, late in self._late.items() if late.removals != removals or late.since_s < oldest_s]
        for session in outdated:
            del self._late[session]

    def _keep(self, events: list[Json], principal: Principal) -> Batch:
        batch = tuple(map(encoded, events))
        waiting = self._waiting(principal)
        if not batch or waiting is None:
            return Batch(batch)
        try:
            return waiting.keep(batch)
        except OSError:
            return Batch(batch)

    def _waiting(self, principal: Principal) -> Waiting | None:
        """Return the folder for events, or None if the data folder is encrypted or the caller's key is not the local
        one."""
        layout = self._intake.layout
        return None if layout.is_encrypted or principal.key_id != LOCAL else Waiting(layout.hooks)

    async def _recall(self, asked: Json, call: HookCall, credential: Credential) -> str:
        fields: dict[str, Any] = dict(asked)
        deadline_ms = fields.pop("deadline_ms")
        try:
            request = request_of(BY_NAME["recall"], fields, credential.token, call.user, deadline_ms)
            found = protocol.decode_reply(await self._reception.answer(credential, request), RecallResult)
        except MemoryAgentError as error:
            log.info("hook.unanswered", code=error.code)
            return ""
        return found.context or ""

    async def _publish(
        self, line: asyncio.Task[bytes], own: Batch, principal: Principal, credential: Credential
    ) -> bool:
        """After the answer, publish waiting events and then new ones; return whether all are durable or refused."""
        await asyncio.wait({line})
        waiting = self._waiting(principal)
        try:
            batch = own if waiting is None else waiting.batch(own)
            while batch.events:
                asked = EventsRequest(events=tuple(_decoded(batch.events)))
                await publish_events(asked, principal, credential.token, self._intake)
                batch.forget()
                if batch.is_last or waiting is None:
                    break
                batch = waiting.batch(own)
        except (MemoryAgentError, RelayError) as error:
            log.info("hook.unpublished", code=error.code)
            return False
        except OSError as error:
            log.warning("hook.unpublished", error=type(error).__name__, errno=error.errno)
            return False
        finally:
            if waiting is not None:
                waiting.close()
        return True


async def _is_done(task: asyncio.Task[Any], until_s: float) -> bool:
    """Wait for a task, without cancelling it, until the event loop's clock reaches a time."""
    left_s = until_s - asyncio.get_running_loop().time()
    await asyncio.wait({task}, timeout=max(left_s, 0))
    return task.done()


def _decoded(events: Iterable[bytes]) -> Iterator[Json]:
    """Skip a line that a killed hook left unfinished."""
    for event in events:
        with suppress(msgspec.DecodeError):
            yield msgspec.json.decode(event, type=dict[str, Any])
