"""The verbs of a memory and of its daemon: one row each, from which everything else about a verb follows.

The clients' methods (`ops/documents/clients.py` writes them), the gateway's permissions, what is repeated after a lost
answer, the dispatch in the daemon and in its hosts, and the answers for users without a store are all read off this
table. To add a verb, add a row here and the method that it names, and run `python -m ops.documents`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Literal

import msgspec

from memory_agent.erasure.intent_log import Intent
from memory_agent.erasure.receipt import ErasureReceipt
from memory_agent.params import (
    AgeParams,
    EraseExpiredParams,
    EraseFinishParams,
    EraseParams,
    EraseUserParams,
    FeedbackParams,
    GetParams,
    IdsParams,
    NoParams,
    Params,
    QuarantineIdsParams,
    QuarantineParams,
    RecallParams,
    RememberParams,
    RunBeginParams,
    RunEndParams,
    RunIdParams,
    RunListParams,
    RunStepParams,
    SessionParams,
    SonaImportParams,
    WaitParams,
)
from memory_agent.protocol import (
    DaemonStatus,
    HostAddress,
    QuarantinedEvent,
    Request,
    RetryReport,
    encode_fields,
)
from memory_agent.records import Compacted, MemoryRecord, MemoryStats, RecallResult
from memory_agent.trajectory import FeedbackReport, SonaStatus, Trajectory
from relay import Scope

Repeat = Literal["never", "read", "idempotent", "by event id"]
About = Literal["user", "users in the parameters", "daemon"]
AnsweredBy = Literal["memory", "memory and journal", "daemon", "relay"]

USUAL_PATIENCE_MS = 10_000.0
_MINUTE_MS = 60_000.0
_LONGEST_MS = 600_000.0


@dataclass(frozen=True, kw_only=True)
class Verb:
    """One verb.

    `name` is its name on the wire; `method` is the dotted name of the method of `Memory` and of every client.
    `scope` is the scope that a key needs; None for steps that only the daemon itself takes. `repeat` says whether a
    request whose answer was lost may be sent again. `about` says for whom the key must be: for the request's user, for
    each user in the parameters, or for all users. `answered_by` says who answers in a daemon; an embedded `Memory` has
    the methods that are answered by a memory, alone or with the journal.
    """

    name: str
    method: str
    summary: str
    result: Any
    params: type[Params] = NoParams
    scope: Scope | None = Scope.ADMIN
    repeat: Repeat = "never"
    about: About = "user"
    answered_by: AnsweredBy = "memory"
    patience_ms: float = USUAL_PATIENCE_MS

    @property
    def is_repeatable(self) -> bool:
        """Whether a request may be sent again after its answer was lost."""
        return self.repeat != "never"

    @property
    def is_inner(self) -> bool:
        """Whether only the daemon itself asks for it."""
        return self.scope is None

    @property
    def is_embedded(self) -> bool:
        """Whether an embedded `Memory` has the method."""
        return self.answered_by in ("memory", "memory and journal")

    def call(self, arguments: Mapping[str, Any]) -> Call:
        """Return the request for these arguments of the method. Raises `InvalidInputError` before anything is sent."""
        params = self.params.of(**arguments)
        patience_ms = self.params.patience_ms(arguments)
        return Call(self, params, self.patience_ms if patience_ms is None else patience_ms)

    def answer(self, memory: Any, params: Params, remaining_ms: float) -> object:
        """Answer from a `Memory`, within what remains of the caller's patience."""
        arguments = params.arguments(remaining_ms, memory.usual_deadline_ms)
        return attrgetter(self.method)(memory)(**arguments)


@dataclass(frozen=True)
class Call:
    """One verb with its parameters and the caller's patience, ready to be sent."""

    verb: Verb
    params: Params
    patience_ms: float

    def encode(self, user_id: str, token: str) -> bytes:
        """Return the bytes of the request. Raises `InvalidInputError` naming what has no form on the wire."""
        request = Request(
            method=self.verb.name,
            user_id=user_id,
            deadline_ms=self.patience_ms,
            params=msgspec.Raw(encode_fields(self.params)),
            token=token,
            version=self.params.version,
        )
        return encode_fields(request)


VERBS: tuple[Verb, ...] = (
    Verb(
        name="recall",
        method="recall",
        summary="Return the memories that resemble a query, best first.",
        params=RecallParams,
        result=RecallResult,
        scope=Scope.RECALL,
        repeat="read",
    ),
    Verb(
        name="remember",
        method="remember",
        summary="Store a memory.",
        params=RememberParams,
        result=MemoryRecord,
        scope=Scope.PUBLISH,
    ),
    Verb(
        name="get",
        method="get",
        summary="Return memories by their ids.",
        params=GetParams,
        result=list[MemoryRecord],
        scope=Scope.RECALL,
        repeat="read",
    ),
    Verb(
        name="forget",
        method="forget",
        summary="Remove memories, their vectors and words.",
        params=IdsParams,
        result=int,
        repeat="idempotent",
    ),
    Verb(
        name="forget_session",
        method="forget_session",
        summary="Remove the memories, runs and recalls of a session.",
        params=SessionParams,
        result=int,
        repeat="idempotent",
    ),
    Verb(
        name="feedback",
        method="feedback",
        summary="Record which memories of a recall were used and how well it ended.",
        params=FeedbackParams,
        result=FeedbackReport,
        scope=Scope.PUBLISH,
        repeat="by event id",
    ),
    Verb(
        name="stats",
        method="stats",
        summary="Return the figures of a user's memory.",
        result=MemoryStats,
        scope=Scope.RECALL,
        repeat="read",
    ),
    Verb(
        name="run_begin",
        method="runs.begin",
        summary="Begin a run.",
        params=RunBeginParams,
        result=Trajectory,
        scope=Scope.PUBLISH,
        repeat="by event id",
    ),
    Verb(
        name="run_step",
        method="runs.step",
        summary="Record what a run did and which memories it used.",
        params=RunStepParams,
        result=Trajectory,
        scope=Scope.PUBLISH,
        repeat="by event id",
    ),
    Verb(
        name="run_end",
        method="runs.end",
        summary="End a run.",
        params=RunEndParams,
        result=Trajectory,
        scope=Scope.PUBLISH,
        repeat="by event id",
    ),
    Verb(
        name="run_get",
        method="runs.get",
        summary="Return a run, or None.",
        params=RunIdParams,
        result=Trajectory | None,
        scope=Scope.RECALL,
        repeat="read",
    ),
    Verb(
        name="run_list",
        method="runs.list",
        summary="Return runs, newest first.",
        params=RunListParams,
        result=list[Trajectory],
        scope=Scope.RECALL,
        repeat="read",
    ),
    Verb(
        name="sona_status",
        method="sona.status",
        summary="Return the state of the learner.",
        result=SonaStatus,
        scope=Scope.RECALL,
        repeat="read",
    ),
    Verb(
        name="sona_reset",
        method="sona.reset",
        summary="Discard what was learned, keeping the runs.",
        result=int,
        repeat="idempotent",
        patience_ms=_MINUTE_MS,
    ),
    Verb(
        name="sona_export",
        method="sona.export",
        summary="Return the ended runs with their recalls, for `sona.load`.",
        result=bytes,
        repeat="read",
        patience_ms=_MINUTE_MS,
    ),
    Verb(
        name="sona_import",
        method="sona.load",
        summary="Learn from exported runs.",
        params=SonaImportParams,
        result=int,
        repeat="idempotent",
        patience_ms=_MINUTE_MS,
    ),
    Verb(
        name="rebuild",
        method="care.rebuild",
        summary="Rebuild the vector index and the lexicon from the records.",
        result=int,
        patience_ms=_LONGEST_MS,
    ),
    Verb(
        name="compact",
        method="care.compact",
        summary="Return the disk space of deleted records.",
        result=Compacted,
        patience_ms=_LONGEST_MS,
    ),
    Verb(
        name="erase",
        method="erasure.erase",
        summary="Erase memories and their events from every file.",
        params=EraseParams,
        result=ErasureReceipt,
        answered_by="memory and journal",
        patience_ms=_LONGEST_MS,
    ),
    Verb(
        name="erase",
        method="erasure.erase_expired",
        summary="Erase what reached the age of a retention rule.",
        params=EraseExpiredParams,
        result=ErasureReceipt,
        answered_by="memory and journal",
        patience_ms=_LONGEST_MS,
    ),
    Verb(
        name="erase",
        method="erasure.erase_user",
        summary="Erase a user: memories, events, learner and folder.",
        params=EraseUserParams,
        result=ErasureReceipt,
        answered_by="daemon",
        patience_ms=_LONGEST_MS,
    ),
    Verb(
        name="erase_begin",
        method="erasure.start",
        summary="Select what is to be erased and record the intent.",
        params=EraseParams,
        result=Intent,
        scope=None,
        repeat="idempotent",
    ),
    Verb(
        name="erase_finish",
        method="erasure.carry_out",
        summary="Carry out a recorded erasure.",
        params=EraseFinishParams,
        result=ErasureReceipt,
        scope=None,
        repeat="idempotent",
    ),
    Verb(
        name="age",
        method="erasure.age",
        summary="Forget what reached its age, if a check is due.",
        params=AgeParams,
        result=int,
        scope=None,
        repeat="idempotent",
    ),
    Verb(
        name="status",
        method="status",
        summary="Return the state of the daemon.",
        result=DaemonStatus,
        about="daemon",
        answered_by="daemon",
    ),
    Verb(
        name="address",
        method="address",
        summary="Wake the user and return the Ray actor that hosts it.",
        result=HostAddress,
        about="daemon",
        answered_by="daemon",
    ),
    Verb(
        name="wait",
        method="wait",
        summary="Wait until all events up to a journal number are handled.",
        params=WaitParams,
        result=None,
        scope=Scope.PUBLISH,
        about="users in the parameters",
        answered_by="daemon",
    ),
    Verb(
        name="quarantine_list",
        method="quarantined",
        summary="Return quarantined events, oldest first.",
        params=QuarantineParams,
        result=list[QuarantinedEvent],
        about="daemon",
        answered_by="relay",
    ),
    Verb(
        name="quarantine_retry",
        method="retry_quarantined",
        summary="Try quarantined events again.",
        params=QuarantineIdsParams,
        result=RetryReport,
        about="daemon",
        answered_by="relay",
        patience_ms=_MINUTE_MS,
    ),
    Verb(
        name="quarantine_drop",
        method="drop_quarantined",
        summary="Delete quarantined events.",
        params=QuarantineIdsParams,
        result=int,
        about="daemon",
        answered_by="relay",
        patience_ms=_MINUTE_MS,
    ),
)
BY_NAME: dict[str, Verb] = {verb.name: verb for verb in reversed(VERBS)}
"""By the name on the wire. `erase` has three methods, which differ in their parameters alone."""
BY_METHOD: dict[str, Verb] = {verb.method: verb for verb in VERBS}
