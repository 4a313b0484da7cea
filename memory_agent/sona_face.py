"""What a person sees and does of the learner: its state, a fresh start, its lessons carried elsewhere.

What this does not do: learn (`learning/teacher`).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import datetime

from memory_agent.learning.consolidation import Consolidation
from memory_agent.learning.export import export_runs, import_runs
from memory_agent.learning.learner import UserLearner
from memory_agent.learning.learner_file import saved_bytes
from memory_agent.learning.lessons import RESET_BLOB
from memory_agent.recall.query import check_now
from memory_agent.storage.archive import Archive
from memory_agent.trajectory import GateEvidence, SonaStatus

Call = Callable[[], AbstractContextManager[None]]


class SonaFace:
    """The learner of one user, as `Memory.sona`. Every method raises `StoreError`: the store failed, or is closed."""

    def __init__(
        self, user_id: str, archive: Archive, learner: UserLearner, consolidation: Consolidation, call: Call
    ) -> None:
        """`call` keeps the files open for one call."""
        self._user_id = user_id
        self._archive = archive
        self._learner = learner
        self._consolidation = consolidation
        self._call = call

    def status(self) -> SonaStatus:
        """Return what the learner says of itself."""
        with self._call():
            self._learner.follow()
            store = self._archive.store
            with store.snapshot() as snapshot:
                runs = sum(1 for _ in snapshot.trajectories())
            found = self._learner.figures(store.ndim or 1)
            evidence, gain = found.evidence, found.gain
            counters = store.counters()
            return SonaStatus(
                user_id=self._user_id,
                mode=self._learner.settings.mode,
                gate=GateEvidence(
                    state=evidence.state,
                    won=evidence.won,
                    lost=evidence.lost,
                    tied=evidence.tied,
                    evidence=evidence.evidence,
                    harm=evidence.harm,
                    threshold=evidence.threshold,
                ),
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
        """Forget what was learnt, not the runs: those that have ended are left out from now on; return how many.

        Durable on return. How runs ended stays with their memories.
        """
        with self._call():
            with self._archive.batch() as batch:
                runs = list(batch.trajectories())
                last = max((run.number or 0 for run in runs), default=0)
                batch.set_blob(RESET_BLOB, last.to_bytes(8, "big"))
                batch.change_lessons()
            self._learner.follow(from_scratch=True)
            return len(runs)

    def export(self) -> bytes:
        """Return the runs that have ended, with their recalls, for `load`: made of what was asked, and as private."""
        with self._call(), self._archive.store.snapshot() as snapshot:
            return export_runs(snapshot)

    def load(self, data: bytes) -> int:
        """Learn from runs that `export` gave; return how many were new. Durable on return.

        Memories are known by their ids; what is not stored here is left out. Raises `InvalidInputError` for what is
        damaged or no export, and changes nothing then.
        """
        with self._call():
            with self._archive.batch() as batch:
                added = import_runs(batch, data)
            self._learner.follow(from_scratch=True)
            return added

    def consolidate(self, now: datetime | None = None) -> bool:
        """Look back at ended runs: what they used by their own words, patterns, the learner made anew and saved.

        Return whether there was anything since the last time. Upkeep's work; at most 50 runs are read at a time.
        """
        with self._call():
            return self._consolidation.consolidate(check_now(now))
