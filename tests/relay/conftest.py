"""Bus fixtures: folders with paths short enough for socket files, a relay in this process, and its clients."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from relay import Broker, Journal, Publisher, Subscriber


@pytest.fixture
def data_dir() -> Iterator[Path]:
    """A folder whose path leaves room for socket names (107 bytes in total)."""
    with tempfile.TemporaryDirectory(prefix="relay-test-") as folder:
        yield Path(folder) / "data"


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    with Journal.open(tmp_path / "journal") as journal:
        yield journal


@pytest.fixture
def broker(data_dir: Path) -> Iterator[Broker]:
    with Broker(data_dir) as broker:
        yield broker


@pytest.fixture
def publisher(broker: Broker) -> Iterator[Publisher]:
    with Publisher(broker.endpoints.ingest) as publisher:
        yield publisher


@pytest.fixture
def subscriber(broker: Broker) -> Iterator[Subscriber]:
    with Subscriber(*broker.endpoints, consumer="reader") as subscriber:
        yield subscriber
