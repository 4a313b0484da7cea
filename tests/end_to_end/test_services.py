"""Test the daemon under a service manager, `memory-agent stop`, and an upgrade with a running daemon."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from memory_agent import MemoryClient
from memory_agent.layout import Layout
from memory_agent.version import VERSION

from .conftest import DaemonProcess, environment, invoke

FACT = "Staging needs the VPN"
FORMER = """
import memory_agent.version
memory_agent.version.VERSION = "0.0.9"
from memory_agent.__main__ import main
main()
"""


def remembered(daemon: DaemonProcess) -> list[str]:
    with MemoryClient("lena", data_dir=daemon.data_dir) as client:
        return [found.record.text for found in client.recall("what does staging need?").memories]


@pytest.fixture(params=["path", "abstract"])
def manager(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """The socket to which systemd services report, in the file system or in Linux's abstract namespace."""
    name = str(tmp_path / "notify") if request.param == "path" else f"@memory-agent-{os.getpid()}"
    if name.startswith("@") and sys.platform != "linux":
        pytest.skip("only Linux has abstract sockets")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as bound:
        bound.bind(name.replace("@", "\0", 1))
        bound.settimeout(60)
        monkeypatch.setenv("NOTIFY_SOCKET", name)
        yield bound


def test_the_service_manager_receives_that_the_daemon_is_ready_and_that_it_stops(
    own_daemon: DaemonProcess, manager: socket.socket
) -> None:
    own_daemon.start()
    assert manager.recv(100) == b"READY=1"
    assert own_daemon.stop() == 0
    assert manager.recv(100) == b"STOPPING=1"


def test_a_daemon_serves_although_its_service_manager_is_gone(
    own_daemon: DaemonProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "gone"))
    own_daemon.start()
    assert remembered(own_daemon) == []
    assert own_daemon.stop() == 0
    assert "service_manager.unreachable" in own_daemon.log()


def test_a_daemon_that_does_not_stop_in_time_is_reported(own_daemon: DaemonProcess) -> None:
    own_daemon.start()
    os.kill(own_daemon.pid, signal.SIGSTOP)
    try:
        late = invoke("stop", "--timeout", "0", "--json", "--data-dir", str(own_daemon.data_dir))
    finally:
        os.kill(own_daemon.pid, signal.SIGCONT)
    assert (late.exit_code, json.loads(late.stderr)["error"]["code"]) == (1, "deadline_exceeded")
    assert own_daemon.wait() == 0


def test_stop_never_signals_a_process_that_is_not_the_daemon(own_daemon: DaemonProcess) -> None:
    """Another process may since have reused the process id of a former daemon in the lock file."""
    place = ("--data-dir", str(own_daemon.data_dir))
    own_daemon.start()
    lock = Layout(own_daemon.data_dir).lock
    with subprocess.Popen(["sleep", "600"]) as other:
        lock.write_text(f"{other.pid} {VERSION}\n")
        try:
            refused = invoke("stop", "--json", *place)
            own_daemon.kill()
            stopped = invoke("stop", *place)
            assert other.poll() is None
        finally:
            other.kill()
    assert (refused.exit_code, json.loads(refused.stderr)["error"]["code"]) == (1, "daemon_running")
    assert "no daemon serves" in stopped.stderr


def test_stop_leaves_a_command_alone_that_uses_the_folder(own_daemon: DaemonProcess) -> None:
    script = "import sys; from pathlib import Path; from memory_agent.layout import Layout\n"
    script += "with Layout(Path(sys.argv[1])).hold(serves=False): print(flush=True); input()"
    command = [sys.executable, "-c", script, str(own_daemon.data_dir)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as restoring:
        assert restoring.stdout is not None
        restoring.stdout.readline()
        refused = invoke("stop", "--data-dir", str(own_daemon.data_dir))
        assert (refused.exit_code, f"process {restoring.pid} uses" in refused.stderr) == (1, True)
        restoring.communicate(b"\n", timeout=60)
    assert restoring.returncode == 0


def test_after_an_upgrade_the_running_daemon_is_named_stopped_and_replaced(own_daemon: DaemonProcess) -> None:
    place = ("--user", "lena", "--data-dir", str(own_daemon.data_dir))
    installed, own_daemon.program = own_daemon.program, (sys.executable, "-c", FORMER)
    own_daemon.start()
    shown = invoke("remember", FACT, *place).stderr
    assert f"the running daemon has version 0.0.9, this command {VERSION}" in shown
    assert "to restart it: memory-agent stop\n" in shown
    checks = json.loads(invoke("doctor", "--json", *place[2:]).stdout)["checks"]
    (check,) = [check for check in checks if check["name"] == "daemon"]
    assert (check["state"], check["advice"]) == ("warning", "restart it: memory-agent stop")
    assert json.loads(invoke("stop", "--json", *place).stdout) == {"is_stopped": True, "hint": ""}
    assert own_daemon.wait() == 0
    again = invoke("stop", *place)
    assert (again.exit_code, again.stderr) == (1, f"error: no daemon serves {own_daemon.data_dir}\n")
    own_daemon.program = installed
    own_daemon.start()
    assert "the running daemon" not in invoke("status", *place).stderr
    assert remembered(own_daemon) == [FACT]


NAMESPACE = shlex.split("unshare --mount --pid --fork --kill-child --mount-proc --propagation private bash -c")
MANAGER = """
set -e
mount -t tmpfs tmpfs /run && mkdir -p -m 0700 /run/systemd/system /run/user/0
mount -t tmpfs tmpfs /sys/fs/cgroup && mount -t cgroup2 none /sys/fs/cgroup
group=/sys/fs/cgroup/memory-agent-test-$1 && mkdir $group && echo $$ > $group/cgroup.procs
export XDG_RUNTIME_DIR=/run/user/0
/lib/systemd/systemd --user &
manager=$!
end() {
    kill $manager && wait $manager || true
    echo $$ > /sys/fs/cgroup/cgroup.procs && find $group -depth -type d -exec rmdir {} +
}
trap end EXIT
for _ in $(seq 100); do systemctl --user show-environment > /dev/null 2>&1 && echo managed && break || sleep 0.1; done
"""
"""A systemd user manager in its own namespaces."""
LIFE = """
active() {
    for _ in $(seq 100); do [ $(systemctl --user is-active memory-agent) = $2 ] && break || sleep 0.1; done
    echo "$1: $(systemctl --user is-active memory-agent)"
}
mkdir $HOME/read-only && mount -t tmpfs -o ro tmpfs $HOME/read-only
! XDG_CONFIG_HOME=$HOME/read-only memory-agent service install --yes
memory-agent service install --yes --set daemon.http.listen=
active installed active
memory-agent remember "Staging needs the VPN"
memory-agent stop; active stopped inactive
systemctl --user start memory-agent
kill -9 $(cut -d ' ' -f 1 $MEMORY_AGENT_DATA_DIR/daemon.lock)
for _ in $(seq 100); do [ $(systemctl --user show -P NRestarts memory-agent) = 1 ] && break || sleep 0.1; done
active killed active
memory-agent recall "what does staging need?"
memory-agent service remove --yes
find $HOME/.config ! -type d
active removed inactive
"""


@pytest.mark.slow
def test_systemd_runs_the_service_from_its_installation_to_its_removal(tmp_path: Path) -> None:
    systemd = Path("/lib/systemd/systemd")
    if os.geteuid() or not systemd.exists() or shutil.which("unshare") is None:
        pytest.skip("needs systemd, unshare, and root for namespaces")
    with tempfile.TemporaryDirectory(prefix="memory-test-") as folder:
        around = environment() | {"HOME": str(tmp_path), "MEMORY_AGENT_DATA_DIR": folder}
        around["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{around['PATH']}"
        around.pop("XDG_CONFIG_HOME", None)
        command = [*NAMESPACE, MANAGER + LIFE, "bash", str(os.getpid())]
        done = subprocess.run(command, capture_output=True, text=True, env=around, timeout=240, check=False)
    if "managed\n" not in done.stdout:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(f"no user manager of systemd here: {done.stderr}")
    assert done.returncode == 0, done.stderr
    steps = ("installed: ", "stopped: ", "killed: ", "remove ", "removed: ")
    unit = tmp_path / ".config/systemd/user/memory-agent.service"
    assert [line for line in done.stdout.splitlines() if line.startswith(steps)] == [
        "installed: active",
        "stopped: inactive",
        "killed: active",
        f"remove {unit}",
        "removed: inactive",
    ]
    assert FACT in done.stdout.rpartition("killed: active")[2]
    assert f"error: {tmp_path}/read-only/systemd cannot be written: Read-only file system; an admin" in done.stderr
    assert "`systemctl --user start memory-agent.service` starts it again" in done.stderr
    assert not unit.exists()
