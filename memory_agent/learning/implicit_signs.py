"""Finds what followed a run: the same request again, a session that went on, a related later success.

Read from messages and runs in the store, with their times, sessions and vectors; nothing is embedded. A follower came
later by two orders, its stated time and its arrival: where an emitter's clock is wrong they disagree, and nothing is
inferred. A run without an end counts as over when nothing was heard of it for `retry_window_s`.

    asked_again     a message, or the begin of a run, with a cosine of `retry_similarity`, within `retry_window_s`
    went_on         the next message of the session, within a day, if its cosine is below .5
    later_success   the begin of a later run with a cosine of .75 that succeeded by its own verdict: within a day in the
                    same session, else within `retry_window_s`. Runs that say how they are related are left out

Periodic jobs repeat their words. The very same words count only as a message of the same session that asks again, and
not if they came before the run too.

Each sign depends on the memory that it cites and on nothing later. So a run that is read again after that memory was
forgotten has the signs that it would have without it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import NamedTuple

import numpy as np

from memory_agent.learning.outcomes import succeeded
from memory_agent.learning.run_views import RunRequest, likeness, request_of
from memory_agent.records.memories import SOURCES
from memory_agent.records.trajectories import SignKind
from memory_agent.settings import LearningSettings
from memory_agent.storage.column import Slots
from memory_agent.storage.snapshot import Snapshot
from memory_agent.storage.stored_runs import BEGUN, StoredSign, StoredTrajectory, request_digest, trajectory_key
from memory_agent.storage.view import NO_NAME, View

FOLLOWED_US = 86_400_000_000
"""How long after a run its followers are looked for."""
ELSEWHERE, RELATED = 0.5, 0.75
"""Cosines below which a message is about something else, and from which a later request is related."""
_NEAREST = 16
"""Messages, and later runs, that are looked at for one run."""
_MESSAGE = SOURCES.index("user_input")


class _Follower(NamedTuple):
    """A message, or the begin of a later `run`. `similarity` is None where it cannot be known."""

    at_us: int
    row: int
    similarity: float | None
    is_in_session: bool
    is_soon: bool
    is_same_words: bool
    run: StoredTrajectory | None = None

    def sign(self, kind: SignKind) -> StoredSign:
        assert self.similarity is not None
        similarity = round(min(max(self.similarity, -1.0), 1.0), 3)
        return StoredSign(self.at_us, kind, self.row, similarity, None if self.run is None else self.run.id)


class ImplicitSigns:
    """Finds the signs of one user's runs at a moment; `view` and `snapshot` are of one store."""

    def __init__(self, view: View, snapshot: Snapshot, settings: LearningSettings, now_us: int) -> None:
        self._view = view
        self._snapshot = snapshot
        self._similarity = settings.retry_similarity
        self._soon_us = round(settings.retry_window_s * 1_000_000)
        messages = np.flatnonzero(view.alive & (view.sources == _MESSAGE))
        self._messages: Slots = messages[np.lexsort((view.rows[messages], view.times_us[messages]))]
        self._present_us = min(int(view.times_us[view.alive].max(initial=0)), now_us)
        self._read_messages: dict[int, tuple[RunRequest, str | None] | None] = {}
        self._read_runs: dict[bytes, tuple[StoredTrajectory, RunRequest] | None] = {}

    def is_settled(self, run: StoredTrajectory) -> bool:
        """Return whether no follower can come any more, unless out of order."""
        return run.outcome == "cancelled" or self._is_over_for(run, FOLLOWED_US)

    def signs_of(self, run: StoredTrajectory) -> tuple[StoredSign, ...]:
        """Return what followed a run, at most one sign of each kind, in order of time."""
        read, over_us = self._run(trajectory_key(run.id)), run.over_us
        request = None if read is None else read[1]
        is_over = run.ended_us is not None or self._is_over_for(run, self._soon_us)
        if request is None or over_us is None or run.outcome == "cancelled" or not is_over:
            return ()
        messages = list(self._messages_after(run, request, over_us))
        later = list(self._runs_after(run, request, over_us))
        found = (self._asked_again(messages, later), _went_on(messages), _later_success(later))
        return tuple(sorted((sign for sign in found if sign is not None), key=lambda sign: (sign.at_us, sign.kind)))

    def _is_over_for(self, run: StoredTrajectory, for_us: int) -> bool:
        return run.over_us is not None and self._present_us - run.over_us > for_us

    def _messages_after(self, run: StoredTrajectory, request: RunRequest, over_us: int) -> Iterator[_Follower]:
        view = self._view
        first, last = np.searchsorted(view.times_us[self._messages], (over_us, over_us + FOLLOWED_US + 1))
        slots = self._messages[first:last]
        begun = view.slots([-1 if run.begin_row is None else run.begin_row])
        session = NO_NAME if begun[0] < 0 else int(view.sessions[begun[0]])
        is_own = (view.sessions[slots] == session) & (session != NO_NAME)
        is_soon = view.times_us[slots] <= over_us + self._soon_us
        kept = np.flatnonzero((is_own | is_soon) & (view.rows[slots] > _last_row(run)))[:_NEAREST]
        for place in kept.tolist():
            slot, row = int(slots[place]), int(view.rows[slots[place]])
            read = self._message(row)
            if read is None or read[1] == run.name:
                continue
            asked, _ = read
            is_same, is_in_session = asked.digest == request.digest, bool(is_own[place])
            similarity = likeness(request, asked)
            if is_same and (not is_in_session or self._is_recurring(slot, _last_row(run))):
                similarity = None
            at_us = int(view.times_us[slot])
            yield _Follower(at_us, row, similarity, is_in_session, bool(is_soon[place]), is_same)

    def _is_recurring(self, slot: int, before_row: int) -> bool:
        """Return whether a message had come in the same words before the run, besides the one that caused the run."""
        same = self._view.same(self._view.fingerprints[slot : slot + 1])[0]
        return int(np.count_nonzero(self._view.rows[same] < before_row)) > 1

    def _runs_after(self, run: StoredTrajectory, request: RunRequest, over_us: int) -> Iterator[_Follower]:
        related = {run.id, *run.parents}
        keys = self._snapshot.run_keys(BEGUN, over_us, over_us + FOLLOWED_US + 1)
        for later, asked in filter(None, map(self._run, islice(keys, _NEAREST))):
            if later.id == run.id or later.began_us is None or later.begin_row is None:
                continue
            if later.begin_row <= _last_row(run) or related & {*later.parents, *later.retries}:
                continue
            is_in_session = run.session_id is not None and later.session_id == run.session_id
            is_soon = later.began_us <= over_us + self._soon_us
            is_same = asked.digest == request.digest
            similarity = likeness(request, asked)
            yield _Follower(later.began_us, later.begin_row, similarity, is_in_session, is_soon, is_same, later)

    def _message(self, row: int) -> tuple[RunRequest, str | None] | None:
        """Return what a message asks, and the run that it belongs to."""
        if row not in self._read_messages:
            record = self._snapshot.record(row)
            self._read_messages[row] = (
                None
                if record is None
                else (RunRequest(record.text, request_digest(record.text), self._snapshot.vector(row)), record.run_id)
            )
        return self._read_messages[row]

    def _run(self, key: bytes) -> tuple[StoredTrajectory, RunRequest] | None:
        """Return a run with its request, None without one."""
        if key not in self._read_runs:
            run = self._snapshot.run_of_key(key)
            request = None if run is None else request_of(self._snapshot, run, with_vector=True)
            self._read_runs[key] = None if run is None or request is None else (run, request)
        return self._read_runs[key]

    def _asked_again(self, messages: Sequence[_Follower], later: Sequence[_Follower]) -> StoredSign | None:
        found = [one for one in messages if one.is_soon]
        found += [one for one in later if one.is_soon and not one.is_same_words]
        again = [one for one in found if one.similarity is not None and one.similarity >= self._similarity]
        return min(again, key=lambda one: (one.at_us, one.row)).sign("asked_again") if again else None


def _went_on(messages: Sequence[_Follower]) -> StoredSign | None:
    following = next((one for one in messages if one.is_in_session), None)
    if following is None or following.similarity is None or following.similarity >= ELSEWHERE:
        return None
    return following.sign("went_on")


def _later_success(later: Sequence[_Follower]) -> StoredSign | None:
    for one in later:
        is_related = one.similarity is not None and one.similarity >= RELATED and not one.is_same_words
        if is_related and (one.is_in_session or one.is_soon) and one.run is not None and speaks(one.run):
            return one.sign("later_success")
    return None


def speaks(later: StoredTrajectory) -> bool:
    """Return whether a run succeeded by its own verdict, so that it can be a related later success."""
    return later.outcome == "completed" and succeeded(later.marks, later.echoes)


def holds(sign: StoredSign, later: StoredTrajectory | None) -> bool:
    """Return whether what a sign says of the run that it names, `later`, is so: it succeeded, and begins there."""
    return sign.kind != "later_success" or (later is not None and speaks(later) and later.begin_row == sign.row)


def _last_row(run: StoredTrajectory) -> int:
    """Return the latest memory of the run's own events."""
    return max((mark.row for mark in run.marks if mark.row is not None and mark.role != "feedback"), default=0)
