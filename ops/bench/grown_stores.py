"""Grows one user's store, recording the cost of each batch and copying the folder at several sizes.

Batches contain 64 events, as in a daemon. Embedding 110,000 texts would take minutes and is measured elsewhere, so the
model embeds only 2,000 passages. Each vector is a mixture of two passages' vectors; the word vectors are those of one
of the passages. Queries are embedded by the model, or mixed in the same way.

Shapes: n texts, d dimensions of an embedding.
"""

from __future__ import annotations

import itertools
import shutil
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from memory_agent import Memory
from memory_agent.embedders import Embedder, EmbedderInfo, PassageEmbedder, Progress, Settled, open_embedder
from memory_agent.records.embedded import WORD_DIMENSIONS, Embedded, EmbeddedQuery
from memory_agent.settings import EmbedderSettings, Settings
from memory_agent.storage.terms import query_words
from ops.bench.texts import event_of, passages

SIZES = (10_000, 100_000)
QUICK_SIZES = (1_000, 10_000)
WINDOW = 0.1
"""Measurements at size n are taken from the batches between 0.9 n and 1.1 n memories."""
SHARES = (0.01, 0.1, 0.6)
"""For each share S in this tuple, a share S of the memories has the tag `share S`."""

_USER = "grown"
_BATCH = 64
_SEED, _BASIS_SEED = 11, 12
_BASIS = 2_000
_NOISE = 0.35
_POLL_S = 0.05

Tell = Callable[[str], None]


class MixedVectors(PassageEmbedder):
    """Mixes two passage vectors (weights .6 and .4) with noise; the words are the first passage's. Deterministic."""

    def __init__(self, model: Embedder, basis: int | None = None) -> None:
        """Embed the passages that will be mixed: `basis`, or 2,000. The caller closes `model`."""
        self._model = model
        self._basis = model.embed_passages(passages(basis or _BASIS, _BASIS_SEED))
        self._prepared: dict[str, Embedded] = {}

    @property
    def info(self) -> EmbedderInfo:
        """Like `Embedder.info`."""
        return self._model.info

    def count_tokens(self, text: str, timeout_s: float | None = None) -> int:
        """Return the model's token count for `text`."""
        return self._model.count_tokens(text, timeout_s)

    def prepare(self, texts: Sequence[str]) -> None:
        """Mix the vectors of the next texts, replacing those prepared before."""
        self._prepared = {text: self._mix(text) for text in texts}

    def begin_query_words(self, text: str, timeout_s: float | None = None) -> Settled[EmbeddedQuery]:
        """Return the vectors of `text` and its words as a completed result."""
        words = tuple(query_words(text))
        random = np.random.default_rng(zlib.crc32(text.encode()))
        vectors = random.normal(scale=WORD_DIMENSIONS**-0.5, size=(len(words), WORD_DIMENSIONS)).astype(np.float16)
        return Settled(EmbeddedQuery(self._mix(text).vectors[0], words, vectors))

    def begin_passages(
        self, texts: Sequence[str], progress: Progress | None = None, timeout_s: float | None = None
    ) -> Settled[list[Embedded]]:
        """Return each text's mixture, as a completed result."""
        return Settled([self._prepared.get(text) or self._mix(text) for text in texts])

    def close(self) -> None:
        """Drop the prepared vectors."""
        self._prepared = {}

    def _mix(self, text: str) -> Embedded:
        random = np.random.default_rng(zlib.crc32(text.encode()))
        one, other = (self._basis[place] for place in random.integers(len(self._basis), size=2))
        noise = random.normal(scale=_NOISE / np.sqrt(self.info.ndim), size=self.info.ndim)
        vector = 0.6 * one.vectors[0] + 0.4 * other.vectors[0] + noise
        unit = (vector / np.linalg.norm(vector)).astype(np.float32)
        spans = np.array([[0, len(text)]], dtype=np.int32)
        return Embedded(unit[None], spans, one.word_bits, one.length)


@dataclass(frozen=True)
class Batch:
    """The cost of ingesting one batch into a store of `memories` memories. Processor time includes all threads."""

    memories: int
    count: int
    wall_ms: float
    processor_ms: float


@dataclass(frozen=True)
class Growth:
    """Folders of closed stores by number of memories, the ingested batches in order, and the embedder used."""

    folders: dict[int, Path]
    batches: list[Batch]
    vectors: MixedVectors


@contextmanager
def grown_stores(sizes: Sequence[int] = SIZES, tell: Tell | None = None) -> Iterator[Growth]:
    """Grow a store to 10 % more than the last of `sizes`, and yield a copy for each size; remove the copies on exit."""
    model = open_embedder(EmbedderSettings(allow_download=False, bulk_niceness=0))
    try:
        with tempfile.TemporaryDirectory(prefix="bench-grown-") as folder:
            growing, growth = Path(folder) / "growing", Growth({}, [], MixedVectors(model))
            most = round(sizes[-1] * (1 + WINDOW))
            for begin, end in itertools.pairwise((0, *sizes, most)):
                if tell is not None:
                    tell(f"{begin:,} of {most:,} memories")
                _grow(growing, begin, end, growth)
                if end in sizes:
                    growth.folders[end] = Path(shutil.copytree(growing, Path(folder) / str(end)))
            shutil.rmtree(growing)
            yield growth
    finally:
        model.close()


@contextmanager
def opened(folder: Path, embedder: Embedder, settings: Settings | None = None) -> Iterator[Memory]:
    """Open a copy of `folder`, and yield the memory once its word vectors are loaded."""
    with tempfile.TemporaryDirectory() as scratch:
        copy = shutil.copytree(folder, Path(scratch) / "user")
        with Memory.open(copy, settings=settings, embedder=embedder) as memory:
            await_words(memory)
            yield memory


def await_words(memory: Memory) -> None:
    """Block until all word vectors are loaded; a large store loads them in the background."""
    while "word_vectors_pending" in memory.recall("are the words there").degraded:
        time.sleep(_POLL_S)


def grown_events(begin: int, end: int) -> Iterator[dict[str, Any]]:
    """Iterate over the events that grow a store from `begin` to `end` memories.

    The events are findings in sessions of 30, with tags according to `SHARES` and qualities uniform in [0, 1). Do not
    retain them while measuring: the 200,000 objects, which a daemon would not hold, lengthen a full garbage collection
    from 30 ms to 110 ms.
    """
    for place, text in enumerate(passages(end, _SEED)[begin:], begin):
        made = event_of(text, place, _USER, "grow")
        made["event_type"] = "worker.report.received"
        payload = made["payload"]
        payload["summary"] = payload.pop("claim")
        payload["quality"] = _chance(place, 1)
        payload["tags"] = [f"share {share:g}" for share in SHARES if _chance(place, 2) < share]
        yield made


def text_of(event: dict[str, Any]) -> str:
    """Return the text that is embedded for the event's memory, composed as in `embedded.embedded_text`."""
    payload = event["payload"]
    return "\n".join(filter(None, (payload["summary"], ", ".join(payload["tags"]))))


def _chance(place: int, salt: int) -> float:
    """Return a pseudorandom number in [0, 1), determined by `place` and `salt`."""
    return zlib.crc32(f"{salt} {place}".encode()) / 2**32


def _grow(folder: Path, begin: int, end: int, growth: Growth) -> None:
    made = grown_events(begin, end)
    with Memory.open(folder, user_id=_USER, embedder=growth.vectors) as memory:
        for start in range(begin, end, _BATCH):
            batch = list(itertools.islice(made, _BATCH))
            growth.vectors.prepare([text_of(event) for event in batch])
            growth.batches.append(_timed(memory, batch, start))
        assert memory.stats().memories == end
        assert memory.stats().without_vector == 0


def _timed(memory: Memory, batch: list[dict[str, Any]], memories: int) -> Batch:
    wall_s, processor_s = time.perf_counter(), time.process_time()
    memory.ingest(batch)
    taken = (time.perf_counter() - wall_s) * 1000, (time.process_time() - processor_s) * 1000
    return Batch(memories, len(batch), *taken)
