"""A real embedder, opened once, and memories that use it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from memory_agent.embedders import Embedder, open_embedder
from memory_agent.memory import Memory
from memory_agent.settings import EmbedderSettings


@pytest.fixture(scope="session")
def model_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="session")
def embedder(model_cache: Path) -> Iterator[Embedder]:
    embedder = open_embedder(EmbedderSettings(allow_download=False), cache=model_cache)
    yield embedder
    embedder.close()


@pytest.fixture
def memory(tmp_path: Path, embedder: Embedder) -> Iterator[Memory]:
    with Memory.open(tmp_path / "alice", embedder=embedder) as memory:
        yield memory
