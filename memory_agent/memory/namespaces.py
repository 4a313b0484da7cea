"""`Memory.sona`, `Memory.care` and `Memory.erasure`: the learner, the files and complete erasure of one user.

Every method raises `StoreError` if the store has failed or is closed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from datetime import datetime
from typing import Any

import msgspec

from memory_agent.erasure.eraser import Eraser
from memory_agent.erasure.forgetting import Forgetting
from memory_agent.erasure.history import History
from memory_agent.erasure.intent_log import Intent
from memory_agent.erasure.receipt import ErasureReceipt
from memory_agent.erasure.retention import RetentionRules, RetentionSchedule
from memory_agent.erasure.selection import Selection
from memory_agent.errors import InvalidInputError, MemoryAgentError
from memory_agent.learning.consolidation import Consolidation
from memory_agent.learning.export import export_runs, import_runs
from memory_agent.learning.learner import UserLearner
from memory_agent.learning.learner_file import saved_bytes
from memory_agent.learning.lessons import RESET_BLOB
from memory_agent.memory.vectors import MemoryVectors
from memory_agent.recall.query import check_now
from memory_agent.records.memories import Compacted, MemoryFilter
from memory_agent.records.trajectories import GateEvidence, SonaStatus
from memory_agent.settings import RetentionSettings
from memory_agent.signals import SignalTable
from memory_agent.storage.archive import Archive, InUse
from relay.disk import Role

_AGED_AT_WAKING = 1_000
_LOOKED_AT_WAKING = 20_000


class Sona:
    """The learner of one user."""

    def __init__(
        self, user_id: str, archive: Archive, learner: UserLearner, consolidation: Consolidation, in_use: InUse
    ) -> None:
        self._user_id = user_id
        self._archive = archive
        self._learner = learner
        self._consolidation = consolidation
        self._in_use = in_use

    def status(self) -> SonaStatus:
        """Return the state of the learner.

        >>> status = memory.sona.status()
        >>> status.gate.state, status.trajectories, status.gain
        ('shadow', 0, None)
        """
        with self._in_use():
            self._learner.follow()
            store = self._archive.store
            with store.snapshot() as snapshot:
                runs = sum(1 for _ in snapshot.trajectories())
            found = self._learner.figures(store.state.ndim or 1)
            gain, counters = found.gain, store.state.counters
            return SonaStatus(
                user_id=self._user_id,
                mode=self._learner.settings.mode,
                gate=msgspec.convert(found.evidence, GateEvidence, from_attributes=True),
                trajectories=runs,
                credited=found.credited,
                exemplars=found.exemplars,
                memories_with_credit=found.memories,
                served={arm: counters.get(f"served.{arm}", 0) for arm in ("baseline", "learned", "interleaved")},
                gain=None if gain is None else gain.share,
                gain_low=None if gain is None else gain.low,
                gain_high=None if gain is None else gain.high,
                consolidated_at=self._learner.consolidated_at,
                state_bytes=saved_bytes(store.folder),
            )

    def reset(self) -> int:
        """Discard what was learned; return the number of ended runs, which the learner ignores from now on.

        Keeps the runs and the outcomes of memories. Durable on return.

        >>> run = memory.runs.begin("Users get signed out", run_id="run-7")
        >>> run = memory.runs.end("run-7")
        >>> memory.sona.reset(), memory.sona.status().exemplars
        (1, 0)
        """
        with self._in_use():
            with self._archive.batch() as batch:
                runs = list(batch.trajectories())
                last = max((run.number or 0 for run in runs), default=0)
                batch.set_blob(RESET_BLOB, last.to_bytes(8, "big"))
                batch.change_lessons()
            self._learner.follow(from_scratch=True)
            return len(runs)

    def export(self) -> bytes:
        """Return the ended runs with their recalls, for `load`. The data contains the queries.

        >>> run = memory.runs.begin("Users get signed out", run_id="run-7")
        >>> run = memory.runs.end("run-7")
        >>> with Memory.open("data/bob") as bob:
        ...     bob.sona.load(memory.sona.export())
        1
        """
        with self._in_use(), self._archive.store.snapshot() as snapshot:
            return export_runs(snapshot)

    def load(self, data: bytes) -> int:
        """Learn from runs that `export` returned; return how many were new. Durable on return.

        Memories are matched by id; unknown ones are omitted. Raises `InvalidInputError` for damaged data, before any
        change.

        >>> run = memory.runs.begin("Users get signed out", run_id="run-7")
        >>> run = memory.runs.end("run-7")
        >>> memory.sona.load(memory.sona.export())
        0
        """
        with self._in_use():
            with self._archive.batch() as batch:
                added = import_runs(batch, data)
            self._learner.follow(from_scratch=True)
            return added

    def consolidate(self, now: datetime | None = None) -> bool:
        """Infer which memories ended runs used, find patterns, train and save the learner; return whether that was new.

        Part of a host's upkeep. Reads at most 50 runs per call.

        >>> run = memory.runs.begin("Users get signed out", run_id="run-7")
        >>> run = memory.runs.end("run-7")
        >>> memory.sona.consolidate(), memory.sona.consolidate()
        (True, False)
        """
        with self._in_use():
            return self._consolidation.consolidate(check_now(now))


class Care:
    """The files of one user, while they are in use."""

    def __init__(self, archive: Archive, vectors: MemoryVectors, in_use: InUse) -> None:
        self._archive = archive
        self._vectors = vectors
        self._in_use = in_use

    def rebuild(self, *, vectors: bool = False) -> int:
        """Rebuild the columns that recall searches from the records; return the number of memories.

        Meanwhile recalls use the old columns and report that in `degraded`. The new columns include memories that are
        ingested in the meantime.

        With `vectors`, drop the vectors of another model and embed all memories again, in the background; return how
        many wait. `stats().waiting` counts down; meanwhile recalls use words and the vectors made so far. A daemon
        continues after a restart; an embedded memory, at the next call. Raises `ModelError` without a model,
        `InvalidInputError`.

        >>> record = memory.remember("Staging needs the VPN")
        >>> memory.care.rebuild(), memory.care.rebuild(vectors=True)  # the model has not changed
        (1, 0)
        """
        if not isinstance(vectors, bool):
            raise InvalidInputError("vectors", "must be true or false")
        with self._in_use():
            if vectors:
                waiting = self._vectors.begin_reembedding()
                self._vectors.fill_in_background()
                return waiting
            self._archive.rebuild()
            return self._archive.store.counts().memories

    def compact(self) -> Compacted:
        """Free the disk space of deleted records and remove their bytes. Recalls continue; writes wait.

        Raises `DeadlineExceededError` if reads never pause, `StoreFullError` without space for a copy.

        >>> sizes = memory.care.compact()
        >>> sizes.bytes_after <= sizes.bytes_before
        True
        """
        with self._in_use():
            before, after = self._archive.compact()
            return Compacted(bytes_before=before, bytes_after=after)


class Erasure:
    """Complete erasure from one user's files. Only a daemon erases a whole user, with the folder."""

    def __init__(
        self,
        user_id: str,
        archive: Archive,
        forgetting: Forgetting,
        retention: RetentionSettings,
        table: SignalTable,
        in_use: InUse,
    ) -> None:
        """Raises `SettingsError` for unusable retention rules."""
        self._aging = RetentionSchedule(archive.store, RetentionRules(retention, table), retention.interval_s)
        self._eraser = Eraser(user_id, archive, forgetting, self._aging)
        self._in_use = in_use

    def erase(
        self,
        record_ids: Sequence[str] = (),
        *,
        session_id: str | None = None,
        filter: MemoryFilter | Mapping[str, Any] | None = None,
        dry_run: bool = False,
        now: datetime | None = None,
    ) -> ErasureReceipt:
        """Erase memories, with their runs and recalls, from every file. Durable on return.

        Selects memories by id, by session or by filter. Slower than `forget`: compacts and saves the columns (.1 s per
        10,000 memories) and copies the record file. The next opening completes an erasure that a crash interrupted.
        `dry_run` only returns the receipt. A daemon also erases the events from its journal; an embedded memory in a
        daemon's folder leaves that to the daemon's next start, as the receipt states. Raises `InvalidInputError`.

        >>> record = memory.remember("Ann is on leave until May", tags=["hr"])
        >>> receipt = memory.erasure.erase(filter={"tags": ["hr"]})
        >>> receipt.memories, receipt.complete
        (1, True)
        """
        moment = check_now(now)
        return self._erase(Selection.of(record_ids, session_id, filter), moment, dry_run=dry_run)

    def erase_expired(self, *, dry_run: bool = False, now: datetime | None = None) -> ErasureReceipt:
        """Erase memories that have expired by a retention rule, as `erase`; the receipt counts them in `by_rule`.

        >>> rules = (RetentionRule(name="a-month", age_s=30 * 86_400),)
        >>> with Memory.open("data/bob", settings=Settings(retention=RetentionSettings(rules=rules))) as bob:
        ...     record = bob.remember("Ann is on leave until May")
        ...     bob.erasure.erase_expired(now=datetime.now(UTC) + timedelta(days=31)).by_rule
        {'a-month': 1}
        """
        return self._erase(Selection(expired=True), check_now(now), dry_run=dry_run)

    def age(self, now: datetime | None = None, limit: int | None = None) -> int:
        """Forget expired memories, at most `limit`, if a check is due; return how many."""
        with self._in_use():
            return self._eraser.expire(check_now(now), limit)

    def age_at_opening(self, now: datetime, role: Role) -> int:
        """As `age`, without errors, so that the memory opens in any case.

        A caller waits while a host opens a memory, so a host checks at most 20,000 memories (.3 s) and forgets at most
        1,000 (.3 s); its upkeep does the rest.
        """
        with suppress(MemoryAgentError), self._in_use():
            limits = (None, None) if role == "library" else (_AGED_AT_WAKING, _LOOKED_AT_WAKING)
            return self._eraser.expire(now, *limits)
        return 0

    @contextmanager
    def noting_age(self) -> Iterator[None]:
        """Close the archive inside the context; then save when the next memory expires."""
        with suppress(MemoryAgentError):
            self._aging.finish()
        yield
        self._aging.save()

    def start(self, selection: Selection, *, dry_run: bool = False) -> Intent:
        """Plan an erasure and, unless `dry_run`, record it. The daemon then erases the events and calls `carry_out`."""
        intent = self.plan(selection, check_now(None))
        return intent if dry_run else self.begin(intent)

    def plan(self, selection: Selection, now: datetime) -> Intent:
        """Return the memories of a selection and the events that they came from. Raises `InvalidInputError`."""
        with self._in_use():
            return self._eraser.plan(selection, now)

    def begin(self, intent: Intent) -> Intent:
        """Record the intent before the journal is erased; return it merged with a pending one. Durable on return."""
        with self._in_use():
            return self._eraser.begin(intent)

    def receipt(self, intent: Intent, now: datetime) -> ErasureReceipt:
        """Return the receipt of a dry run."""
        return self._eraser.receipt(intent, now, dry_run=True)

    def carry_out(self, intent: Intent, now: datetime | None = None) -> ErasureReceipt:
        """Carry out a planned erasure. Idempotent."""
        with self._in_use():
            return self._eraser.carry_out(intent, check_now(now))

    def forgotten(self, record_ids: Sequence[str] = (), session_id: str | None = None) -> None:
        """Record that `Memory.forget` is about to remove these memories. See `Eraser.note_forgotten`."""
        selection = Selection.of(record_ids, session_id)
        if selection == Selection():
            return
        selection.check()
        self._eraser.note_forgotten(selection, check_now(None))

    def is_forgotten(self, record_id: str, now: datetime) -> bool:
        """Whether the history of erasures contains an id. See `Eraser.is_forgotten`."""
        return self._eraser.is_forgotten(record_id, now)

    def admitting(self, record_id: str, now: datetime) -> AbstractContextManager[Callable[[], None]]:
        """Allow storing a memory under an id that may have been forgotten. See `Eraser.admitting`."""
        return self._eraser.admitting(record_id, now)

    def erase_again(
        self, history: History, made_at: datetime, event_ids: Sequence[str], now: datetime | None = None
    ) -> list[Intent]:
        """Forget again what restoring a backup of `made_at` brought back; return the erasures that this repeats.

        `event_ids` are erased events of the journal; they count as duplicates from now on.
        """
        moment = check_now(now)
        with self._in_use():
            intents = self._eraser.plan_reapply(history, made_at, event_ids, moment)
            for intent in intents:
                self._eraser.carry_out(msgspec.structs.replace(intent, with_journal=True), moment)
            self._eraser.mark_events_seen(event_ids)
            return intents

    def resume(self) -> bool:
        """Complete an erasure that a crash or a full disk interrupted; return whether there was one."""
        with self._in_use():
            return self._eraser.resume()

    def _erase(self, selection: Selection, now: datetime, *, dry_run: bool) -> ErasureReceipt:
        intent = self.plan(selection, now)
        if dry_run:
            return self._eraser.receipt(intent, now, dry_run=True).of_ids(selection.ids, intent.all_ids)
        with self._in_use():
            if self._eraser.leaves_journal:
                self._eraser.begin(intent)
            return self._eraser.carry_out(intent, now).of_ids(selection.ids, intent.all_ids)
