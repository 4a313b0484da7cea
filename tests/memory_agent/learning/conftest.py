"""A real embedder, and a company's stores with recurring requests, created once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from recurring_requests import copied, open_company, set_up

from memory_agent.embedders import Embedder, open_embedder
from memory_agent.settings import EmbedderSettings, LearningSettings


@pytest.fixture(scope="session")
def embedder() -> Iterator[Embedder]:
    embedder = open_embedder(EmbedderSettings(allow_download=False))
    yield embedder
    embedder.close()


@pytest.fixture(scope="session")
def untaught(tmp_path_factory: pytest.TempPathFactory, embedder: Embedder) -> Path:
    folder = tmp_path_factory.mktemp("company") / "untaught"
    set_up(folder, embedder)
    return folder


@pytest.fixture(scope="session")
def taught(tmp_path_factory: pytest.TempPathFactory, untaught: Path, embedder: Embedder) -> Path:
    """A store that learned from 40 recalls in the usual ranking; feedback reported the recalled notes as used."""
    folder = copied(untaught, tmp_path_factory.mktemp("company") / "taught")
    company = open_company(folder, embedder, LearningSettings(mode="auto"))
    company.learn(range(40))
    company.memory.close()
    return folder
