"""A user's folder with every kind of stored data, created from real events with the real model."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from care_samples import GRAPH, fill

from memory_agent.embedders import Embedder, open_embedder
from memory_agent.memory import Memory
from memory_agent.settings import EmbedderSettings, Settings


@pytest.fixture(scope="session")
def embedder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Embedder]:
    embedder = open_embedder(EmbedderSettings(allow_download=False), cache=tmp_path_factory.mktemp("models"))
    yield embedder
    embedder.close()


@pytest.fixture(scope="session")
def _filled_once(tmp_path_factory: pytest.TempPathFactory, embedder: Embedder) -> Path:
    folder = tmp_path_factory.mktemp("filled") / "alice"
    with Memory.open(folder, embedder=embedder, settings=Settings(store=GRAPH)) as memory:
        fill(memory)
    return folder


@pytest.fixture
def filled(tmp_path: Path, _filled_once: Path) -> Path:
    """The folder of user alice, not in use, in a data folder; its graph is saved."""
    folder = tmp_path / "data" / "users" / "alice"
    shutil.copytree(_filled_once, folder)
    return folder
