"""Test a rolling upgrade: the daemon and a machine run different versions side by side, while events are published and
memories are read.

The next version is a copy of the packages with another version number, an additional setting, and hosts that create a
file. The version after that uses a different protocol. Everything at rest is encrypted, with the same keys on both
machines.
"""

from __future__ import annotations

import shutil
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

import pytest

from memory_agent import MemoryClient
from memory_agent.archiving.placements import read_placement
from memory_agent.errors import DeadlineExceededError, MemoryAgentError
from memory_agent.records.placement import HOME
from memory_agent.storage.folders import user_folder
from memory_agent.verbs.protocol import HOST_PROTOCOL
from memory_agent.version import VERSION
from relay import Publisher, relay_endpoints
from tests.end_to_end.cluster import PROGRAM, NodeProcess, cluster_daemon, nodes, place, until
from tests.end_to_end.conftest import ONE_HOST, DaemonProcess, short_folder

pytestmark = pytest.mark.slow

T = TypeVar("T")
ROOT = Path(__file__).parents[2]
NEXT, INCOMPATIBLE = "99.0.0", "100.0.0"
PAUSE_S = 1.0  # each change takes over 5 s, so five rounds of events fall into it
BUSY_S = 240.0  # on a busy machine, Ray may try again after a minute
CHANGES = {
    NEXT: (
        (
            "settings/tables.py",
            '    listen: str = ""\n    clock_tol',
            '    listen: str = ""\n    next: int = 0\n    clock_tol',
        ),
        ("daemon/host_actor.py", "is_home = not", '(folder / f"next-{os.getpid()}").touch()\n        is_home = not'),
    ),
    INCOMPATIBLE: (("verbs/protocol.py", f"HOST_PROTOCOL = {HOST_PROTOCOL}", f"HOST_PROTOCOL = {HOST_PROTOCOL + 1}"),),
}


def make_version(version: str, folder: Path) -> tuple[str, ...]:
    """Write the packages of a version; return the prefix that runs a command with these packages."""
    for package in ("memory_agent", "relay", "sona"):
        shutil.copytree(ROOT / package, folder / package)
    for name, former, changed in CHANGES[version]:
        file = folder / "memory_agent" / name
        text = file.read_text(encoding="utf-8")
        assert text.count(former) == 1
        file.write_text(text.replace(former, changed), encoding="utf-8")
    metadata = folder / f"memory_agent-{version}.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text(f"Metadata-Version: 2.1\nName: memory-agent\nVersion: {version}\n", encoding="utf-8")
    return ("env", f"PYTHONPATH={folder}")


def in_time(call: Callable[[], T]) -> T:
    """Return the result of an idempotent call, which is repeated if a busy machine answers too late."""
    while True:
        with suppress(DeadlineExceededError):
            return call()


class Events:
    """Repeatedly publishes events of each user in a thread, and records the acknowledged ones.

    Another thread reads each user's memories, and records failed reads unless `is_down` is set.
    """

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir
        self._is_over = threading.Event()
        self._threads = [threading.Thread(target=run) for run in (self._run, self._read)]
        self.users: tuple[str, ...] = ()
        self.is_down = False
        self.reads = 0
        self.failed_reads: list[MemoryAgentError] = []
        self.acknowledged: defaultdict[str, list[str]] = defaultdict(list)

    @contextmanager
    def published(self) -> Iterator[None]:
        for thread in self._threads:
            thread.start()
        try:
            yield
        finally:
            self._is_over.set()
            for thread in self._threads:
                thread.join()

    def _run(self) -> None:
        number = 0
        with Publisher(relay_endpoints(self._data_dir).ingest) as publisher:
            while not self._is_over.wait(PAUSE_S):
                number += 1
                texts = {user_id: f"Note {number}: the lamp of {user_id} flickers" for user_id in self.users}
                for user_id, text in texts.items():
                    event = {"event_type": "chat.user_msg", "user_id": user_id, "payload": {"text": text}}
                    publisher.publish(event, timeout_s=120.0)
                assert not publisher.flush(timeout_s=120.0).pending
                for user_id, text in texts.items():
                    self.acknowledged[user_id].append(text)

    def read_again(self) -> None:
        """Wait until the memories of every user have been read again."""
        enough = self.reads + 2 * len(self.users)
        until(lambda: self.reads >= enough or bool(self.failed_reads))

    def _read(self) -> None:
        while not self._is_over.wait(PAUSE_S):
            for user_id in self.users:
                was_down = self.is_down
                try:
                    with MemoryClient(user_id, data_dir=self._data_dir) as client:
                        assert in_time(lambda: client.list(limit=1).records)
                    self.reads += 1
                except MemoryAgentError as error:
                    if not (was_down or self.is_down):
                        self.failed_reads.append(error)


class Upgrade:
    """A daemon, a machine and the published events, during an upgrade."""

    def __init__(self, daemon: DaemonProcess, node: NodeProcess, words: dict[str, tuple[str, ...]]) -> None:
        self.daemon, self.node, self._words = daemon, node, words
        self.events = Events(daemon.data_dir)
        self.stored: dict[str, list[str]] = {}

    def replace_daemon(self, version: str) -> None:
        self.events.is_down = True
        assert self.daemon.stop() == 0, self.daemon.log()
        assert files_with(b"", self.daemon.data_dir.with_name("archive"))  # the archives of the users on the machine
        assert files_with(b"flickers", self.daemon.data_dir.with_name("archive")) == []
        self.daemon.program = (*self._words.get(version, ()), PROGRAM)
        self.daemon.start()
        self.events.is_down = False
        if version != INCOMPATIBLE:
            until(lambda: [one.state for one in nodes(self.daemon)] == ["up"], self.node.log, BUSY_S)

    def replace_node(self, version: str) -> None:
        assert self.node.end() == 0, self.node.log()
        self.node.prefix = self._words.get(version, ())
        self.node.start()

    def use(self, daemon: str, node: str) -> None:
        """Place users on the daemon and the machine, wait for an event from each user, and check both versions."""
        self._has_arrived(HOME)
        until(lambda: self._has_arrived(self.node.name), self.daemon.log)  # refused for 10 s after a host is lost there
        users = tuple(self.stored)
        assert {self._machine_of(user_id) for user_id in users} == {HOME, self.node.name}
        self.events.users = users
        until(lambda: all(self.events.acknowledged[user_id] for user_id in users), self.daemon.log)
        with MemoryClient(data_dir=self.daemon.data_dir) as client:
            status = client.status()
        assert (status.version, status.nodes[0].version) == (daemon, node)
        hosts = [process.pid for process in self.node.family() if "HostActor" in "".join(process.cmdline())]
        own_code = [(self.node.data_dir / f"next-{pid}").exists() for pid in hosts]
        assert set(own_code) == {node == NEXT}

    def _has_arrived(self, machine: str) -> bool:
        """Place a new user on a machine; return whether the user was actually placed there."""
        user_id = f"user-{len(self.stored)}"
        place(self.daemon, user_id, machine)
        with MemoryClient(user_id, data_dir=self.daemon.data_dir) as client:
            in_time(lambda: client.remember(f"{user_id} arrived", id="arrived"))
        self.stored[user_id] = [f"{user_id} arrived"]
        return self._machine_of(user_id) == machine

    def _machine_of(self, user_id: str) -> str:
        return read_placement(user_folder(self.daemon.data_dir, user_id)).node

    def require_each_event_once(self) -> None:
        with MemoryClient("anybody", data_dir=self.daemon.data_dir) as client:
            client.wait({"system": client.status().journal["last_seq"]}, BUSY_S)
        for user_id, stored in self.stored.items():
            with MemoryClient(user_id, data_dir=self.daemon.data_dir) as client:
                texts = sorted(record.text for record in client.list(limit=1000).records)
            assert texts == sorted([*stored, *self.events.acknowledged[user_id]])


def files_with(text: bytes, *folders: Path) -> list[Path]:
    found = []
    for file in (file for folder in folders for file in folder.rglob("*") if file.is_file()):
        with suppress(FileNotFoundError):  # the machine has replaced the file
            found += [file] if text in file.read_bytes() else []
    return found


def test_daemon_and_machine_are_upgraded_one_after_the_other_without_losing_or_doubling_an_event() -> None:
    with short_folder() as home, short_folder() as folder, short_folder() as packages, short_folder() as keys:
        words = {version: make_version(version, Path(packages) / version) for version in CHANGES}
        daemon = cluster_daemon(Path(home), *ONE_HOST, f"encryption.keys_folder={keys}")
        node = None
        try:
            daemon.start()
            node = NodeProcess(daemon, Path(folder))
            node.start()
            upgrade = Upgrade(daemon, node, words)
            with upgrade.events.published():
                upgrade.use(VERSION, VERSION)
                upgrade.replace_daemon(NEXT)
                upgrade.use(NEXT, VERSION)
                upgrade.replace_node(NEXT)
                upgrade.use(NEXT, NEXT)
                upgrade.replace_daemon(VERSION)
                upgrade.use(VERSION, NEXT)
                upgrade.replace_daemon(INCOMPATIBLE)
                assert node.ended() != 0
                assert f"upgrade this machine from version {NEXT} to {INCOMPATIBLE}" in node.log()
                upgrade.events.read_again()
            assert upgrade.events.failed_reads == []
            upgrade.require_each_event_once()
        finally:
            if node is not None:
                node.kill()
            assert daemon.stop() == 0, daemon.log()
        assert files_with(b"flickers", Path(home), Path(folder)) == []
