"""The table of verbs: one row for each verb of a memory and of its daemon.

This table determines the clients, permissions, retries, dispatch, and the answers for users without a store.
`ops/ARCHITECTURE.md` lists the steps to add a verb.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from operator import attrgetter
from typing import Any, Literal

import msgspec

from memory_agent.erasure.request import ErasureReceipt, Intent
from memory_agent.records import memories, shared, trajectories
from memory_agent.records.shared_requests import NO_RIGHTS, Rights
from memory_agent.triggers.block import Block
from memory_agent.verbs import params, protocol, shared_params
from memory_agent.verbs.params import Params
from relay import Scope

Repeat = Literal["never", "read", "idempotent", "by event id"]
About = Literal["user", "named users", "daemon", "cluster"]
AnsweredBy = Literal["memory", "memory and journal", "daemon", "relay"]

USUAL_PATIENCE_MS = 10_000.0
_MINUTE_MS = 60_000.0
_LONGEST_MS = 600_000.0
_CARE_LOST = "may have been interrupted, but nothing is lost: call it again"
_ERASURE_LOST = "continues when the daemon starts, if it had begun: call it again for a receipt of the rest"


@dataclass(frozen=True)
class Verb:
    """One verb.

    `name` is the verb's name on the wire; `method` is the dotted name of its method in `Memory` and in every client.
    `scope` is the scope that a key needs, or None for verbs that only the daemon itself calls. If the answer is lost,
    `repeat` determines whether the request may be sent again; if it may not, `when_lost` describes the outcome. `about`
    defines which users the key must cover: the request's user, each user named in the parameters, or all users.
    `answered_by` is the part of the daemon that handles the verb.
    """

    name: str
    method: str
    params: type[Params]
    result: Any
    summary: str
    _: KW_ONLY
    scope: Scope | None = Scope.ADMIN
    repeat: Repeat = "never"
    when_lost: str = "may have taken effect, but can be called again"
    about: About = "user"
    answered_by: AnsweredBy = "memory"
    patience_ms: float = USUAL_PATIENCE_MS

    @property
    def is_repeatable(self) -> bool:
        return self.repeat != "never"

    @property
    def is_inner(self) -> bool:
        """Whether only the daemon or a machine of its cluster calls the verb, so that clients have no method for it."""
        return self.scope is None or self.about == "cluster"

    @property
    def is_embedded(self) -> bool:
        return self.answered_by in ("memory", "memory and journal")

    def call(self, arguments: Mapping[str, Any]) -> Call:
        """Return a `Call` of the verb; `arguments` are those of its method. Raises `InvalidInputError`."""
        params = self.params.of(**arguments)
        patience_ms = self.params.patience_ms(arguments)
        return Call(self, params, self.patience_ms if patience_ms is None else patience_ms)

    def answer(self, memory: Any, params: Params, remaining_ms: float, rights: Rights = NO_RIGHTS) -> object:
        """Run the verb on a `Memory`, within the remaining deadline, for a caller with these rights."""
        arguments = params.arguments(remaining_ms, memory.usual_deadline_ms)
        return attrgetter(self.method)(memory.with_rights(rights))(**arguments)


@dataclass(frozen=True)
class Call:
    verb: Verb
    params: Params
    patience_ms: float

    @property
    def is_repeatable(self) -> bool:
        return self.verb.is_repeatable or getattr(self.params, "id", None) is not None

    @property
    def known_when_lost(self) -> str:
        if self.verb.repeat == "read":
            return "nothing was changed"
        known = f"{self.verb.method} {self.verb.when_lost}"
        event_id = getattr(self.params, "event_id", None)
        return known if event_id is None else f"{known} with event_id={event_id}"

    def encode(self, user_id: str, token: str, traceparent: str = "") -> bytes:
        """Return the encoded request. Raises `InvalidInputError` (with the argument's name)."""
        request = protocol.Request(
            method=self.verb.name,
            user_id=user_id,
            deadline_ms=self.patience_ms,
            params=msgspec.Raw(protocol.encode_fields(self.params)),
            token=token,
            version=self.params.protocol_version,
            traceparent=traceparent,
        )
        return protocol.encode_fields(request)


# fmt: off
VERBS: tuple[Verb, ...] = (
    Verb("recall", "recall", params.RecallParams, memories.RecallResult,
         "Return the memories that resemble a query, best first.", scope=Scope.RECALL, repeat="read"),
    Verb("remember", "remember", params.RememberParams, memories.MemoryRecord,
         "Store a memory, or replace the one with the same id.", scope=Scope.PUBLISH,
         when_lost="may have stored the memory: look for it; only calls with an id are repeated"),
    Verb("get", "get", params.GetParams, list[memories.MemoryRecord],
         "Return memories by their ids.", scope=Scope.RECALL, repeat="read"),
    Verb("forget", "forget", params.IdsParams, int,
         "Remove memories with their vectors and words.", repeat="idempotent"),
    Verb("forget_session", "forget_session", params.SessionParams, int,
         "Remove the memories, runs and recalls of a session.", repeat="idempotent"),
    Verb("feedback", "feedback", params.FeedbackParams, trajectories.FeedbackReport,
         "Record which recalled memories were used and how the work ended.", scope=Scope.PUBLISH, repeat="by event id"),
    Verb("stats", "stats", params.StatsParams, memories.MemoryStats,
         "Return statistics about a user's memory or a part of it.", scope=Scope.RECALL, repeat="read"),
    Verb("sessions", "sessions", params.SessionsParams, memories.SessionPage,
         "Return sessions with their times and counts, newest first, a page at a time.",
         scope=Scope.RECALL, repeat="read"),
    Verb("map", "map", params.MapParams, memories.MemoryMap,
         "Return memories as points in a plane; similar memories are near each other.",
         scope=Scope.RECALL, repeat="read", patience_ms=_MINUTE_MS),
    Verb("run_begin", "runs.begin", params.RunBeginParams, trajectories.Trajectory,
         "Begin a run.", scope=Scope.PUBLISH, repeat="by event id"),
    Verb("run_step", "runs.step", params.RunStepParams, trajectories.Trajectory,
         "Record what a run did and which memories it used.", scope=Scope.PUBLISH, repeat="by event id"),
    Verb("run_end", "runs.end", params.RunEndParams, trajectories.Trajectory,
         "End a run.", scope=Scope.PUBLISH, repeat="by event id"),
    Verb("run_get", "runs.get", params.RunIdParams, trajectories.Trajectory | None,
         "Return a run, or None.", scope=Scope.RECALL, repeat="read"),
    Verb("run_similar", "runs.similar", params.RunSimilarParams, list[trajectories.SimilarRun],
         "Return the finished runs whose request resembles a text, best first.", scope=Scope.RECALL, repeat="read"),
    Verb("run_list", "runs.list", params.RunListParams, list[trajectories.Trajectory],
         "Return runs, newest first.", scope=Scope.RECALL, repeat="read"),
    Verb("sona_status", "sona.status", params.NoParams, trajectories.SonaStatus,
         "Return the state of the learner.", scope=Scope.RECALL, repeat="read"),
    Verb("sona_reset", "sona.reset", params.NoParams, int,
         "Discard what was learned, but keep the runs.", repeat="idempotent", patience_ms=_MINUTE_MS),
    Verb("sona_export", "sona.export", params.NoParams, bytes,
         "Return the finished runs with their recalls, for `sona.load`.", repeat="read", patience_ms=_MINUTE_MS),
    Verb("sona_import", "sona.load", params.SonaImportParams, int,
         "Learn from exported runs.", repeat="idempotent", patience_ms=_MINUTE_MS),
    Verb("publish_preview", "shared.preview", shared_params.PreviewParams, shared.PublishPreview,
         "Return exactly what would be published. Sends nothing.", scope=Scope.SHARE, repeat="idempotent"),
    Verb("publish_confirm", "shared.confirm", shared_params.ConfirmParams, shared.GlobalRecord,
         "Publish exactly what a preview shows.", scope=Scope.SHARE, repeat="idempotent"),
    Verb("offer", "shared.offer", shared_params.OfferParams, shared.OfferedPattern,
         "Offer a pattern, which is published once enough others offer it.", scope=Scope.SHARE, repeat="idempotent"),
    Verb("offered", "shared.offered", params.NoParams, list[shared.OfferedPattern],
         "Return what the user offers.", scope=Scope.RECALL, repeat="read"),
    Verb("unpublish", "shared.unpublish", shared_params.ItemParams, shared.UnpublishReceipt,
         "Remove an item with its figures, or withdraw an offer.", scope=Scope.SHARE, repeat="idempotent"),
    Verb("rate", "shared.rate", shared_params.RateParams, shared.QualityMetrics,
         "Rate a version of an item, or withdraw the rating.", scope=Scope.SHARE, repeat="idempotent"),
    Verb("published", "shared.published", params.NoParams, list[shared.GlobalRecord],
         "Return the user's items with their figures.", scope=Scope.RECALL, repeat="read"),
    Verb("search_shared", "shared.search", shared_params.SearchSharedParams, list[shared.FoundItem],
         "Return the shared items that resemble a query, best first.", scope=Scope.RECALL, repeat="read"),
    Verb("shared_item", "shared.item", shared_params.ItemParams, shared.GlobalRecord,
         "Return a shared item by its id.", scope=Scope.RECALL, repeat="read"),
    Verb("shared_attachment", "shared.attachment", shared_params.ItemParams, shared.SharedFile,
         "Return a shared item's file.", scope=Scope.RECALL, repeat="read"),
    Verb("own_name", "shared.name", params.NoParams, str | None,
         "Return the author name that others see.", scope=Scope.RECALL, repeat="read"),
    Verb("shared_name", "shared.set_name", shared_params.NameParams, str,
         "Set the author name that others see.", scope=Scope.SHARE, repeat="idempotent"),
    Verb("ask_shared", "ask", shared_params.AskSharedParams, Any,
         "Answer a memory's request to the store of shared items.", scope=None, repeat="read"),
    Verb("rebuild", "care.rebuild", params.RebuildParams, int,
         "Rebuild recall's search columns from the records, or embed all memories again.",
         patience_ms=_LONGEST_MS, when_lost=_CARE_LOST),
    Verb("compact", "care.compact", params.NoParams, memories.Compacted,
         "Release the disk space of deleted records.", patience_ms=_LONGEST_MS, when_lost=_CARE_LOST),
    Verb("erase", "erasure.erase", params.EraseParams, ErasureReceipt,
         "Erase memories and their events from every file.", answered_by="memory and journal", patience_ms=_LONGEST_MS,
         when_lost=_ERASURE_LOST),
    Verb("erase", "erasure.erase_expired", params.EraseExpiredParams, ErasureReceipt,
         "Erase memories whose retention period has ended.", answered_by="memory and journal", patience_ms=_LONGEST_MS,
         when_lost=_ERASURE_LOST),
    Verb("erase", "erasure.erase_user", params.EraseUserParams, ErasureReceipt,
         "Erase a user: memories, events, learner and folder.", answered_by="daemon", patience_ms=_LONGEST_MS,
         when_lost=_ERASURE_LOST),
    Verb("erase_begin", "erasure.start", params.EraseParams, Intent,
         "Select what to erase and record the intent.", scope=None, repeat="idempotent"),
    Verb("erase_finish", "erasure.carry_out", params.EraseFinishParams, ErasureReceipt,
         "Carry out a recorded erasure.", scope=None, repeat="idempotent"),
    Verb("age", "erasure.age", params.AgeParams, int,
         "Forget expired memories, if a check is due.", scope=None, repeat="idempotent"),
    Verb("react", "triggers.react", params.ReactParams, Block | None,
         "Return the block for an event.", scope=None, repeat="read"),
    Verb("status", "status", params.NoParams, protocol.DaemonStatus,
         "Return the state of the daemon.", repeat="read", about="daemon", answered_by="daemon"),
    Verb("metrics", "metrics", params.NoParams, str,
         "Return the daemon's metrics in the Prometheus text format.",
         scope=Scope.METRICS, repeat="read", about="daemon", answered_by="daemon"),
    Verb("address", "address", params.NoParams, protocol.HostAddress,
         "Wake the user's memory and return the Ray actor that hosts it.",
         repeat="idempotent", about="daemon", answered_by="daemon"),
    Verb("wait", "wait", params.WaitParams, None,
         "Wait until events are handled.",
         scope=Scope.PUBLISH, repeat="read", about="named users", answered_by="daemon"),
    Verb("owner", "owner", params.OwnerParams, str | None,
         "Return the user that owns a run or a session, or None.",
         scope=Scope.RECALL, repeat="read", about="daemon", answered_by="daemon"),
    Verb("quarantine_list", "quarantined", params.QuarantineParams, list[protocol.QuarantinedEvent],
         "Return quarantined events, oldest first.", repeat="read", about="daemon", answered_by="relay"),
    Verb("quarantine_retry", "retry_quarantined", params.QuarantineIdsParams, protocol.RetryReport,
         "Retry quarantined events.", repeat="idempotent", about="daemon", answered_by="relay", patience_ms=_MINUTE_MS),
    Verb("quarantine_drop", "drop_quarantined", params.QuarantineIdsParams, int,
         "Delete quarantined events.",
         repeat="idempotent", about="daemon", answered_by="relay", patience_ms=_MINUTE_MS),
    Verb("join", "join", params.JoinParams, protocol.JoinGrant,
         "Let a machine join the cluster.", scope=Scope.JOIN, repeat="idempotent", about="cluster",
         answered_by="daemon"),
    Verb("leave", "leave", params.LeaveParams, None,
         "Move a machine's users to other machines, and let the machine leave.", scope=Scope.JOIN, repeat="idempotent",
         about="cluster", answered_by="daemon", patience_ms=_LONGEST_MS),
    # Must be last: after a method named `list`, annotations in the clients' classes could not refer to the type `list`.
    Verb("list", "list", params.ListParams, memories.MemoryPage,
         "Return memories by time, a page at a time.", scope=Scope.RECALL, repeat="read"),
)
# fmt: on
OF_ANY_STORE = frozenset({"stats", "rebuild", "compact"})
"""Verbs that also apply to the store of shared items."""
BY_NAME: dict[str, Verb] = {verb.name: verb for verb in reversed(VERBS)}
"""The verbs by wire name. The three methods of `erase` differ only in their parameters."""
BY_METHOD: dict[str, Verb] = {verb.method: verb for verb in VERBS}
