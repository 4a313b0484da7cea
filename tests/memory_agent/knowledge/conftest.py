"""A real embedder that is opened once, and a data folder of users who share items."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings
from sharing_world import World

from memory_agent.embedders import Embedder, open_embedder
from memory_agent.settings import EmbedderSettings

settings.register_profile("deep", max_examples=1_600)


@pytest.fixture(scope="session")
def embedder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Embedder]:
    embedder = open_embedder(EmbedderSettings(allow_download=False), cache=tmp_path_factory.mktemp("models"))
    yield embedder
    embedder.close()


@pytest.fixture
def world(tmp_path: Path, embedder: Embedder) -> Iterator[World]:
    with World(tmp_path / "data", embedder) as world:
        yield world
