"""Test that clients notice immediately when the daemon is killed during their calls.

A stopped daemon (SIGSTOP) accepts no request, so each call is still in progress when the daemon is killed.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from memory_agent import AsyncMemoryClient, MemoryClient
from memory_agent.client import address
from memory_agent.errors import ConnectionLostError
from relay.net import AsyncRequestSocket, RequestSocket

from .conftest import DaemonProcess


class Blocking(MemoryClient):
    """A client whose calls run in a thread."""

    def __init__(self, data_dir: Path) -> None:
        super().__init__("blocking", data_dir=data_dir)
        self._threads = ThreadPoolExecutor(4)

    def begin(self, call: Callable[[Any], Any]) -> Future[Any]:
        return self._threads.submit(call, self)

    def end(self) -> None:
        self._threads.shutdown()
        self.close()


class Awaiting(AsyncMemoryClient):
    """A client whose calls run in an event loop in a thread."""

    def __init__(self, data_dir: Path) -> None:
        super().__init__("awaiting", data_dir=data_dir)
        self._loop = asyncio.new_event_loop()
        self._threads = ThreadPoolExecutor(1)
        self._threads.submit(self._loop.run_forever)

    def begin(self, call: Callable[[Any], Any]) -> Future[Any]:
        return asyncio.run_coroutine_threadsafe(call(self), self._loop)

    def end(self) -> None:
        asyncio.run_coroutine_threadsafe(self.close(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._threads.shutdown()
        self._loop.close()


Client = Blocking | Awaiting


@pytest.fixture
def daemon(own_daemon: DaemonProcess) -> DaemonProcess:
    own_daemon.start()
    return own_daemon


@pytest.fixture
def clients(daemon: DaemonProcess) -> Iterator[tuple[Client, ...]]:
    """A client of each kind, each with its own user."""
    clients = (Blocking(daemon.data_dir), Awaiting(daemon.data_dir))
    for client in clients:
        client.begin(lambda memory: memory.remember("Staging needs the VPN", id="vpn")).result()
    yield clients
    for client in clients:
        client.end()


def killed_during(
    daemon: DaemonProcess,
    clients: tuple[Client, ...],
    calls: list[Callable[[Any], Any]],
    monkeypatch: pytest.MonkeyPatch,
) -> list[list[Future[Any]]]:
    """Kill the daemon after every client has sent all calls; return the calls of each client."""
    os.kill(daemon.pid, signal.SIGSTOP)
    sent = Sent(monkeypatch)
    begun = [[client.begin(call) for call in calls] for client in clients]
    sent.wait(len(clients) * len(calls))
    daemon.kill()
    return begun


class Sent:
    """Counts the requests that clients have sent."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._sent = threading.Semaphore(0)
        for kind, name in ((RequestSocket, "send"), (AsyncRequestSocket, "_send")):
            monkeypatch.setattr(kind, name, self._counted(getattr(kind, name)))

    def wait(self, count: int) -> None:
        assert all(self._sent.acquire(timeout=60) for _ in range(count))

    def _counted(self, send: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any) -> Any:
            result = send(*arguments)
            self._sent.release()
            return result

        return counted


def test_calls_that_may_not_be_repeated_say_what_is_known_of_their_outcome(
    daemon: DaemonProcess, clients: tuple[Client, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: an erasure waited ten minutes for a daemon that had been killed."""
    outcomes = {
        "erasure.erase_user continues when the daemon starts": lambda memory: memory.erasure.erase_user(),
        "care.rebuild may have been interrupted": lambda memory: memory.care.rebuild(),
        "remember may have stored the memory": lambda memory: memory.remember("Production needs it too"),
    }
    for begun in killed_during(daemon, clients, list(outcomes.values()), monkeypatch):
        for known, call in zip(outcomes, begun, strict=True):
            with pytest.raises(ConnectionLostError, match=known):
                call.result(60)


def test_calls_that_may_be_repeated_reach_the_restarted_daemon(
    daemon: DaemonProcess, clients: tuple[Client, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[Callable[[Any], Any]] = [
        lambda memory: memory.recall("staging", mode="lexical", deadline_ms=60_000.0),
        lambda memory: memory.remember("Staging needs no VPN", id="vpn"),
        lambda memory: memory.runs.begin("Deploy to staging"),
    ]
    monkeypatch.setattr(address, "_RESTART_S", 60.0)
    monkeypatch.setattr(address.Attempts, "remaining_s", 120.0)  # a busy machine restarts the daemon slowly
    sent = killed_during(daemon, clients, calls, monkeypatch)
    daemon.start()
    for client, (found, stored, run) in zip(clients, sent, strict=True):
        assert [one.record.id for one in found.result(60).memories] == ["vpn"]
        assert stored.result(60).text == "Staging needs no VPN"
        begun = run.result(60)
        assert [one.id for one in client.begin(lambda memory: memory.runs.list()).result()] == [begun.id]


def test_a_call_after_a_restart_uses_no_connection_to_the_former_daemon(
    daemon: DaemonProcess, clients: tuple[Client, ...]
) -> None:
    daemon.kill()
    daemon.start()
    for client in clients:
        assert client.begin(lambda memory: memory.remember("Production needs it too")).result(60).id


def test_a_read_fails_if_the_daemon_does_not_come_back(
    daemon: DaemonProcess, clients: tuple[Client, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(address, "_RESTART_S", 0.1)
    reading = [lambda memory: memory.recall("staging", deadline_ms=600_000.0)]
    for (read,) in killed_during(daemon, clients, reading, monkeypatch):
        with pytest.raises(ConnectionLostError, match="nothing was changed"):
            read.result(60)
