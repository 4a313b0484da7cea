"""Test a machine that is cut off from the network: it runs in its own network namespace."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from memory_agent import MemoryClient
from tests.end_to_end.cluster import NodeProcess, cluster_daemon, nodes, place, until
from tests.end_to_end.conftest import ONE_HOST, short_folder

HERE, THERE = "10.211.7.1", "10.211.7.2"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        os.geteuid() != 0 or shutil.which("ip") is None, reason="network namespaces need root and iproute2"
    ),
]


def ip(words: str) -> None:
    subprocess.run(["ip", *words.split()], check=True, capture_output=True, text=True)


@pytest.fixture
def machine_apart() -> Iterator[tuple[tuple[str, ...], Callable[[str], None]]]:
    """Yield a prefix that runs a command at `THERE`, and a function that brings the network there `up` or `down`."""
    name = f"ma{os.getpid() % 100_000}"
    try:
        ip(f"netns add {name}")
    except subprocess.CalledProcessError as error:
        pytest.skip(f"network namespaces cannot be created here: {error.stderr}")
    with ExitStack() as stack:
        stack.callback(ip, f"netns del {name}")  # also deletes one end of the cable, and thereby the cable
        ip(f"link add {name}h type veth peer name {name}c netns {name}")
        ip(f"addr add {HERE}/30 dev {name}h")
        ip(f"link set {name}h up")
        for words in (f"addr add {THERE}/30 dev {name}c", f"link set {name}c up", "link set lo up"):
            ip(f"netns exec {name} ip {words}")
        yield ("ip", "netns", "exec", name), lambda state: ip(f"link set {name}h {state}")


def test_users_of_a_machine_behind_a_cut_cable_are_answered_elsewhere(
    machine_apart: tuple[tuple[str, ...], Callable[[str], None]],
) -> None:
    prefix, cable = machine_apart
    with short_folder() as folder, short_folder() as other:
        daemon = cluster_daemon(Path(folder), *ONE_HOST, address=HERE)
        node = None
        try:
            daemon.start()
            node = NodeProcess(daemon, Path(other), "w1", THERE, prefix)
            node.start()
            place(daemon, "alice", "w1")
            with MemoryClient("alice", data_dir=daemon.data_dir) as client:
                client.remember("staging needs the VPN")
                assert [one.users for one in nodes(daemon)] == [1]
                cable("down")
                assert [record.text for record in client.list().records] == ["staging needs the VPN"]
                client.remember("staging is reset on Mondays")
                until(lambda: nodes(daemon) == (), daemon.log)
                cable("up")
                until(lambda: [one.state for one in nodes(daemon)] == ["up"], node.log)
                assert len(client.list().records) == 2
        finally:
            cable("up")
            if node is not None:
                node.kill()
            assert daemon.stop() == 0, daemon.log()
