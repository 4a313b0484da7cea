"""Test that after one of its parts is killed, a daemon continues, or reports why and exits, leaving nothing behind.

`python -m ops.soak kills` kills each process once, each time in a new daemon.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from memory_agent import MemoryClient
from ops.soak.family import Family
from ops.soak.kills import ENDS, kill, until_gone

from .conftest import DaemonProcess, environment
from .test_killed import sockets

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="orphans can be identified only on Linux"),
]

TEXT = "The spare key is under the third stone"


@pytest.fixture
def family(own_full_daemon: DaemonProcess) -> Iterator[Family]:
    """Return the processes of the daemon that the test starts, including orphans."""
    with Family() as family:
        yield family


def test_any_part_but_rays_core_may_be_killed_and_a_stop_leaves_nothing_behind(
    own_full_daemon: DaemonProcess, family: Family, tmp_path: Path
) -> None:
    """Also tests that a second daemon on its data folder is refused, and that no process imports a module of the folder
    that the daemon is started in: a project may contain a module with any name.
    """
    for name in ("memory_agent", "relay", "msgspec", "numpy", "json"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('a module of the project is imported')")
    own_full_daemon.start(cwd=tmp_path)
    with MemoryClient("vera", data_dir=own_full_daemon.data_dir) as client:
        client.remember(TEXT)
        command = [sys.executable, "-m", "memory_agent", "serve", "--data-dir", str(own_full_daemon.data_dir)]
        refused = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=60)
        assert refused.returncode == 1
        holder = f"a daemon already serves {own_full_daemon.data_dir} (process {own_full_daemon.pid})"
        assert holder in refused.stderr
        roles = sorted(family.by_role())
        assert {"daemon", "relay", "embedder", "host", "Ray gcs", "Ray raylet"} <= set(roles)
        unneeded = {"Ray dashboard", "Ray dashboard agent", "Ray monitor", "Ray log monitor"}
        assert not unneeded & set(roles)
        for role in roles:
            if role not in ENDS:
                assert kill(family, role, client).startswith("recovered"), role
        assert TEXT in [one.record.text for one in client.recall("spare key").memories]
    assert "module of the project" not in own_full_daemon.log()
    assert sockets(own_full_daemon) != []
    assert own_full_daemon.stop() == 0
    assert until_gone(family) == []
    assert sockets(own_full_daemon) == []
