"""The methods of every blocking client: of the memory, and of its namespaces.

Written by `python -m ops.documents` from `memory_agent.verbs` and the methods of `Memory`: edit those.
"""

# mypy: disable-error-code="no-any-return"
from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Protocol, Unpack

from memory_agent.erasure.request import ErasureReceipt
from memory_agent.records.arguments import RecallOptions
from memory_agent.records.memories import (
    Compacted,
    Kind,
    MemoryFilter,
    MemoryPage,
    MemoryRecord,
    MemoryStats,
    Mode,
    Order,
    Provenance,
    RecallResult,
    Source,
)
from memory_agent.records.shared import (
    ContentType,
    FoundItem,
    GlobalRecord,
    OfferedPattern,
    PublishPreview,
    QualityMetrics,
    SharedFile,
    UnpublishReceipt,
)
from memory_agent.records.trajectories import FeedbackReport, RunEnd, RunState, SimilarRun, SonaStatus, Trajectory
from memory_agent.verbs.protocol import DaemonStatus, HostAddress, QuarantinedEvent, RetryReport


class Ask(Protocol):
    """Asks for a verb by the name of its method."""

    def __call__(self, method: str, /, **arguments: Any) -> Any: ...


class RunsMethods:
    """The runs of one user. Every method raises `InvalidInputError` (with the argument's name) and `StoreError`."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask

    def begin(
        self,
        objective: str,
        run_id: str | None = None,
        session_id: str | None = None,
        recall_ids: Sequence[str] = (),
        *,
        event_id: str | None = None,
    ) -> Trajectory:
        """Begin a run, with a new id unless `run_id` is passed. Durable on return.

        Beginning an open run again with the same objective returns the run and adds the recalls. Raises `RunEndedError`
        if the run with this id has ended, and `RunBegunError` if it was begun with a different objective or session.
        """
        return self._ask(
            "runs.begin",
            objective=objective,
            run_id=run_id,
            session_id=session_id,
            recall_ids=recall_ids,
            event_id=event_id,
        )

    def step(
        self, run_id: str, text: str, memory_ids: Sequence[str] = (), *, event_id: str | None = None
    ) -> Trajectory:
        """Record a step of a run and the memories that it used. Durable on return.

        Raises `RunUnknownError` for a run that was never begun or was forgotten, and `RunEndedError` for a run that has
        ended.
        """
        return self._ask("runs.step", run_id=run_id, text=text, memory_ids=memory_ids, event_id=event_id)

    def end(
        self,
        run_id: str,
        outcome: RunEnd = "completed",
        summary: str | None = None,
        quality: float | None = None,
        memory_ids: Sequence[str] = (),
        *,
        event_id: str | None = None,
    ) -> Trajectory:
        """End a run. Unless `quality` (0..1) is passed, it follows from the outcome. Durable on return.

        A cancelled run is neither a success nor a failure: it has no quality. Ending a run again with the same
        arguments returns it; `feedback` revises the quality of an ended run. Raises `RunUnknownError` for a run that
        was never begun or was forgotten, and `RunEndedError` for a run that ended differently.
        """
        return self._ask(
            "runs.end",
            run_id=run_id,
            outcome=outcome,
            summary=summary,
            quality=quality,
            memory_ids=memory_ids,
            event_id=event_id,
        )

    def get(self, run_id: str) -> Trajectory | None:
        """Return the run, or None if there is no such run."""
        return self._ask("runs.get", run_id=run_id)

    def similar(self, query: str, top_k: int = 5, min_relevance: float | None = None) -> list[SimilarRun]:
        """Return at most `top_k` ended runs whose request resembles `query`, best first, with the texts of their steps.

        Each run is followed by the runs that retried it. Omits runs that have not ended, runs with a forgotten request,
        and runs below `min_relevance` (default: the setting `recall.min_relevance`).
        """
        return self._ask("runs.similar", query=query, top_k=top_k, min_relevance=min_relevance)

    def list(self, state: RunState | None = None, limit: int = 50) -> list[Trajectory]:
        """Return at most `limit` runs, newest first; with `state`, only runs in that state."""
        return self._ask("runs.list", state=state, limit=limit)


class SonaMethods:
    """The learner of one user."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask

    def status(self) -> SonaStatus:
        """Return the state of the learner."""
        return self._ask("sona.status")

    def reset(self) -> int:
        """Discard what was learned; return the number of ended runs, which the learner ignores from now on.

        Keeps the runs and the outcomes of memories. Durable on return.
        """
        return self._ask("sona.reset")

    def export(self) -> bytes:
        """Return the ended runs with their recalls, for `load`. Keep the data private: it contains the queries."""
        return self._ask("sona.export")

    def load(self, data: bytes) -> int:
        """Learn from runs that `export` returned; return how many were new. Durable on return.

        Memories are matched by id; unknown ones are omitted. Raises `InvalidInputError`, and changes nothing, for
        damaged data.
        """
        return self._ask("sona.load", data=data)


class SharedMethods:
    """The shared items of this user and of others."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask

    def preview(
        self,
        title: str | None = None,
        summary: str | None = None,
        *,
        content_type: ContentType | None = None,
        body: str | None = None,
        memory_id: str | None = None,
        reference: str | None = None,
        version: str = "1",
        tags: Sequence[str] = (),
        access_policy: str | None = None,
        item_id: str | None = None,
        attachment: bytes | None = None,
        attachment_name: str | None = None,
        offer: bool = False,
    ) -> PublishPreview:
        """Return exactly what `confirm` would publish. Sends and stores nothing.

        `summary` is the text that is searched and shown, `body` an optional full text, and `reference` the location of
        the original. `memory_id` is a memory of this user that provides title, summary, tags and type, unless these are
        passed. Secrets are masked; names, accounts, paths and addresses are listed in `mentions`. `access_policy` is
        `public` (every user of this deployment, the default), or an `org:NAME` or `tier:NAME` of the caller's key.
        `item_id` is a published item of this user, to publish its next `version`, which inherits nothing:
        `access_policy` is then required, and `replaces` is the previous version. With `offer`, the preview is for
        `offer` instead of `confirm`: it is a pattern and, if learned from runs, contains their steps without counts and
        dates. Raises `InvalidInputError` (with the argument's name), and with `item_id` also `UnavailableError`.
        """
        return self._ask(
            "shared.preview",
            title=title,
            summary=summary,
            content_type=content_type,
            body=body,
            memory_id=memory_id,
            reference=reference,
            version=version,
            tags=tags,
            access_policy=access_policy,
            item_id=item_id,
            attachment=attachment,
            attachment_name=attachment_name,
            offer=offer,
        )

    def confirm(self, preview: PublishPreview | Mapping[str, Any], attachment: bytes | None = None) -> GlobalRecord:
        """Publish exactly the content of a preview; return the item. Durable on return. Idempotent.

        An existing version is never replaced. Raises `InvalidInputError`, including when the preview or its memory has
        changed since, and `UnavailableError`.
        """
        return self._ask("shared.confirm", preview=preview, attachment=attachment)

    def offer(self, preview: PublishPreview | Mapping[str, Any]) -> OfferedPattern:
        """Offer the pattern of a preview (`preview(..., offer=True)`). Durable on return.

        Nobody else sees the offer, and no search finds it, until `shared.offers_together` users (5) offer the same
        words for the same readers. The words may differ in spaces, in the case of the first letter of a line and in the
        punctuation at its end. Upkeep then creates an item from the offers, with the author "5 users" and no names. The
        item is removed if too few offers are left; `unpublish` withdraws an offer. Raises `InvalidInputError`,
        including when the preview or its memory has changed since, and `UnavailableError`.
        """
        return self._ask("shared.offer", preview=preview)

    def offered(self) -> list[OfferedPattern]:
        """Return this user's offers, newest first, each with the id of the item created from it, if any."""
        return self._ask("shared.offered")

    def unpublish(self, item_id: str) -> UnpublishReceipt:
        """Remove one of this user's items together with its figures, or withdraw an offer; return a receipt.

        After this returns, no answer contains the item.
        """
        return self._ask("shared.unpublish", item_id=item_id)

    def rate(self, item_id: str, rating: float | None, version: str | None = None) -> QualityMetrics:
        """Rate a version of an item from 0 to 1, replacing this user's earlier rating; None removes it.

        Returns the released figures, which change after five more ratings. Raises `InvalidInputError`, including for
        the user's own items and for items that this user cannot see.
        """
        return self._ask("shared.rate", item_id=item_id, rating=rating, version=version)

    def published(self) -> list[GlobalRecord]:
        """Return this user's items with their released figures, newest first."""
        return self._ask("shared.published")

    def search(
        self,
        query: str,
        top_k: int = 5,
        content_types: Sequence[ContentType] = (),
        tags: Sequence[str] = (),
        min_relevance: float | None = None,
    ) -> list[FoundItem]:
        """Return the shared items that match `query` and that this user may see, best first.

        The query is not stored. Raises `InvalidInputError`, `UnavailableError`.
        """
        return self._ask(
            "shared.search",
            query=query,
            top_k=top_k,
            content_types=content_types,
            tags=tags,
            min_relevance=min_relevance,
        )

    def item(self, item_id: str) -> GlobalRecord:
        """Return an item that this user may see, with its released figures. Raises `InvalidInputError`.

        Unknown items and items whose policy excludes the user raise the same error.
        """
        return self._ask("shared.item", item_id=item_id)

    def attachment(self, item_id: str) -> SharedFile:
        """Return the file of an item that this user may see. Raises `InvalidInputError` if there is none."""
        return self._ask("shared.attachment", item_id=item_id)

    def name(self) -> str | None:
        """Return the author name that others see on this user's items: the name with its suffix, or the pseudonym.

        None if the deployment has no store of shared items yet.
        """
        return self._ask("shared.name")

    def set_name(self, name: str | None) -> str:
        """Set the name that others see on this user's items, and return it; None restores the pseudonym.

        Part of the pseudonym is appended, so that no two users look alike. Raises `InvalidInputError`.
        """
        return self._ask("shared.set_name", name=name)


class CareMethods:
    """Maintenance of one user's files while they are in use."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask

    def rebuild(self, *, vectors: bool = False) -> int:
        """Rebuild recall's search columns from the records; return the number of memories.

        Until this is done, recalls use the old columns and report this in `degraded`. The new columns include memories
        ingested during the rebuild.

        With `vectors`, this drops the vectors of a different model and re-embeds all memories in the background; it
        returns how many memories are waiting. `stats().waiting` counts down. Until it is 0, recalls use words and the
        vectors computed so far. After a restart, a daemon continues; an embedded memory continues at the next call.
        Raises `ModelError` without a model, `InvalidInputError`.
        """
        return self._ask("care.rebuild", vectors=vectors)

    def compact(self) -> Compacted:
        """Free the disk space of deleted records and remove their bytes. Recalls continue, but writes wait.

        Raises `DeadlineExceededError` if reads never pause, and `StoreFullError` if there is no space for a copy.
        """
        return self._ask("care.compact")


class ErasureMethods:
    """Erases memories completely from one user's files. Only a daemon can erase a whole user and the folder."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask

    def erase(
        self,
        record_ids: Sequence[str] = (),
        *,
        session_id: str | None = None,
        filter: MemoryFilter | Mapping[str, Any] | None = None,
        dry_run: bool = False,
    ) -> ErasureReceipt:
        """Erase memories, with their runs and recalls, from every file. Durable on return.

        Selects memories by id, by session or by filter. This is slower than `forget`, because it compacts and saves the
        columns (.1 s per 10,000 memories) and copies the record file. If a crash interrupts an erasure, the next open
        completes it. `dry_run` erases nothing and only returns the receipt. A daemon also erases the events from its
        journal. For an embedded memory in a daemon's folder, the daemon does this at its next start, as the receipt
        states. Raises `InvalidInputError`.
        """
        return self._ask("erasure.erase", record_ids=record_ids, session_id=session_id, filter=filter, dry_run=dry_run)

    def erase_expired(self, *, dry_run: bool = False) -> ErasureReceipt:
        """Erase memories that have expired under a retention rule; the receipt counts them in `by_rule`."""
        return self._ask("erasure.erase_expired", dry_run=dry_run)

    def erase_user(self, *, dry_run: bool = False) -> ErasureReceipt:
        """Erase the user: memories, events, runs, learner and folder.

        Requests block during the erasure, and then see an empty memory, which receives the events published in the
        meantime.

        >>> record = memory.remember("Staging needs the VPN")
        >>> receipt = memory.erasure.erase_user()
        >>> receipt.memories, memory.stats().memories
        (1, 0)
        """
        return self._ask("erasure.erase_user", dry_run=dry_run)


class MemoryMethods:
    """The methods of a memory and of its daemon."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self.runs = RunsMethods(ask)
        self.sona = SonaMethods(ask)
        self.shared = SharedMethods(ask)
        self.care = CareMethods(ask)
        self.erasure = ErasureMethods(ask)

    def recall(
        self,
        query: str,
        top_k: int | None = None,
        filter: MemoryFilter | Mapping[str, Any] | None = None,
        mode: Mode | None = None,
        deadline_ms: float | None = None,
        **options: Unpack[RecallOptions],
    ) -> RecallResult:
        """Return at most `top_k` memories (5, or the profile's number) that are relevant to `query`, best first.

        `mode` and `deadline_ms` default to the settings. Missing or late parts are not an error; `degraded` names them.
        Raises `InvalidInputError` (with the argument's name).
        """
        return self._ask(
            "recall", query=query, top_k=top_k, filter=filter, mode=mode, deadline_ms=deadline_ms, **options
        )

    def remember(
        self,
        text: str,
        kind: Kind = "finding",
        source: Source = "user_input",
        tags: Sequence[str] = (),
        title: str | None = None,
        provenance: Provenance | None = None,
        metadata: Mapping[str, Any] | None = None,
        session_id: str | None = None,
        *,
        id: str | None = None,
        type: str | None = None,
        phase: str | None = None,
        run_id: str | None = None,
        channel_id: str | None = None,
        agent_id: str | None = None,
        timestamp: datetime | None = None,
        quality_score: float | None = None,
    ) -> MemoryRecord:
        """Store a memory that does not come from an event, with secrets masked, and return it. Durable on return.

        With an `id`, this replaces the user's memory with that id or stores a new one, even if the id was forgotten
        before. A replaced memory keeps its event, its usage and, unless `timestamp` is passed, its time; `updated_at`
        is set. Its old bytes stay in the files for a while, as after `forget`. Storing an identical memory changes
        nothing. Without an `id`, every call adds a memory. `timestamp` is the time at which it happened (default: now).
        Raises `InvalidInputError` (with the argument's name).
        """
        return self._ask(
            "remember",
            text=text,
            kind=kind,
            source=source,
            tags=tags,
            title=title,
            provenance=provenance,
            metadata=metadata,
            session_id=session_id,
            id=id,
            type=type,
            phase=phase,
            run_id=run_id,
            channel_id=channel_id,
            agent_id=agent_id,
            timestamp=timestamp,
            quality_score=quality_score,
        )

    def get(self, ids: Sequence[str], *, with_embedding: bool = False) -> list[MemoryRecord]:
        """Return the memories with these ids, in the same order, omitting unknown ids. Raises `InvalidInputError`."""
        return self._ask("get", ids=ids, with_embedding=with_embedding)

    def forget(self, ids: Sequence[str]) -> int:
        """Remove memories with their vectors and words; return how many existed. Durable on return.

        Also removes them from runs and recalls. A replay of their events does not restore them. Their bytes stay in the
        files for a while; use `erasure.erase` to remove them completely. Raises `InvalidInputError`.
        """
        return self._ask("forget", ids=ids)

    def forget_session(self, session_id: str) -> int:
        """Remove the memories, runs and recalls of a session, like `forget`; return how many memories existed."""
        return self._ask("forget_session", session_id=session_id)

    def feedback(
        self,
        recall_id: str,
        used: Sequence[str] = (),
        quality: float | None = None,
        comment: str | None = None,
        *,
        event_id: str | None = None,
    ) -> FeedbackReport:
        """Record which memories of a recall were used, and the quality of the outcome (0..1). Durable on return.

        The feedback applies to the recall's run. A recall without a run gets its own trajectory, which ends with the
        feedback; its quality is .8 if only `used` is passed. `recall_id` may also be the id of a run; the quality of an
        ended run is then revised. Later feedback replaces earlier feedback. Naming all memories of a recall halves the
        credit if it showed two or three, and gives no credit if it showed more. Raises `InvalidInputError`, including
        if there is no such recall or run.
        """
        return self._ask(
            "feedback", recall_id=recall_id, used=used, quality=quality, comment=comment, event_id=event_id
        )

    def stats(self) -> MemoryStats:
        """Return the statistics of this user's memory."""
        return self._ask("stats")

    def status(self) -> DaemonStatus:
        """Return the state of the daemon.

        >>> [part.name for part in memory.status().parts if part.state != "running"]
        []
        """
        return self._ask("status")

    def address(self) -> HostAddress:
        """Wake the user and return the Ray actor that hosts it.

        >>> memory.address()
        HostAddress(actor='...', namespace='...')
        """
        return self._ask("address")

    def wait(self, through: Mapping[str, int], timeout_s: float) -> None:
        """Wait until each user's events up to a journal number are recallable or quarantined. `through` maps users to
        journal numbers. Raises `DeadlineExceededError`.

        >>> event = {"event_type": "user_input", "user_id": "alice", "payload": {"text": "Staging needs the VPN"}}
        >>> event_id = publisher.publish(event)
        >>> memory.wait(publisher.flush().acked_through, timeout_s=30)
        >>> memory.stats().memories
        1
        """
        return self._ask("wait", through=through, timeout_s=timeout_s)

    def owner(self, run_id: str | None = None, session_id: str | None = None) -> str | None:
        """Return the user that owns a run or a session whose events a conductor publishes as `system`; None if unknown.

        Requires a key for all users. Raises `InvalidInputError` unless exactly one of the two is passed.

        >>> run = memory.runs.begin("Deploy to staging")
        >>> memory.owner(run_id=run.id), memory.owner(run_id="unknown")
        ('alice', None)
        """
        return self._ask("owner", run_id=run_id, session_id=session_id)

    def quarantined(self, after: int = 0, limit: int = 100) -> list[QuarantinedEvent]:
        """Return events that could not be handled, oldest first: at most `limit`, with ids above `after`.

        >>> [(event.id, event.code, event.size_bytes) for event in memory.quarantined()]
        [(1, 'malformed_event', 5)]
        """
        return self._ask("quarantined", after=after, limit=limit)

    def retry_quarantined(self, ids: Sequence[int] = ()) -> RetryReport:
        """Retry the quarantined events with these ids, or all without `ids`. Raises `InvalidInputError` for unknown
        ids.

        >>> memory.retry_quarantined([1])
        RetryReport(handled=0, still_failing=1)
        """
        return self._ask("retry_quarantined", ids=ids)

    def drop_quarantined(self, ids: Sequence[int] = ()) -> int:
        """Delete the quarantined events with these ids, or all without `ids`; return their number. Raises
        `InvalidInputError`.

        >>> memory.drop_quarantined(), memory.quarantined()
        (1, [])
        """
        return self._ask("drop_quarantined", ids=ids)

    def list(
        self,
        filter: MemoryFilter | Mapping[str, Any] | None = None,
        order: Order = "newest",
        limit: int = 50,
        after: str | None = None,
    ) -> MemoryPage:
        """Return a page of the memories that match a filter, ordered by `timestamp` or by last update.

        `after` is the `next_cursor` of the previous page, in the same order. A page has at most `limit` memories (1 to
        1,000), fewer if they are large. Storing or forgetting memories between two pages does not repeat or hide
        others. A memory that is replaced between two pages may change its position, so that the pages miss or repeat
        it; listing again by `updated`, newest first, returns it. Raises `InvalidInputError`, including for a filter
        with `min_score`.
        """
        return self._ask("list", filter=filter, order=order, limit=limit, after=after)
