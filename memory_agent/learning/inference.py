"""What runs used by their own words, worked out after they ended: a few runs at a time, never while somebody waits.

What a run said after a recall (its steps and its end, not its request) is held against what that recall had shown, its
own memories aside, and patterns that it is part of. Each run is read once, and again when it says, asked or lost
something since. A run that said what it used, of some recall, is believed for that (`attribution`).

The work of one call is bounded by runs and by characters: what is left waits for the next. What this does not do: weigh
words (`overlap`), decide what an overlap is worth (`attribution`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import NamedTuple

import msgspec

from memory_agent.errors import IndexDamagedError
from memory_agent.learning.bookkeeping import Bookkeeping
from memory_agent.learning.overlap import ShownText, overlaps
from memory_agent.learning.requests import request_of
from memory_agent.records import MemoryRecord
from memory_agent.storage.archive import Archive
from memory_agent.storage.batch import Batch
from memory_agent.storage.recall_notes import RecallNote
from memory_agent.storage.snapshot import Snapshot
from memory_agent.storage.trajectories import UNREAD, StoredTrajectory

MOST_RUNS = 50
"""Runs that one call reads."""
MOST_CHARS = 300_000
"""Characters after which a call begins no further run, and a run's earlier recalls are not read: a microsecond each."""
_OUTPUT_CHARS = 20_000  # of what a run said after a recall; its end comes first
_MEMORY_CHARS, _SHOWN_CHARS = 4_000, 40_000  # of one memory; of all that a recall showed, the first ones


class _Reading(NamedTuple):
    """What a run said after one recall, and what that recall had shown."""

    recall_id: str
    output: str
    shown: tuple[ShownText, ...]

    @property
    def chars(self) -> int:
        return len(self.output) + sum(len(memory.text) for memory in self.shown)


class _Case(NamedTuple):
    """A run to be read, as it was."""

    run: StoredTrajectory
    request: str
    readings: list[_Reading]


class Inference:
    """Reads the ended runs of one user. Not to be called by two threads at a time."""

    def __init__(self, archive: Archive, bookkeeping: Bookkeeping) -> None:
        self._archive = archive
        self._bookkeeping = bookkeeping

    def examine(self) -> int:
        """Read at most 50 runs that were not read as they are now; return how many. Durable on return.

        Costs no flush where there is none. A damaged lexicon is built anew, and the runs wait.
        """
        words = _StoreWords(self._archive)
        try:
            found = [(case.run, _used(case, words)) for case in self._cases()]
        except IndexDamagedError:
            self._archive.rebuild_soon("lexicon")
            return 0
        if found:
            with self._archive.batch() as batch:
                for run, used in found:
                    self._write(batch, run, used)
        return len(found)

    def _cases(self) -> list[_Case]:
        cases: list[_Case] = []
        chars = 0
        with self._archive.store.snapshot() as snapshot:
            for key in islice(snapshot.run_keys(UNREAD), MOST_RUNS):
                run = snapshot.run_of_key(key)
                if run is None or chars >= MOST_CHARS:
                    break
                cases.append(_case(snapshot, run))
                chars += sum(reading.chars for reading in cases[-1].readings)
        return cases

    def _write(self, batch: Batch, read: StoredTrajectory, used: Mapping[int, str]) -> None:
        """Write what a run used, unless it is another than the one that was read: then it is read again."""
        run = batch.trajectory(read.id)
        if run is None or run.output != read.output:
            return
        pairs = tuple((row, used[row]) for row in sorted(used) if batch.record(row) is not None)
        if pairs != run.inferred:
            self._bookkeeping.infer(batch, run.id, pairs)
            run = batch.trajectory(run.id) or run
        batch.put_trajectory(msgspec.structs.replace(run, read=run.output))


class _StoreWords:
    """How many memories have a word, each word asked for once."""

    def __init__(self, archive: Archive) -> None:
        self.memories = archive.store.count
        self._lexicon = archive.lexicon
        self._known: dict[str, int] = {}

    def having(self, words: Sequence[str]) -> Mapping[str, int]:
        self._known |= self._lexicon.having(word for word in dict.fromkeys(words) if word not in self._known)
        return self._known


def _used(case: _Case, words: _StoreWords) -> dict[int, str]:
    """Return the rows that the run used by its own words, each with the latest recall that tells it."""
    return {
        found.row: reading.recall_id
        for reading in case.readings
        for found in overlaps(reading.output, case.request, reading.shown, words)
    }


def _case(snapshot: Snapshot, run: StoredTrajectory) -> _Case:
    """Return what is to be read of a run: its latest recalls, as far as there is room, in order of time."""
    request = request_of(snapshot, run)
    known = (snapshot.recall_note(recall_id) for recall_id in run.recall_ids)
    notes = sorted((note for note in known if note is not None), key=lambda note: (note.at_us, note.recall_id))
    said = _said(snapshot, run)
    readings: list[_Reading] = []
    room = MOST_CHARS
    for note in reversed(notes):
        reading = _reading(snapshot, run, note, said)
        room -= reading.chars
        if room < 0:
            break
        if reading.output and reading.shown:
            readings.insert(0, reading)
    return _Case(run, "" if request is None else request.text, readings)


def _said(snapshot: Snapshot, run: StoredTrajectory) -> list[tuple[int, str]]:
    """Return what the run said, and when: its end first, then its steps, the latest first."""
    marks = [mark for mark in reversed(run.marks) if mark.role == "end"]
    marks += [mark for mark in reversed(run.marks) if mark.role == "step"]
    told: list[tuple[int, str]] = []
    room = _OUTPUT_CHARS
    for mark in marks:
        record = None if mark.row is None or room <= 0 else snapshot.record(mark.row)
        if record is not None:
            text = _text(record)[:room]
            told.append((mark.at_us, text))
            room -= len(text)
    return told


def _reading(snapshot: Snapshot, run: StoredTrajectory, note: RecallNote, said: Sequence[tuple[int, str]]) -> _Reading:
    own, room = run.rows, _SHOWN_CHARS
    shown: list[ShownText] = []
    for row in note.rows:
        record = None if row in own or room <= 0 else snapshot.record(row)
        if record is not None and not _quotes(record, run):
            shown.append(ShownText(row, _text(record)[: min(_MEMORY_CHARS, room)]))
            room -= len(shown[-1].text)
    return _Reading(note.recall_id, "\n".join(text for at_us, text in said if at_us >= note.at_us), tuple(shown))


def _quotes(record: MemoryRecord, run: StoredTrajectory) -> bool:
    """Whether a memory is a pattern that this run is part of."""
    run_ids = record.metadata.get("run_ids") if record.kind == "pattern" else None
    return isinstance(run_ids, list) and run.id in run_ids


def _text(record: MemoryRecord) -> str:
    return f"{record.title}\n{record.text}" if record.title else record.text
