"""Links runs to recalls, and later runs to earlier ones.

A recall belongs to the run whose events name it, or in whose name it was made. Otherwise it is guessed, unless a
trigger made it: same request (or a near vector), shortly before the run began, in no other session. A guess gives way
to an explicit link. Feedback on a recall that has no run yet creates a trajectory of its own; the run takes it over
once it is known.

A run retries an earlier one when it says so, or when it makes the same request in other words soon after that one
ended (or began, while it was still going). A successful run speaks for the runs it continues, for the runs those
continue (at most three hops), and for the latest earlier runs that used one of the same memories; once each, by the
shortest path. Sharing memories is not transitive. Both ends store the relation (`Effect`, `Echo`), so it can be
withdrawn when the later run turns out differently.
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
    """Link the recalls that the events of a run name."""
    run = writer.get(run_id)
    named = {recall_id for mark in run.marks for recall_id in mark.recalls} if run is not None else set()
    for recall_id in sorted(named):
        note = writer.batch.recall_note(recall_id)
        if note is not None and _is_free(note, run_id):
            link(writer, note, run_id)


def link_asked(writer: RunWriter) -> list[str]:
    """Link new recalls that were made in the name of a run; return the ids of these runs."""
    linked = []
    for note in list(writer.batch.asked_notes()):
        run_id = None if note.by_run is None else writer.batch.run_at(note.by_run, note.at_us)
        if run_id is not None and writer.get_or_new(run_id) is not None:
            link(writer, note, run_id)
            linked.append(run_id)
    return linked


def link_same_request(writer: RunWriter, run_id: str, settings: LearningSettings) -> None:
    """Link recalls for the same request from shortly before the run began."""
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


def _is_free(note: RecallNote, run_id: str) -> bool:
    """Return whether a run may take a recall that it names: an explicit link to another run is final."""
    return note.run_id != run_id and (note.run_id in (None, note.recall_id) or note.is_guess)


def _fits(note: RecallNote, run: StoredTrajectory, request: RunRequest, settings: LearningSettings) -> bool:
    is_elsewhere = None not in (note.session_id, run.session_id) and note.session_id != run.session_id
    if note.by_run is not None or note.by_trigger or is_elsewhere or note.run_id not in (None, note.recall_id):
        return False
    return run.id != note.run_id and asks_for(note, request, settings.request_similarity)


def link(writer: RunWriter, note: RecallNote, run_id: str, *, is_guess: bool = False) -> None:
    """Make a recall, and the feedback on it, that of a run."""
    for former_id in sorted({note.run_id or note.recall_id, note.recall_id} - {run_id}):
        _take_over(writer, note.recall_id, former_id, run_id)
    writer.batch.put_note(msgspec.structs.replace(note, run_id=run_id, is_guess=is_guess))
    run = writer.get_or_new(run_id)
    if run is not None:
        writer.put(msgspec.structs.replace(run, recalls=tuple(sorted({*run.recalls, note.recall_id}))))


def _take_over(writer: RunWriter, recall_id: str, former_id: str, run_id: str) -> None:
    """Move a recall and the feedback on it from one run to another."""
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
NEAREST = 16
"""How many runs near in time are considered, which bounds the work for one event."""
_SECOND = 1_000_000

Said = set[tuple[str, int]]
"""Earlier runs and hops."""


def relate(writer: RunWriter, run_ids: Iterable[str], settings: LearningSettings) -> None:
    """Recompute the relations of these runs to earlier and later ones."""
    changed = list(dict.fromkeys(run_ids))
    waiting: list[str] = []
    for run_id in changed:
        run = writer.get(run_id)
        if run is not None:
            waiting += _ask_later_ones(writer, run, settings)
            waiting += _say_of_retried(writer, run, settings)
            waiting += sorted({echo.run_id for echo in run.echoes if echo.hop} | _sharing(writer, run, is_later=True))
    for run_id in dict.fromkeys((*changed, *waiting)):
        _say_of_encouraged(writer, run_id)


def unlink(writer: RunWriter, run_id: str) -> None:
    """Withdraw all relations of a run, in both directions, before it is removed."""
    run = writer.get(run_id)
    if run is None:
        return
    for effect in run.effects:
        _set_echo(writer, effect.run_id, run.id, frozenset(), 0)
    for echo in run.echoes:
        later = writer.get(echo.run_id)
        if later is not None:
            rest = tuple(effect for effect in later.effects if effect.run_id != run.id)
            writer.put(msgspec.structs.replace(later, effects=rest))


def _ask_later_ones(writer: RunWriter, run: StoredTrajectory, settings: LearningSettings) -> list[str]:
    """Recompute which later runs retry this one; return the ids of those that changed."""
    otherwise = []
    known = {echo.run_id for echo in run.echoes if echo.hop == 0}
    for later in _after(writer, run, settings, known):
        is_again = run.id in later.retries or _is_again(writer, run, later, settings)
        if is_again != (later.id in known):
            said = {(effect.run_id, effect.hop) for effect in later.effects}
            _say(writer, later, said | {(run.id, 0)} if is_again else said - {(run.id, 0)})
            otherwise.append(later.id)
    return otherwise


def _say_of_retried(writer: RunWriter, run: StoredTrajectory, settings: LearningSettings) -> list[str]:
    """Recompute which earlier runs this one retries; return the ids of those that changed."""
    run = writer.get(run.id) or run
    said = {(effect.run_id, effect.hop) for effect in run.effects}
    says = _retried(writer, run, settings) | {(name, hop) for name, hop in said if hop}
    _say(writer, run, says)
    return sorted({name for name, _ in says ^ said})


def _say_of_encouraged(writer: RunWriter, run_id: str) -> None:
    """Recompute the earlier runs that the success of this one speaks for."""
    run = writer.get(run_id)
    if run is not None:
        retried = {(effect.run_id, 0) for effect in run.effects if effect.hop == 0}
        _say(writer, run, retried | _encouraged(writer, run, {name for name, _ in retried}))


def _say(writer: RunWriter, run: StoredTrajectory, says: Said) -> None:
    """Set the relations of a run to earlier ones."""
    said = {(effect.run_id, effect.hop) for effect in run.effects}
    if says == said:
        return
    writer.put(msgspec.structs.replace(run, effects=tuple(Effect(name, hop) for name, hop in sorted(says))))
    for name in sorted({name for name, _ in says ^ said}):
        hops = frozenset(hop for other, hop in says if other == name)
        _set_echo(writer, name, run.id, hops, _spoken_us(run))


def _set_echo(writer: RunWriter, earlier_id: str, later_id: str, hops: frozenset[int], at_us: int) -> None:
    earlier = writer.get_or_new(earlier_id)
    if earlier is not None:
        others = [echo for echo in earlier.echoes if echo.run_id != later_id]
        own = [Echo(later_id, hop, at_us) for hop in sorted(hops)]
        echoes = tuple(sorted((*others, *own), key=lambda echo: (echo.at_us, echo.run_id, echo.hop)))
        if echoes or earlier.marks or earlier.recalls:
            writer.put(msgspec.structs.replace(earlier, echoes=echoes))
        else:  # it was known only by name
            writer.remove(earlier_id)


def _spoken_us(run: StoredTrajectory) -> int:
    return run.began_us if run.began_us is not None else run.marks[0].at_us if run.marks else 0


def _retried(writer: RunWriter, run: StoredTrajectory, settings: LearningSettings) -> Said:
    found = {(name, 0) for name in run.retries}
    if run.began_us is None or run.begin_row is None:
        return found
    related = {*run.parents, *run.retries, run.id}
    for earlier in _before(writer, run.began_us, settings):
        if earlier.id not in related and _is_again(writer, earlier, run, settings):
            found.add((earlier.id, 0))
    return found


def _before(writer: RunWriter, began_us: int, settings: LearningSettings) -> Iterator[StoredTrajectory]:
    """Return the runs that ended or began shortly before a time."""
    window_us = round(settings.retry_window_s * _SECOND)
    ended = writer.batch.run_keys(ENDED, began_us - window_us, began_us + 1, is_newest_first=True)
    begun = writer.batch.run_keys(BEGUN, began_us - window_us, began_us, is_newest_first=True)
    return _runs(writer, dict.fromkeys((*islice(ended, NEAREST), *islice(begun, NEAREST))))


def _is_again(
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


def _encouraged(writer: RunWriter, run: StoredTrajectory, retried: set[str]) -> Said:
    """Return the earlier runs that the success of this one speaks for, with their hops."""
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
    """Return the nearest earlier (or later) runs that do not overlap this one in time and used one of its memories."""
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
    """Return the runs that began during this one or soon after, and those known to retry it."""
    keys = [trajectory_key(name) for name in sorted(known)]
    if run.began_us is not None:
        until_us = max(run.began_us, run.ended_us or 0) + round(settings.retry_window_s * _SECOND)
        keys += islice(writer.batch.run_keys(BEGUN, run.began_us + 1, until_us + 1), NEAREST)
    return _runs(writer, dict.fromkeys(keys))


def _runs(writer: RunWriter, keys: Iterable[bytes]) -> Iterator[StoredTrajectory]:
    found = (writer.by_key(key) for key in list(keys))
    return (run for run in found if run is not None)
