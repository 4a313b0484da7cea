"""The stored form of a recall: the query's vector, and the memories that were shown, by which arm. Pure.

Most recalls never matter again; the store prunes those that belong to no run. Of the query's text only a digest is
stored, which tells whether a run began with the same request.
"""

from __future__ import annotations

from collections.abc import Collection
from hashlib import blake2b
from typing import Literal

import msgspec
import numpy as np

from memory_agent.records.embedded import Embedding
from memory_agent.storage.codec import decode_packed, encode_packed, name_key, name_number, place

Served = Literal["baseline", "learned", "interleaved"]
ASKED, RECALLED = b"a", b"r"
"""Kinds of index entries, by time: recalls in the name of a run that does not know them yet; all recalls."""
NO_ARM, BASELINE, LEARNED = 0, 1, 2
SHOWED_ITEMS = "recalls.showed_items"
"""The counter of recalls that showed shared items."""


class Shown(msgspec.Struct, frozen=True, array_like=True):
    """A memory in an answer, and the arm that contributed it: 0 none or both, 1 the baseline, 2 the learner.

    `others` are its duplicates, which it represents, `place` its position in the answer, from 0.
    """

    row: int
    arm: int = NO_ARM
    others: tuple[int, ...] = ()
    place: int = 0

    def without(self, gone: Collection[int]) -> Shown:
        """Return it without the forgotten ones of its duplicates."""
        return msgspec.structs.replace(self, others=tuple(row for row in self.others if row not in gone))


class RecallNote(msgspec.Struct, frozen=True, array_like=True):
    """One recall. `vector` is float16 bytes of (d,), raw, of unit length, or empty; `stamp` its embedder.

    `shown` is in the order of the answer and loses what is forgotten; `size` is its original length. `by_run` is the
    run that made the recall; `run_id` the one that it was linked to, with `is_guess` if only by similarity. Whether
    anybody read the answer to a recall `by_trigger` is not known: it belongs to a run only if an event says so. `ranks`
    are those of the original answer in the learned ranking, from 1, where it was compared and differed. `items` are the
    shared items in the answer, each with its version.
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

    @property
    def rows(self) -> tuple[int, ...]:
        """The memories that were shown, in order."""
        return tuple(shown.row for shown in self.shown)

    @property
    def said_rows(self) -> tuple[int, ...]:
        """The memories that were shown, and their duplicates."""
        return tuple(row for shown in self.shown for row in (shown.row, *shown.others))

    def shown_for(self, row: int) -> int | None:
        """Return the memory that was shown for the one in `row`: itself or its representative; None if neither was."""
        return next((shown.row for shown in self.shown if row == shown.row or row in shown.others), None)

    @property
    def query(self) -> Embedding | None:
        """The query's vector, (d,) float32 of unit length; None if there was no model."""
        if not self.vector:
            return None
        vector = np.frombuffer(self.vector, dtype="<f2").astype(np.float32)
        length = float(np.linalg.norm(vector))
        return np.asarray(vector / length, dtype=np.float32) if length > 0 else None


_notes = msgspec.msgpack.Decoder(RecallNote)


def recall_key(recall_id: str) -> bytes:
    """Return the key of a recall; ids are ULIDs, so keys sort by time. Raises `InvalidInputError`."""
    return name_key(recall_id, "recall_id")


def encode_note(note: RecallNote) -> bytes:
    """Return the stored form."""
    return encode_packed(name_number(recall_key(note.recall_id)), note)


def decode_note(key: bytes, value: bytes) -> RecallNote:
    """Return the note. Raises `StoreDamagedError`."""
    return decode_packed(_notes, name_number(key), value, "recall note")


def note_entries(note: RecallNote) -> dict[bytes, bytes]:
    """Return the index entries of a recall: keys and values."""
    kinds = [RECALLED] if note.by_run is None or note.run_id is not None else [RECALLED, ASKED]
    return {place(kind, note.at_us) + recall_key(note.recall_id): b"" for kind in kinds}


def vector_of_query(raw: Embedding | None) -> bytes:
    """Return the stored form of a query's vector (d,)."""
    return b"" if raw is None else np.asarray(raw, dtype="<f2").tobytes()


def request_digest(text: str) -> bytes:
    """Return the digest of a request's text, ignoring white space and case."""
    return blake2b(" ".join(text.split()).casefold().encode(errors="surrogatepass"), digest_size=8).digest()
