"""Test that no request hangs and nothing is lost when hosts are killed and their sockets are removed or sent junk."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from memory_agent import MemoryClient
from memory_agent.errors import HostDiedError, MemoryAgentError
from memory_agent.verbs.table import BY_METHOD
from relay.net import RequestSocket

from .conftest import DaemonProcess

CLIENTS = 16
KILLS = 2  # the second kill ends a host that has restarted
PATIENCE_S = 120.0


class Asking:
    """Clients of one user that alternately recall and remember until stopped."""

    def __init__(self, data_dir: Path, user_id: str) -> None:
        self._data_dir = data_dir
        self._user_id = user_id
        self._stop = threading.Event()
        self._guard = threading.Lock()
        self.outcomes: Counter[str] = Counter()
        self.stored: list[str] = []
        self._threads = [threading.Thread(target=self._ask, args=(number,)) for number in range(CLIENTS)]
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        """Stop the clients and wait for them; a request that hangs fails the test."""
        self._stop.set()
        for thread in self._threads:
            thread.join(PATIENCE_S)
            assert not thread.is_alive(), "a request hangs"

    def answered(self) -> int:
        return self.outcomes["recall answered"] + self.outcomes["remember answered"]

    def _ask(self, number: int) -> None:
        with MemoryClient(self._user_id, data_dir=self._data_dir) as client:
            turn = 0
            while not self._stop.is_set():
                turn += 1
                self._count("recall", lambda: client.recall("a note", deadline_ms=30_000.0))
                text = f"Note {turn} of client {number}."
                self._count("remember", lambda text=text: self.stored.append(client.remember(text).id))

    def _count(self, verb: str, ask: object) -> None:
        try:
            ask()  # type: ignore[operator]
            outcome = "answered"
        except MemoryAgentError as error:
            outcome = error.code
        with self._guard:
            self.outcomes[f"{verb} {outcome}"] += 1


def host_pid(client: MemoryClient, user_id: str) -> int | None:
    try:
        return next((part.pid for part in client.status().parts if part.name == f"user-{user_id}"), None)
    except MemoryAgentError:
        return None


def killed(client: MemoryClient, user_id: str) -> int:
    deadline_s = time.monotonic() + PATIENCE_S
    while (pid := host_pid(client, user_id)) is None:
        assert time.monotonic() < deadline_s, "the host did not restart"
    os.kill(pid, signal.SIGKILL)
    return pid


def wait_for_answers(asking: Asking, more: int) -> None:
    goal, deadline_s = asking.answered() + more, time.monotonic() + PATIENCE_S
    while asking.answered() < goal:
        assert time.monotonic() < deadline_s, asking.outcomes
        time.sleep(0.02)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_reads_are_answered_and_writes_are_kept_or_refused_while_their_host_is_killed(
    rough_daemon: DaemonProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    # On a busy machine, a host can take longer to restart than the ten seconds that a client usually waits.
    monkeypatch.setitem(BY_METHOD, "remember", replace(BY_METHOD["remember"], patience_ms=PATIENCE_S * 1000))
    with MemoryClient("dan", data_dir=rough_daemon.data_dir) as client:
        client.remember("The first note.")
        asking = Asking(rough_daemon.data_dir, "dan")
        try:
            pids = []
            for _ in range(KILLS):
                wait_for_answers(asking, 4 * CLIENTS)
                pids.append(killed(client, "dan"))
            wait_for_answers(asking, 4 * CLIENTS)
        finally:
            asking.end()
        assert len(set(pids)) == KILLS
        refused = {name for name in asking.outcomes if not name.endswith("answered")}
        assert refused <= {f"remember {HostDiedError.code}"}, asking.outcomes
        assert len(client.get(asking.stored)) == len(asking.stored), "an acknowledged note is lost"
        assert client.stats().memories >= len(asking.stored) + 1


def test_junk_at_a_host_and_its_removed_socket_file_do_no_harm(rough_daemon: DaemonProcess) -> None:
    run = rough_daemon.data_dir / "run"
    with MemoryClient("erin", data_dir=rough_daemon.data_dir) as client:
        note = client.remember("Erin's note.")
        sockets = [*run.glob("host-*.sock"), *run.glob("bulk-*.sock")]
        assert {oct(file.stat().st_mode & 0o777) for file in sockets} == {"0o600"}
        assert run.stat().st_mode & 0o777 == 0o700
        for file in sockets:
            with closing(RequestSocket(f"ipc://{file}")) as stranger:
                for junk in (b"", b"\xc1", b"\x81" * 1_000, bytes(1 << 20)):
                    assert b"protocol" in stranger.request([junk, junk], 180.0)[0]  # a killed host may be starting
            file.unlink()
        assert client.get([note.id])[0].text == "Erin's note."
        assert client.remember("Another note.")
        pid = killed(client, "erin")
        assert client.get([note.id])[0].text == "Erin's note."
        assert host_pid(client, "erin") != pid
