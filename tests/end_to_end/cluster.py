"""Daemons with a cluster and machines that join it: each "machine" has its own loopback address and data folder."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from memory_agent import MemoryClient
from memory_agent.archiving import Placements
from memory_agent.verbs.protocol import Node
from relay import Scope, create_key, curve_pair, server_pair
from tests.end_to_end.conftest import DaemonProcess, environment

HEAD = "127.0.0.2"
PROGRAM = str(Path(sys.executable).with_name("memory-agent"))


def cluster_daemon(folder: Path, *settings: str, address: str = HEAD, embedder: tuple[str, ...] = ()) -> DaemonProcess:
    """Return a daemon, not started yet, that other machines may join. It has no model, unless `embedder` sets one."""
    own = (
        f"cluster.listen={address}",
        f'daemon.listen=["curve+tcp://{address}:{free_port(address)}"]',
        f"archive.url=file://{folder}/archive",
        "archive.interval_s=0.5",
        *(embedder or (f"embedder.folder={folder}/no-model",)),
    )
    (folder / "home").mkdir(mode=0o700)
    return DaemonProcess(folder / "home", *own, *settings)


class NodeProcess:
    """A `memory-agent join` process with a data folder, which can be killed and restarted."""

    def __init__(
        self,
        daemon: DaemonProcess,
        folder: Path,
        name: str = "w1",
        address: str = "127.0.0.3",
        prefix: tuple[str, ...] = (),
        embedder: tuple[str, ...] = (),
    ) -> None:
        """`prefix`: the arguments placed before the command, for example to run it in a network namespace."""
        self.settings = embedder or (f"embedder.folder={folder}/no-model",)
        self.prefix = prefix
        self.daemon = daemon
        self.name = name
        self.address = address
        self.data_dir = folder
        self.key = folder / "join.key"
        self.key.write_bytes(curve_key(daemon, name))
        self._process: subprocess.Popen[str] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def command(self, **differing: str) -> list[str]:
        """Return the command line, with some of its values replaced."""
        values = {
            "name": self.name,
            "listen": self.address,
            "key-file": str(self.key),
            "data-dir": str(self.data_dir),
            "address": self.daemon.ready["endpoints"]["listen"][0],
        } | differing
        address = values.pop("address")
        return [
            *self.prefix,
            PROGRAM,
            "join",
            address,
            *(word for name, value in values.items() for word in (f"--{name}", value)),
            *(word for setting in self.settings for word in ("--set", setting)),
        ]

    def start(self) -> None:
        """Join, and wait for the ready line."""
        with open(self.data_dir / "node.log", "a", encoding="utf-8") as log:
            self._process = subprocess.Popen(
                self.command(), stdout=subprocess.PIPE, stderr=log, text=True, env=environment()
            )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, self.log()
        assert json.loads(line)["name"] == self.name
        until(lambda: (self.name, "up") in [(node.name, node.state) for node in nodes(self.daemon)], self.log)

    def kill(self) -> None:
        self.end(signal.SIGKILL)

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        """End the process if it is still running; return its exit code."""
        if self._process is not None:
            self._process.send_signal(number)
        return self.ended()

    def ended(self) -> int:
        """Wait for the process to end; return its exit code, or 0 if an earlier call returned it."""
        if self._process is None:
            return 0
        process, self._process = self._process, None
        assert process.stdout is not None
        code = process.wait(60)
        process.stdout.close()
        return code

    def family(self) -> list[psutil.Process]:
        """Return the process and all of its descendants."""
        own = psutil.Process(self.pid)
        return [own, *own.children(recursive=True)]

    def log(self) -> str:
        return (self.data_dir / "node.log").read_text(encoding="utf-8")


def curve_key(daemon: DaemonProcess, name: str, *scopes: Scope) -> bytes:
    """Create a key for all users; return the contents of its file."""
    document = create_key(daemon.data_dir, name, None, frozenset(scopes or (Scope.JOIN,)), curve_pair())
    server = server_pair(daemon.data_dir, curve_pair).public
    return json.dumps({"id": name, "public": document.public, "secret": document.secret, "server": server}).encode()


def nodes(daemon: DaemonProcess) -> tuple[Node, ...]:
    with MemoryClient(data_dir=daemon.data_dir) as client:
        return client.status().nodes


def until(condition: Callable[[], bool], explain: Callable[[], str] = lambda: "", within_s: float = 60) -> float:
    """Wait until `condition` holds; return the seconds it took."""
    started_s = time.monotonic()
    while not condition():
        assert time.monotonic() - started_s < within_s, explain()
        time.sleep(0.1)
    return time.monotonic() - started_s


def place(daemon: DaemonProcess, user_id: str, node: str) -> None:
    """Place a user that the daemon has not seen yet on a machine."""
    Placements(daemon.data_dir).move(user_id, node)


def free_port(address: str = HEAD) -> int:
    with socket.socket() as probe:
        probe.bind((address, 0))
        return int(probe.getsockname()[1])
