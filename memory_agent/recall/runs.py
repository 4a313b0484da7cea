"""Finds the finished runs whose request resembles a query.

A run is found through the memory that began it, the user's message before that memory in the same session, or the run
that it retried. A run passes a filter if the memory that began it does. The caller's own words are searched too, so a
request repeated a minute later finds the run that just failed.

Shapes: n = all slots of the view.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec
import numpy as np

from memory_agent.learning import WORKED, RunSteps, SharedStep, shared_steps, steps_of_failed_alone, to_similar_run
from memory_agent.recall.answer import number
from memory_agent.recall.candidates import Candidates, highest, scored
from memory_agent.recall.context import FAILED_BELOW
from memory_agent.recall.evidence import credit, relevance
from memory_agent.recall.search import IS_REQUEST, Search, scanned
from memory_agent.recall.stages import is_bare_begin
from memory_agent.records.memories import SOURCES, RecallResult
from memory_agent.records.trajectories import CommonStep, SimilarRun
from memory_agent.storage.column import Slots
from memory_agent.storage.snapshot import Snapshot
from memory_agent.storage.stored_runs import StoredTrajectory

# The number of requests examined at first, and the factor by which it grows while too few runs are found.
_FIRST, _FURTHER = 32, 8
_MOST_REQUESTS = 1_000  # nearest requests to fetch from an index in another engine; the built-in one returns all
_MOST_ATTEMPTS = 4  # runs for one request: the run that was found, and the runs that retried it
_REACH = 3  # maximum number of memories between a message and the start of the run that it caused, in one session
_CHOSEN_FROM = 3  # runs examined, as a multiple of the runs in the answer


def similar_runs(search: Search, top_k: int, answer: Candidates | None = None) -> list[SimilarRun]:
    """Return up to `top_k` runs that reach the query's minimum relevance, best first; ties are ordered newest first.

    Each run is followed by the runs that retried it, with the same score and relevance. The best evidence in `answer`,
    the memories found for the query, also raises the relevance of the requests.
    """
    search = _among_requests(search)
    limit = _FIRST
    while True:
        slots, is_all = _best(search, limit)
        with search.store.snapshot() as snapshot:
            found = list(_runs(search, slots, snapshot, top_k, answer))
        if is_all or len(found) >= top_k or search.deadline.expired():
            return found
        limit *= _FURTHER


def with_runs(result: RecallResult, search: Search, answer: Candidates) -> RecallResult:
    """Add at most the requested number of runs, successes first, and the steps that similar runs have in common.

    Chooses the best runs, with one exception: if all of them succeeded or all failed, the best run with the opposite
    outcome replaces the last one. If a failed run is chosen, its retry replaces the last successful run, provided that
    the retry has at least the same quality. The common steps are those of up to 3 times as many runs.
    """
    most = search.query.runs
    if not most or search.deadline.expired():
        return result
    found = similar_runs(search, most * _CHOSEN_FROM, answer)
    with search.store.snapshot() as snapshot:
        chosen = _chosen(found, most, snapshot)
        worked = [_told(run, search, snapshot) for run in found if run.quality is not None and run.quality >= WORKED]
        failed = [_told(run, search, snapshot) for run in found if run.end != "cancelled" and _has_failed(run)]
    records_of = defaultdict[str, list[str]](list)
    for step in (step for run in found for step in run.steps):
        records_of[step.text].append(step.record_id)
    return msgspec.structs.replace(
        result,
        runs=tuple(sorted(chosen, key=_by_outcome)),
        shared_steps=_common(shared_steps(worked), records_of),
        failed_steps=_common(steps_of_failed_alone(failed, worked), records_of),
    )


def _chosen(found: list[SimilarRun], most: int, snapshot: Snapshot) -> list[SimilarRun]:
    chosen, others = found[:most], found[most:]
    if most > 1 and len({_has_failed(run) for run in chosen}) == 1:
        other = next((run for run in others if _has_failed(run) != _has_failed(chosen[0])), None)
        return chosen if other is None else [*chosen[:-1], other]
    worked = [run for run in chosen if not _has_failed(run)]
    if len(worked) in (0, len(chosen)):
        return chosen
    stored = (snapshot.trajectory(run.id) for run in chosen if _has_failed(run))
    retries = {later for run in stored if run is not None for later in _retries(run)}
    if any(run.id in retries for run in worked):
        return chosen
    again = next((run for run in others if run.id in retries and _quality(run) >= _quality(worked[-1])), None)
    return chosen if again is None else [again if run is worked[-1] else run for run in chosen]


def _told(run: SimilarRun, search: Search, snapshot: Snapshot) -> RunSteps:
    rows = (snapshot.row_of_id(step.record_id) for step in run.steps)
    vectors = search.view.vectors_of([-1 if row is None else row for row in rows])
    return RunSteps(run.id, tuple(step.text for step in run.steps), vectors)


def _common(steps: Iterable[SharedStep], records_of: Mapping[str, Sequence[str]]) -> tuple[CommonStep, ...]:
    return tuple(
        CommonStep(text=step.text, run_ids=step.runs, record_ids=tuple(records_of[step.text])) for step in steps
    )


def _by_outcome(run: SimilarRun) -> int:
    """Return 0 for a run that succeeded or has no known outcome, 1 for a retried run, and 2 for a failed run."""
    return 2 if _has_failed(run) else int(run.quality is not None and run.quality < WORKED)


def _has_failed(run: SimilarRun) -> bool:
    return run.end == "cancelled" or (run.quality is not None and run.quality < FAILED_BELOW)


def _quality(run: SimilarRun) -> float:
    return 0.0 if run.quality is None else run.quality


def without_requests_of_runs(found: Candidates, search: Search) -> Candidates:
    """Return the candidates, omitting those that only repeat a run's request if others can fill the answer."""
    if not search.query.runs:
        return found
    with search.store.snapshot() as snapshot:
        repeated = [place for place, slot in enumerate(found.slots) if _is_request_of_run(search, snapshot, int(slot))]
    room = max(search.query.top_k - (found.slots.size - len(repeated)), 0)
    stays = np.ones(found.slots.shape, dtype=np.bool_)
    stays[repeated[room:]] = False
    return found.take(stays)


def _is_request_of_run(search: Search, snapshot: Snapshot, slot: int) -> bool:
    """Return whether the memory in `slot` is only the request of a finished run, which the run's line also shows."""
    if not IS_REQUEST[search.view.sources[slot]]:
        return False
    run, record = _run_of(search, snapshot, slot), snapshot.record(int(search.view.rows[slot]))
    is_request = record is not None and (record.source == "user_input" or is_bare_begin(snapshot, record))
    return is_request and run is not None and run.ended_us is not None


def _among_requests(search: Search) -> Search:
    """Return the search, narrowed to memories that may be requests and extended to the caller's own words."""
    view = search.view
    mask = (view.alive if search.mask is None else search.mask).copy()
    mask[search.own.slots] = True
    mask &= IS_REQUEST[view.sources]
    bm25 = search.bm25 if not search.own.slots.size else view.words.scores(search.words)
    cosines = None
    if search.vector is not None and search.cosines is not None:
        cosines = scanned(search.vector, view, mask, _MOST_REQUESTS, search.query.filter, search.deadline)
    return msgspec.structs.replace(search, mask=mask, bm25=np.where(mask, bm25, 0.0), cosines=cosines)


def _best(search: Search, limit: int) -> tuple[Slots, bool]:
    """Return the best `limit` slots by vector and the best `limit` by words, and whether no other slots match."""
    by_words = highest(search.bm25, limit, above=0.0)
    if search.cosines is None:
        return by_words, by_words.size >= int(np.count_nonzero(search.bm25 > 0))
    values = search.cosines.values
    slots = np.union1d(highest(values, limit), by_words)
    return slots, slots.size >= int(np.count_nonzero((values > -np.inf) | (search.bm25 > 0)))


def _runs(
    search: Search, slots: Slots, snapshot: Snapshot, top_k: int, answer: Candidates | None
) -> Iterator[SimilarRun]:
    """Yield at most `top_k` distinct finished runs that were started by the requests in `slots`, best first."""
    found = scored(search, slots, reach=0)  # other messages of the session are not evidence for a run
    vouching = credit(found.cosines)
    certain = relevance(found.evidence, vouching, -np.inf)
    if answer is not None:
        best = float(np.fmax.reduce(answer.evidence, initial=-np.inf))
        certain = np.where(np.isin(found.slots, answer.slots), relevance(found.evidence, vouching, best), certain)
    order = np.lexsort((-search.view.times_us[found.slots], -found.total))
    asking = None if search.query.by_run is None else next(snapshot.runs_named(search.query.by_run), None)
    known = {None if asking is None else asking.id}
    for place in order.tolist():
        if certain[place] < search.query.min_relevance:
            continue
        run = _run_of(search, snapshot, int(found.slots[place]))
        for attempt in () if run is None else _attempts(search, snapshot, run):
            like = None if attempt.id in known else to_similar_run(snapshot, attempt)
            if like is not None:
                known.add(attempt.id)
                score, certainty = number(float(found.cosines[place])), number(float(certain[place]))
                yield msgspec.structs.replace(like, score=score, relevance=certainty)
            if len(known) > top_k:
                return


def _attempts(search: Search, snapshot: Snapshot, run: StoredTrajectory) -> Iterator[StoredTrajectory]:
    """Yield the run and then, in order, those of its retries that pass the filter."""
    yield run
    for later in map(snapshot.trajectory, _retries(run)[: _MOST_ATTEMPTS - 1]):
        if later is not None and later.begin_row is not None and _passes(search, later.begin_row):
            yield later


def _passes(search: Search, row: int) -> bool:
    slot = int(search.view.slots([row])[0])
    return slot >= 0 and (search.mask is None or bool(search.mask[slot]))


def _retries(run: StoredTrajectory) -> list[str]:
    return [echo.run_id for echo in run.echoes if echo.hop == 0]


def _run_of(search: Search, snapshot: Snapshot, slot: int) -> StoredTrajectory | None:
    """Return the run that the memory in `slot` began; for a user's message, the next run of the session."""
    row = int(search.view.rows[slot])
    run = _begun_by(snapshot, row)
    if run is not None or SOURCES[search.view.sources[slot]] != "user_input":
        return run
    following = search.view.windows(np.array([slot]), _REACH)[0, _REACH + 1 :]
    for later in following[following >= 0].tolist():
        if SOURCES[search.view.sources[later]] == "user_input":
            return None
        run = _begun_by(snapshot, int(search.view.rows[later]))
        if run is not None:
            return run
    return None


def _begun_by(snapshot: Snapshot, row: int) -> StoredTrajectory | None:
    record = snapshot.record(row)
    run = None if record is None else snapshot.run_of(record)
    return run if run is not None and run.begin_row == row else None
