"""One user's memory: opens a folder, ingests, recalls, remembers, forgets. Synchronous, without Ray or a daemon.

One thread may ingest while other threads recall.
"""

from __future__ import annotations

import copy
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from datetime import datetime
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any, Self, Unpack

import msgspec
from msgspec.structs import replace
from ulid import ULID

from memory_agent.embedders import Embedder, LazyEmbedder
from memory_agent.erasure.eraser import Erasure
from memory_agent.erasure.forgetting import Forgetting
from memory_agent.errors import InvalidInputError
from memory_agent.indexes import IndexOf
from memory_agent.learning import Consolidation, RunRecords, UserLearner
from memory_agent.memory.browsing import Browsing
from memory_agent.memory.ingest import Arrival, EncodedEvent, Intake, NumberedEvents, arrivals_of
from memory_agent.memory.namespaces import Care, Sona
from memory_agent.memory.quota import MemoryQuota
from memory_agent.memory.record_checks import checked_record, masked_record
from memory_agent.memory.runs import Runs, feedback_payload
from memory_agent.memory.sharing import Shared
from memory_agent.memory.vectors import MemoryVectors, Progress
from memory_agent.recall.pipeline import RecallPipeline
from memory_agent.recall.query import QueryDefaults, check_filter, check_now, make_query
from memory_agent.records.arguments import RecallOptions, joined
from memory_agent.records.memories import (
    IngestReport,
    Kind,
    MemoryFilter,
    MemoryRecord,
    MemoryStats,
    Mode,
    RecallResult,
    Source,
    StatedProvenance,
)
from memory_agent.records.shared_requests import NO_RIGHTS, Caller, Rights, SharedStore
from memory_agent.records.trajectories import FeedbackReport, SimilarRun
from memory_agent.rerankers import Judge
from memory_agent.settings import EmbedderSettings, Settings, SettingsKeywords, former_of, with_keywords
from memory_agent.signals import EventReader, SignalTable, truncate
from memory_agent.storage.archive import Archive, OpenCalls
from memory_agent.storage.environment import open_key_of
from memory_agent.storage.folders import is_data_dir
from memory_agent.triggers.reactions import Triggers
from relay import Event, Masker, encode_event, event_from_mapping
from relay.disk import OnCommit, Role
from relay.errors import EventTooLargeError
from relay.log import log

_LIBRARY_SETTINGS = Settings(embedder=EmbedderSettings(allow_download=False))


class Memory(Browsing):
    """The memory of one user. Every method raises `StoreError` if the store has failed or is closed.

    In the examples, `memory` is an empty memory, opened with `Memory.open("data/alice")`.
    """

    runs: Runs
    sona: Sona
    care: Care
    erasure: Erasure
    triggers: Triggers
    shared: Shared
    _forgetting_kind = Forgetting

    def __init__(
        self,
        user_id: str,
        archive: Archive,
        embedder: LazyEmbedder,
        settings: Settings,
        *,
        is_hosted: bool = False,
        shared: SharedStore | None = None,
    ) -> None:
        """Call `open` instead."""
        self.user_id = user_id
        self._is_hosted = is_hosted
        super().__init__(archive, OpenCalls(f"the memory of {user_id}"))
        self._embedder = embedder
        self._ingest_settings = settings.ingest
        self._recall_settings = settings.recall
        self._event_limits = settings.relay.events
        self._masker = Masker(settings.relay.masking)
        table = SignalTable.load(settings.ingest.signals)
        reader = EventReader(table, settings.ingest)
        run_records = RunRecords(settings.learning)
        self._learner = UserLearner(archive, settings.learning)
        self._vectors = MemoryVectors(archive, embedder, settings.daemon.reembed if is_hosted else "never")
        self._forgetting = self._forgetting_kind(archive, run_records, self._learner)
        quota = MemoryQuota(user_id, archive, settings.quota, self._forgetting)
        self._intake = Intake(archive, self._vectors, reader, run_records, quota)
        self.judge = Judge(settings.judge, settings.recall.deadline_ms)
        self._pipeline = RecallPipeline(archive, embedder, settings.recall, self._learner, self.judge)
        self.runs = Runs(
            user_id, archive, run_records, self._ingest_one, self._similar_runs, self._stored_text, self._call
        )
        self._consolidation = Consolidation(archive, run_records, self._learner, self._vectors.embed)
        self.care = Care(archive, self._vectors, self._call)
        self.erasure = Erasure(user_id, archive, self._forgetting, settings.retention, table, self._call)
        self.triggers = Triggers(
            settings.triggers, settings.recall, reader, self._pipeline, embedder, self._stored_text, self._call
        )
        self.sona = Sona(user_id, archive, self._learner, self._consolidation, self._call)
        self.shared = Shared(Caller(user_id=user_id), shared, archive, self._masker, self._call)

    @classmethod
    def open(
        cls,
        path: str | PathLike[str],
        *,
        settings: Settings | None = None,
        user_id: str | None = None,
        embedder: Embedder | None = None,
        role: Role = "library",
        now: datetime | None = None,
        age_now: bool = True,
        shared: SharedStore | None = None,
        on_commit: OnCommit | None = None,
        **keywords: Unpack[SettingsKeywords],
    ) -> Self:
        """Open or create the memory in a folder, and own the folder until `close`.

        `settings` has the format of the daemon's settings; `load_settings` reads them from a file. A memory uses the
        tables `embedder`, `store`, `index`, `ingest`, `recall`, `judge`, `learning`, `retention`, `triggers`,
        `encryption`, `quota`, `relay.events` and `relay.masking`. Without `settings`, the defaults apply, except that
        no model is downloaded. Each keyword in `keywords` replaces one table, for compatibility with code written for
        earlier versions.

        `user_id` defaults to the folder's name; for an encrypted folder, it selects the key. If the caller passes an
        `embedder`, the caller closes it; otherwise the memory opens one when it first needs it. Unless `age_now` is
        false, memories that have expired under the retention rules at `now` (default: the current time) are erased
        before this returns; a host erases them in batches. `shared` is the store of shared items (`Knowledge`), which
        the caller closes. Without a store, nothing can be published and recalls find no shared items. `on_commit`
        receives every change to the records, in stored form, for an archive.

        Raises `StoreOwnedElsewhereError`, `StoreDamagedError`, `StoreError`, `SettingsError` or `InvalidInputError`. If
        the folder does not match `settings.encryption`, raises `StoreEncryptedError`, `StoreNotEncryptedError` or
        `EncryptionKeyMissingError`.

        >>> with Memory.open("data/alice") as memory:
        ...     record = memory.remember("Staging needs the VPN")
        >>> with Memory.open("data/alice", settings=load_settings(Path("memory-agent.toml"))) as memory:
        ...     memory.stats().memories
        1
        """
        if not os.fspath(path):  # Path("") would be the current folder
            raise InvalidInputError("path", "is empty")
        settings = with_keywords(settings or _LIBRARY_SETTINGS, keywords)
        folder = Path(path)
        if is_data_dir(folder):
            raise InvalidInputError("path", "is a daemon's data folder; use MemoryClient, or open a folder in users/")
        user_id = user_id or folder.absolute().name
        key = open_key_of(settings.encryption, folder, user_id)
        archive = Archive.open(folder, settings.store, role, key, on_commit, IndexOf(settings.index, user_id, folder))
        try:
            model = LazyEmbedder(embedder, settings.embedder, former_of(settings))
            memory = cls(user_id, archive, model, settings, is_hosted=role == "host", shared=shared)
            memory.erasure.resume()
            if age_now:
                memory.erasure.age_at_opening(check_now(now), role)
            return memory
        except BaseException:
            archive.close()
            raise

    def with_rights(self, rights: Rights) -> Self:
        """Return this memory for a caller with these rights, which determine the visible shared items.

        >>> memory.with_rights(Rights(groups=("org:acme",))).shared.search("what does staging need?")
        []
        """
        return self if rights == NO_RIGHTS else self._for_caller(replace(self.shared.caller, rights=rights))

    def _for_caller(self, caller: Caller) -> Self:
        copied = copy.copy(self)
        copied.shared = self.shared.of_caller(caller)
        return copied

    def ingest(
        self,
        events: Sequence[Event | Mapping[str, Any]],
        *,
        seqs: Sequence[int] | None = None,
        now: datetime | None = None,
    ) -> IngestReport:
        """Store the memories that events contain. Atomic, and durable on return.

        `seqs` are the events' numbers in a journal. They advance the store's cursor. An event at or below the cursor
        that produced no memory is not counted again. Duplicates are recognised by `event_id`. Events that can never
        become a memory, because they are malformed, too large or in the future, are listed in `rejected` and do not
        affect other events. The `user_id` of events is not checked. Raises `InvalidInputError` if `events` is not a
        list or `seqs` does not match `events`.

        >>> event = {"event_type": "user_input", "user_id": "alice", "payload": {"text": "Staging needs the VPN"}}
        >>> report = memory.ingest([event, event, {"event_type": "user_input"}])
        >>> report.kept, report.duplicates, [one.reason for one in report.rejected]
        (1, 1, ['user_id: is missing'])
        """
        if isinstance(events, Mapping | Event | str | bytes):
            raise InvalidInputError("events", f"must be a list of events, not {type(events).__name__}")
        moment = check_now(now)
        return self._ingest(arrivals_of([partial(self._checked, event, moment) for event in events], seqs))

    def ingest_encoded(
        self, events: Sequence[bytes], *, seqs: Sequence[int] | None = None, ahead: NumberedEvents = ()
    ) -> IngestReport:
        """Like `ingest`, for validated events in the journal's format (`relay.event.encode_event`).

        `ahead` contains the events of the next call. They are embedded, but not stored, while the current events are
        committed.

        >>> entries = journal.read(after_seq=0, limit=100, user_id="alice")
        >>> memory.ingest_encoded([one.data for one in entries], seqs=[one.seq for one in entries]).kept
        3
        >>> memory.stats().cursor
        3
        """
        later = arrivals_of([EncodedEvent(event) for _, event in ahead], [seq for seq, _ in ahead])
        return self._ingest(arrivals_of([EncodedEvent(event) for event in events], seqs), later)

    @property
    def usual_deadline_ms(self) -> float:
        """The default recall deadline from the settings."""
        return self._recall_settings.deadline_ms

    def recall(
        self,
        query: str | Sequence[str] = "",
        top_k: int | None = None,
        filter: MemoryFilter | Mapping[str, Any] | None = None,
        mode: Mode | None = None,
        deadline_ms: float | None = None,
        *,
        now: datetime | None = None,
        **options: Unpack[RecallOptions],
    ) -> RecallResult:
        """Return at most `top_k` memories (default: 5, or the profile's number) relevant to `query`, best first.

        A `query` of several parts is searched as one text, one part per line; it may be empty if a `vector` is passed.
        `mode` and `deadline_ms` default to the configured values. A missing or late part of the search is not an error;
        `degraded` names the part. Raises `InvalidInputError` (with the argument's name).

        >>> fix, lunch = map(memory.remember, ("A mutex per session fixed the race", "Lunch is at noon"))
        >>> result = memory.recall("which race did a mutex fix?", top_k=1)
        >>> [found.record.text for found in result.memories], result.degraded
        (['A mutex per session fixed the race'], ())
        >>> (fix,) = memory.get([fix.id], with_embedding=True)
        >>> memory.recall(vector=fix.embedding, vector_model=memory.stats().model).memories[0].record.id == fix.id
        True
        """
        moment = check_now(now)
        usual = QueryDefaults(self._recall_settings, moment, self._stored_text)
        asked = make_query(joined("query", query), top_k, filter, mode, deadline_ms, options, usual)
        with self._call():
            self._vectors.check_query(asked)
            result = self._pipeline.answer(asked, moment, self.shared.begin_search)
        self._log(
            "recall.answered",
            mode=asked.mode,
            memories=len(result.memories),
            degraded=result.degraded,
            excluded=result.excluded,
            took_ms=round(result.took_ms, 2),
        )
        return result

    def remember(
        self,
        text: str,
        kind: Kind = "finding",
        source: Source = "user_input",
        tags: Sequence[str] = (),
        title: str | None = None,
        provenance: StatedProvenance | None = None,
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
        now: datetime | None = None,
    ) -> MemoryRecord:
        """Store a memory that does not come from an event, with secrets masked, and return it. Durable on return.

        With an `id`, this replaces the user's memory that has this id. If there is none, it stores a new memory, even
        if a memory with this id was forgotten before. A replaced memory keeps its event and usage, and its time unless
        `timestamp` is passed; `updated_at` is set. The old bytes stay in the files for a while, as after `forget`.
        Storing an identical memory changes nothing. Without an `id`, every call adds a memory. `timestamp` is the time
        to which the memory refers (default: now). Raises `InvalidInputError` (with the argument's name), and
        `QuotaExceededError` if the user's quota is reached.

        >>> record = memory.remember("Staging needs the VPN", tags=["deploy"], id="vpn", metadata={"host": "staging"})
        >>> record.text, record.kind, record.tags
        ('Staging needs the VPN', 'finding', ('deploy',))
        >>> memory.remember("Staging needs no VPN any more", id="vpn").updated_at is None
        False
        >>> memory.stats().memories
        1
        """
        moment = check_now(now)
        stated = MemoryRecord(
            id=str(ULID.from_datetime(moment)) if id is None else id,
            text=text,
            source=source,
            kind=kind,
            timestamp=moment if timestamp is None else timestamp,
            quality_score=quality_score,
            session_id=session_id,
            metadata={} if metadata is None else metadata,  # type: ignore[arg-type]  # checked below
            title=title,
            tags=tags,  # type: ignore[arg-type]
            provenance=provenance,  # type: ignore[arg-type]  # divided by the checks
            run_id=run_id,
            channel_id=channel_id,
            agent_id=agent_id,
            type=type,
            phase=phase,
            updated_at=moment,
        )
        record = checked_record(stated, moment, self._ingest_settings.max_text_chars, self._event_limits)
        record = masked_record(record, self._masker)
        with self._call():
            admission = nullcontext() if id is None else self.erasure.admitting(record.id, moment)
            stored = self._intake.remember(record, admission, is_dated=timestamp is not None)
            self._learner.follow()
            return stored

    def forget(self, ids: Sequence[str]) -> int:
        """Remove memories with their vectors and words; return how many existed. Durable on return.

        Also removes them from runs and recalls. A replay of their events does not restore them. Their bytes stay in the
        files for a while; use `erasure.erase` to remove them completely. Raises `InvalidInputError`.

        >>> record = memory.remember("Staging needs the VPN")
        >>> memory.forget([record.id]), memory.forget([record.id])
        (1, 0)
        """
        with self._call():
            self.erasure.forgotten(ids)
            return self._forgetting.memories(ids)

    def forget_session(self, session_id: str) -> int:
        """Remove the memories, runs and recalls of a session, as `forget` does; return how many memories existed.

        >>> record = memory.remember("Staging needs the VPN", session_id="s-17")
        >>> memory.forget_session("s-17")
        1
        """
        with self._call():
            self.erasure.forgotten(session_id=session_id)
            return self._forgetting.session(session_id)

    def feedback(
        self,
        recall_id: str,
        used: Sequence[str] = (),
        quality: float | None = None,
        comment: str | None = None,
        *,
        event_id: str | None = None,
        now: datetime | None = None,
    ) -> FeedbackReport:
        """Record which memories of a recall were used, and the quality of the outcome (0..1). Durable on return.

        The feedback applies to the recall's run. A recall without a run gets its own trajectory, which ends with the
        feedback and has quality .8 if only `used` is passed. `recall_id` may also be the id of a run. If that run has
        ended, its quality is revised. Later feedback replaces earlier feedback. If `used` names every memory that the
        recall showed, each earns half the credit if two or three were shown, and no credit if more were shown. Raises
        `InvalidInputError`, for example if there is no such recall or run.

        >>> fix = memory.remember("A mutex per session fixed the race for the token")
        >>> result = memory.recall("which race did a mutex fix?")
        >>> report = memory.feedback(result.recall_id, used=[fix.id], quality=1.0)
        >>> memory.get([fix.id])[0].utility
        Utility(used=1, reward_sum=1.0)
        """
        return self.runs.judge(feedback_payload(recall_id, used, quality, comment), event_id, check_now(now))

    def expire(self, now: datetime | None = None) -> int:
        """Expire runs without recent events, and delete old recalls outside runs; return the number of expired runs.

        >>> run = memory.runs.begin("Users get signed out at random")
        >>> memory.expire(now=datetime.now(UTC) + timedelta(days=8))
        1
        >>> memory.runs.get(run.id).state
        'expired'
        """
        with self._call():
            return self._forgetting.silent_runs(check_now(now))

    def fill_vectors(self, limit: int | None = None) -> int:
        """Embed at most `limit` memories that were stored without a model; return their number.

        Resumes after an interruption. Returns 0 if there is no model or the model has changed. While a change of model
        is incomplete, raises `ModelError` as `reembed` does.

        >>> no_model = Settings(embedder=EmbedderSettings(folder="none", allow_download=False))
        >>> with Memory.open("data/bob", settings=no_model) as memory:
        ...     record = memory.remember("Staging needs the VPN")
        >>> with Memory.open("data/bob") as memory:
        ...     memory.fill_vectors(), memory.stats().without_vector
        (1, 0)
        """
        with self._call():
            filled = self._vectors.fill(limit)
            self._learner.follow()
            return filled

    def fill_in_background(self) -> None:
        """Like `fill_vectors` without a limit, but in a thread, which `close` stops. Idempotent.

        >>> memory.fill_in_background()
        """
        with self._call():
            self._vectors.fill_in_background()

    def reembed(self, progress: Progress | None = None) -> int:
        """Recompute all vectors after the model has changed (`model_changed`); return their number.

        Until all vectors are computed, recalls use words and the vectors computed so far. `progress` is called with
        (done, total). Raises `ModelError` if there is no model, or if the model rejects more than a tenth of the texts;
        the former vectors then remain.

        >>> record = memory.remember("Staging needs the VPN")
        >>> memory.reembed()  # the model has not changed
        0
        """
        with self._call():
            self._vectors.begin_reembedding()
            made = self._vectors.fill(progress=progress)
            self._learner.follow()
            return made

    def stats(self, filter: MemoryFilter | Mapping[str, Any] | None = None) -> MemoryStats:
        """Return the statistics of this user's memory or, with a filter, of the matching memories, such as one session.

        Raises `InvalidInputError`, for example if the filter contains `min_score`.

        >>> record = memory.remember("Staging needs the VPN", channel_id="ops")
        >>> stats = memory.stats()
        >>> stats.memories, stats.by_kind, stats.index
        (1, {'finding': 1}, 'exact')
        >>> memory.stats({"channel_id": "ops"}).memories, memory.stats({"channel_id": "web"}).memories
        (1, 0)
        """
        chosen = check_filter(filter, is_query=False)
        with self._call():
            calls = self._embedder.provider_calls()
            return msgspec.structs.replace(self._archive.stats(self.user_id, chosen), provider=calls)

    def copy_records(self, folder: Path) -> None:
        """Write a compact copy of the records into the empty folder `folder`. Not fsynced.

        >>> Path("copy").mkdir()
        >>> memory.copy_records(Path("copy"))
        """
        with self._call():
            self._archive.store.copy(folder)

    def close(self) -> None:
        """Wait for running calls, write pending data, save the caches and release the folder. Idempotent.

        If a model was used, this first spends up to about 2 s embedding memories that were stored without a model.

        >>> memory.close()
        >>> memory.recall("users get signed out")
        Traceback (most recent call last):
        memory_agent.errors.StoreError: the memory of alice is closed
        """
        self.judge.close()  # first, because running recalls may wait for it
        if self._call.shut():
            self._vectors.close(catch_up=not self._is_hosted)  # a host does this during upkeep
            self._consolidation.close()
            with self.erasure.noting_age():
                self._archive.close()
            self._embedder.close()

    def abandon(self) -> None:
        """Close without writing, after a `FencedError`: the folder has a new owner.

        >>> memory.abandon()
        >>> memory.recall("users get signed out")
        Traceback (most recent call last):
        memory_agent.errors.StoreError: the memory of alice is closed
        """
        self.judge.close()
        if self._call.shut():
            self._vectors.close()
            self._archive.abandon()
            self._embedder.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ingest(
        self, arrivals: Sequence[Arrival], ahead: Sequence[Arrival] = (), *, is_awaited: bool = False
    ) -> IngestReport:
        started_s = time.monotonic()
        with self._call():
            report = self._intake.ingest(arrivals, ahead=ahead, is_awaited=is_awaited)
            self._learner.follow()
        self._log(
            "ingest.committed",
            events=len(arrivals),
            kept=report.kept,
            duplicates=report.duplicates,
            dropped=sum(report.dropped.values()),
            rejected=len(report.rejected),
            took_ms=round((time.monotonic() - started_s) * 1000, 2),
        )
        return report

    def _ingest_one(self, event: Event) -> IngestReport:
        return self._ingest(arrivals_of([lambda: self._masker.event(event)], None), is_awaited=True)

    def _similar_runs(self, query: str, top_k: int, min_relevance: float | None) -> Sequence[SimilarRun]:
        options = RecallOptions(min_relevance=min_relevance, dates="ignore")
        usual = QueryDefaults(self._recall_settings, check_now(None))
        asked = make_query(query, top_k, None, None, None, options, usual)
        return self._pipeline.similar_runs(replace(asked, present_us=None))

    def _stored_text(self, text: str) -> str:
        return truncate(self._masker.text(text), self._ingest_settings.max_text_chars)

    def _checked(self, event: Event | Mapping[str, Any], now: datetime) -> Event:
        fields = msgspec.structs.asdict(event) if isinstance(event, Event) else event
        checked = event_from_mapping(fields, self._event_limits, now)
        if (size := len(encode_event(checked))) > self._event_limits.max_bytes:
            raise EventTooLargeError("event", f"must have at most {self._event_limits.max_bytes} bytes, not {size}")
        return self._masker.event(checked)

    def _log(self, event: str, **fields: Any) -> None:
        log.info(event, user_id=self.user_id, **fields)
