"""Fixtures for all tests in this folder: the real embedder, a memory that uses it, a relay."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from memory_agent.embedders import Embedder, open_embedder
from memory_agent.memory import Memory
from memory_agent.settings import EmbedderSettings
from relay import Broker


@pytest.fixture(scope="session")
def model_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="session")
def embedder() -> Iterator[Embedder]:
    embedder = open_embedder(EmbedderSettings(allow_download=False))
    yield embedder
    embedder.close()


@pytest.fixture
def memory(tmp_path: Path, embedder: Embedder) -> Iterator[Memory]:
    with Memory.open(tmp_path / "alice", embedder=embedder) as memory:
        yield memory


@pytest.fixture
def broker() -> Iterator[Broker]:
    with tempfile.TemporaryDirectory(prefix="relay-") as folder, Broker(Path(folder)) as broker:
        yield broker
