"""Archives of conversations whose words have synthetic vectors, so that scores can be computed by hand.

The non-zero components of a word's vector differ only in sign, so that int8 represents the vector exactly.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

from memory_agent.embedders import EmbedderInfo
from memory_agent.recall.query import Deadline, Query, QueryDefaults, make_query
from memory_agent.recall.query_vector import QueryVector, QueryVectors
from memory_agent.recall.search import Search, Searcher
from memory_agent.records.embedded import Embedded, Embedding
from memory_agent.records.memories import MemoryFilter, MemoryRecord, Mode, UnderstoodDate
from memory_agent.settings import RecallSettings, StoreSettings
from memory_agent.storage.archive import Archive

NDIM = 16
START = datetime(2026, 1, 1, tzinfo=UTC)
VOCABULARY = ("walnut", "ferry", "copper", "lantern", "orchid", "gravel", "violin", "marsh", "comet", "saddle")
INFO = EmbedderInfo(model="m", model_sha256="0" * 64, scheme="int8", runtime="r", ndim=NDIM, words="signs")
SHOWN = MemoryFilter(agent_id="shown")


class Turn(NamedTuple):
    """The content of one memory. `length` is in tokens. `is_known`: whether the words have vectors.

    `padding` is the number of additional words, which occur in no query.
    """

    session: int | None
    words: tuple[str, ...]
    length: int = 8
    padding: int = 0
    is_asking: bool = False
    is_known: bool = True
    has_vector: bool = True
    is_hidden: bool = False

    @property
    def text(self) -> str:
        said = [*self.words, *["padding"] * self.padding]
        return (" ".join(said) or "-") + ("?" if self.is_asking else "")

    @property
    def tokens(self) -> int:
        """The stored length."""
        return self.length if self.has_words else 0

    @property
    def has_words(self) -> bool:
        return self.is_known and self.has_vector


class Talk(NamedTuple):
    """An archive and its turns by slot."""

    archive: Archive
    turns: list[Turn]

    def around(self, slot: int, reach: int, passing: set[int]) -> list[int]:
        """Return the slots in `passing` that are within `reach` positions of `slot` in the same session."""
        turn = self.turns[slot]
        if turn.session is None:
            return [slot]
        session = [other for other, one in enumerate(self.turns) if one.session == turn.session]
        place = session.index(slot)
        return [other for other in session[max(0, place - reach) : place + reach + 1] if other in passing]


words = st.lists(st.sampled_from(VOCABULARY), max_size=4).map(tuple)
turns = st.builds(
    Turn,
    session=st.none() | st.integers(0, 2),
    words=words,
    length=st.integers(0, 400),
    padding=st.sampled_from([0, 0, 1, 3, 40]),
    is_asking=st.booleans(),
    is_known=st.booleans() | st.just(True),
    has_vector=st.booleans() | st.just(True),
    is_hidden=st.booleans(),
)


def word_vector(word: str, variant: int = 0) -> npt.NDArray[np.float16]:
    """Return the float16 vector of a word in the vocabulary."""
    rng = np.random.default_rng([VOCABULARY.index(word), variant])
    vector = rng.choice([-1, -1, 0, 1, 1], NDIM).astype(np.float64)
    vector[0] = 1.0
    return (vector / np.linalg.norm(vector)).astype(np.float16)


def signs_of(turn: Turn, variant: int = 0) -> npt.NDArray[np.bool_]:
    """Return the stored signs (w, d) of a turn's words."""
    vectors = [word_vector(word, variant) > 0 for word in dict.fromkeys(turn.words)]
    return np.array(vectors, dtype=np.bool_).reshape(-1, NDIM)


def text_vector(said: Sequence[str], number: int) -> Embedding:
    """Return the unit vector of a text: the normalised sum of its words' vectors and a random vector."""
    own = np.random.default_rng(1_000 + number).normal(size=NDIM)
    vector = 0.3 * own + np.sum([word_vector(word) for word in said] or [np.zeros(NDIM)], axis=0)
    unit: Embedding = (vector / np.linalg.norm(vector)).astype(np.float32)
    return unit


@contextmanager
def open_talk(folder: Path, said: Sequence[Turn], variant: int = 0) -> Iterator[Talk]:
    """Yield an archive of these turns, in this order. The vectors of hidden turns depend on `variant`."""
    archive = Archive.open(folder, StoreSettings(map_size_bytes=16 << 20, reserve_bytes=64 << 10), "library")
    try:
        with archive.batch() as batch:
            batch.set_stamp(INFO.stamp)
            batch.set_words_stamp(INFO.words_stamp)
            for number, turn in enumerate(said):
                batch.put(_record(number, turn), _embedded(number, turn, variant if turn.is_hidden else 0))
        yield Talk(archive, list(said))
    finally:
        archive.close()


def asked_of(
    archive: Archive,
    said: Sequence[str],
    *,
    asks: bool = False,
    filter: MemoryFilter | None = None,
    mode: Mode = "hybrid",
    info: EmbedderInfo = INFO,
    settings: RecallSettings | None = None,
    deadline: Deadline | None = None,
) -> Search:
    """Search an archive for words from the vocabulary."""
    settings = settings or RecallSettings()
    options: Any = {"dates": "ignore"}
    text = " ".join(said) + ("?" if asks else "")
    query = make_query(text, 5, filter, mode, 600_000, options, QueryDefaults(settings, START))
    return GivenVector(archive, query_vector(said, info), settings).search_for(query, deadline=deadline)


def query_vector(said: Sequence[str], info: EmbedderInfo = INFO) -> QueryVector:
    """Return a query's vectors as a model would, but without word vectors if `info.words` is empty."""
    distinct = tuple(dict.fromkeys(said)) if info.words else ()
    vectors = np.array([word_vector(word) for word in distinct], dtype=np.float16).reshape(-1, NDIM)
    return QueryVector(text_vector(said, 999), info.stamp, distinct, vectors, info.words_stamp)


class _Given(QueryVectors):
    """Returns a fixed vector without using a model."""

    def __init__(self, vector: QueryVector | None) -> None:
        self._vector = vector

    def result(self, asked: object, stored: str, deadline: Deadline) -> QueryVector | None:
        return self._vector


class GivenVector(Searcher):
    """Searches with a fixed query vector, without a model."""

    def __init__(self, archive: Archive, vector: QueryVector | None, settings: RecallSettings | None = None) -> None:
        no_embedder: Any = None
        super().__init__(archive, no_embedder, settings or RecallSettings())
        self._vectors = _Given(vector)

    def search_for(
        self, query: Query, dates: tuple[UnderstoodDate, ...] = (), deadline: Deadline | None = None
    ) -> Search:
        pending: Any = self if query.needs_vector else None
        return self.search(query, dates, pending, deadline or Deadline(600_000))


def _record(number: int, turn: Turn) -> MemoryRecord:
    return MemoryRecord(
        id=f"turn-{number:06d}",
        text=turn.text,
        source="user_input",
        kind="episode",
        timestamp=START + timedelta(minutes=number),
        session_id=None if turn.session is None else f"s-{turn.session}",
        agent_id="hidden" if turn.is_hidden else "shown",
    )


def _embedded(number: int, turn: Turn, variant: int) -> Embedded | Embedding | None:
    vector = text_vector(turn.words, number + 10_000 * variant)
    if not turn.has_words:
        return vector if turn.has_vector else None
    bits = np.packbits(signs_of(turn, variant), axis=1).reshape(-1, NDIM // 8)
    return Embedded(vector[None, :], np.array([[0, 1]], dtype=np.int32), bits, turn.length)
