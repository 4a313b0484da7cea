"""A model's unusable vectors affect no other memories or recalls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from made_vectors import Made, MadeQuery, MadeVectors

from memory_agent import Memory
from memory_agent.embedders import Pending, Progress
from memory_agent.records.embedded import Embedded, EmbeddedQuery
from memory_agent.settings import EmbedderSettings, Settings

Spoil = Callable[[np.ndarray], np.ndarray]
GOOD, BAD = "the kiln is fired with olive wood", "the canteen serves lunch at noon"


class Spoiled(MadeVectors):
    """While `is_broken`, corrupts one field of what is returned for queries and for texts that mention the canteen."""

    def __init__(self, field: str, spoil: Spoil) -> None:
        super().__init__()
        self._field, self._spoil = field, spoil
        self.is_broken = True

    def begin_passages(
        self, texts: Sequence[str], progress: Progress | None = None, timeout_s: float | None = None
    ) -> Pending[list[Embedded]]:
        found = super().begin_passages(texts, progress, timeout_s).result()
        return Made([self._spoiled(one) if "canteen" in text else one for text, one in zip(texts, found, strict=True)])

    def begin_query_words(self, text: str, timeout_s: float | None = None) -> Pending[EmbeddedQuery]:
        return MadeQuery(self._spoiled(super().begin_query_words(text, timeout_s).result()))

    def _spoiled(self, found: Any) -> Any:
        if not self.is_broken or not hasattr(found, self._field):
            return found
        return msgspec.structs.replace(found, **{self._field: self._spoil(getattr(found, self._field).copy())})


def without_number(values: np.ndarray) -> np.ndarray:
    values[..., 0] = np.nan
    return values


def kept(memory: Memory) -> list[str]:
    return sorted(record.text for record in memory.list().records)


@pytest.mark.parametrize(
    ("field", "spoil"),
    [
        ("vectors", without_number),
        ("vectors", lambda values: values * np.inf),
        ("vectors", lambda values: values * 0),
        ("vectors", lambda values: values[:, :-8]),
        ("vectors", lambda values: values[:0]),
        ("vectors", lambda values: np.concatenate([values, values])),
        ("word_bits", lambda values: values[:, :-1]),
    ],
    ids=["nan", "infinite", "zero", "dimensions", "none", "more than spans", "words"],
)
def test_a_memory_with_an_unusable_vector_is_stored_and_waits(tmp_path: Path, field: str, spoil: Spoil) -> None:
    embedder = Spoiled(field, spoil)
    events = [
        {"event_type": "user_input", "user_id": "alice", "event_id": text, "payload": {"text": text}}
        for text in (BAD, GOOD)
    ]
    with Memory.open(tmp_path / "alice", embedder=embedder) as memory:
        report = memory.ingest(events)
        assert (report.kept, report.rejected) == (2, ())
        memory.remember(BAD, id="stated")
        assert kept(memory) == sorted([BAD, BAD, GOOD])
        assert memory.stats().waiting == 2
        assert memory.fill_vectors() == 0
        embedder.is_broken = False
        assert memory.fill_vectors() == 2
        assert memory.stats().waiting == 0
        assert memory.recall(BAD, mode="vector", min_relevance=0).memories[0].record.text == BAD


@pytest.mark.parametrize(
    ("field", "spoil"),
    [
        ("vector", without_number),
        ("vector", lambda values: values * 0),
        ("vector", lambda values: values[:-8]),
        ("word_vectors", without_number),
        ("word_vectors", lambda values: values[1:]),
    ],
    ids=["nan", "zero", "dimensions", "words nan", "words missing"],
)
def test_a_query_without_a_usable_vector_is_answered_by_words(tmp_path: Path, field: str, spoil: Spoil) -> None:
    embedder = Spoiled(field, spoil)
    with Memory.open(tmp_path / "alice", embedder=embedder) as memory:
        memory.remember(GOOD)
        for mode in ("hybrid", "vector", "lexical"):
            answer = memory.recall("olive wood", mode=mode, min_relevance=0)
            assert [found.record.text for found in answer.memories] == [GOOD]
            assert answer.degraded == (() if mode == "lexical" else ("no_model",))


def test_memories_that_cannot_be_embedded_do_not_delay_later_ones(tmp_path: Path) -> None:
    no_model = Settings(embedder=EmbedderSettings(folder="none", allow_download=False))
    with Memory.open(tmp_path / "alice", settings=no_model) as memory:
        for number in range(260):  # more than one batch of texts
            memory.remember(f"{BAD}, day {number}")
        memory.remember(GOOD)
    with Memory.open(tmp_path / "alice", embedder=Spoiled("vectors", without_number)) as memory:
        assert memory.fill_vectors(5) == 1
        assert memory.stats().waiting == 260
        assert memory.recall(GOOD, mode="vector", min_relevance=0).memories[0].record.text == GOOD
