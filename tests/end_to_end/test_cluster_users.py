"""Test three machines and their users while machines are killed, frozen, taken away and restarted."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import psutil
import pytest

from memory_agent import MemoryClient
from relay import Publisher, relay_endpoints
from tests.crash.disk import CannotMountError, fill, small_disk
from tests.end_to_end.cluster import NodeProcess, cluster_daemon, nodes, place, until
from tests.end_to_end.conftest import DaemonProcess, short_folder

pytestmark = pytest.mark.slow

DISK_BYTES = 48 << 20
TWO_HOSTS = ("daemon.dedicated_hosts=1", "daemon.shared_hosts=1")
"""On each machine, the first user has a separate host, and all other users share one."""


@pytest.fixture(scope="module")
def daemon() -> Iterator[DaemonProcess]:
    with short_folder() as folder, cluster_daemon(Path(folder), *TWO_HOSTS).running() as process:
        yield process


@pytest.fixture(scope="module")
def machines(daemon: DaemonProcess) -> Iterator[dict[str, NodeProcess]]:
    """Two machines. The folder of `w2` is on a small disk if one can be mounted."""
    found: dict[str, NodeProcess] = {}
    with ExitStack() as stack:
        one, two = (Path(stack.enter_context(short_folder())) for _ in range(2))
        with suppress(CannotMountError):
            two = stack.enter_context(small_disk(two / "disk", DISK_BYTES))
        try:
            for name, folder, address in (("w1", one, "127.0.0.3"), ("w2", two, "127.0.0.4")):
                found[name] = NodeProcess(daemon, folder, name, address)
                found[name].start()
            yield found
        finally:
            for process in found.values():
                process.kill()


def client(daemon: DaemonProcess, user_id: str) -> MemoryClient:
    return MemoryClient(user_id, data_dir=daemon.data_dir)


def stored(daemon: DaemonProcess, user_id: str, text: str) -> None:
    with client(daemon, user_id) as own:
        own.remember(text)


def texts(daemon: DaemonProcess, user_id: str) -> list[str]:
    """Return what a user has stored. The client repeats the request until a machine answers."""
    with client(daemon, user_id) as own:
        return sorted(record.text for record in own.list(limit=500).records)


def publish(daemon: DaemonProcess, user_id: str, numbers: range) -> list[str]:
    """Publish events and wait for their acknowledgements; return the texts of the memories that they become."""
    published = [f"Note {number}: the lamp in room {number} of {user_id} flickers" for number in numbers]
    with Publisher(relay_endpoints(daemon.data_dir).ingest) as publisher:
        for text in published:
            publisher.publish({"event_type": "chat.user_msg", "user_id": user_id, "payload": {"text": text}})
    return published


def handled(daemon: DaemonProcess) -> None:
    """Wait until all published events have become memories."""
    with client(daemon, "anybody") as own:
        own.wait({"system": own.status().journal["last_seq"]}, 60.0)


def test_nothing_acknowledged_is_lost_or_doubled_when_a_machine_is_killed(
    daemon: DaemonProcess, machines: dict[str, NodeProcess]
) -> None:
    users = [f"killed-{number}" for number in range(3)]
    expected: dict[str, list[str]] = {}
    for user_id in users:
        place(daemon, user_id, "w1")
        expected[user_id] = publish(daemon, user_id, range(10))
        stored(daemon, user_id, "staging needs the VPN")
        expected[user_id] += ["staging needs the VPN", *publish(daemon, user_id, range(10, 20))]
    family = machines["w1"].family()
    for process in family:
        process.kill()
    psutil.wait_procs(family, timeout=20)
    machines["w1"].ended()
    for user_id in users:
        expected[user_id] += publish(daemon, user_id, range(20, 25))
    handled(daemon)
    for user_id in users:
        assert texts(daemon, user_id) == sorted(expected[user_id])
    until(lambda: [node.name for node in nodes(daemon)] == ["w2"], daemon.log)
    machines["w1"].start()


def test_a_frozen_machine_loses_its_users_and_its_hosts_answer_nobody_afterwards(
    daemon: DaemonProcess, machines: dict[str, NodeProcess]
) -> None:
    place(daemon, "frozen", "w2")
    stored(daemon, "frozen", "staging needs the VPN")
    published = publish(daemon, "frozen", range(5))
    handled(daemon)
    family = machines["w2"].family()
    hosts = [process for process in family if "HostActor" in "".join(process.cmdline())]
    assert hosts
    for process in family:
        process.send_signal(signal.SIGSTOP)
    try:
        assert texts(daemon, "frozen") == sorted(["staging needs the VPN", *published])
        stored(daemon, "frozen", "staging is reset on Mondays")
    finally:
        for process in family:
            process.send_signal(signal.SIGCONT)
    assert "staging is reset on Mondays" in texts(daemon, "frozen")
    until(lambda: not any(host.is_running() for host in hosts), machines["w2"].log)  # killed, or ended with Ray
    until(lambda: ("w2", "up") in [(node.name, node.state) for node in nodes(daemon)], machines["w2"].log)
    assert Counter(texts(daemon, "frozen")).most_common(1)[0][1] == 1


def test_users_leave_a_machine_with_a_full_disk_until_it_has_room(
    daemon: DaemonProcess, machines: dict[str, NodeProcess]
) -> None:
    disk = machines["w2"].data_dir
    if not disk.is_mount():
        pytest.skip("only root can mount a file system")
    for number in range(60):  # a machine that was lost receives no users for 10 s
        user = f"crowded-{number}"
        place(daemon, user, "w2")
        stored(daemon, user, "staging needs the VPN")
        if (disk / "users" / user / "records").exists():
            break
        time.sleep(0.5)
    published = publish(daemon, user, range(10))
    handled(daemon)
    assert (disk / "users" / user / "records").exists()
    ballast = fill(disk)
    until(lambda: ("w2", True) in [(node.name, node.is_full) for node in nodes(daemon)], daemon.log)
    published += publish(daemon, user, range(10, 15))
    handled(daemon)
    assert texts(daemon, user) == sorted(["staging needs the VPN", *published])
    assert not (disk / "users" / user / "records").exists()
    assert "node.full" in daemon.log()
    ballast.unlink()
    until(lambda: not any(node.is_full for node in nodes(daemon)), daemon.log)


def test_an_erased_user_leaves_nothing_on_any_machine_or_in_the_archive(
    daemon: DaemonProcess, machines: dict[str, NodeProcess]
) -> None:
    secret = "the spare key lies under the fern"
    for user_id in ("erased", "erased-in-part"):
        place(daemon, user_id, "w1")
        stored(daemon, user_id, secret)
    archive = daemon.data_dir.parent / "archive"
    folders = (machines["w1"].data_dir, machines["w2"].data_dir, archive, daemon.data_dir)
    assert any(found_in(folder, secret) for folder in folders)  # the users may already have been moved
    with client(daemon, "erased-in-part") as own:
        (record,) = own.list().records
        own.erasure.erase([record.id])
        assert own.list().records == ()
    with client(daemon, "erased") as own:
        own.erasure.erase_user()
    for folder in folders:
        assert found_in(folder, secret) == []
    stored(daemon, "erased", "a new beginning")
    assert texts(daemon, "erased") == ["a new beginning"]


def found_in(folder: Path, text: str) -> list[Path]:
    """Return the files under `folder` that contain the given string."""
    return [file for file in folder.rglob("*") if file.is_file() and text.encode() in file.read_bytes()]


def test_users_survive_the_daemons_death_and_a_cluster_without_machines(
    daemon: DaemonProcess, machines: dict[str, NodeProcess]
) -> None:
    place(daemon, "survivor", "w1")
    stored(daemon, "survivor", "staging needs the VPN")
    published = publish(daemon, "survivor", range(10))
    daemon.kill()
    daemon.start()
    expected = sorted(["staging needs the VPN", *published])
    handled(daemon)
    assert texts(daemon, "survivor") == expected
    until(lambda: [node.state for node in nodes(daemon)] == ["up", "up"], daemon.log)
    for name, machine in machines.items():
        assert machine.end(signal.SIGTERM) == 0, (name, machine.log())
        assert not (machine.data_dir / "users").exists()
    assert nodes(daemon) == ()
    assert texts(daemon, "survivor") == expected
    for machine in machines.values():
        machine.start()
    stored(daemon, "survivor", "staging is reset on Mondays")
    assert texts(daemon, "survivor") == sorted([*expected, "staging is reset on Mondays"])
    assert os.listdir(daemon.data_dir / "users" / "survivor")
