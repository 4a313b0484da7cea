"""Links runs to recalls, and later runs to earlier ones.

A recall belongs to the run whose events name it, or to the run that requested it. Otherwise, unless a trigger caused
the recall, the run is guessed: it must have the same request (or one with a similar vector), must have begun shortly
after the recall, and must not belong to a different session. An explicit link replaces a guess. Feedback on a recall
without a run creates a trajectory under the recall's id; when the run becomes known, the feedback moves to the run.

A run is a retry of an earlier run if an event reports the retry, or if the run rewords the earlier request soon after
the earlier run ended (or, if that run was still open, soon after it began). A successful run raises the quality of the
runs that it continues, of the latest earlier runs that used one of the same memories, and of the runs that any of these
continue (at most three hops in all). Each run's quality is raised once, along the shortest path. Both runs store the
relation (`Effect`, `Echo`), so that it can be withdrawn if the outcome of the later run changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice

import msgspec

from memory_agent.learning.outcomes import succeeded
from memory_agent.learning.run_views import RunRequest, asks_for, is_in_other_words
from memory_agent.learning.run_writer import RunWriter
from memory_agent.settings import LearningSettings
from memory_agent.storage.stored_runs import BEGUN, ENDED, Echo, Effect, RecallNote, StoredTrajectory, trajectory_key


def link_named(writer: RunWriter, run_id: str) -> None:
    run = writer.get(run_id)
    named = {recall_id for mark in run.marks for recall_id in mark.recalls} if run is not None else set()
    for recall_id in sorted(named):
        note = writer.batch.recall_note(recall_id)
        if note is None or note.run_id == run_id:
            continue
        if note.is_guess or note.run_id in (None, recall_id):  # an explicit link to a different run is final
            link(writer, note, run_id)


def link_asked(writer: RunWriter) -> list[str]:
    """Link new recalls to the runs that their callers named; return the ids of these runs."""
    linked = []
    for note in list(writer.batch.asked_notes()):
        run_id = None if note.by_run is None else writer.batch.run_at(note.by_run, note.at_us)
        if run_id is not None and writer.get_or_new(run_id) is not None:
            link(writer, note, run_id)
            linked.append(run_id)
    return linked


def link_same_request(writer: RunWriter, run_id: str, settings: LearningSettings) -> None:
    run = writer.get(run_id)
    if run is None or run.began_us is None:
        return
    request = writer.request(run)
    if request is None:
        return
    earliest_us = run.began_us - round(settings.request_window_s * _SECOND)
    for note in list(writer.batch.notes_between(earliest_us, run.began_us)):
        if _fits(note, run, request, settings):
            link(writer, note, run_id, is_guess=True)


def _fits(note: RecallNote, run: StoredTrajectory, request: RunRequest, settings: LearningSettings) -> bool:
    is_elsewhere = None not in (note.session_id, run.session_id) and note.session_id != run.session_id
    if note.by_run is not None or note.by_trigger or is_elsewhere or note.run_id not in (None, note.recall_id):
        return False
    return run.id != note.run_id and asks_for(note, request, settings.request_similarity)


def link(writer: RunWriter, note: RecallNote, run_id: str, *, is_guess: bool = False) -> None:
    for former_id in sorted({note.run_id or note.recall_id, note.recall_id} - {run_id}):
        _move_feedback(writer, note.recall_id, former_id, run_id)
    writer.batch.put_note(msgspec.structs.replace(note, run_id=run_id, is_guess=is_guess))
    run = writer.get_or_new(run_id)
    if run is not None:
        writer.put(msgspec.structs.replace(run, recalls=tuple(sorted({*run.recalls, note.recall_id}))))


def _move_feedback(writer: RunWriter, recall_id: str, former_id: str, run_id: str) -> None:
    former, heir = writer.get(former_id), writer.get_or_new(run_id)
    if former is None or heir is None:
        return
    moving = tuple(mark for mark in former.marks if mark.role == "feedback" and recall_id in mark.recalls)
    known = {mark.event_id for mark in heir.marks}
    writer.put(msgspec.structs.replace(heir, marks=(*heir.marks, *(m for m in moving if m.event_id not in known))))
    for mark in moving:
        writer.claim(mark.row, run_id)
    if former_id == recall_id:
        unlink(writer, former_id)
        writer.remove(former_id)
        return
    rest = tuple(mark for mark in former.marks if mark not in moving)
    recalls = tuple(other for other in former.recalls if other != recall_id)
    writer.put(msgspec.structs.replace(former, marks=rest, recalls=recalls))


MOST_HOPS = 3
NEAREST = 16  # maximum number of runs close in time to consider; it bounds the work per event
_SECOND = 1_000_000

Relations = set[tuple[str, int]]  # an earlier run's id, and the number of hops to it (0 for a retried run)


def relate(writer: RunWriter, run_ids: Iterable[str], settings: LearningSettings) -> None:
    changed = list(dict.fromkeys(run_ids))
    waiting: list[str] = []
    for run_id in changed:
        run = writer.get(run_id)
        if run is not None:
            waiting += _update_retries_of(writer, run, settings)
            waiting += _update_retried_by(writer, run, settings)
            waiting += sorted({echo.run_id for echo in run.echoes if echo.hop} | _sharing(writer, run, is_later=True))
    for run_id in dict.fromkeys((*changed, *waiting)):
        _update_raised_by(writer, run_id)


def unlink(writer: RunWriter, run_id: str) -> None:
    """Withdraw all relations of a run, in both directions. Call this before the run is removed."""
    run = writer.get(run_id)
    if run is None:
        return
    for effect in run.effects:
        _set_echoes(writer, effect.run_id, run.id, frozenset(), 0)
    for echo in run.echoes:
        later = writer.get(echo.run_id)
        if later is not None:
            rest = tuple(effect for effect in later.effects if effect.run_id != run.id)
            writer.put(msgspec.structs.replace(later, effects=rest))


def _update_retries_of(writer: RunWriter, run: StoredTrajectory, settings: LearningSettings) -> list[str]:
    """Recompute which later runs retry this run; return the ids of those whose relation changed."""
    changed = []
    known = {echo.run_id for echo in run.echoes if echo.hop == 0}
    for later in _after(writer, run, settings, known):
        is_retry = run.id in later.retries or _is_retry(writer, run, later, settings)
        if is_retry != (later.id in known):
            former = {(effect.run_id, effect.hop) for effect in later.effects}
            _set_relations(writer, later, former | {(run.id, 0)} if is_retry else former - {(run.id, 0)})
            changed.append(later.id)
    return changed


def _update_retried_by(writer: RunWriter, run: StoredTrajectory, settings: LearningSettings) -> list[str]:
    """Recompute which earlier runs this run retries; return the ids of those whose relation changed."""
    run = writer.get(run.id) or run
    former = {(effect.run_id, effect.hop) for effect in run.effects}
    relations = _retried_by(writer, run, settings) | {(name, hop) for name, hop in former if hop}
    _set_relations(writer, run, relations)
    return sorted({name for name, _ in relations ^ former})


def _update_raised_by(writer: RunWriter, run_id: str) -> None:
    run = writer.get(run_id)
    if run is not None:
        retried = {(effect.run_id, 0) for effect in run.effects if effect.hop == 0}
        _set_relations(writer, run, retried | _raised_by(writer, run, {name for name, _ in retried}))


def _set_relations(writer: RunWriter, run: StoredTrajectory, relations: Relations) -> None:
    former = {(effect.run_id, effect.hop) for effect in run.effects}
    if relations == former:
        return
    writer.put(msgspec.structs.replace(run, effects=tuple(Effect(name, hop) for name, hop in sorted(relations))))
    start_us = run.began_us if run.began_us is not None else run.marks[0].at_us if run.marks else 0
    for name in sorted({name for name, _ in relations ^ former}):
        hops = frozenset(hop for other, hop in relations if other == name)
        _set_echoes(writer, name, run.id, hops, start_us)


def _set_echoes(writer: RunWriter, earlier_id: str, later_id: str, hops: frozenset[int], at_us: int) -> None:
    earlier = writer.get_or_new(earlier_id)
    if earlier is not None:
        others = [echo for echo in earlier.echoes if echo.run_id != later_id]
        own = [Echo(later_id, hop, at_us) for hop in sorted(hops)]
        echoes = tuple(sorted((*others, *own), key=lambda echo: (echo.at_us, echo.run_id, echo.hop)))
        if echoes or earlier.marks or earlier.recalls:
            writer.put(msgspec.structs.replace(earlier, echoes=echoes))
        else:  # only the id of the run was known
            writer.remove(earlier_id)


def _retried_by(writer: RunWriter, run: StoredTrajectory, settings: LearningSettings) -> Relations:
    found = {(name, 0) for name in run.retries}
    if run.began_us is None or run.begin_row is None:
        return found
    related = {*run.parents, *run.retries, run.id}
    for earlier in _before(writer, run.began_us, settings):
        if earlier.id not in related and _is_retry(writer, earlier, run, settings):
            found.add((earlier.id, 0))
    return found


def _before(writer: RunWriter, began_us: int, settings: LearningSettings) -> Iterator[StoredTrajectory]:
    window_us = round(settings.retry_window_s * _SECOND)
    ended = writer.batch.run_keys(ENDED, began_us - window_us, began_us + 1, is_newest_first=True)
    begun = writer.batch.run_keys(BEGUN, began_us - window_us, began_us, is_newest_first=True)
    return _runs(writer, dict.fromkeys((*islice(ended, NEAREST), *islice(begun, NEAREST))))


def _is_retry(
    writer: RunWriter, earlier: StoredTrajectory, later: StoredTrajectory, settings: LearningSettings
) -> bool:
    if earlier.began_us is None or later.began_us is None or earlier.began_us >= later.began_us:
        return False
    is_over = earlier.ended_us is not None and earlier.ended_us <= later.began_us
    since_us = earlier.ended_us if is_over and earlier.ended_us is not None else earlier.began_us
    if later.began_us - since_us > settings.retry_window_s * _SECOND or later.id in earlier.parents:
        return False
    asked, again = writer.request(earlier), writer.request(later)
    return asked is not None and again is not None and is_in_other_words(asked, again, settings.retry_similarity)


def _raised_by(writer: RunWriter, run: StoredTrajectory, retried: set[str]) -> Relations:
    """Return the earlier runs whose quality is raised by this run's success, with the number of hops."""
    if run.outcome != "completed" or not succeeded(run.marks, run.echoes):
        return set()
    found: dict[str, int] = {}
    nearest = {*run.parents, *_sharing(writer, run, is_later=False)}
    for hop in range(1, MOST_HOPS + 1):
        reached = nearest - found.keys() - {run.id}
        found |= dict.fromkeys(reached, hop)
        known = (writer.get(name) for name in reached)
        nearest = {name for earlier in known if earlier is not None for name in earlier.parents}
    return {(name, hop) for name, hop in found.items() if name not in retried}


def _sharing(writer: RunWriter, run: StoredTrajectory, *, is_later: bool) -> set[str]:
    """Return the nearest earlier (or later) runs that share a used memory with `run` and do not overlap it in time."""
    keys = [key for used in run.used for key in _nearest_uses(writer, used.row, run, is_later=is_later)]
    return {other.id for other in _runs(writer, keys) if other.id != run.id}


def _nearest_uses(writer: RunWriter, row: int, run: StoredTrajectory, *, is_later: bool) -> list[bytes]:
    uses = writer.batch.uses(row)
    if is_later:
        ended_us = run.ended_us
        after = [(use.began_us, use.run_key) for use in uses if use.began_us is not None]
        return [key for us, key in sorted(after) if ended_us is not None and us >= ended_us][:NEAREST]
    began_us = run.began_us
    before = [(use.ended_us, use.run_key) for use in uses if use.ended_us is not None]
    return [key for us, key in sorted(before, reverse=True) if began_us is not None and us <= began_us][:NEAREST]


def _after(
    writer: RunWriter, run: StoredTrajectory, settings: LearningSettings, known: set[str]
) -> Iterator[StoredTrajectory]:
    """Return the runs that began during this run or soon after it, and the runs known to retry it."""
    keys = [trajectory_key(name) for name in sorted(known)]
    if run.began_us is not None:
        until_us = max(run.began_us, run.ended_us or 0) + round(settings.retry_window_s * _SECOND)
        keys += islice(writer.batch.run_keys(BEGUN, run.began_us + 1, until_us + 1), NEAREST)
    return _runs(writer, dict.fromkeys(keys))


def _runs(writer: RunWriter, keys: Iterable[bytes]) -> Iterator[StoredTrajectory]:
    found = (writer.by_key(key) for key in list(keys))
    return (run for run in found if run is not None)
