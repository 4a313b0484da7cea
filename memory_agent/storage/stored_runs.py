"""The stored forms of runs and recalls, with their index entries. Does not import usearch or open files.

The facts of a run (`marks`, `recalls`, `inferred`, `echoes`) are sorted sets, so the order and repetition of events do
not matter. `learning` derives the other fields. No text is stored: a run's request is the text of the begin event's
memory. A reused id refers to several runs, which are distinguished by their start times. The key of an index
entry is a letter, eight bytes with a time or row, and the key of the run or recall.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Collection
from hashlib import blake2b
from typing import Literal, NamedTuple

import msgspec
import numpy as np

from memory_agent.records.embedded import Embedding
from memory_agent.records.memories import time_of
from memory_agent.records.trajectories import Attribution, Reason, RunEnd, RunRole, RunState
from memory_agent.storage.codec import decode_packed, encode_packed, index_place, indexed_key, name_key, name_number
from relay import described

BEGUN, ENDED, LISTED, OPEN, NUMBERED, USING, UNREAD = b"b", b"e", b"l", b"o", b"n", b"u", b"r"
FORMER_ENTRIES = WATCHED, CITING = b"w", b"c"
"""Index entries for runs with `was_watched` (by time) and for runs with `former_signs` (by the cited row)."""

_NEVER_US = -(1 << 63)
_USE = struct.Struct(">dqq")


class Mark(msgspec.Struct, frozen=True, array_like=True):
    """One event of a run.

    `row` is the event's memory. `named` contains the rows that the event lists as used, and `named_count` is their
    number before any were forgotten. `is_judged`: whether the memory has its own verdict. `said_at` and `said_chars`
    locate the event's message in the memory's text; 0 characters mean the whole text. `is_placed`: whether the event
    identifies this run by its full id or by a recall. `others` contains named ids that do not belong to this user's
    memories, such as those of shared items.
    """

    at_us: int
    event_id: str
    event_type: str
    role: RunRole
    row: int | None = None
    session_id: str | None = None
    outcome: RunEnd | None = None
    quality: float | None = None
    reason: Reason | None = None
    named: tuple[int, ...] = ()
    recalls: tuple[str, ...] = ()
    parents: tuple[str, ...] = ()
    retries: tuple[str, ...] = ()
    is_judged: bool = False
    said_chars: int = 0
    named_count: int = 0
    said_at: int = 0
    is_placed: bool = False
    others: tuple[str, ...] = ()


class Echo(msgspec.Struct, frozen=True, array_like=True):
    """A later run that affects this run: a success that is `hop` links later, or a retry of this run if `hop` is 0."""

    run_id: str
    hop: int
    at_us: int


class Effect(msgspec.Struct, frozen=True, array_like=True):
    run_id: str
    hop: int


class Again(msgspec.Struct, frozen=True, array_like=True):
    """The start of a run that reuses an earlier run's id. `before_us` is the previous start under this id."""

    run_id: str
    at_us: int
    before_us: int | None = None


class StoredUse(msgspec.Struct, frozen=True, array_like=True):
    """A memory that a run used, its credit (0 to 1), and the recall that showed it."""

    row: int
    how: Attribution
    credit: float
    recall_id: str | None = None


class StoredRevision(msgspec.Struct, frozen=True, array_like=True):
    """A quality (0 to 1), its reason and time, and its cause."""

    quality: float
    reason: Reason
    at_us: int
    cause: str | None = None


class StoredTrajectory(msgspec.Struct, frozen=True, array_like=True):
    """A run: facts first, then derived fields. `number` orders runs by the time they first ended.

    `read` is the `output` from which `inferred` was derived. `last_us` is the time of the last start of another run
    under this id. A forgotten run keeps only its id, `again` and `last_us`, so that no repeated event restores it.
    Earlier versions, with implicit feedback, set `former_signs` and `was_watched`; upkeep clears them.
    """

    id: str
    number: int | None = None
    marks: tuple[Mark, ...] = ()
    recalls: tuple[str, ...] = ()
    inferred: tuple[tuple[int, str | None], ...] = ()
    echoes: tuple[Echo, ...] = ()
    effects: tuple[Effect, ...] = ()
    expired_us: int | None = None
    is_forgotten: bool = False

    session_id: str | None = None
    began_us: int | None = None
    begin_row: int | None = None
    ended_us: int | None = None
    outcome: RunEnd | None = None
    recall_ids: tuple[str, ...] = ()
    used: tuple[StoredUse, ...] = ()
    revisions: tuple[StoredRevision, ...] = ()
    read: bytes = b""
    former_signs: tuple[tuple[int, str, int, float, str | None], ...] = ()
    was_watched: bool = False
    again: Again | None = None
    last_us: int | None = None

    @property
    def name(self) -> str:
        return self.id if self.again is None else self.again.run_id

    @property
    def since_us(self) -> int:
        """The time from which the name refers to this run."""
        return _NEVER_US if self.again is None else self.again.at_us

    @property
    def state(self) -> RunState:
        if self.ended_us is not None:
            return "ended"
        return "open" if self.expired_us is None else "expired"

    @property
    def quality(self) -> float | None:
        return self.revisions[-1].quality if self.revisions else None

    @property
    def parents(self) -> tuple[str, ...]:
        return tuple(sorted({name for mark in self.marks for name in mark.parents}))

    @property
    def retries(self) -> tuple[str, ...]:
        return tuple(sorted({name for mark in self.marks for name in mark.retries}))

    @property
    def rows(self) -> set[int]:
        return {mark.row for mark in self.marks if mark.row is not None}

    @property
    def named_rows(self) -> set[int]:
        """All memories that this run refers to: its own memories, and those that it used or named."""
        named = {row for mark in self.marks for row in mark.named}
        begun = set() if self.begin_row is None else {self.begin_row}
        return self.rows | named | begun | {use.row for use in self.used} | {row for row, _ in self.inferred}

    @property
    def output(self) -> bytes:
        """A digest of the inputs of `inferred` (texts and recalls); empty if the texts or the recalls are missing."""
        rows = [mark.row for mark in self.marks if mark.row is not None and mark.role in ("step", "end")]
        if not self.inferred and not (rows and self.recall_ids):
            return b""
        parts = (self.begin_row, rows, self.recall_ids, self.inferred)
        return blake2b(msgspec.msgpack.encode(parts), digest_size=8).digest()

    @property
    def lesson(self) -> tuple[object, ...]:
        """The fields that the learner uses; empty until the run ends."""
        if self.ended_us is None:
            return ()
        return self.number, self.begin_row, self.quality, self.used, self.recall_ids


class Use(NamedTuple):
    run_key: bytes
    quality: float | None
    began_us: int | None
    ended_us: int | None


_trajectories = msgspec.msgpack.Decoder(described(StoredTrajectory))


def trajectory_key(run_id: str) -> bytes:
    return name_key(run_id, "run_id")


def again_id(run_id: str, began_us: int) -> str:
    """Return the id of a run that reuses an earlier run's id."""
    return f"{run_id}@{time_of(began_us).isoformat().removesuffix('+00:00')}Z"


def encode_trajectory(trajectory: StoredTrajectory) -> bytes:
    return encode_packed(name_number(trajectory_key(trajectory.id)), trajectory)


def decode_trajectory(key: bytes, value: bytes) -> StoredTrajectory:
    return decode_packed(_trajectories, name_number(key), value, "trajectory")


def index_entries(trajectory: StoredTrajectory) -> dict[bytes, bytes]:
    if not trajectory.marks:
        return {}
    key = trajectory_key(trajectory.id)
    began, ended = trajectory.began_us, trajectory.ended_us
    first_us = trajectory.marks[0].at_us if began is None else began
    entries = {index_place(LISTED, first_us) + key: b""}
    if began is not None:
        entries[index_place(BEGUN, began) + key] = b""
    if ended is not None:
        entries[index_place(ENDED, ended) + key] = b""
    elif trajectory.expired_us is None:
        entries[index_place(OPEN, trajectory.marks[-1].at_us) + key] = b""
    if trajectory.number is not None and ended is not None:
        entries[index_place(NUMBERED, trajectory.number) + key] = b""
    if ended is not None and trajectory.output != trajectory.read:
        entries[index_place(UNREAD, ended) + key] = b""
    if trajectory.was_watched and trajectory.begin_row is not None:
        entries[index_place(FORMER_ENTRIES[0], trajectory.marks[-1].at_us) + key] = b""
    entries |= {index_place(FORMER_ENTRIES[1], row) + key: b"" for _, _, row, _, _ in trajectory.former_signs}
    use = _encode_use(trajectory)
    return entries | {index_place(USING, used.row) + key: use for used in trajectory.used}


def decode_use(index_key: bytes, value: bytes) -> Use:
    quality, began, ended = _USE.unpack(value)
    return Use(
        indexed_key(index_key),
        None if math.isnan(quality) else quality,
        None if began == _NEVER_US else began,
        None if ended == _NEVER_US else ended,
    )


def _encode_use(trajectory: StoredTrajectory) -> bytes:
    quality = math.nan if trajectory.quality is None else trajectory.quality
    times = (_NEVER_US if us is None else us for us in (trajectory.began_us, trajectory.ended_us))
    return _USE.pack(quality, *times)


Served = Literal["baseline", "learned", "interleaved"]
ASKED, RECALLED = b"a", b"r"
"""Kinds of index entries ordered by time: recalls that their run does not list yet, and all recalls."""
NO_ARM, BASELINE, LEARNED = 0, 1, 2
SHOWED_ITEMS = "recalls.showed_items"


class Shown(msgspec.Struct, frozen=True, array_like=True):
    """A memory in an answer, the `arm` that ranked it, the duplicates that it represents, and its position (from 0)."""

    row: int
    arm: int = NO_ARM
    others: tuple[int, ...] = ()
    place: int = 0

    def without(self, gone: Collection[int]) -> Shown:
        return msgspec.structs.replace(self, others=tuple(row for row in self.others if row not in gone))


class RecallNote(msgspec.Struct, frozen=True, array_like=True):
    """The stored note on one recall. `vector` is the raw query vector (d,) in float16, or empty; `stamp` names its
    embedder.

    `shown` lists the memories in the order of the answer, without forgotten memories; `size` is the answer's original
    length. `by_run` is the run that made the recall. `run_id` is the run to which the recall was linked; `is_guess` is
    set if the link is based only on similarity. A recall `by_trigger` belongs to a run only if an event names the
    recall. If the rankings were compared, `ranks` gives, for each memory of the original answer, its position in the
    learned ranking (from 1), and `boosts` gives the predictions from past use (`sona/comparison`). Both are empty if
    the rankings agree and all boosts are 0. `items` are the shared items in the answer, each with its version.
    """

    recall_id: str
    at_us: int
    session_id: str | None = None
    by_run: str | None = None
    vector: bytes = b""
    stamp: str | None = None
    shown: tuple[Shown, ...] = ()
    served: Served = "baseline"
    is_contested: bool = False
    request: bytes = b""
    size: int = 0
    run_id: str | None = None
    is_guess: bool = False
    by_trigger: bool = False
    ranks: tuple[int, ...] = ()
    items: tuple[tuple[str, str], ...] = ()
    boosts: tuple[int, ...] = ()

    @property
    def rows(self) -> tuple[int, ...]:
        return tuple(shown.row for shown in self.shown)

    @property
    def said_rows(self) -> tuple[int, ...]:
        return tuple(row for shown in self.shown for row in (shown.row, *shown.others))

    def shown_for(self, row: int) -> int | None:
        """Return the row in the answer that stands for `row`: `row` itself, its representative, or None."""
        return next((shown.row for shown in self.shown if row == shown.row or row in shown.others), None)

    @property
    def query(self) -> Embedding | None:
        """The query's vector, (d,) float32 of unit length, or None."""
        if not self.vector:
            return None
        vector = np.frombuffer(self.vector, dtype="<f2").astype(np.float32)
        length = float(np.linalg.norm(vector))
        return np.asarray(vector / length, dtype=np.float32) if length > 0 else None


_notes = msgspec.msgpack.Decoder(described(RecallNote))


def recall_key(recall_id: str) -> bytes:
    return name_key(recall_id, "recall_id")


def encode_note(note: RecallNote) -> bytes:
    return encode_packed(name_number(recall_key(note.recall_id)), note)


def decode_note(key: bytes, value: bytes) -> RecallNote:
    return decode_packed(_notes, name_number(key), value, "recall note")


def note_entries(note: RecallNote) -> dict[bytes, bytes]:
    kinds = [RECALLED] if note.by_run is None or note.run_id is not None else [RECALLED, ASKED]
    return {index_place(kind, note.at_us) + recall_key(note.recall_id): b"" for kind in kinds}


def vector_of_query(raw: Embedding | None) -> bytes:
    return b"" if raw is None else np.asarray(raw, dtype="<f2").tobytes()


def request_digest(text: str) -> bytes:
    """Return a digest of a request's text that ignores white space and case."""
    return blake2b(" ".join(text.split()).casefold().encode(errors="surrogatepass"), digest_size=8).digest()
