"""The client over a real socket, with a daemon of one answer at the other end."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from memory_agent import MemoryClient
from memory_agent.protocol import encode_result
from memory_agent.transport import ReplySocket


@pytest.fixture
def endpoint(tmp_path: Path) -> Iterator[str]:
    socket = ReplySocket(f"ipc://{tmp_path}/gateway.sock")
    stop = threading.Event()

    def answer() -> None:
        while not stop.is_set():
            if request := socket.receive(0.05):
                socket.reply(request, [encode_result(3)])

    thread = threading.Thread(target=answer)
    thread.start()
    yield socket.endpoint
    stop.set()
    thread.join()
    socket.close()


def test_a_client_outlives_any_number_of_threads(endpoint: str) -> None:
    """A socket per thread came to ZeroMQ's limit at the thousandth thread, as in a server that has one per request."""
    answers: list[int] = []
    with MemoryClient(endpoint=endpoint, token="t") as client:
        for _ in range(1_100):
            thread = threading.Thread(target=lambda: answers.append(client.forget(["id"])))
            thread.start()
            thread.join()
    assert answers == [3] * 1_100


def test_threads_ask_at_the_same_time(endpoint: str) -> None:
    answers: list[int] = []
    with MemoryClient(endpoint=endpoint, token="t") as client:
        threads = [threading.Thread(target=lambda: answers.append(client.forget(["id"]))) for _ in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert answers == [3] * 20
