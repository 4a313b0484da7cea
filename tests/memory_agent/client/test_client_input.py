"""Test that arguments that cannot be sent raise errors with the argument's name, even without a daemon."""

from __future__ import annotations

import asyncio
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest

from memory_agent import AsyncMemoryClient, MemoryClient, MemoryFilter
from memory_agent.errors import InvalidInputError, UnavailableError

NOWHERE = "ipc:///nowhere/at-all.sock"


@pytest.mark.parametrize(
    ("method", "arguments", "field"),
    [
        ("recall", {"query": "lone \ud800"}, "query"),
        ("recall", {"query": "x", "filter": MemoryFilter(session_id="\udfff")}, "filter"),
        ("recall", {"query": "x", "deadline_ms": float("nan")}, "deadline_ms"),
        ("recall", {"query": "x", "deadline_ms": float("inf")}, "deadline_ms"),
        ("recall", {"query": "x", "deadline_ms": "soon"}, "deadline_ms"),
        ("recall", {"query": "x", "top_k": 1 << 70}, "top_k"),
        ("remember", {"text": "lone \ud800"}, "text"),
        ("remember", {"text": "x", "metadata": {"at": object()}}, "metadata"),
        ("remember", {"text": "x", "metadata": {"at": "\ud800"}}, "metadata"),
        ("remember", {"text": "x", "tags": "deploy"}, "tags"),
        ("get", {"ids": "01JM0000000000000000000000"}, "ids"),
        ("forget", {"ids": "01JM0000000000000000000000"}, "ids"),
        ("forget_session", {"session_id": "\ud800"}, "session_id"),
        ("feedback", {"recall_id": "r", "used": "01JM0000000000000000000000"}, "used"),
        ("feedback", {"recall_id": "r", "comment": "lone \ud800"}, "comment"),
        ("runs.begin", {"objective": "lone \ud800"}, "objective"),
        ("runs.begin", {"objective": "x", "recall_ids": "01JM0000000000000000000000"}, "recall_ids"),
        ("runs.step", {"run_id": "r", "text": "x", "memory_ids": "01JM0000000000000000000000"}, "memory_ids"),
        ("runs.end", {"run_id": "r", "memory_ids": "01JM0000000000000000000000"}, "memory_ids"),
        ("runs.get", {"run_id": "\ud800"}, "run_id"),
        ("sona.load", {"data": bytes(33 << 20)}, "data"),
    ],
)
def test_an_argument_that_cannot_be_sent_is_named(method: str, arguments: dict[str, Any], field: str) -> None:
    with MemoryClient("alice", endpoint=NOWHERE, token="t") as client, pytest.raises(InvalidInputError) as caught:
        attrgetter(method)(client)(**arguments)
    assert caught.value.field == field


def test_a_user_id_that_is_not_unicode_is_named() -> None:
    with MemoryClient("\ud800", endpoint=NOWHERE, token="t") as client, pytest.raises(InvalidInputError) as caught:
        client.recall("x")
    assert caught.value.field == "user_id"


def test_the_async_client_refuses_the_same() -> None:
    async def ask() -> None:
        async with AsyncMemoryClient("alice", endpoint=NOWHERE, token="t") as client:
            await client.recall("lone \ud800")

    with pytest.raises(InvalidInputError, match="query"):
        asyncio.run(ask())


def test_a_client_that_finds_no_daemon_leaves_no_folder_behind(tmp_path: Path) -> None:
    with MemoryClient("alice", data_dir=tmp_path / "typo") as client, pytest.raises(UnavailableError, match="serve"):
        client.recall("x")
    assert not (tmp_path / "typo").exists()
