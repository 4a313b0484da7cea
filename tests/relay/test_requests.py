"""Test sending requests over real sockets: replies are matched, late replies are dropped, requests run concurrently."""

from __future__ import annotations

import asyncio
import itertools
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from relay import Identity, Subscriber, relay_endpoints
from relay.access import ipc_endpoint
from relay.errors import ConnectionLostError, DeadlineExceededError, SettingsError, UnavailableError
from relay.net import AsyncReplySocket, AsyncRequestSocket, ReplySocket, RequestSocket
from relay.net.zeromq import wait_to_receive

LOOPBACK = "tcp://127.0.0.1:0"


@pytest.fixture
def echo() -> Iterator[str]:
    """A server in another thread. It answers `ignore` only when the next request arrives."""
    socket = ReplySocket(LOOPBACK)
    stop = threading.Event()
    held = []

    def serve() -> None:
        while not stop.is_set():
            request = socket.receive(0.05)
            if request is None:
                continue
            if request.frames == [b"ignore"]:
                held.append(request)
                continue
            for late in held:
                socket.reply(late, [b"too late"])
            held.clear()
            replies.submit(socket.reply, request, request.frames)

    with ThreadPoolExecutor() as replies:
        serving = replies.submit(serve)
        yield socket.endpoint
        stop.set()
        serving.result()
    socket.close()


def test_a_late_reply_is_not_taken_for_the_next_one(echo: str) -> None:
    client = RequestSocket(echo)
    with pytest.raises(DeadlineExceededError):
        client.request(b"ignore", 0.05)
    assert client.request([b"a", b"b"], 5.0) == [b"a", b"b"]
    assert client.request(b"c", 5.0) == [b"c"]
    client.close()


def test_a_request_is_answered_while_its_sender_does_something_else(echo: str) -> None:
    client, other = RequestSocket(echo), RequestSocket(echo)
    dropped, wanted = client.send(b"a"), client.send([b"b", b"c"])
    assert other.request(b"meanwhile", 5.0) == [b"meanwhile"]
    assert client.receive(wanted, 5.0) == [b"b", b"c"]
    with pytest.raises(DeadlineExceededError):
        client.receive(dropped, 0.0)
    client.close()
    other.close()


def test_an_absent_server_is_an_error_within_the_deadline(tmp_path: Path) -> None:
    client = RequestSocket(ipc_endpoint(tmp_path / "nobody.sock"))
    with pytest.raises(DeadlineExceededError):
        client.request(b"x", 0.05)
    client.close()


def test_an_endpoint_in_use_is_named(echo: str) -> None:
    with pytest.raises(UnavailableError, match=echo):
        ReplySocket(echo)


def test_many_requests_at_a_time_get_their_own_replies() -> None:
    async def scenario() -> list[list[bytes]]:
        server = AsyncReplySocket([LOOPBACK, LOOPBACK])

        async def serve() -> None:
            waiting = [await server.receive() for _ in range(50)]
            for request in reversed(waiting):
                server.reply(request, request.frames)

        task = asyncio.create_task(serve())
        client = AsyncRequestSocket(server.endpoints[1])
        replies = await asyncio.gather(*(client.request(str(number).encode(), 10.0) for number in range(50)))
        await task
        with pytest.raises(DeadlineExceededError):
            await client.request(b"nobody reads this", 0.05)
        client.close()
        server.close()
        return replies

    assert asyncio.run(scenario()) == [[str(number).encode()] for number in range(50)]


def test_the_loop_rests_while_a_request_waits_to_be_received(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        turns = itertools.count()
        selector: Any = asyncio.get_running_loop()._selector  # type: ignore[attr-defined]
        select = selector.select
        monkeypatch.setattr(selector, "select", lambda timeout: (next(turns), select(timeout))[1])
        server = AsyncReplySocket([LOOPBACK])
        client = AsyncRequestSocket(server.endpoints[0])
        with pytest.raises(DeadlineExceededError):
            await client.request(b"early", 0.3)
        assert next(turns) < 100
        assert (await server.receive()).frames == [b"early"]
        client.close()
        server.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("place", ["tcp", "ipc"])
def test_requests_under_way_fail_as_soon_as_their_only_connection_is_lost(place: str, tmp_path: Path) -> None:
    """A reply sent before the connection ended is received, and no request reaches a new server at that endpoint."""
    endpoint = LOOPBACK if place == "tcp" else ipc_endpoint(tmp_path / "echo.sock")
    command = [sys.executable, "-c", _ANSWERS_ONE_AND_DIES, endpoint]

    async def scenario() -> None:
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            client = AsyncRequestSocket(process.stdout.readline().strip())
            requests = [asyncio.create_task(client.request(str(number).encode(), 600.0)) for number in range(16)]
            assert await requests[0] == [b"0"]
            requests.append(asyncio.create_task(client.request(b"die", 600.0)))
            answers = await asyncio.gather(*requests[1:], return_exceptions=True)
        assert all(isinstance(answer, ConnectionLostError) for answer in answers)
        assert client.is_lost
        successor = ReplySocket(endpoint)
        with pytest.raises(UnavailableError):
            await client.request(b"late", 600.0)
        assert successor.receive(0.0) is None
        client.close()
        client.close()
        successor.close()

    asyncio.run(scenario())


_ANSWERS_ONE_AND_DIES = """
import os, signal, sys, time
from relay.net import ReplySocket
socket = ReplySocket(sys.argv[1])
print(socket.endpoint, flush=True)
requests = [socket.receive(60.0) for _ in range(16)]
socket.reply(requests[0], requests[0].frames)
socket.receive(60.0)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_blocking_request_fails_as_soon_as_its_only_connection_is_lost(tmp_path: Path) -> None:
    endpoint = ipc_endpoint(tmp_path / "echo.sock")
    with subprocess.Popen(
        [sys.executable, "-c", _ANSWERS_ONE_AND_DIES, endpoint], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        client = RequestSocket(endpoint, once=True)
        sent = [client.send(str(number).encode()) for number in range(16)]
        assert wait_to_receive([client._socket], 60_000)
        client.send(b"die")
        process.wait()
        assert client.receive(sent[0], 600.0) == [b"0"]  # it arrived before the connection ended
        with pytest.raises(ConnectionLostError):
            client.receive(sent[1], 600.0)
    assert client.is_lost
    successor = ReplySocket(endpoint)
    with pytest.raises(UnavailableError):
        client.send(b"late")
    assert successor.receive(0.0) is None
    client.close()
    client.close()
    successor.close()


def test_an_only_connection_to_a_socket_file_that_is_gone_is_lost_at_once(tmp_path: Path) -> None:
    async def scenario() -> None:
        client = AsyncRequestSocket(ipc_endpoint(tmp_path / "gone.sock"))
        with pytest.raises(UnavailableError):
            await client.request(b"x", 600.0)
        client.close()

    asyncio.run(scenario())


def test_a_removed_socket_file_is_restored_and_its_connections_live_on(tmp_path: Path) -> None:
    file = tmp_path / "echo.sock"
    server, first = ReplySocket(ipc_endpoint(file)), RequestSocket(ipc_endpoint(file))
    second = RequestSocket(ipc_endpoint(file))
    answered: list[list[bytes]] = []

    def ask(client: RequestSocket) -> None:
        thread = threading.Thread(target=lambda: answered.append(client.request(b"x", 60.0)))
        thread.start()
        request = server.receive(60.0)
        assert request is not None
        server.reply(request, request.frames)
        server.receive(0.0)
        thread.join()

    ask(first)
    file.unlink()
    server.listen_again()
    server.listen_again()
    assert file.stat().st_mode & 0o777 == 0o600
    ask(first)
    ask(second)
    assert answered == [[b"x"]] * 3
    for socket in (first, second, server):
        socket.close()


def test_a_socket_path_that_is_too_long_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="data_dir"):
        ipc_endpoint(tmp_path / ("x" * 120) / "gateway.sock")


def test_naming_a_socket_makes_no_folder(tmp_path: Path) -> None:
    assert ipc_endpoint(tmp_path / "run" / "a.sock") == f"ipc://{tmp_path}/run/a.sock"
    assert not (tmp_path / "run").exists()


def test_a_subscriber_may_be_closed_twice(tmp_path: Path) -> None:
    endpoints = relay_endpoints(tmp_path)
    with Subscriber(endpoints.ingest, endpoints.feed, identity=Identity(token="t")) as subscriber:
        subscriber.close()


CLOSED_WHILE_LOST = """
import asyncio
import sys

from relay.errors import UnavailableError
from relay.net import AsyncReplySocket, AsyncRequestSocket


async def go(folder):
    for number in range(60):
        server = AsyncReplySocket([f"ipc://{folder}/{number}.sock"])
        clients = [AsyncRequestSocket(server.endpoints[0]) for _ in range(4)]
        requests = [asyncio.create_task(client.request(b"anyone?", 60.0)) for client in clients]
        await server.receive()
        server.close()
        if number % 2:
            await asyncio.wait(requests)
        for client in clients:
            client.close()
        outcomes = await asyncio.gather(*requests, return_exceptions=True)
        assert all(isinstance(outcome, UnavailableError) for outcome in outcomes), outcomes


asyncio.run(go(sys.argv[1]))
"""


def test_a_socket_that_is_closed_while_its_connection_ends_stops_no_other(tmp_path: Path) -> None:
    """Runs in a separate process, because libzmq blocks its I/O thread until the report of a lost connection is
    received.
    """
    subprocess.run([sys.executable, "-c", CLOSED_WHILE_LOST, str(tmp_path)], check=True, timeout=120)
