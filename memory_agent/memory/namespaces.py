"""`Memory.sona` and `Memory.care`: one user's learner and files."""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

import msgspec

from memory_agent import learning
from memory_agent.memory.vectors import MemoryVectors
from memory_agent.recall.query import check_now
from memory_agent.records.arguments import check_flag
from memory_agent.records.memories import Compacted
from memory_agent.records.trajectories import GateEvidence, GateState, SonaStatus
from memory_agent.storage.archive import Archive, InUse
from relay import described


class Sona:
    """The learner of one user."""

    def __init__(
        self,
        user_id: str,
        archive: Archive,
        learner: learning.UserLearner,
        consolidation: learning.Consolidation,
        in_use: InUse,
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
            found = self._learner.figures(store.state.ndim or 1)
            with store.snapshot() as snapshot:
                runs = sum(1 for _ in snapshot.trajectories())
                history, credited = (
                    learning.standings(snapshot, found.facts),
                    learning.most_credited(snapshot, found.facts),
                )
            gain, counters = found.gain, store.state.counters
            return SonaStatus(
                user_id=self._user_id,
                mode=self._learner.settings.mode,
                gate=msgspec.convert(found.evidence, described(GateEvidence), from_attributes=True),
                trajectories=runs,
                credited=found.credited,
                exemplars=found.exemplars,
                memories_with_credit=found.memories,
                served={arm: counters.get(f"served.{arm}", 0) for arm in ("baseline", "learned", "interleaved")},
                gain=None if gain is None else gain.share,
                gain_low=None if gain is None else gain.low,
                gain_high=None if gain is None else gain.high,
                consolidated_at=self._learner.consolidated_at,
                state_bytes=learning.saved_bytes(store.folder),
                engine=self._learner.settings.engine,
                history=history,
                most_credited=credited,
            )

    @property
    def gate(self) -> GateState:
        """The state of the gate, as in `status`, but without computing the rest of the status.

        >>> memory.sona.gate
        'shadow'
        """
        with self._in_use():
            return self._learner.gate

    def reset(self) -> int:
        """Discard what was learned; return the number of finished runs, which the learner ignores from now on.

        Keeps the runs and the outcomes of memories. Durable on return.

        >>> run = memory.runs.begin("Users get signed out", run_id="run-7")
        >>> run = memory.runs.end("run-7")
        >>> memory.sona.reset(), memory.sona.status().exemplars
        (1, 0)
        """
        with self._in_use():
            with self._archive.batch() as batch:
                ignored = learning.ignore_ended_runs(batch)
            self._learner.follow(from_scratch=True)
            return ignored

    def export(self) -> bytes:
        """Return the finished runs with their recalls, for `load`. Keep the data private: it contains the queries.

        >>> run = memory.runs.begin("Users get signed out", run_id="run-7")
        >>> run = memory.runs.end("run-7")
        >>> with Memory.open("data/bob") as bob:
        ...     bob.sona.load(memory.sona.export())
        1
        """
        with self._in_use(), self._archive.store.snapshot() as snapshot:
            return learning.export_runs(snapshot)

    def load(self, data: bytes) -> int:
        """Learn from runs that `export` returned; return how many were new. Durable on return.

        Memories are matched by id; unknown ones are omitted. Raises `InvalidInputError`, and changes nothing, for
        damaged data.

        >>> run = memory.runs.begin("Users get signed out", run_id="run-7")
        >>> run = memory.runs.end("run-7")
        >>> memory.sona.load(memory.sona.export())
        0
        """
        with self._in_use():
            with self._archive.batch() as batch:
                added = learning.import_runs(batch, data)
            self._learner.follow(from_scratch=True)
            return added

    def consolidate(self, now: datetime | None = None) -> bool:
        """Infer which memories finished runs used, find patterns, and train and save the learner; return whether any of
        this was due.

        This is part of a host's upkeep. A call reads at most 50 runs.

        >>> run = memory.runs.begin("Users get signed out", run_id="run-7")
        >>> run = memory.runs.end("run-7")
        >>> memory.sona.consolidate(), memory.sona.consolidate()
        (True, False)
        """
        with self._in_use():
            return self._consolidation.consolidate(check_now(now))


class Sizes(NamedTuple):
    """The number of memories, the number waiting to be embedded, and the size of all files on disk."""

    memories: int
    waiting: int
    disk_bytes: int


class Care:
    """Maintenance of one user's files while they are in use."""

    def __init__(self, archive: Archive, vectors: MemoryVectors, in_use: InUse) -> None:
        self._archive = archive
        self._vectors = vectors
        self._in_use = in_use

    def rebuild(self, *, vectors: bool = False) -> int:
        """Rebuild recall's search columns from the records; return the number of memories.

        Until this is done, recalls use the old columns and report this in `degraded`. The new columns include memories
        ingested during the rebuild.

        With `vectors`, this drops vectors from a different model and re-embeds all memories in the background; it
        returns how many memories are waiting. `stats().waiting` counts down. Until it is 0, recalls use words and the
        vectors computed so far. After a restart, a daemon resumes the work by itself; without a daemon, the next call
        resumes it. Raises `ModelError` if there is no model, and `InvalidInputError`.

        >>> record = memory.remember("Staging needs the VPN")
        >>> memory.care.rebuild(), memory.care.rebuild(vectors=True)  # the model has not changed
        (1, 0)
        """
        check_flag("vectors", vectors)
        with self._in_use():
            if vectors:
                waiting = self._vectors.begin_reembedding()
                self._vectors.fill_in_background()
                return waiting
            self._archive.rebuild()
            return self._archive.store.counts().memories

    def sizes(self) -> Sizes:
        """Return the sizes, as in `stats`, without waiting for a rebuild.

        >>> record = memory.remember("Staging needs the VPN")
        >>> memory.care.sizes().memories
        1
        """
        with self._in_use():
            counts = self._archive.store.counts()
            return Sizes(counts.memories, counts.waiting, self._archive.store.disk_bytes)

    def compact(self) -> Compacted:
        """Free the disk space of deleted records and remove their bytes. Recalls continue, but writes wait.

        Raises `DeadlineExceededError` if reads never pause, and `StoreFullError` if there is no space for a copy.

        >>> sizes = memory.care.compact()
        >>> sizes.bytes_after <= sizes.bytes_before
        True
        """
        with self._in_use():
            before, after = self._archive.compact()
            return Compacted(bytes_before=before, bytes_after=after)
