"""`Memory.runs`: begins, ends and reads runs, and records their steps and ratings.

Each change is ingested as an event, as if a conductor had published it; a repeated `event_id` is ignored. A call that
contradicts the stored run raises an error.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from datetime import datetime
from itertools import islice
from typing import Any

from ulid import ULID

from memory_agent.errors import InvalidInputError, RunBegunError, RunEndedError, RunUnknownError, StoreError
from memory_agent.learning import RunRecords, names_list, shown_row, to_trajectory, words_of
from memory_agent.recall.query import check_now
from memory_agent.records import arguments
from memory_agent.records.memories import IngestReport, microseconds, time_of
from memory_agent.records.trajectories import (
    RUN_ENDS,
    RUN_STATES,
    FeedbackReport,
    RunEnd,
    RunState,
    SimilarRun,
    Trajectory,
)
from memory_agent.storage.archive import Archive, InUse
from memory_agent.storage.snapshot import Snapshot
from memory_agent.storage.stored_runs import Mark, RecallNote, StoredTrajectory
from relay import Event

MOST_RUNS = 1_000
MOST_IDS = 200
_NAME_CHARS = 256
_NOT_STORED = "is not stored, was forgotten, or is a shared item that was not shown"
_LIST = "all memories shown were named, which does not distinguish between them"
_ENDS = {
    "completed": ("conductor.run.completed", "summary"),
    "failed": ("conductor.run.failed", "error"),
    "cancelled": ("conductor.run.cancelled", "reason"),
}

IngestEvent = Callable[[Event], IngestReport]
FindRuns = Callable[[str, int, float | None], Sequence[SimilarRun]]


class Runs:
    """The runs of one user. Every method raises `InvalidInputError` (with the argument's name) and `StoreError`."""

    def __init__(
        self,
        user_id: str,
        archive: Archive,
        run_records: RunRecords,
        ingest: IngestEvent,
        find: FindRuns,
        stored_text: Callable[[str], str],
        in_use: InUse,
    ) -> None:
        """`find` returns runs similar to a text, given a limit and a minimum relevance."""
        self._user_id = user_id
        self._archive = archive
        self._run_records = run_records
        self._ingest = ingest
        self._find = find
        self._stored_text = stored_text
        self._in_use = in_use
        self._changing = threading.Lock()  # held from the check of a run until its event is stored

    def begin(
        self,
        objective: str,
        run_id: str | None = None,
        session_id: str | None = None,
        recall_ids: Sequence[str] = (),
        *,
        event_id: str | None = None,
        now: datetime | None = None,
    ) -> Trajectory:
        """Begin a run, with a new id unless `run_id` is passed. Durable on return.

        Beginning an open run again with the same objective returns the run and adds the recalls. Raises `RunEndedError`
        if the run with this id has ended, and `RunBegunError` if it was begun with a different objective or session.

        >>> run = memory.runs.begin("Users get signed out", run_id="run-7")
        >>> run.id, run.state, run.objective
        ('run-7', 'open', 'Users get signed out')
        """
        arguments.check_not_blank("objective", objective)
        moment = check_now(now)
        field, given = ("event_id", event_id) if run_id is None else ("run_id", run_id)  # a repeat begins the same run
        name = str(ULID.from_datetime(moment)) if given is None else check_name(field, given)
        session = None if session_id is None else check_name("session_id", session_id)
        recalls = check_names("recall_ids", recall_ids)
        payload = {"objective": objective, "run_id": name, "recall_ids": recalls}
        with self._changing:
            if not self._is_begun(name, objective, session, recalls, moment, event_id):
                self._ingest_event("conductor.run.started", payload, event_id, moment, session)
        return self._known(name, moment)

    def step(
        self,
        run_id: str,
        text: str,
        memory_ids: Sequence[str] = (),
        *,
        event_id: str | None = None,
        now: datetime | None = None,
    ) -> Trajectory:
        """Record a step of a run and the memories that it used. Durable on return.

        Raises `RunUnknownError` for a run that was never begun or was forgotten, and `RunEndedError` for a run that has
        ended.

        >>> fix = memory.remember("A mutex per session fixed the race for the token")
        >>> run = memory.runs.begin("Users get signed out", run_id="run-7")
        >>> run = memory.runs.step("run-7", "Put a mutex around the refresh", memory_ids=[fix.id])
        >>> [(used.how, used.credit) for used in run.used]
        [('event', 1.0)]
        """
        arguments.check_not_blank("text", text)
        name = check_name("run_id", run_id)
        moment = check_now(now)
        payload = {"summary": text, "run_id": name, "memory_ids": check_names("memory_ids", memory_ids)}
        run = self._stored_run(name, moment)
        if _has_ended(run, moment) and not _has_event(run, event_id):
            raise _ended(run)
        self._ingest_event("worker.report.received", payload, event_id, moment, run.session_id)
        return self._known(name, moment)

    def end(
        self,
        run_id: str,
        outcome: RunEnd = "completed",
        summary: str | None = None,
        quality: float | None = None,
        memory_ids: Sequence[str] = (),
        *,
        event_id: str | None = None,
        now: datetime | None = None,
    ) -> Trajectory:
        """End a run. Unless `quality` (0..1) is passed, it is derived from the outcome. Durable on return.

        A cancelled run is neither a success nor a failure: it has no quality. Ending a run again with the same
        arguments returns the run; `feedback` revises the quality of a finished run. Raises `RunUnknownError` for a run
        that was never begun or was forgotten, and `RunEndedError` for a run that ended differently.

        >>> run = memory.runs.begin("Users get signed out", run_id="run-7")
        >>> run = memory.runs.end("run-7", summary="Made the token rotation atomic", quality=0.9)
        >>> run.state, run.outcome, run.quality
        ('ended', 'completed', 0.9)
        """
        event_type, text_field = _ENDS[arguments.check_choice("outcome", outcome, RUN_ENDS)]
        name = check_name("run_id", run_id)
        named = check_names("memory_ids", memory_ids)
        payload: dict[str, Any] = {"run_id": name, "memory_ids": named}
        if summary is not None:
            arguments.check_text("summary", summary)
            payload[text_field] = summary
        if quality is not None:
            payload["quality"] = arguments.check_share("quality", quality)
        moment = check_now(now)
        with self._changing:
            run = self._stored_run(name, moment)
            if not _has_ended(run, moment):
                self._ingest_event(event_type, payload, event_id, moment, run.session_id)
            elif not _has_event(run, event_id) and not self._is_end(run, outcome, summary, quality, named):
                raise _ended(run)
        return self._known(name, moment)

    def get(self, run_id: str) -> Trajectory | None:
        """Return the run, or None if there is no such run.

        >>> run = memory.runs.begin("Users get signed out", run_id="run-7")
        >>> memory.runs.get("run-7").objective, memory.runs.get("run-8")
        ('Users get signed out', None)
        """
        name = check_name("run_id", run_id)
        with self._in_use():
            self._settle_recalls()
            with self._archive.store.snapshot() as snapshot:
                run = snapshot.trajectory(name)
                return None if run is None or not run.marks else to_trajectory(snapshot, run)

    def similar(self, query: str, top_k: int = 5, min_relevance: float | None = None) -> list[SimilarRun]:
        """Return at most `top_k` finished runs whose request resembles `query`, best first, with the text of each step.

        Each run is followed by the runs that retried it. Omits runs that have not ended, runs with a forgotten request,
        and runs below `min_relevance` (default: the setting `recall.min_relevance`).

        >>> run = memory.runs.begin("Users get signed out", run_id="run-7")
        >>> run = memory.runs.step("run-7", "Put a mutex around the token refresh")
        >>> run = memory.runs.end("run-7", summary="Nobody is signed out any more", quality=1.0)
        >>> for like in memory.runs.similar("a user is signed out at random"):
        ...     print(like.request.text, [step.text for step in like.steps], like.end, like.quality)
        Users get signed out ['Put a mutex around the token refresh'] completed 1.0
        """
        most = arguments.check_whole("top_k", top_k, arguments.MOST_SIMILAR_RUNS)
        with self._in_use():
            self._settle_recalls()
            return [*self._find(query, most, min_relevance)]

    def list(self, state: RunState | None = None, limit: int = 50) -> list[Trajectory]:
        """Return at most `limit` runs, newest first; with `state`, only runs in that state.

        >>> run = memory.runs.begin("Users get signed out", run_id="run-7")
        >>> run = memory.runs.begin("The deploy hangs", run_id="run-8")
        >>> run = memory.runs.end("run-7")
        >>> [run.id for run in memory.runs.list()], [run.id for run in memory.runs.list("open")]
        (['run-8', 'run-7'], ['run-8'])
        """
        wanted = None if state is None else arguments.check_choice("state", state, RUN_STATES)
        most = arguments.check_whole("limit", limit, MOST_RUNS)
        with self._in_use():
            self._settle_recalls()
            with self._archive.store.snapshot() as snapshot:
                runs = (run for run in snapshot.newest_trajectories() if wanted in (None, run.state))
                return [to_trajectory(snapshot, run) for run in islice(runs, most)]

    def judge(self, payload: dict[str, Any], event_id: str | None, moment: datetime) -> FeedbackReport:
        """Record feedback on a recall or a run (`Memory.feedback`), as returned by `feedback_payload`."""
        name, named = payload["recall_id"], payload["memory_ids"]
        with self._in_use():
            note = self._archive.store.recall_note(name)
        run = self._stored(name, moment) if note is None else None
        if note is not None:
            self._ingest_event("feedback.recall", payload, event_id, moment, note.session_id)
        elif run is not None and run.marks:
            name = run.id
            del payload["recall_id"]
            self._ingest_event("feedback.run", payload, event_id, moment, run.session_id, actor_id=f"conductor:{name}")
        else:
            raise InvalidInputError("recall_id", "unknown recall or run: mistyped, or too old to be credited")
        with self._in_use():
            return self._report(name, named, note)

    def _report(self, name: str, named: Sequence[str], note: RecallNote | None) -> FeedbackReport:
        """Return the effect of feedback on the recall of `note`, or on the run `name`."""
        with self._archive.store.snapshot() as snapshot:
            known = None if note is None else snapshot.recall_note(name) or note
            run = snapshot.trajectory(name if known is None else known.run_id or known.by_run or name)
            recalls = () if run is None else run.recall_ids
            notes = [*filter(None, map(snapshot.recall_note, recalls))] if known is None else [known]
            rows = {memory_id: snapshot.row_of_id(memory_id) for memory_id in named}
        used = {use.row for use in run.used} if run is not None else set()
        shared = {item_id for note in notes for item_id, _ in note.items}.intersection(named)
        rows = {memory_id: None if row is None else shown_row(row, notes) for memory_id, row in rows.items()}
        stored = {row for row in rows.values() if row is not None}
        is_list = any(names_list(stored, len(stored), note) for note in notes)
        reason = _LIST if is_list else "is not credited"
        return FeedbackReport(
            trajectory_id=name if run is None else run.id,
            credited=tuple(memory_id for memory_id, row in rows.items() if row in used or memory_id in shared),
            not_credited={
                memory_id: _NOT_STORED if row is None else reason
                for memory_id, row in rows.items()
                if row not in used and memory_id not in shared
            },
            quality=None if run is None else run.quality,
        )

    def _known(self, name: str, moment: datetime) -> Trajectory:
        stored = self._stored(name, moment)
        run = None if stored is None else self.get(stored.id)
        if run is None:
            raise InvalidInputError("run_id", "belongs to a forgotten run")
        return run

    def _stored(self, name: str, moment: datetime) -> StoredTrajectory | None:
        with self._in_use(), self._archive.store.snapshot() as snapshot:
            return _run_at(snapshot, name, moment)

    def _stored_run(self, name: str, moment: datetime) -> StoredTrajectory:
        run = self._stored(name, moment)
        if run is None or not run.marks:
            raise RunUnknownError(name)
        return run

    def _is_begun(
        self,
        name: str,
        objective: str,
        session: str | None,
        recalls: Sequence[str],
        moment: datetime,
        event_id: str | None,
    ) -> bool:
        """Whether the run exists with all of these values. Raises the same errors as `begin`."""
        with self._in_use(), self._archive.store.snapshot() as snapshot:
            run = _run_at(snapshot, name, moment)
            begin = None if run is None else next((mark for mark in run.marks if mark.role == "begin"), None)
            request = None if begin is None else _words(snapshot, begin)
        if run is None or _has_event(run, event_id):
            return False
        if _has_ended(run, moment):
            raise _ended(run)
        if begin is None:
            return False
        if request != self._stored_words(objective) or session not in (None, run.session_id):
            raise RunBegunError(run.id, _shown_time(begin.at_us))
        return set(recalls) <= set(run.recall_ids)

    def _is_end(
        self, run: StoredTrajectory, outcome: RunEnd, summary: str | None, quality: float | None, named: Sequence[str]
    ) -> bool:
        end = next((mark for mark in reversed(run.marks) if mark.role == "end"), None)
        if end is None or end.outcome != outcome or quality not in (None, end.quality):
            return False
        with self._in_use(), self._archive.store.snapshot() as snapshot:
            rows = {snapshot.row_of_id(memory_id) for memory_id in named}
            is_same_text = summary is None or _words(snapshot, end) == self._stored_words(summary)
        return is_same_text and rows <= {row for mark in run.marks for row in mark.named}

    def _stored_words(self, text: str) -> Sequence[str]:
        return self._stored_text(text).split()

    def _settle_recalls(self) -> None:
        if self._archive.store.has_waiting_notes:
            with self._archive.batch() as batch:
                self._run_records.enter(batch, ())

    def _ingest_event(
        self,
        event_type: str,
        payload: dict[str, Any],
        event_id: str | None,
        now: datetime,
        session_id: str | None = None,
        actor_id: str | None = None,
    ) -> None:
        name = str(ULID.from_datetime(now)) if event_id is None else check_name("event_id", event_id)
        event = Event(
            event_id=name,
            event_type=event_type,
            timestamp=now,
            user_id=self._user_id,
            session_id=session_id,
            actor_id=actor_id,
            payload=payload,
        )
        report = self._ingest(event)
        if report.rejected:
            raise StoreError(f"{event_type} was rejected: {report.rejected[0].reason}")


def _run_at(snapshot: Snapshot, name: str, moment: datetime) -> StoredTrajectory | None:
    return snapshot.trajectory(snapshot.run_at(name, microseconds(moment, "now")))


def _has_ended(run: StoredTrajectory, moment: datetime) -> bool:
    return run.ended_us is not None and run.ended_us <= microseconds(moment, "now")


def _has_event(run: StoredTrajectory, event_id: str | None) -> bool:
    """Whether the run has an event with this id, which means that the call is a repetition."""
    return event_id in {mark.event_id for mark in run.marks}


def _words(snapshot: Snapshot, mark: Mark) -> list[str] | None:
    """Return the words of an event's text, or None if the event has no memory or its memory was forgotten."""
    record = None if mark.row is None else snapshot.record(mark.row)
    return None if record is None else words_of(record, mark).split()


def _ended(run: StoredTrajectory) -> RunEndedError:
    assert run.ended_us is not None
    return RunEndedError(run.id, _shown_time(run.ended_us))


def _shown_time(at_us: int) -> str:
    return time_of(at_us).isoformat(timespec="seconds")


def feedback_payload(recall_id: str, used: Sequence[str], quality: float | None, comment: str | None) -> dict[str, Any]:
    payload: dict[str, Any] = {
        "recall_id": check_name("recall_id", recall_id),
        "memory_ids": check_names("used", used),
    }
    if quality is not None:
        payload["quality"] = arguments.check_share("quality", quality)
    if comment is not None:
        arguments.check_text("comment", comment)
        payload["comment"] = comment
    if not payload["memory_ids"] and quality is None and not comment:
        raise InvalidInputError("used", "must not be empty unless a quality or comment is given")
    return payload


def check_name(field: str, name: str) -> str:
    """Return an id of at most 256 characters, without surrounding white space. Raises `InvalidInputError`."""
    arguments.check_not_blank(field, name)
    if len(name.strip()) > _NAME_CHARS:
        raise InvalidInputError(field, f"must have at most {_NAME_CHARS} characters, not {len(name)}")
    return name.strip()


def check_names(field: str, names: Sequence[str]) -> list[str]:
    ids = arguments.check_ids(field, names)
    if len(ids) > MOST_IDS:
        raise InvalidInputError(field, f"must have at most {MOST_IDS} ids, not {len(ids)}")
    return list(dict.fromkeys(check_name(field, one) for one in ids))
