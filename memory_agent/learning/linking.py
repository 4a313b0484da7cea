"""Which recalls belong to a run: those that its events name, those made in its name, and those for the same request.

The last is a guess (the same words, or a near vector, shortly before the run began, in no other session), and gives
way to what is said outright. A recall that was judged before its run was known made a trajectory of its own; the run
takes that over.
"""

from __future__ import annotations

import msgspec

from memory_agent.config import LearningSettings
from memory_agent.learning.book import Book
from memory_agent.learning.relations import take_back
from memory_agent.learning.requests import Request, asks_for
from memory_agent.storage.recall_notes import RecallNote
from memory_agent.storage.trajectories import StoredTrajectory

_SECOND = 1_000_000


def link_named(book: Book, run_id: str) -> None:
    """Give a run the recalls that its events name."""
    run = book.get(run_id)
    named = {recall_id for mark in run.marks for recall_id in mark.recalls} if run is not None else set()
    for recall_id in sorted(named):
        note = book.batch.recall_note(recall_id)
        if note is not None and _is_free(note, run_id):
            _link(book, note, run_id)


def link_asked(book: Book) -> list[str]:
    """Give runs the recalls that were made in their name since the last time; return the runs."""
    linked = []
    for note in list(book.batch.asked_notes()):
        if note.by_run is not None and book.get_or_new(note.by_run) is not None:
            _link(book, note, note.by_run)
            linked.append(note.by_run)
    return linked


def link_same_request(book: Book, run_id: str, settings: LearningSettings) -> None:
    """Give a run that has begun the recalls for the same request, shortly before."""
    run = book.get(run_id)
    if run is None or run.began_us is None:
        return
    request = book.request(run)
    if request is None:
        return
    earliest_us = run.began_us - round(settings.request_window_s * _SECOND)
    for note in list(book.batch.notes_between(earliest_us, run.began_us)):
        if _fits(note, run, request, settings):
            _link(book, note, run_id, is_guess=True)


def _is_free(note: RecallNote, run_id: str) -> bool:
    """Whether a run may have a recall that it names: another run that names it has it for good."""
    return note.run_id != run_id and (note.run_id in (None, note.recall_id) or note.is_guess)


def _fits(note: RecallNote, run: StoredTrajectory, request: Request, settings: LearningSettings) -> bool:
    is_elsewhere = None not in (note.session_id, run.session_id) and note.session_id != run.session_id
    if note.by_run is not None or is_elsewhere or note.run_id not in (None, note.recall_id):
        return False
    return run.id != note.run_id and asks_for(note, request, settings.request_similarity)


def _link(book: Book, note: RecallNote, run_id: str, *, is_guess: bool = False) -> None:
    for former_id in sorted({note.run_id or note.recall_id, note.recall_id} - {run_id}):
        _take_over(book, note.recall_id, former_id, run_id)
    book.batch.put_note(msgspec.structs.replace(note, run_id=run_id, is_guess=is_guess))
    run = book.get_or_new(run_id)
    if run is not None:
        book.put(msgspec.structs.replace(run, recalls=tuple(sorted({*run.recalls, note.recall_id}))))


def _take_over(book: Book, recall_id: str, former_id: str, run_id: str) -> None:
    """Take a recall from the run that had it: what feedback said of it goes with it."""
    former, heir = book.get(former_id), book.get_or_new(run_id)
    if former is None or heir is None:
        return
    moving = tuple(mark for mark in former.marks if mark.role == "feedback" and recall_id in mark.recalls)
    known = {mark.event_id for mark in heir.marks}
    book.put(msgspec.structs.replace(heir, marks=(*heir.marks, *(m for m in moving if m.event_id not in known))))
    for mark in moving:
        book.claim(mark.row, run_id)
    if former_id == recall_id:
        take_back(book, former_id)
        book.remove(former_id)
        return
    rest = tuple(mark for mark in former.marks if mark not in moving)
    recalls = tuple(other for other in former.recalls if other != recall_id)
    book.put(msgspec.structs.replace(former, marks=rest, recalls=recalls))
