"""Fixtures that run the tests with unencrypted and encrypted stores."""

from __future__ import annotations

import pytest
from samples import new_key

from memory_agent.storage.environment import UserKey


@pytest.fixture(scope="module", params=["plain", "encrypted"])
def key(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> UserKey | None:
    """The encryption key of a test's store, or None."""
    return new_key(tmp_path_factory.mktemp("keys")) if request.param == "encrypted" else None
