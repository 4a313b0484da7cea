"""Which memories a run used: what it says itself, what feedback says, and what its output shows. Pure.

Nothing else is credited: crediting whatever was shown makes recall worse (measured: .034 of recall at 5). For the same
reason, to name all of four or more memories that a recall showed is to name none. Who names a memory that was not shown
knows more than the recall, and is believed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from memory_agent.storage.recall_notes import RecallNote
from memory_agent.storage.trajectories import Mark, StoredUse
from memory_agent.trajectory import Attribution

SAID, INFERRED = 1.0, 0.5
LEAST_LIST = 4
"""So many memories, all that were shown, are a list and no choice."""


def names_all(named: Iterable[int], count: int, note: RecallNote) -> bool:
    """Whether the `count` memories named, of which these rows are left, are all that a recall showed, and no choice."""
    shown = set(note.rows)
    is_list = note.size >= LEAST_LIST and count >= note.size
    return is_list and bool(shown) and shown <= {note.shown_for(row) for row in named}


def shown_row(row: int, notes: Iterable[RecallNote]) -> int:
    """Return the memory that was shown for the one that was named: one that says the same, or itself."""
    return next((shown for note in notes if (shown := note.shown_for(row)) is not None), row)


def used_memories(
    marks: Sequence[Mark], inferred: Iterable[tuple[int, str | None]], notes: Sequence[RecallNote]
) -> tuple[StoredUse, ...]:
    """Return the memories that a run used, by row. `notes` are its recalls, in order of time; `marks` sorted.

    What is said outright wins over what is inferred, and feedback over the run's own word. Nothing is inferred for a
    recall of which somebody says what was used.
    """
    said: dict[int, StoredUse] = {}
    judged: set[str | None] = set()
    for how in ("event", "feedback"):
        for mark in _naming(marks, how):
            about = [note for note in notes if note.recall_id in mark.recalls] or notes
            chosen = {row: StoredUse(row, how, SAID, _recall_of(row, mark, about)) for row in _choice(mark, about)}
            judged |= {use.recall_id for use in chosen.values()}
            judged.update(mark.recalls if chosen and how == "feedback" else ())
            said |= chosen
    told = {row: StoredUse(row, "overlap", INFERRED, name) for row, name in inferred if name not in judged}
    found = told | said
    return tuple(found[row] for row in sorted(found))


def _naming(marks: Sequence[Mark], how: Attribution) -> list[Mark]:
    """The events that name memories. Of feedback on one recall the latest counts."""
    is_feedback = how == "feedback"
    naming = [mark for mark in marks if mark.named and (mark.role == "feedback") == is_feedback]
    if not is_feedback:
        return naming
    latest: Mapping[tuple[str, ...], Mark] = {mark.recalls: mark for mark in naming}
    return list(latest.values())


def _choice(mark: Mark, about: Sequence[RecallNote]) -> list[int]:
    listed = {row for note in about if names_all(mark.named, mark.named_count, note) for row in note.rows}
    named = dict.fromkeys(shown_row(row, about) for row in mark.named)
    return [row for row in named if row not in listed]


def _recall_of(row: int, mark: Mark, about: Sequence[RecallNote]) -> str | None:
    """The latest recall before the event that had shown the memory, else the latest of all."""
    showing = [note for note in about if row in note.rows]
    before = [note for note in showing if note.at_us <= mark.at_us]
    return (before or showing)[-1].recall_id if showing else None
