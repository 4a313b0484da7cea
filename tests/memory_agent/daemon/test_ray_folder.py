"""Test that Ray's temporary folder is private, and is removed after its daemon is killed."""

from __future__ import annotations

import signal
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil
import pytest

from memory_agent.daemon.ray_folder import PREFIX, RayFolder

HOLDING = """
from memory_agent.daemon.ray_folder import RayFolder
print(RayFolder().path, flush=True)
input()
"""


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return tmp_path


def test_folders_of_killed_daemons_are_removed_and_locked_ones_stay(temporary: Path) -> None:
    holder = subprocess.Popen([sys.executable, "-c", HOLDING], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    left = Path(holder.stdout.readline().strip())
    first = RayFolder()
    assert left.exists()
    holder.send_signal(signal.SIGKILL)
    holder.communicate()
    second = RayFolder()
    assert not left.parent.exists()
    assert first.path.exists()
    for folder in (first, second):
        folder.remove()
    assert list(temporary.iterdir()) == []


def started_in(folder: Path, title: str) -> subprocess.Popen[bytes]:
    """A process with the title `title` and an open file in the folder."""
    with open(folder / "log", "w") as log:
        process = subprocess.Popen(["bash", "-c", f"exec -a '{title}' sleep 1000"], stdout=log)
    while psutil.Process(process.pid).cmdline()[:1] != [title]:
        pass
    return process


def test_ray_processes_using_the_folder_end_with_it(temporary: Path) -> None:
    held = RayFolder()
    left = temporary / f"{PREFIX}left"
    left.mkdir()
    (left / "lock").touch()
    orphan, other, planner = (
        started_in(left, "ray::Agent"),
        started_in(held.path, "ray::A"),
        started_in(left, "planner"),
    )
    try:
        second = RayFolder()
        orphan.wait(20)
        assert not left.exists()
        assert (other.poll(), planner.poll()) == (None, None)
        held.remove()
        other.wait(20)
        assert planner.poll() is None
        second.remove()
    finally:
        for process in (orphan, other, planner):
            process.kill()
            process.wait()


def test_a_starting_worker_does_not_recreate_the_folder(temporary: Path) -> None:
    folder = RayFolder()
    command = [sys.executable, "-c", "input()", f"--raylet-name={folder.path}/sockets/raylet"]
    worker = subprocess.Popen(command, stdin=subprocess.PIPE)
    try:
        folder.remove()
        assert worker.poll() is not None
        assert list(temporary.iterdir()) == []
    finally:
        worker.kill()
        worker.communicate()


def test_the_folder_is_private(temporary: Path) -> None:
    folder = RayFolder()
    folder.path.chmod(0o777)  # as Ray does
    assert stat.S_IMODE(folder.path.parent.stat().st_mode) == 0o700
    folder.remove()


def test_a_foreign_folder_of_that_name_is_left_alone(temporary: Path) -> None:
    (temporary / f"{PREFIX}notes").mkdir()
    (temporary / f"{PREFIX}link").symlink_to(temporary)
    RayFolder().remove()
    assert sorted(path.name for path in temporary.iterdir()) == [f"{PREFIX}link", f"{PREFIX}notes"]
