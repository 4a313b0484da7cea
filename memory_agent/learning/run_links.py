"""What later runs say of earlier ones: that they tried the same again, or that going on from them succeeded.

A run tries an earlier one again when it says so, or when it asks the same in other words soon after that one ended (or
began, while it was still going on). A run that succeeded speaks for the runs that it names as those it goes on from,
for the runs that these name, at most three links back, and for the latest earlier runs that used a memory that it used
as well; for each once, by the shortest way. A memory shared with a run that shares one with another is no relation.

Both ends keep what was said (`Effect`, `Echo`), so that it can be taken back when the later run turns out otherwise.

Which recalls belong to a run: those that its events name, those made in its name, and those for the same request.

The last is a guess (the same words, or a near vector, shortly before the run began, in no other session), and gives
way to what is said outright. A recall that was judged before its run was known made a trajectory of its own; the run
takes that over.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice

import msgspec

from memory_agent.config import LearningSettings
from memory_agent.learning.outcomes import succeeded
from memory_agent.learning.run_views import Request, asks_for, is_in_other_words
from memory_agent.learning.run_writer import Book
from memory_agent.storage.recall_notes import RecallNote
from memory_agent.storage.trajectories import BEGUN, ENDED, Echo, Effect, StoredTrajectory, trajectory_key

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


MOST_HOPS = 3
NEAREST = 16
"""Of runs near in time, so many are looked at: the work for one event stays bounded whatever a user's past."""
_SECOND = 1_000_000

Said = set[tuple[str, int]]
"""Earlier runs and hops."""


def relate(book: Book, run_ids: Iterable[str], settings: LearningSettings) -> None:
    """Bring up to date what these runs say of earlier ones, and what later ones say of them."""
    changed = list(dict.fromkeys(run_ids))
    waiting: list[str] = []
    for run_id in changed:
        run = book.get(run_id)
        if run is not None:
            waiting += _ask_later_ones(book, run, settings)
            waiting += _say_of_retried(book, run, settings)
            waiting += sorted({echo.run_id for echo in run.echoes if echo.hop} | _sharing(book, run, is_later=True))
    for run_id in dict.fromkeys((*changed, *waiting)):
        _say_of_encouraged(book, run_id)


def take_back(book: Book, run_id: str) -> None:
    """Take back all that a run says of others, and let others say nothing of it: it is to be removed."""
    run = book.get(run_id)
    if run is None:
        return
    for effect in run.effects:
        _set_echo(book, effect.run_id, run.id, frozenset(), 0)
    for echo in run.echoes:
        later = book.get(echo.run_id)
        if later is not None:
            rest = tuple(effect for effect in later.effects if effect.run_id != run.id)
            book.put(msgspec.structs.replace(later, effects=rest))


def _ask_later_ones(book: Book, run: StoredTrajectory, settings: LearningSettings) -> list[str]:
    """Let runs that began soon after this one say whether they try it again; return those that say otherwise now."""
    otherwise = []
    known = {echo.run_id for echo in run.echoes if echo.hop == 0}
    for later in _after(book, run, settings, known):
        is_again = run.id in later.retries or _is_again(book, run, later, settings)
        if is_again != (later.id in known):
            said = {(effect.run_id, effect.hop) for effect in later.effects}
            _say(book, later, said | {(run.id, 0)} if is_again else said - {(run.id, 0)})
            otherwise.append(later.id)
    return otherwise


def _say_of_retried(book: Book, run: StoredTrajectory, settings: LearningSettings) -> list[str]:
    """Say which earlier runs this one tries again; return those for which that is new: did they succeed, after all?"""
    run = book.get(run.id) or run
    said = {(effect.run_id, effect.hop) for effect in run.effects}
    says = _retried(book, run, settings) | {(name, hop) for name, hop in said if hop}
    _say(book, run, says)
    return sorted({name for name, _ in says ^ said})


def _say_of_encouraged(book: Book, run_id: str) -> None:
    """Say for which earlier runs the success of this one speaks."""
    run = book.get(run_id)
    if run is not None:
        retried = {(effect.run_id, 0) for effect in run.effects if effect.hop == 0}
        _say(book, run, retried | _encouraged(book, run, {name for name, _ in retried}))


def _say(book: Book, run: StoredTrajectory, says: Said) -> None:
    """Have a run say this of earlier ones, and nothing else."""
    said = {(effect.run_id, effect.hop) for effect in run.effects}
    if says == said:
        return
    book.put(msgspec.structs.replace(run, effects=tuple(Effect(name, hop) for name, hop in sorted(says))))
    for name in sorted({name for name, _ in says ^ said}):
        hops = frozenset(hop for other, hop in says if other == name)
        _set_echo(book, name, run.id, hops, _spoken_us(run))


def _set_echo(book: Book, earlier_id: str, later_id: str, hops: frozenset[int], at_us: int) -> None:
    earlier = book.get_or_new(earlier_id)
    if earlier is not None:
        others = [echo for echo in earlier.echoes if echo.run_id != later_id]
        own = [Echo(later_id, hop, at_us) for hop in sorted(hops)]
        echoes = tuple(sorted((*others, *own), key=lambda echo: (echo.at_us, echo.run_id, echo.hop)))
        if echoes or earlier.marks or earlier.recalls:
            book.put(msgspec.structs.replace(earlier, echoes=echoes))
        else:  # it was only named
            book.remove(earlier_id)


def _spoken_us(run: StoredTrajectory) -> int:
    return run.began_us if run.began_us is not None else run.marks[0].at_us if run.marks else 0


def _retried(book: Book, run: StoredTrajectory, settings: LearningSettings) -> Said:
    found = {(name, 0) for name in run.retries}
    if run.began_us is None or run.begin_row is None:
        return found
    related = {*run.parents, *run.retries, run.id}
    for earlier in _before(book, run.began_us, settings):
        if earlier.id not in related and _is_again(book, earlier, run, settings):
            found.add((earlier.id, 0))
    return found


def _before(book: Book, began_us: int, settings: LearningSettings) -> Iterator[StoredTrajectory]:
    """Runs that ended shortly before a time, and those that had begun then and were still going on."""
    window_us = round(settings.retry_window_s * _SECOND)
    ended = book.batch.run_keys(ENDED, began_us - window_us, began_us + 1, is_newest_first=True)
    begun = book.batch.run_keys(BEGUN, began_us - window_us, began_us, is_newest_first=True)
    return _runs(book, dict.fromkeys((*islice(ended, NEAREST), *islice(begun, NEAREST))))


def _is_again(book: Book, earlier: StoredTrajectory, later: StoredTrajectory, settings: LearningSettings) -> bool:
    if earlier.began_us is None or later.began_us is None or earlier.began_us >= later.began_us:
        return False
    is_over = earlier.ended_us is not None and earlier.ended_us <= later.began_us
    since_us = earlier.ended_us if is_over and earlier.ended_us is not None else earlier.began_us
    if later.began_us - since_us > settings.retry_window_s * _SECOND or later.id in earlier.parents:
        return False
    asked, again = book.request(earlier), book.request(later)
    return asked is not None and again is not None and is_in_other_words(asked, again, settings.retry_similarity)


def _encouraged(book: Book, run: StoredTrajectory, retried: set[str]) -> Said:
    """Earlier runs that the success of this one speaks for, and by how many hops."""
    if run.outcome != "completed" or not succeeded(run.marks, run.echoes):
        return set()
    found: dict[str, int] = {}
    nearest = {*run.parents, *_sharing(book, run, is_later=False)}
    for hop in range(1, MOST_HOPS + 1):
        reached = nearest - found.keys() - {run.id}
        found |= dict.fromkeys(reached, hop)
        known = (book.get(name) for name in reached)
        nearest = {name for earlier in known if earlier is not None for name in earlier.parents}
    return {(name, hop) for name, hop in found.items() if name not in retried}


def _sharing(book: Book, run: StoredTrajectory, *, is_later: bool) -> set[str]:
    """The nearest runs that used a memory that this one used as well, and ended before it began; or the other way."""
    keys = [key for used in run.used for key in _nearest_uses(book, used.row, run, is_later=is_later)]
    return {other.id for other in _runs(book, keys) if other.id != run.id}


def _nearest_uses(book: Book, row: int, run: StoredTrajectory, *, is_later: bool) -> list[bytes]:
    uses = book.batch.uses(row)
    if is_later:
        ended_us = run.ended_us
        after = [(use.began_us, use.run_key) for use in uses if use.began_us is not None]
        return [key for us, key in sorted(after) if ended_us is not None and us >= ended_us][:NEAREST]
    began_us = run.began_us
    before = [(use.ended_us, use.run_key) for use in uses if use.ended_us is not None]
    return [key for us, key in sorted(before, reverse=True) if began_us is not None and us <= began_us][:NEAREST]


def _after(
    book: Book, run: StoredTrajectory, settings: LearningSettings, known: set[str]
) -> Iterator[StoredTrajectory]:
    """Runs that began while this one went on, or soon after, and those that said that they try it again."""
    keys = [trajectory_key(name) for name in sorted(known)]
    if run.began_us is not None:
        until_us = max(run.began_us, run.ended_us or 0) + round(settings.retry_window_s * _SECOND)
        keys += islice(book.batch.run_keys(BEGUN, run.began_us + 1, until_us + 1), NEAREST)
    return _runs(book, dict.fromkeys(keys))


def _runs(book: Book, keys: Iterable[bytes]) -> Iterator[StoredTrajectory]:
    found = (book.by_key(key) for key in list(keys))
    return (run for run in found if run is not None)
