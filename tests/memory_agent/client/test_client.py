"""Test the client over a real socket, with a server that gives the same answer to every request."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

from memory_agent import MemoryClient
from memory_agent.errors import ProtocolError, UnknownMethodError
from memory_agent.records.memories import RecallResult
from memory_agent.verbs.protocol import encode_fault, encode_result
from relay.net import ReplySocket


@contextmanager
def served(tmp_path: Path, answer: Callable[[bytes], bytes]) -> Iterator[str]:
    """The endpoint of a server that answers each request with `answer`."""
    socket = ReplySocket(f"ipc://{tmp_path}/gateway.sock")
    stop = threading.Event()

    def serve() -> None:
        while not stop.is_set():
            if request := socket.receive(0.05):
                socket.reply(request, [answer(request.frames[0])])

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield socket.endpoint
    finally:
        stop.set()
        thread.join()
        socket.close()


@pytest.fixture
def endpoint(tmp_path: Path) -> Iterator[str]:
    with served(tmp_path, lambda _: encode_result(3)) as endpoint:
        yield endpoint


@pytest.fixture
def first_daemon(tmp_path: Path) -> Iterator[str]:
    """Answer like the first daemon, which supported only version 1 and ignored unknown fields."""

    def answer(data: bytes) -> bytes:
        version = msgspec.msgpack.decode(data).get("version", 1)
        if version != 1:
            return encode_fault(ProtocolError(f"protocol version {version} is not supported; this daemon supports 1"))
        return encode_result(RecallResult(recall_id="first", memories=()))

    with served(tmp_path, answer) as endpoint:
        yield endpoint


@pytest.fixture
def daemon_without_runs(tmp_path: Path) -> Iterator[str]:
    """Answer an unknown method with only the method's name, as daemons that do not support runs do."""

    def answer(data: bytes) -> bytes:
        method = msgspec.msgpack.decode(data)["method"]
        return msgspec.msgpack.encode({"fault": {"code": "unknown_method", "args": [method], "message": method}})

    with served(tmp_path, answer) as endpoint:
        yield endpoint


def test_a_client_outlives_any_number_of_threads(endpoint: str) -> None:
    """Regression: sockets were per thread, so a server with a thread per request reached ZeroMQ's limit of 1,000."""
    answers: list[int] = []
    with MemoryClient(endpoint=endpoint, token="t") as client:
        for _ in range(1_100):
            thread = threading.Thread(target=lambda: answers.append(client.forget(["id"])))
            thread.start()
            thread.join()
    assert answers == [3] * 1_100


def test_threads_send_requests_concurrently(endpoint: str) -> None:
    answers: list[int] = []
    with MemoryClient(endpoint=endpoint, token="t") as client:
        threads = [threading.Thread(target=lambda: answers.append(client.forget(["id"]))) for _ in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert answers == [3] * 20


@pytest.mark.parametrize(
    "options",
    [
        {"dates": "filter"},
        {"profile": "document"},
        {"context_tokens": 100},
        {"reference_time": datetime(2026, 2, 10, tzinfo=UTC)},
    ],
)
def test_a_daemon_too_old_for_an_option_refuses_it(first_daemon: str, options: dict[str, Any]) -> None:
    with MemoryClient(endpoint=first_daemon, token="t") as client, pytest.raises(ProtocolError, match="version 2"):
        client.recall("x", **options)


def test_an_old_daemon_answers_requests_without_new_options(first_daemon: str) -> None:
    with MemoryClient(endpoint=first_daemon, token="t") as client:
        assert client.recall("x", 3, mode="lexical", with_embedding=True, dates=None).recall_id == "first"


@pytest.mark.parametrize(
    ("ask", "method"),
    [
        (lambda client: client.runs.begin("x"), "run_begin"),
        (lambda client: client.runs.list(), "run_list"),
        (lambda client: client.feedback("recall", quality=1.0), "feedback"),
        (lambda client: client.sona.status(), "sona_status"),
        (lambda client: client.forget_session("s"), "forget_session"),
    ],
)
def test_a_method_unknown_to_the_daemon_is_reported_as_newer(
    daemon_without_runs: str, ask: Callable[[MemoryClient], object], method: str
) -> None:
    with (
        MemoryClient(endpoint=daemon_without_runs, token="t") as client,
        pytest.raises(UnknownMethodError, match=f"no method {method}; either the daemon is older"),
    ):
        ask(client)
