"""A company's stores with recurring requests, created once."""

from __future__ import annotations

from pathlib import Path

import pytest
from recurring_requests import copied, open_company, set_up

from memory_agent.embedders import Embedder
from memory_agent.settings import LearningSettings


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
