"""A caller of the HTTP interface of the test module."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from http_caller import HttpCaller
from served_gateway import Served


@pytest.fixture
def caller(served: Served) -> Iterator[HttpCaller]:
    """Sends requests to the gateway of the test module, with the token of its data folder."""
    caller = HttpCaller(served.http, served.token)
    yield caller
    caller.close()
