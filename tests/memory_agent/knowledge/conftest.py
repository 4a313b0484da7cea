"""A data folder of users who share items."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings
from sharing_world import World

from memory_agent.embedders import Embedder

settings.register_profile("deep", max_examples=2_000)


@pytest.fixture
def world(tmp_path: Path, embedder: Embedder) -> Iterator[World]:
    with World(tmp_path / "data", embedder) as world:
        yield world
