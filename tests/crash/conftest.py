"""The laboratory's seed, its shim, and folders with paths short enough for socket files."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from . import faults

SEED = 20260216


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--crash-seed", type=int, default=SEED, help="seed of the blows, to repeat a failure")


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """The seed of this run, printed beside a failure."""
    chosen = int(request.config.getoption("--crash-seed", default=SEED))
    print(f"--crash-seed={chosen}")
    return chosen


@pytest.fixture(scope="session")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library that makes a process's disk fail."""
    if reason := faults.missing():
        skip(reason)
    return faults.build(tmp_path_factory.mktemp("shim"))


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """A folder whose path leaves room for the names of sockets (107 bytes in all)."""
    with tempfile.TemporaryDirectory(prefix="crash-") as folder:
        yield Path(folder)


def skip(reason: str) -> None:
    """Skip, saying why; a machine that runs the tests for everybody has what it takes, and fails."""
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)
