"""Test that users share the request slots: a flood fills only its user's share, regardless of the number of keys."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import msgspec
import pytest
from served_gateway import REQUESTS_IN_FLIGHT, Served, gateway_in_new_folder

from memory_agent.doors.request_quota import ByteQuota, RequestQuota
from memory_agent.embedders import Embedder
from memory_agent.errors import UnavailableError
from memory_agent.settings import DaemonSettings, Settings
from memory_agent.verbs.protocol import LONGEST_DEADLINE_MS, Request, decode_request, encode_fields
from relay import ALL_SCOPES, Principal, create_key, identity_of
from relay.net import AsyncRequestSocket

SLOTS = REQUESTS_IN_FLIGHT
SHARE = SLOTS // 4
NEVER = 1 << 40  # a journal number larger than that of any event
PATIENCE_S = 60.0


@pytest.fixture
def served(embedder: Embedder) -> Iterator[Served]:
    with gateway_in_new_folder(embedder) as served:
        yield served


def request(token: str, method: str, params: dict[str, Any], deadline_ms: float = 30_000.0) -> bytes:
    encoded = msgspec.Raw(msgspec.msgpack.encode(params))
    return encode_fields(Request(method=method, params=encoded, token=token, deadline_ms=deadline_ms))


async def fault_of(socket: AsyncRequestSocket, asked: bytes) -> dict[str, Any] | None:
    answer = msgspec.msgpack.decode((await socket.request(asked, PATIENCE_S))[0])
    fault: dict[str, Any] | None = answer.get("fault")
    return fault


async def flood(served: Served, tokens: list[str], left: int, others: list[str]) -> None:
    """Flood the gateway until all but `left` requests are refused; check that requests with other keys are answered."""
    socket, other = AsyncRequestSocket(served.gateway), AsyncRequestSocket(served.gateway)
    asked = [request(token, "wait", {"through": {"alice": NEVER}}, 1e12) for token in tokens]
    waiting = {asyncio.create_task(fault_of(socket, asked[number % len(asked)])) for number in range(2 * SLOTS)}
    refused: set[asyncio.Task[dict[str, Any] | None]] = set()
    while len(refused) < 2 * SLOTS - left:
        done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        refused |= done
    faults = [task.result() for task in refused]
    assert all(fault is not None and fault["code"] == "unavailable" and fault["retryable"] for fault in faults)
    assert len(waiting) == left
    for token in others:
        for _ in range(SHARE):
            assert await fault_of(other, request(token, "stats", {})) is None
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    socket.close()
    other.close()


def made(served: Served, name: str, user_id: str | None) -> str:
    return identity_of(create_key(served.data_dir, name, user_id, ALL_SCOPES)).token


@pytest.mark.parametrize("keys", [1, 5])
def test_a_user_who_floods_with_many_keys_leaves_slots_to_others(served: Served, keys: int) -> None:
    alices = [made(served, f"alice-{number}", "alice") for number in range(keys)]
    local = served.token
    asyncio.run(flood(served, alices, SHARE, [made(served, "bob", "bob"), local]))


def test_keys_for_all_users_leave_a_share_to_users(served: Served) -> None:
    planners = [made(served, f"planner-{number}", None) for number in range(3)]
    asyncio.run(flood(served, planners, SLOTS - SHARE, [made(served, "bob", "bob")]))


def test_users_all_together_leave_a_share_to_keys_for_all_users() -> None:
    quota = RequestQuota(SLOTS)
    with ExitStack() as taken:
        for number in range(SLOTS - SHARE):
            taken.enter_context(quota.slot(Principal("k", f"user-{number % 9}", ALL_SCOPES)))
        with pytest.raises(UnavailableError), quota.slot(Principal("k", "another", ALL_SCOPES)):
            pass
        for _ in range(SHARE):
            taken.enter_context(quota.slot(Principal("local", None, ALL_SCOPES)))
    with quota.slot(Principal("k", "another", ALL_SCOPES)):
        pass


def test_a_user_holds_a_quarter_of_the_bytes_and_one_request_of_any_size() -> None:
    quota, ann, bob, planner = ByteQuota(400), *(Principal("k", user, ALL_SCOPES) for user in ("ann", "bob", None))
    quota.take(ann, 150)  # a user may exceed its share while no other user has requests
    quota.take(ann, 10, 150)  # the same request grows
    with pytest.raises(UnavailableError):
        quota.take(ann, 1)
    quota.take(bob, 90)
    quota.take(planner, 150)
    with pytest.raises(UnavailableError):
        quota.take(bob, 10)  # 400 in all
    quota.release(ann, 160)
    quota.take(bob, 10)
    with pytest.raises(UnavailableError):
        quota.take(bob, 1)
    quota.take(ann, 150)


def test_a_slot_is_released_when_its_request_is_answered(served: Served) -> None:
    bob = identity_of(create_key(served.data_dir, "of-bob", "bob", ALL_SCOPES)).token

    async def ask() -> None:
        socket = AsyncRequestSocket(served.gateway)
        for _ in range(3 * SHARE):
            assert await fault_of(socket, request(bob, "stats", {})) is None
            unknown = await fault_of(socket, request(bob, "stats", {"user": 1}, 0.0))
            assert unknown is None or unknown["code"] != "unavailable"
        socket.close()

    asyncio.run(ask())


def test_running_requests_are_bounded_in_bytes(embedder: Embedder) -> None:
    settings = Settings(daemon=DaemonSettings(requests_bytes=1_000_000))
    with gateway_in_new_folder(embedder, settings=settings) as served:
        asyncio.run(crowd(served))


async def crowd(served: Served) -> None:
    """Check that two of three large requests fit, and that a small request fits beside them."""
    local = served.token
    through = {f"user-{number:040}": NEVER for number in range(8_000)}  # 440 KB
    large = request(local, "wait", {"through": through}, 1e12)
    socket = AsyncRequestSocket(served.gateway)
    waiting = {asyncio.create_task(fault_of(socket, large)) for _ in range(3)}
    (refused,), waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    fault = refused.result()
    assert fault is not None
    assert fault["code"] == "unavailable"
    assert len(waiting) == 2
    assert await fault_of(socket, request(local, "stats", {})) is None
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    socket.close()


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
def test_deadlines_are_clamped_to_ten_minutes(asked_ms: float, bounded_ms: float) -> None:
    assert decode_request(request("", "wait", {}, asked_ms)).deadline_ms == bounded_ms
