"""Test the Rocchio baseline: its vector, its effect on the real memory, and no effect if there are no lessons."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path

import numpy as np
import pytest

from memory_agent.embedders import Embedder, open_embedder
from memory_agent.memory import Memory
from memory_agent.records.embedded import Embedding
from memory_agent.settings import EmbedderSettings, LearningSettings
from ops.lab.rocchio import BETA, MovedQueries, Rocchio
from sona import Array

NOTES = ("The kiln in the garage is hot", "Norway has long fjords", "The cello needs a new string", "Lunch is at noon")
OFF = LearningSettings(mode="off")


@pytest.fixture(scope="module")
def embedder() -> Iterator[Embedder]:
    own = open_embedder(EmbedderSettings(allow_download=False))
    yield own
    own.close()


def unit(vector: Array | Embedding) -> Array:
    return np.asarray(vector, dtype=np.float64) / np.linalg.norm(vector)


def test_queries_are_moved_by_the_vector_and_keep_their_words(embedder: Embedder) -> None:
    shift = 0.6 * unit(np.random.default_rng(5).standard_normal(embedder.info.ndim))
    moved = MovedQueries(embedder, shift).embed_query_words("What about the kiln?")
    plain = embedder.embed_query_words("What about the kiln?")
    assert moved.vector == pytest.approx(unit(plain.vector + shift), abs=1e-6)
    assert moved.words == plain.words
    assert moved.word_vectors.tolist() == plain.word_vectors.tolist()


def test_the_vector_is_the_mean_difference_between_used_memories_and_queries(embedder: Embedder) -> None:
    asked, other, failed = (embedder.embed_query(text) for text in ("Where is the kiln?", "Which country?", "Why?"))
    used = [embedder.embed_query(text) for text in NOTES]
    rocchio = Rocchio()
    rocchio.learn(asked, used[:2], 1.0)
    rocchio.learn(other, used[2:3], 1.0)
    rocchio.learn(failed, used[3:], 0.0)
    rocchio.learn(failed, [], 1.0)
    mean = (unit(used[0] + used[1]) - asked + used[2] - other) / 2
    moved = rocchio.moving(embedder).embed_query("What is hot?")
    assert moved == pytest.approx(unit(embedder.embed_query("What is hot?") + BETA * mean), abs=1e-6)


def test_where_no_approved_run_used_anything_queries_stay_where_they_are(embedder: Embedder) -> None:
    rocchio = Rocchio()
    rocchio.learn(embedder.embed_query("Where is the kiln?"), [embedder.embed_query(NOTES[0])], 0.0)
    assert rocchio.moving(embedder) is embedder


def test_the_real_memory_ranks_by_the_moved_query(tmp_path: Path, embedder: Embedder) -> None:
    def first(shift: Array) -> str:
        moved = MovedQueries(embedder, shift)
        with Memory.open(tmp_path / str(next(folders)), embedder=moved, learning_settings=OFF) as memory:
            for note in NOTES:
                memory.remember(note)
            return memory.recall("Where is the oven?", 1, deadline_ms=60_000, min_relevance=0).memories[0].record.text

    folders = count()
    usual = first(np.zeros(embedder.info.ndim))
    towards = next(note for note in NOTES if note != usual)
    assert first(4.0 * embedder.embed_query(towards).astype(np.float64)) == towards
