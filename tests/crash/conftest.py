"""Fixtures of the laboratory: seed, shim, and folders with paths short enough for socket files."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from . import faults

SEED = 20260216


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--crash-seed", type=int, default=SEED, help="seed of the faults, to reproduce a failure")


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """The seed of this run, which is printed if a test fails."""
    chosen = int(request.config.getoption("--crash-seed", default=SEED))
    print(f"--crash-seed={chosen}")
    return chosen


@pytest.fixture(scope="session")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The preloaded library that injects disk faults."""
    if reason := faults.missing():
        skip(reason)
    return faults.build(tmp_path_factory.mktemp("shim"))


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """A folder with a path short enough for socket paths (at most 107 bytes)."""
    with tempfile.TemporaryDirectory(prefix="crash-") as folder:
        yield Path(folder)


def skip(reason: str) -> None:
    """Skip with the reason; fail in CI, where everything needed is installed."""
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)
