"""Test on a simulated clock that an idle daemon exits at the right time, and that no local call is lost."""

from __future__ import annotations

import asyncio
import fcntl
import os
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from polling import wait_until

from memory_agent.client.address import find_daemon
from memory_agent.daemon import idle_end
from memory_agent.daemon.idle_end import Activity, IdleEnd, calls_lock
from memory_agent.errors import UnavailableError
from memory_agent.exchange import local_door
from memory_agent.layout import Layout

IDLE_S = 60.0


class Daemon:
    """Exits after one idle minute. Each observation advances the clock by a second and returns the next of `looks`."""

    def __init__(self, layout: Layout, *looks: Activity) -> None:
        self._layout = layout
        self._looks = [*looks]
        self.now_s = 0.0

    def observe(self) -> Activity:
        self.now_s += 1.0
        return self._looks.pop(0) if len(self._looks) > 1 else self._looks[0]

    def ended_after_s(self, monkeypatch: pytest.MonkeyPatch) -> float:
        """Return the time at which the daemon exited."""
        monkeypatch.setattr(idle_end, "_LONGEST_LOOK_S", 0.0)
        monkeypatch.setattr(idle_end, "_SETTLE_S", 0.0)

        async def wait() -> None:
            async with asyncio.timeout(60):
                await IdleEnd(calls, IDLE_S, lambda: self.now_s).wait(self.observe)

        with calls_lock(self._layout) as calls:
            asyncio.run(wait())
        return self.now_s


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    layout = Layout(tmp_path)
    layout.create()
    return layout


IDLE = Activity(False, 7)


def test_an_idle_daemon_ends_after_the_idle_time(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    assert Daemon(layout, IDLE).ended_after_s(monkeypatch) == pytest.approx(IDLE_S, abs=3)


def test_work_and_requests_delay_the_end(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    busy = [Activity(True, 7)] * 200
    assert Daemon(layout, *busy, IDLE).ended_after_s(monkeypatch) == pytest.approx(200 + IDLE_S, abs=3)
    asked = [Activity(False, number) for number in range(200)]  # short requests, each between two observations
    assert Daemon(layout, *asked, IDLE).ended_after_s(monkeypatch) == pytest.approx(200 + IDLE_S, abs=3)


def test_a_request_during_the_decision_prevents_the_end(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    for late in (Activity(True, 7), Activity(False, 8)):
        looks = [*[IDLE] * 60, late, late._replace(is_busy=False)]  # found by the last observation
        assert Daemon(layout, *looks).ended_after_s(monkeypatch) > 2 * IDLE_S - 3


def test_no_daemon_ends_during_a_local_call(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    layout.calls_lock.touch()
    call = layout.call()
    daemon = Daemon(layout, IDLE)
    ended: list[float] = []
    ending = threading.Thread(target=lambda: ended.append(daemon.ended_after_s(monkeypatch)))
    ending.start()
    wait_until(lambda: daemon.now_s > 5 * IDLE_S)
    assert not ended
    del call
    ending.join(60)
    assert ended[0] > 5 * IDLE_S


@contextmanager
def ending(layout: Layout) -> Iterator[None]:
    """Hold the folder and the lock for local calls, as a daemon does shortly before it ends."""
    with calls_lock(layout) as calls, layout.hold():
        layout.http.write_text("http://127.0.0.1:1\n")
        fcntl.flock(calls, fcntl.LOCK_EX)
        yield


def test_a_daemon_that_is_ending_is_found_by_no_client(layout: Layout) -> None:
    address = find_daemon(layout.data_dir, None, "token")
    with ending(layout):
        assert layout.daemon_runs()
        assert local_door(layout, "token") is None
        with pytest.raises(UnavailableError):
            address.require()
    with layout.hold():
        layout.http.write_text("http://127.0.0.1:1\n")
        assert local_door(layout, "token") is not None
        address.require()


def test_a_client_keeps_the_daemon_until_it_is_closed(layout: Layout) -> None:
    address = find_daemon(layout.data_dir, None, "token")
    with calls_lock(layout) as calls, layout.hold():
        address.require()
        with pytest.raises(BlockingIOError):
            fcntl.flock(calls, fcntl.LOCK_EX | fcntl.LOCK_NB)
        address.release()
        fcntl.flock(calls, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_a_client_keeps_a_daemon_that_first_starts_after_its_first_call(layout: Layout) -> None:
    address = find_daemon(layout.data_dir, None, "token")
    with pytest.raises(UnavailableError):
        address.require()
    with calls_lock(layout) as calls, layout.hold():
        address.require()
        with pytest.raises(BlockingIOError):
            fcntl.flock(calls, fcntl.LOCK_EX | fcntl.LOCK_NB)


@pytest.mark.skipif(sys.platform != "linux", reason="reads limits that macOS lacks")
def test_limits_and_signals_of_the_client_do_not_apply() -> None:
    script = (
        "import os, resource, signal; from memory_agent.daemon.idle_end import forget_client; forget_client()\n"
        "limits = [resource.getrlimit(one) for one in (resource.RLIMIT_CPU, resource.RLIMIT_FSIZE)]\n"
        "print(all(soft == hard for soft, hard in limits), resource.getrlimit(resource.RLIMIT_CORE)[0],"
        " signal.pthread_sigmask(signal.SIG_BLOCK, ()), oct(os.umask(0)))"
    )

    def restrict() -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM,))
        os.umask(0)
        for limit in (resource.RLIMIT_CPU, resource.RLIMIT_FSIZE):
            resource.setrlimit(limit, (1 << 20, resource.getrlimit(limit)[1]))

    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, preexec_fn=restrict, check=True
    )
    assert done.stdout.split() == ["True", "0", "set()", "0o77"]
