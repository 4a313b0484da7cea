"""Runs daemons that machines may join, and the machines that join them, as processes with loopback addresses."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from msgspec.structs import replace

from memory_agent import MemoryClient
from memory_agent.evaluation import child_environment, temporary_daemon
from memory_agent.settings import ArchiveSettings, ClusterSettings, DaemonSettings, Settings
from relay import Scope, create_key, curve_pair, server_pair

ONE_HOST = DaemonSettings(dedicated_hosts=0, shared_hosts=1)
_HOME = "127.0.0.2"
_STOP_TIMEOUT_S = 600.0


@contextmanager
def cluster_daemon(daemon: DaemonSettings = ONE_HOST) -> Iterator[tuple[Path, Path]]:
    """Run a daemon that machines may join, with an archive in a folder.

    Yields the daemon's data folder and an empty folder for the machines' files.
    """
    with tempfile.TemporaryDirectory(prefix="bench-cluster-") as folder:
        listen = (f"curve+tcp://{_HOME}:0",)
        settings = Settings(
            daemon=replace(daemon, listen=listen),
            cluster=ClusterSettings(listen=_HOME),
            archive=ArchiveSettings(url=f"file://{folder}/archive"),
        )
        with temporary_daemon(settings) as home:
            yield home, Path(folder)


@contextmanager
def joined_machine(
    home: Path, folder: Path, name: str = "node", address: str = "127.0.0.3", prefix: tuple[str, ...] = ()
) -> Iterator[subprocess.Popen[str]]:
    """Join a machine to the daemon of `home`; it leaves when the context ends, unless it was killed.

    The machine keeps its files in `folder`. `prefix` is prepended to its command line, for example to pin it to a core.
    """
    key = folder / f"{name}.key"
    if not key.exists():
        _write_key(home, key)
    with MemoryClient(data_dir=home) as client:
        (endpoint,) = client.status().endpoints["listen"]
    command = [*prefix, sys.executable, "-m", "memory_agent", "join", endpoint, "--name", name]
    command += ["--listen", address, "--data-dir", str(folder / name), "--key-file", str(key)]
    output = folder / f"{name}.log"
    with open(output, "a", encoding="utf-8") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, env=child_environment())
    try:
        assert process.stdout is not None
        assert process.stdout.readline(), output.read_text(encoding="utf-8")
        with MemoryClient(data_dir=home) as client:
            while (name, "up") not in [(node.name, node.state) for node in client.status().nodes]:
                time.sleep(0.1)
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(_STOP_TIMEOUT_S)
        if process.stdout is not None:
            process.stdout.close()


def _write_key(home: Path, file: Path) -> None:
    document = create_key(home, file.stem, None, frozenset([Scope.JOIN]), curve_pair())
    key = {"id": file.stem, "public": document.public, "secret": document.secret}
    file.touch(mode=0o600)
    file.write_text(json.dumps(key | {"server": server_pair(home, curve_pair).public}))
