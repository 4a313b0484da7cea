"""The verbs of a memory and of its daemon: one row each, from which everything else about a verb follows.

The clients' methods (`ops/documents/clients.py` writes them), the gateway's permissions, what is repeated after a lost
answer, the dispatch in the daemon and in its hosts, and the answers for users without a store all follow from this
table. To add a verb, add a row here and the method that it names, and run `python -m ops.documents`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from operator import attrgetter
from typing import Any, Literal

import msgspec

from memory_agent.erasure.intent_log import Intent
from memory_agent.erasure.receipt import ErasureReceipt
from memory_agent.records.memories import Compacted, MemoryPage, MemoryRecord, MemoryStats, RecallResult
from memory_agent.records.shared import (
    FoundItem,
    GlobalRecord,
    OfferedPattern,
    PublishPreview,
    QualityMetrics,
    SharedFile,
    UnpublishReceipt,
)
from memory_agent.records.shared_requests import NO_RIGHTS, Rights
from memory_agent.records.trajectories import FeedbackReport, SimilarRun, SonaStatus, Trajectory
from memory_agent.triggers.block import Block
from memory_agent.verbs.params import (
    AgeParams,
    AskSharedParams,
    ConfirmParams,
    EraseExpiredParams,
    EraseFinishParams,
    EraseParams,
    EraseUserParams,
    FeedbackParams,
    GetParams,
    IdsParams,
    ItemParams,
    ListParams,
    NameParams,
    NoParams,
    OfferParams,
    OwnerParams,
    Params,
    PreviewParams,
    QuarantineIdsParams,
    QuarantineParams,
    RateParams,
    ReactParams,
    RebuildParams,
    RecallParams,
    RememberParams,
    RunBeginParams,
    RunEndParams,
    RunIdParams,
    RunListParams,
    RunSimilarParams,
    RunStepParams,
    SearchSharedParams,
    SessionParams,
    SonaImportParams,
    WaitParams,
)
from memory_agent.verbs.protocol import (
    DaemonStatus,
    HostAddress,
    QuarantinedEvent,
    Request,
    RetryReport,
    encode_fields,
)
from relay import Scope

Repeat = Literal["never", "read", "idempotent", "by event id"]
About = Literal["user", "named users", "daemon"]
AnsweredBy = Literal["memory", "memory and journal", "daemon", "relay"]

USUAL_PATIENCE_MS = 10_000.0
_MINUTE_MS = 60_000.0
_LONGEST_MS = 600_000.0


@dataclass(frozen=True)
class Verb:
    """One verb.

    `name` is its name on the wire; `method` is the dotted name of the method of `Memory` and of every client.
    `scope` is the scope that a key needs; None for verbs that only the daemon itself calls. `repeat` says whether a
    request whose answer was lost may be sent again. `about` says which users the key must cover: the request's user,
    each user that the parameters name, or all users. `answered_by` is the part of a daemon that answers; an embedded
    `Memory` has the methods that a memory answers, alone or with the journal.
    """

    name: str
    method: str
    params: type[Params]
    result: Any
    summary: str
    _: KW_ONLY
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
        """Whether only the daemon itself calls it."""
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

    def answer(self, memory: Any, params: Params, remaining_ms: float, rights: Rights = NO_RIGHTS) -> object:
        """Answer from a `Memory`, within the remaining deadline, for a caller with these rights."""
        arguments = params.arguments(remaining_ms, memory.usual_deadline_ms)
        return attrgetter(self.method)(memory.with_rights(rights))(**arguments)


@dataclass(frozen=True)
class Call:
    """One verb with its parameters and its deadline, ready to be sent."""

    verb: Verb
    params: Params
    patience_ms: float

    def encode(self, user_id: str, token: str) -> bytes:
        """Return the bytes of the request. Raises `InvalidInputError` (with the argument's name)."""
        request = Request(
            method=self.verb.name,
            user_id=user_id,
            deadline_ms=self.patience_ms,
            params=msgspec.Raw(encode_fields(self.params)),
            token=token,
            version=self.params.protocol_version,
        )
        return encode_fields(request)


# fmt: off
VERBS: tuple[Verb, ...] = (
    Verb("recall", "recall", RecallParams, RecallResult,
         "Return the memories that resemble a query, best first.", scope=Scope.RECALL, repeat="read"),
    Verb("remember", "remember", RememberParams, MemoryRecord,
         "Store a memory, or replace the one with the same id.", scope=Scope.PUBLISH),
    Verb("get", "get", GetParams, list[MemoryRecord],
         "Return memories by their ids.", scope=Scope.RECALL, repeat="read"),
    Verb("forget", "forget", IdsParams, int,
         "Remove memories, their vectors and words.", repeat="idempotent"),
    Verb("forget_session", "forget_session", SessionParams, int,
         "Remove the memories, runs and recalls of a session.", repeat="idempotent"),
    Verb("feedback", "feedback", FeedbackParams, FeedbackReport,
         "Record which recalled memories were used and how well it ended.", scope=Scope.PUBLISH, repeat="by event id"),
    Verb("stats", "stats", NoParams, MemoryStats,
         "Return the figures of a user's memory.", scope=Scope.RECALL, repeat="read"),
    Verb("run_begin", "runs.begin", RunBeginParams, Trajectory,
         "Begin a run.", scope=Scope.PUBLISH, repeat="by event id"),
    Verb("run_step", "runs.step", RunStepParams, Trajectory,
         "Record what a run did and which memories it used.", scope=Scope.PUBLISH, repeat="by event id"),
    Verb("run_end", "runs.end", RunEndParams, Trajectory,
         "End a run.", scope=Scope.PUBLISH, repeat="by event id"),
    Verb("run_get", "runs.get", RunIdParams, Trajectory | None,
         "Return a run, or None.", scope=Scope.RECALL, repeat="read"),
    Verb("run_similar", "runs.similar", RunSimilarParams, list[SimilarRun],
         "Return the ended runs whose request resembles a text, best first.", scope=Scope.RECALL, repeat="read"),
    Verb("run_list", "runs.list", RunListParams, list[Trajectory],
         "Return runs, newest first.", scope=Scope.RECALL, repeat="read"),
    Verb("sona_status", "sona.status", NoParams, SonaStatus,
         "Return the state of the learner.", scope=Scope.RECALL, repeat="read"),
    Verb("sona_reset", "sona.reset", NoParams, int,
         "Discard what was learned, keeping the runs.", repeat="idempotent", patience_ms=_MINUTE_MS),
    Verb("sona_export", "sona.export", NoParams, bytes,
         "Return the ended runs with their recalls, for `sona.load`.", repeat="read", patience_ms=_MINUTE_MS),
    Verb("sona_import", "sona.load", SonaImportParams, int,
         "Learn from exported runs.", repeat="idempotent", patience_ms=_MINUTE_MS),
    Verb("publish_preview", "shared.preview", PreviewParams, PublishPreview,
         "Return what would be published, word for word. Sends nothing.", scope=Scope.SHARE, repeat="idempotent"),
    Verb("publish_confirm", "shared.confirm", ConfirmParams, GlobalRecord,
         "Publish what a preview shows, and nothing else.", scope=Scope.SHARE, repeat="idempotent"),
    Verb("offer", "shared.offer", OfferParams, OfferedPattern,
         "Offer a pattern, which is shown when enough others offer the same.", scope=Scope.SHARE, repeat="idempotent"),
    Verb("offered", "shared.offered", NoParams, list[OfferedPattern],
         "Return what the user offers.", scope=Scope.RECALL, repeat="read"),
    Verb("unpublish", "shared.unpublish", ItemParams, UnpublishReceipt,
         "Take an item away, with its figures, or an offer back.", scope=Scope.SHARE, repeat="idempotent"),
    Verb("rate", "shared.rate", RateParams, QualityMetrics,
         "Rate a version of an item, or take the rating back.", scope=Scope.SHARE, repeat="idempotent"),
    Verb("published", "shared.published", NoParams, list[GlobalRecord],
         "Return the user's items with their figures.", scope=Scope.RECALL, repeat="read"),
    Verb("search_shared", "shared.search", SearchSharedParams, list[FoundItem],
         "Return the shared items that resemble a query, best first.", scope=Scope.RECALL, repeat="read"),
    Verb("shared_item", "shared.item", ItemParams, GlobalRecord,
         "Return a shared item by its id.", scope=Scope.RECALL, repeat="read"),
    Verb("shared_attachment", "shared.attachment", ItemParams, SharedFile,
         "Return the file of a shared item.", scope=Scope.RECALL, repeat="read"),
    Verb("own_name", "shared.name", NoParams, str | None,
         "Return the name that others see.", scope=Scope.RECALL, repeat="read"),
    Verb("shared_name", "shared.set_name", NameParams, str,
         "Set the name that others see.", scope=Scope.SHARE, repeat="idempotent"),
    Verb("ask_shared", "ask", AskSharedParams, Any,
         "Answer a user's memory, in the store of shared items.", scope=None, repeat="read"),
    Verb("rebuild", "care.rebuild", RebuildParams, int,
         "Rebuild the columns that recall searches from the records, or embed all memories again.",
         patience_ms=_LONGEST_MS),
    Verb("compact", "care.compact", NoParams, Compacted,
         "Return the disk space of deleted records.", patience_ms=_LONGEST_MS),
    Verb("erase", "erasure.erase", EraseParams, ErasureReceipt,
         "Erase memories and their events from every file.", answered_by="memory and journal", patience_ms=_LONGEST_MS),
    Verb("erase", "erasure.erase_expired", EraseExpiredParams, ErasureReceipt,
         "Erase what reached the age of a retention rule.", answered_by="memory and journal", patience_ms=_LONGEST_MS),
    Verb("erase", "erasure.erase_user", EraseUserParams, ErasureReceipt,
         "Erase a user: memories, events, learner and folder.", answered_by="daemon", patience_ms=_LONGEST_MS),
    Verb("erase_begin", "erasure.start", EraseParams, Intent,
         "Select what is to be erased and record the intent.", scope=None, repeat="idempotent"),
    Verb("erase_finish", "erasure.carry_out", EraseFinishParams, ErasureReceipt,
         "Carry out a recorded erasure.", scope=None, repeat="idempotent"),
    Verb("age", "erasure.age", AgeParams, int,
         "Forget what reached its age, if a check is due.", scope=None, repeat="idempotent"),
    Verb("react", "triggers.react", ReactParams, Block | None,
         "Return the block that an event calls for.", scope=None, repeat="read"),
    Verb("status", "status", NoParams, DaemonStatus,
         "Return the state of the daemon.", about="daemon", answered_by="daemon"),
    Verb("address", "address", NoParams, HostAddress,
         "Wake the user and return the Ray actor that hosts it.", about="daemon", answered_by="daemon"),
    Verb("wait", "wait", WaitParams, None,
         "Wait until events are handled.", scope=Scope.PUBLISH, about="named users", answered_by="daemon"),
    Verb("owner", "owner", OwnerParams, str | None,
         "Return the user that owns a run or a session, or None.",
         scope=Scope.RECALL, repeat="read", about="daemon", answered_by="daemon"),
    Verb("quarantine_list", "quarantined", QuarantineParams, list[QuarantinedEvent],
         "Return quarantined events, oldest first.", about="daemon", answered_by="relay"),
    Verb("quarantine_retry", "retry_quarantined", QuarantineIdsParams, RetryReport,
         "Try quarantined events again.", about="daemon", answered_by="relay", patience_ms=_MINUTE_MS),
    Verb("quarantine_drop", "drop_quarantined", QuarantineIdsParams, int,
         "Delete quarantined events.", about="daemon", answered_by="relay", patience_ms=_MINUTE_MS),
    # The last one: in the clients' classes, annotations below a method `list` could not name the type.
    Verb("list", "list", ListParams, MemoryPage,
         "Return memories by time, a page at a time.", scope=Scope.RECALL, repeat="read"),
)
# fmt: on
OF_ANY_STORE = frozenset({"stats", "rebuild", "compact"})
"""Verbs that are not only about users' memories, but also about the store of what they share."""
BY_NAME: dict[str, Verb] = {verb.name: verb for verb in reversed(VERBS)}
"""By the name on the wire. `erase` has three methods, which differ in their parameters alone."""
BY_METHOD: dict[str, Verb] = {verb.method: verb for verb in VERBS}
