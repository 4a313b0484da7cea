"""Test that acknowledged events are stored exactly once if the relay, the daemon, an actor or the raylet is killed
during ingestion, and that nothing is left of a killed daemon.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from polling import wait_until

from memory_agent import MemoryClient
from memory_agent.errors import MemoryAgentError
from memory_agent.storage.folders import user_folder
from memory_agent.storage.store import Store
from ops.process_memory import process_tree
from ops.soak.family import Family
from ops.soak.kills import until_gone

from .conftest import DaemonProcess, environment

USERS = ["alice", "bob", "carol"]
EVENTS = 450
PUBLISHER = Path(__file__).with_name("publish_numbered.py")


def start_publisher(daemon: DaemonProcess, acked: Path) -> subprocess.Popen[bytes]:
    arguments = [str(daemon.data_dir), "0", str(EVENTS), str(acked), *USERS]
    return subprocess.Popen([sys.executable, str(PUBLISHER), *arguments], env=environment())


def acknowledged(acked: Path) -> list[str]:
    return acked.read_text(encoding="utf-8").split() if acked.exists() else []


def part_pid(daemon: DaemonProcess, name: str) -> int | None:
    """Return the pid of the first part whose name begins with `name`."""
    with MemoryClient(data_dir=daemon.data_dir) as client:
        try:
            return next((part.pid for part in client.status().parts if part.name.startswith(name)), None)
        except MemoryAgentError:
            return None


def kill_part(daemon: DaemonProcess, name: str) -> None:
    pids: list[int] = []

    def found() -> bool:
        pid = part_pid(daemon, name)
        pids.extend([pid] if pid else [])
        return bool(pids)

    wait_until(found)
    os.kill(pids[0], signal.SIGKILL)


def kill_raylet(daemon: DaemonProcess) -> None:
    """Kill the raylet. The hosts keep running for a while, and answer while their successors start."""
    next(process for process in process_tree(daemon.pid) if process.name() == "raylet").kill()


def sockets(daemon: DaemonProcess) -> list[str]:
    return [path.name for path in (daemon.data_dir / "run").glob("*.sock")]


def stored_events(daemon: DaemonProcess) -> dict[str, Counter[str]]:
    found = {}
    for user in USERS:
        store = Store.open(user_folder(daemon.data_dir, user))
        found[user] = Counter(str(record.event_id) for _, record in store.scan())
        store.close()
    return found


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(sys.platform != "linux", reason="orphans can be identified only on Linux")
def test_after_any_kill_every_acknowledged_event_is_stored_once_and_nothing_is_left(
    own_full_daemon: DaemonProcess,
) -> None:
    own_full_daemon.configure("daemon.dedicated_hosts=1", "daemon.shared_hosts=1")
    acked = own_full_daemon.data_dir / "acked.txt"
    with Family() as family:
        own_full_daemon.start()
        publisher = start_publisher(own_full_daemon, acked)
        try:
            wait_until(lambda: len(acknowledged(acked)) >= EVENTS // 6)
            kill_part(own_full_daemon, "user-")
            wait_until(lambda: len(acknowledged(acked)) >= EVENTS // 3)
            kill_part(own_full_daemon, "relay")
            wait_until(lambda: len(acknowledged(acked)) >= EVENTS // 2)
            former = {process.pid for process in process_tree(own_full_daemon.pid)}
            family.alive()
            (folder,) = family.ray_folders
            own_full_daemon.kill()
            own_full_daemon.start()
            wait_until(lambda: folder not in family.left())  # another starting daemon may remove the folder
            wait_until(lambda: former.isdisjoint(process.pid for process in family.alive()))
            kill_part(own_full_daemon, "embedder")
            wait_until(lambda: len(acknowledged(acked)) >= EVENTS * 2 // 3)
            wait_until(lambda: part_pid(own_full_daemon, "user-"))
            kill_raylet(own_full_daemon)
            assert own_full_daemon.wait() == 1  # without Ray, the daemon exits; a supervisor would restart it
            assert "ray.died" in own_full_daemon.log()
            assert sockets(own_full_daemon) == []
            wait_until(lambda: not any("Ray" in one or "/" in one for one in family.left()), timeout_s=60.0)
            own_full_daemon.start()
            assert publisher.wait(timeout=300) == 0
        finally:
            publisher.kill()
        require_each_stored_once(own_full_daemon, acked)
        assert until_gone(family) == []


@pytest.mark.slow
def test_a_light_daemon_killed_at_any_moment_stores_every_acknowledged_event_once(own_daemon: DaemonProcess) -> None:
    own_daemon.start()
    acked = own_daemon.data_dir / "acked.txt"
    publisher = start_publisher(own_daemon, acked)
    try:
        for part in range(1, 5):
            wait_until(lambda part=part: len(acknowledged(acked)) >= EVENTS * part // 5)
            own_daemon.kill()
            own_daemon.start()
        assert publisher.wait(timeout=200) == 0
    finally:
        publisher.kill()
    require_each_stored_once(own_daemon, acked)


def require_each_stored_once(daemon: DaemonProcess, acked: Path) -> None:
    """Wait until all events are processed, stop the daemon, and compare its stores with the acknowledgements."""
    assert len(acknowledged(acked)) == EVENTS
    with MemoryClient(data_dir=daemon.data_dir) as client:
        client.wait(dict.fromkeys(USERS, journaled(client)), timeout_s=240)
        assert client.quarantined() == []
    assert daemon.stop() == 0
    stored = stored_events(daemon)
    expected = {
        user: Counter(event_id for event_id in acknowledged(acked) if int(event_id[6:]) % len(USERS) == place)
        for place, user in enumerate(USERS)
    }
    assert stored == expected


def journaled(client: MemoryClient) -> int:
    return client.status().journal["last_seq"]
