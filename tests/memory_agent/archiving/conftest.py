"""An object store that fails on request and is empty at the start of each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from archives import clear_faulty


@pytest.fixture(autouse=True)
def _empty_object_store() -> Iterator[None]:
    clear_faulty()
    yield
    clear_faulty()
