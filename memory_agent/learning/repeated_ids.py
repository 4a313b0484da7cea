"""Ids that are used again: a begin after an end, under one id, is another run.

Which of them an event means follows from its time, so that neither the order of events nor their repetition matters: a
start that is delivered again has its first time, and begins nothing. A repeated start before the end, or before the
first start, begins nothing either. The earlier run stays as it was.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec

from memory_agent.learning.run_links import link, unlink
from memory_agent.learning.run_writer import RunWriter
from memory_agent.storage.stored_runs import Again, Mark, StoredTrajectory, again_id


def add_marks(writer: RunWriter, run_id: str, marks: Iterable[Mark]) -> list[str]:
    """Add what events say about the runs of an id; return the ids of the runs that changed.

    A mark that is placed is added to the run `run_id` itself, any other to the run that the id means at its time.
    """
    marks, changed = list(marks), list[str]()
    placed = [mark for mark in marks if mark.is_placed]
    if placed:
        changed += _add(writer, run_id, placed)
    timed = [mark for mark in marks if not mark.is_placed]
    if timed:
        name = writer.stored(run_id).name
        for stretch in _stretches(writer, name, timed):
            changed += _divide(writer, stretch, [mark for mark in timed if stretch.has(mark.at_us)])
    return changed


class _Stretch(NamedTuple):
    """Runs of one name that follow each other, none of them forgotten, and the next one, if there is any."""

    name: str
    runs: tuple[StoredTrajectory, ...]
    following: StoredTrajectory | None

    def has(self, at_us: int) -> bool:
        """Return whether the name means one of these runs at a time."""
        is_before_end = self.following is None or at_us < self.following.since_us
        return self.runs[0].since_us <= at_us and is_before_end


def _stretches(writer: RunWriter, name: str, marks: Sequence[Mark]) -> Iterator[_Stretch]:
    """Yield the runs that these marks may change: those that the name means at their times, and the one after them."""
    first_us, last_us = min(mark.at_us for mark in marks), max(mark.at_us for mark in marks)
    known: list[StoredTrajectory] = []
    for run in writer.batch.runs_named(name):
        known.insert(0, run)
        if run.since_us <= first_us:
            break
    known = known or [StoredTrajectory(name)]
    meant = sum(run.since_us <= last_us for run in known)
    near: list[StoredTrajectory] = []
    for run in known[: meant + 1]:
        if not run.is_forgotten:
            near.append(run)
        elif near:
            yield _Stretch(name, tuple(near), run)
            near = []
    if near:
        yield _Stretch(name, tuple(near), next(iter(known[meant + 1 :]), None))


def _divide(writer: RunWriter, stretch: _Stretch, marks: Iterable[Mark]) -> list[str]:
    """Divide old and new marks among the runs of a stretch; return the ids of those that changed."""
    name, runs, first = stretch.name, stretch.runs, stretch.runs[0]
    news = _news(marks, runs)
    if not news:
        return []
    timed = [mark for run in runs for mark in run.marks if not mark.is_placed]
    starts = _starts([*timed, *news])
    if not starts and len(runs) == 1:
        return _add(writer, first.id, news)
    ids = {first.since_us: first.id} | {us: again_id(name, us) for us in starts}
    said: dict[str, list[Mark]] = {run_id: [] for run_id in ids.values()}
    for run in runs:
        for mark in run.marks:
            said[_home(ids, run, mark.at_us, is_placed=mark.is_placed)].append(mark)
    for mark in news:
        said[_meant(ids, mark.at_us)].append(mark)
        writer.claim(mark.row, name)
    before = first.again
    for began_us, run_id in ids.items():
        again = first.again if run_id == first.id else Again(name, began_us, None if before is None else before.at_us)
        run = msgspec.structs.replace(writer.stored(run_id), marks=tuple(said[run_id]), again=again, is_watched=True)
        writer.put(run)
        before = again
    _follow_on(writer, stretch, None if before is None else before.at_us)
    _move_recalls(writer, stretch, ids, said)
    for run in runs:
        if run.id not in said:
            unlink(writer, run.id)
            writer.remove(run.id)
    return list(dict.fromkeys((*said, *(run.id for run in runs))))


def _starts(marks: Iterable[Mark]) -> list[int]:
    """Return when runs began again, in order."""
    starts, has_begun, ended_us = list[int](), False, None
    for mark in sorted(marks, key=lambda mark: (mark.at_us, mark.role != "begin")):
        if mark.role == "begin":
            if ended_us is not None and ended_us < mark.at_us:
                starts.append(mark.at_us)
                ended_us = None
            has_begun = True
        elif mark.role == "end" and has_begun:
            ended_us = mark.at_us
    return starts


def _meant(ids: Mapping[int, str], at_us: int) -> str:
    return ids[max(since_us for since_us in ids if since_us <= at_us)]


def _home(ids: Mapping[int, str], run: StoredTrajectory, at_us: int, *, is_placed: bool) -> str:
    """Return the run to which something of a former run now belongs. What is placed stays there, while it exists."""
    if is_placed and run.id in ids.values():
        return run.id
    return _meant(ids, run.since_us if is_placed else at_us)


def _follow_on(writer: RunWriter, stretch: _Stretch, before_us: int | None) -> None:
    """Note when the last run of a stretch began again: in the next one, else in the first."""
    following = stretch.following
    if following is None:
        writer.put(msgspec.structs.replace(writer.stored(stretch.name), last_us=before_us))
    elif following.again is not None:
        again = msgspec.structs.replace(following.again, before_us=before_us)
        writer.put(msgspec.structs.replace(writer.stored(following.id), again=again))


def _move_recalls(
    writer: RunWriter, stretch: _Stretch, ids: Mapping[int, str], said: Mapping[str, Sequence[Mark]]
) -> None:
    """Give each recall to the run whose events name it, else to the one that the name meant when it was made."""
    for run in stretch.runs:
        for recall_id in run.recalls:
            note = writer.batch.recall_note(recall_id)
            if note is None:
                continue
            naming = (run_id for run_id, marks in said.items() if any(_names(mark, recall_id) for mark in marks))
            is_asked = note.by_run == stretch.name and stretch.has(note.at_us)
            home = next(naming, None) or _home(ids, run, note.at_us, is_placed=not is_asked)
            if home != run.id:
                link(writer, note, home, is_guess=note.is_guess)


def _names(mark: Mark, recall_id: str) -> bool:
    return mark.role != "feedback" and recall_id in mark.recalls


def _add(writer: RunWriter, run_id: str, marks: Iterable[Mark]) -> list[str]:
    """Add marks to one run, unless it is forgotten; return its id if there are new ones."""
    run = writer.get_or_new(run_id)
    news = [] if run is None else _news(marks, [run])
    if run is None or not news:
        return []
    for mark in news:
        writer.claim(mark.row, run_id)
    writer.put(msgspec.structs.replace(run, marks=(*run.marks, *news), is_watched=True))
    return [run_id]


def _news(marks: Iterable[Mark], runs: Iterable[StoredTrajectory]) -> list[Mark]:
    known = {mark.event_id for run in runs for mark in run.marks}
    return [mark for mark in marks if mark.event_id not in known]
