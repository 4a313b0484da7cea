"""After a change of model, recall uses the old vectors and the former embedder until all new vectors are stored."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest
from provider_server import Provider, Request, answer, embeds, serving, texts_of, vector_of

from memory_agent import Memory
from memory_agent.embedders import comparable
from memory_agent.errors import ModelError
from memory_agent.settings import OllamaEmbedder, Settings
from relay import EncryptionSettings

NDIM = {"a": 16, "b": 24}
COUNT = 30


@pytest.fixture
def provider() -> Iterator[Provider]:
    with serving() as server:
        server.then(reply)
        yield server


def reply(request: Request) -> None:
    """Embed with one of two models; the second rejects one text."""
    kind, model = OllamaEmbedder(), request.body["model"]
    is_bad = model == "b" and any("poison" in text for text in texts_of(request.body))
    (answer({"error": "rejected"}, 400) if is_bad else embeds(kind, ndim=NDIM[model]))(request)


def away(request: Request) -> None:
    """Embed with the former model only."""
    (reply if request.body["model"] == "a" else answer({}, 404))(request)


@pytest.mark.parametrize("is_encrypted", [False, True], ids=["plain", "encrypted"])
def test_old_vectors_are_used_until_all_new_ones_are_stored(
    provider: Provider, tmp_path: Path, is_encrypted: bool
) -> None:
    first = Settings(
        embedder=OllamaEmbedder(url=provider.url, model="a"),
        encryption=EncryptionSettings(keys_folder=str(tmp_path / "keys") if is_encrypted else ""),
    )
    with Memory.open(tmp_path / "m", settings=first) as memory:
        for number in range(COUNT):
            memory.remember("poison" if number == 9 else f"note {number}", id=f"id-{number}")
        former = memory.stats().model
    changed = msgspec.structs.replace(
        first, embedder=OllamaEmbedder(url=provider.url, model="b"), former_embedder=first.embedder
    )
    memory = Memory.open(tmp_path / "m", settings=changed)
    assert memory.recall("note 7", mode="vector", min_relevance=0).degraded == ()
    assert memory._vectors.begin_reembedding() == COUNT
    assert memory.fill_vectors(12) == 12
    memory.abandon()
    with Memory.open(tmp_path / "m", settings=changed) as memory:
        assert (memory.stats().waiting, memory.stats().model) == (COUNT - 12, former)
        found = memory.recall("note 7", mode="vector", min_relevance=0)
        assert (found.degraded, found.memories[0].record.text) == ((), "note 7")
        memory.remember("note 3 reworded", id="id-3")
        memory.remember("note 1000", id="id-1000")
        memory.forget(["id-5"])
        provider.then(away)
        assert memory.fill_vectors() == 0
        assert memory.recall("note 7", mode="vector", min_relevance=0).memories[0].record.text == "note 7"
    provider.then(reply)
    with Memory.open(tmp_path / "m", settings=changed) as memory:
        memory.fill_vectors()
        stats = memory.stats()
        assert stats.model is not None
        assert not comparable(stats.model, former or "")
        assert (stats.memories, stats.without_vector, stats.waiting) == (COUNT, 1, 1)  # the rejected text
        assert stats.provider is not None
        assert stats.provider.tokens_read > 0
        found = memory.recall("note 7", mode="vector", min_relevance=0)
        assert (found.degraded, found.memories[0].record.text) == (("vectors_pending",), "note 7")
        with memory._archive.store.snapshot() as snapshot:
            records = list(snapshot.scan())
        for row, record in records:
            if record.text != "poison":
                expected = np.array(vector_of(record.text, NDIM["b"]))
                stored = memory._archive.store.vectors([row])[0]
                np.testing.assert_allclose(stored, expected / np.linalg.norm(expected), atol=1e-3)


def test_without_the_former_embedder_recall_uses_words(provider: Provider, tmp_path: Path) -> None:
    for model, degraded in (("a", ()), ("b", ("model_changed",))):
        with Memory.open(tmp_path / "m", embedder_settings=OllamaEmbedder(url=provider.url, model=model)) as memory:
            memory.remember("note 7")
            assert memory.recall("note 7", min_relevance=0).degraded == degraded


def test_a_model_that_rejects_too_many_texts_replaces_nothing(provider: Provider, tmp_path: Path) -> None:
    first = OllamaEmbedder(url=provider.url, model="a")
    with Memory.open(tmp_path / "m", embedder_settings=first) as memory:
        for number in range(4):
            memory.remember("poison" if number == 1 else f"note {number}")
        former = memory.stats().model
    with Memory.open(tmp_path / "m", embedder_settings=msgspec.structs.replace(first, model="b")) as memory:
        with pytest.raises(ModelError, match="rejects 1 of 4 texts"):
            memory.reembed()
        assert (memory.stats().model, memory.stats().without_vector) == (former, 0)
    with Memory.open(tmp_path / "m", embedder_settings=first) as memory:
        assert memory.recall("note 3", min_relevance=0).degraded == ()
        assert memory.reembed() == 0  # back to the first model: the second model's vectors are dropped
        assert memory.stats().waiting == 0
