"""Decides which memories a run used: named by its events, named by feedback, or inferred from its output. Pure.

Nothing else gets credit: crediting all memories shown costs .034 of recall at 5 (measured). For the same reason a
list of all of four or more memories shown counts as none, and all of two or three, which a threshold of relevance
leaves more often, gets half (decision 0018). A named memory that was not shown is credited.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from memory_agent.records.trajectories import Attribution
from memory_agent.storage.stored_runs import Mark, RecallNote, StoredUse

SAID, INFERRED, UNDIVIDED = 1.0, 0.5, 0.5
"""Credits: of memories named among others, inferred from the output, and named as all of a short answer."""
LEAST_LIST = 4
"""Naming all memories of an answer that has this many or more selects none of them."""


def names_all(named: Iterable[int], count: int, note: RecallNote) -> bool:
    """Return whether `count` named memories, `named` of them still stored, are the whole answer of a recall."""
    shown = set(note.rows)
    return bool(shown) and count >= note.size and shown <= {note.shown_for(row) for row in named}


def names_list(named: Iterable[int], count: int, note: RecallNote) -> bool:
    """Return whether the named memories are a whole answer that is long enough to tell nothing. As `names_all`."""
    return note.size >= LEAST_LIST and names_all(named, count, note)


def shown_row(row: int, notes: Iterable[RecallNote]) -> int:
    """Return the row that an answer showed for this memory: its duplicate or itself."""
    return next((shown for note in notes if (shown := note.shown_for(row)) is not None), row)


def used_memories(
    marks: Sequence[Mark], inferred: Iterable[tuple[int, str | None]], notes: Sequence[RecallNote]
) -> tuple[StoredUse, ...]:
    """Return the memories that a run used, by row. `marks` and `notes` (its recalls) are in order of time.

    Feedback wins over the run's own events, and both over inference. Nothing is inferred for a recall whose uses are
    stated.
    """
    said: dict[int, StoredUse] = {}
    judged: set[str | None] = set()
    for how in ("event", "feedback"):
        for mark in _naming(marks, how):
            about = [note for note in notes if note.recall_id in mark.recalls] or notes
            chosen = {
                row: StoredUse(row, how, credit, _recall_of(row, mark, about))
                for row, credit in _choice(mark, about).items()
            }
            judged |= {use.recall_id for use in chosen.values()}
            judged.update(mark.recalls if chosen and how == "feedback" else ())
            said |= chosen
    told = {row: StoredUse(row, "overlap", INFERRED, name) for row, name in inferred if name not in judged}
    found = told | said
    return tuple(found[row] for row in sorted(found))


def _naming(marks: Sequence[Mark], how: Attribution) -> list[Mark]:
    """Return the marks that name memories; of feedback on the same recalls only the latest."""
    is_feedback = how == "feedback"
    naming = [mark for mark in marks if mark.named and (mark.role == "feedback") == is_feedback]
    if not is_feedback:
        return naming
    latest: Mapping[tuple[str, ...], Mark] = {mark.recalls: mark for mark in naming}
    return list(latest.values())


def _choice(mark: Mark, about: Sequence[RecallNote]) -> dict[int, float]:
    """Return the named memories that are credited, and how much."""
    whole = [note for note in about if names_all(mark.named, mark.named_count, note)]
    listed = {row for note in whole if note.size >= LEAST_LIST for row in note.rows}
    undivided = {row for note in whole if note.size > 1 for row in note.rows}
    named = dict.fromkeys(shown_row(row, about) for row in mark.named)
    return {row: UNDIVIDED if row in undivided else SAID for row in named if row not in listed}


def _recall_of(row: int, mark: Mark, about: Sequence[RecallNote]) -> str | None:
    """Return the latest recall that showed the memory before the event, else the latest that showed it."""
    showing = [note for note in about if row in note.rows]
    before = [note for note in showing if note.at_us <= mark.at_us]
    return (before or showing)[-1].recall_id if showing else None
