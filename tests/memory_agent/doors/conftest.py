"""A client for the test module's HTTP interface."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from http_caller import HttpCaller
from served_gateway import Served


@pytest.fixture
def caller(served: Served) -> Iterator[HttpCaller]:
    """Sends requests to the test module's gateway, with its data folder's token."""
    caller = HttpCaller(served.http, served.token)
    yield caller
    caller.close()
