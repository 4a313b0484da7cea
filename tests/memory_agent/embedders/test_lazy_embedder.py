"""Queries to an embedder that opens on first use."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from memory_agent.embedders import Embedder, Embeddings, LazyEmbedder
from memory_agent.embedders.lanes import LanedEmbedder
from memory_agent.embedders.minilm import MiniLM
from memory_agent.embedders.remote import RemoteEmbedder
from memory_agent.errors import EmbedderUnavailableError, InvalidInputError, ModelMissingError
from memory_agent.memory import Memory
from memory_agent.records.embedded import Embedding
from memory_agent.settings import EmbedderSettings
from relay.access import ipc_endpoint

WAIT_S = 60.0


@pytest.fixture
def unopened() -> Iterator[LazyEmbedder]:
    embedder = LazyEmbedder(None, EmbedderSettings(scheme="int8", allow_download=False))
    yield embedder
    embedder.close()


def test_a_query_begun_before_it_is_open_is_answered(unopened: LazyEmbedder, int8_model: MiniLM) -> None:
    first = unopened.begin_query_words("first", WAIT_S)
    assert np.array_equal(first.result().vector, int8_model.embed("first"))
    assert np.array_equal(unopened.begin_query_words("second", WAIT_S).result().vector, int8_model.embed("second"))


def test_a_given_embedder_begins_at_once(laned: LanedEmbedder, int8_model: MiniLM) -> None:
    embedder = LazyEmbedder(laned, EmbedderSettings())
    assert np.array_equal(embedder.begin_query_words("a query").result().vector, int8_model.embed("a query"))


def test_a_query_waits_for_the_opening_no_longer_than_its_timeout(unopened: LazyEmbedder) -> None:
    pending = unopened.begin_query_words("impatient", 0.0)
    with pytest.raises(EmbedderUnavailableError, match="being loaded"):
        pending.result()


def test_an_unreachable_embedder_is_accepted_without_a_request(tmp_path: Path) -> None:
    away = RemoteEmbedder(ipc_endpoint(tmp_path / "away.sock"), timeout_s=0.05)
    assert LazyEmbedder(away, EmbedderSettings()).get() is away
    with Memory.open(tmp_path / "a", embedder=away) as memory:
        assert memory.stats().memories == 0
    away.close()


def test_without_a_model_the_result_raises_model_missing(tmp_path: Path) -> None:
    embedder = LazyEmbedder(None, EmbedderSettings(folder=str(tmp_path), allow_download=False))
    for _ in range(2):  # the second time, the stored error is raised
        pending = embedder.begin_query_words("a query", WAIT_S)
        with pytest.raises(ModelMissingError):
            pending.result()
    embedder.close()


def test_a_query_that_is_not_unicode_is_refused_at_once(unopened: LazyEmbedder) -> None:
    with pytest.raises(InvalidInputError, match="text"):
        unopened.begin_query_words("\ud800")


class _FormerEmbedder:
    """A custom embedder written for version 0.1.0."""

    def __init__(self, model: MiniLM) -> None:
        self.info = model.info
        self._model = model

    def embed_query(self, text: str, timeout_s: float | None = None) -> Embedding:
        if timeout_s == 0:
            raise EmbedderUnavailableError("too late")
        return self._model.embed(text)

    def embed_texts(self, texts: list[str], progress: object = None) -> Embeddings:
        return np.stack([self._model.embed(text) for text in texts])

    def count_tokens(self, text: str, timeout_s: float | None = None) -> int:
        return self._model.count_tokens(text)

    def close(self) -> None: ...


class _FormerHeir(_FormerEmbedder, Embedder):  # type: ignore[misc]
    """A custom embedder that inherits from the protocol."""

    info: Any = None


@pytest.mark.parametrize("kind", [_FormerEmbedder, _FormerHeir])
def test_an_embedder_with_only_blocking_methods_works(
    kind: type[_FormerEmbedder], tmp_path: Path, int8_model: MiniLM
) -> None:
    former: Any = kind(int8_model)
    embedder = LazyEmbedder(former, EmbedderSettings())
    assert np.array_equal(embedder.begin_query_words("sourdough").result().vector, int8_model.embed("sourdough"))
    with pytest.raises(EmbedderUnavailableError):
        embedder.begin_query_words("sourdough", 0).result()
    with Memory.open(tmp_path / "a", embedder=former) as memory:
        memory.remember("Sourdough wants time")
        assert memory.recall("sourdough").memories[0].retrieval == "hybrid"
        assert memory.stats().without_vector == 0
