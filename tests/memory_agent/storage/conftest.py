"""What holds for a store that is not encrypted holds for one that is."""

from __future__ import annotations

import pytest
from samples import new_key

from memory_agent.storage.environment import UserKey


@pytest.fixture(params=["plain", "encrypted"])
def key(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> UserKey | None:
    """The key that a test's store is under, or None."""
    return new_key(tmp_path_factory.mktemp("keys")) if request.param == "encrypted" else None
