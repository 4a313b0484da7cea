"""Deferred work on finished runs: infers which memories they used, updates patterns, retrains and saves the learner.

The order matters: inferred uses count in patterns and lessons, and the learner may rank a pattern. Closing a memory
infers uses and saves the learner, but does not update patterns.

Inference compares what a run wrote after a recall (the text of its steps and end) with the memories that the recall
showed. It skips the run's own memories and the patterns built from the run. Each run is read once, and again when its
output, recalls or memories change. Each call reads a limited number of runs and characters, and the next call
continues.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from itertools import islice
from typing import NamedTuple

import msgspec

from memory_agent.errors import MemoryAgentError, StoreFullError
from memory_agent.learning.attribution import ShownText, overlaps
from memory_agent.learning.learner import UserLearner
from memory_agent.learning.pattern_store import Embed, PatternStore
from memory_agent.learning.run_records import RunRecords
from memory_agent.learning.run_views import request_of
from memory_agent.records.memories import MemoryRecord
from memory_agent.storage.archive import Archive
from memory_agent.storage.batch import Batch
from memory_agent.storage.snapshot import Snapshot
from memory_agent.storage.stored_runs import UNREAD, RecallNote, StoredTrajectory
from memory_agent.storage.view import View


class Consolidation:
    """Consolidates the runs of one user. Thread-safe."""

    def __init__(self, archive: Archive, run_records: RunRecords, learner: UserLearner, embed: Embed) -> None:
        settings = learner.settings
        self._learner = learner
        self._inference = UseInference(archive, run_records)
        self._patterns = PatternStore(archive, run_records, embed, are_wanted=settings.patterns)
        self._is_on = settings.mode != "off"
        self._looking = threading.Lock()

    def consolidate(self, now: datetime) -> bool:
        """Process the runs that ended since the last call; return whether there were such runs. Durable on return.

        If the disk is full, inference and patterns are left for a later call.
        """
        if not self._is_on:
            return False
        with self._looking:
            is_changed = False
            with suppress(StoreFullError):
                is_changed = self._inference.infer() > 0
                is_changed = self._patterns.keep() or is_changed
            return self._learner.consolidate(now) or is_changed

    def close(self) -> None:
        """Infer which memories the latest runs used, and save the learner. If saving fails, both are redone later."""
        with self._looking, suppress(MemoryAgentError, OSError):
            if self._is_on and self._inference.infer():
                self._learner.follow()
        self._learner.close()


MOST_RUNS = 50  # read by one call
MOST_CHARS = 300_000  # after this many characters, a call reads no further run or recall; a character takes about 1 us
_OUTPUT_CHARS = 20_000  # the end of a run's output after a recall
_MEMORY_CHARS, _SHOWN_CHARS = 4_000, 40_000  # limits per memory and per answer; an answer's first memories are read


class _Reading(NamedTuple):
    recall_id: str
    output: str
    shown: tuple[ShownText, ...]

    @property
    def chars(self) -> int:
        return len(self.output) + sum(len(memory.text) for memory in self.shown)


class _Case(NamedTuple):
    """A run read from the snapshot, with its request and the outputs and memories to compare."""

    run: StoredTrajectory
    request: str
    readings: list[_Reading]


class UseInference:
    """Infers which memories the finished runs of one user used. Not thread-safe."""

    def __init__(self, archive: Archive, run_records: RunRecords) -> None:
        self._archive = archive
        self._run_records = run_records

    def infer(self) -> int:
        """Read at most 50 new or changed runs; return their number. Durable on return.

        Does nothing while the columns are being rebuilt. Does not flush if no run is new or changed.
        """
        if self._archive.is_rebuilding:
            return 0
        words = _StoreWords(self._archive.view)
        found = [(case.run, _used(case, words)) for case in self._cases()]
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
        """Record which memories a run used. A run that has changed since it was read is left for the next call."""
        run = batch.trajectory(read.id)
        if run is None or run.output != read.output:
            return
        pairs = tuple((row, used[row]) for row in sorted(used) if batch.record(row) is not None)
        if pairs != run.inferred:
            self._run_records.infer(batch, run.id, pairs)
            run = batch.trajectory(run.id) or run
        batch.put_trajectory(msgspec.structs.replace(run, read=run.output))


class _StoreWords:
    """Document frequencies. Each word is looked up once."""

    def __init__(self, view: View) -> None:
        self.memories = view.live
        self._words = view.words
        self._known: dict[str, int] = {}

    def having(self, words: Sequence[str]) -> Mapping[str, int]:
        self._known |= self._words.having([word for word in dict.fromkeys(words) if word not in self._known])
        return self._known


def _used(case: _Case, words: _StoreWords) -> dict[int, str]:
    """Return the rows whose use is evident from the run's text, each with the latest recall that showed it."""
    return {
        found.row: reading.recall_id
        for reading in case.readings
        for found in overlaps(reading.output, case.request, reading.shown, words)
    }


def _case(snapshot: Snapshot, run: StoredTrajectory) -> _Case:
    """Return the parts of a run to compare: its latest recalls, up to `MOST_CHARS`, in chronological order."""
    request = request_of(snapshot, run)
    known = (snapshot.recall_note(recall_id) for recall_id in run.recall_ids)
    notes = sorted((note for note in known if note is not None), key=lambda note: (note.at_us, note.recall_id))
    said = _output_of(snapshot, run)
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


def _output_of(snapshot: Snapshot, run: StoredTrajectory) -> list[tuple[int, str]]:
    """Return the run's output as (time, text) pairs: the end first, then the steps, latest first."""
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
    run_ids = record.metadata.get("run_ids") if record.kind == "pattern" else None
    return isinstance(run_ids, list) and run.id in run_ids


def _text(record: MemoryRecord) -> str:
    return f"{record.title}\n{record.text}" if record.title else record.text
