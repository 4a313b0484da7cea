"""Requests over real sockets: matched replies, late ones thrown away, many at a time."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from relay import Identity, Subscriber, relay_endpoints
from relay.access import ipc_endpoint
from relay.errors import DeadlineExceededError, SettingsError, UnavailableError
from relay.net import AsyncReplySocket, AsyncRequestSocket, ReplySocket, RequestSocket

LOOPBACK = "tcp://127.0.0.1:0"


@pytest.fixture
def echo() -> Iterator[str]:
    """A server that answers from another thread; it stays silent to `ignore`, and then answers twice at once."""
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
            threading.Thread(target=socket.reply, args=(request, request.frames)).start()

    thread = threading.Thread(target=serve)
    thread.start()
    yield socket.endpoint
    stop.set()
    thread.join()
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
                await server.reply(request, request.frames)

        task = asyncio.create_task(serve())
        client = AsyncRequestSocket(server.endpoints[1])
        replies = await asyncio.gather(*(client.request(str(number).encode(), 10.0) for number in range(50)))
        await task
        with pytest.raises(DeadlineExceededError):
            await client.request(b"nobody reads this", 0.05)
        await client.close()
        server.close()
        return replies

    assert asyncio.run(scenario()) == [[str(number).encode()] for number in range(50)]


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
