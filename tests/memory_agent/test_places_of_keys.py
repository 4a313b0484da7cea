"""The places of the gateway are shared out by key: whoever floods fills its own share."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from served_gateway import Served, gateway_without_ray

from memory_agent.config import EmbedderSettings
from memory_agent.embedders import open_embedder
from memory_agent.protocol import LONGEST_DEADLINE_MS, Request, decode_request, encode_fields
from memory_agent.transport import AsyncRequestSocket
from relay import ALL_SCOPES, Scope, create_key, identity_of

PLACES = 64  # of the gateway that is served here
SHARE = PLACES // 4
NEVER = 1 << 40  # a journal number that no event will have
PATIENCE_S = 60.0


@pytest.fixture
def served() -> Iterator[Served]:
    with tempfile.TemporaryDirectory(prefix="places-") as folder:
        embedder = open_embedder(EmbedderSettings(allow_download=False))
        with gateway_without_ray(Path(folder), embedder) as served:
            yield served
        embedder.close()


def request(token: str, method: str, params: dict[str, Any], deadline_ms: float = 30_000.0) -> bytes:
    encoded = msgspec.Raw(msgspec.msgpack.encode(params))
    return encode_fields(Request(method=method, params=encoded, token=token, deadline_ms=deadline_ms))


async def fault_of(socket: AsyncRequestSocket, asked: bytes) -> dict[str, Any] | None:
    answer = msgspec.msgpack.decode((await socket.request(asked, PATIENCE_S))[0])
    fault: dict[str, Any] | None = answer.get("fault")
    return fault


def test_a_key_that_waits_for_ever_leaves_places_to_the_others(served: Served) -> None:
    bob = identity_of(create_key(served.data_dir, "of-bob", "bob", ALL_SCOPES)).token
    flooder = identity_of(create_key(served.data_dir, "emitter", "alice", frozenset({Scope.PUBLISH}))).token
    local = (served.data_dir / "token").read_text().strip()

    async def flood() -> None:
        socket, other = AsyncRequestSocket(served.gateway), AsyncRequestSocket(served.gateway)
        waiting = {
            asyncio.create_task(fault_of(socket, request(flooder, "wait", {"through": {"alice": NEVER}}, 1e12)))
            for _ in range(2 * PLACES)
        }
        refused: set[asyncio.Task[dict[str, Any] | None]] = set()
        while len(refused) < 2 * PLACES - SHARE:
            done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            refused |= done
        faults = [task.result() for task in refused]
        assert all(fault is not None and fault["code"] == "unavailable" and fault["retryable"] for fault in faults)
        assert len(waiting) == SHARE
        assert await fault_of(other, request(bob, "recall", {"query": "hello"})) is None
        for _ in range(SHARE):  # whoever runs the daemon has no share to fill
            assert await fault_of(other, request(local, "stats", {})) is None
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        await socket.close()
        await other.close()

    asyncio.run(flood())


def test_a_place_is_free_again_when_its_request_is_answered(served: Served) -> None:
    bob = identity_of(create_key(served.data_dir, "of-bob", "bob", ALL_SCOPES)).token

    async def ask() -> None:
        socket = AsyncRequestSocket(served.gateway)
        for _ in range(3 * SHARE):
            assert await fault_of(socket, request(bob, "stats", {})) is None
            unknown = await fault_of(socket, request(bob, "stats", {"user": 1}, 0.0))
            assert unknown is None or unknown["code"] != "unavailable"
        await socket.close()

    asyncio.run(ask())


@pytest.mark.parametrize(
    ("asked_ms", "bounded_ms"),
    [
        (float("nan"), LONGEST_DEADLINE_MS),
        (float("inf"), LONGEST_DEADLINE_MS),
        (1e12, LONGEST_DEADLINE_MS),
        (float("-inf"), 0.0),
        (-1.0, 0.0),
        (250.0, 250.0),
        (LONGEST_DEADLINE_MS, LONGEST_DEADLINE_MS),
    ],
)
def test_no_request_may_wait_for_longer_than_ten_minutes(asked_ms: float, bounded_ms: float) -> None:
    assert decode_request(request("", "wait", {}, asked_ms)).deadline_ms == bounded_ms
