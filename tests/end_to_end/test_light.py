"""Test the daemon without Ray (`serve --light`): one process, the same folder as with Ray, the same answers."""

from __future__ import annotations

import sys

import psutil
import pytest

from memory_agent import MemoryClient, join_ray
from memory_agent.errors import UnavailableError

from .conftest import DaemonProcess
from .test_command_line import run
from .test_daemon import texts

FACTS = ("The spare key is under the third stone", "Staging needs the VPN", "Releases are cut on Tuesdays")


def test_it_is_one_process_that_has_not_loaded_ray(light_daemon: DaemonProcess) -> None:
    with MemoryClient("lena", data_dir=light_daemon.data_dir) as client:
        client.remember(FACTS[0])
        status = client.status()
    assert status.form == "light"
    assert {part.pid for part in status.parts} == {light_daemon.pid}
    assert {part.name for part in status.parts} >= {"daemon", "relay", "embedder"}
    assert [part.name for part in status.parts if part.resident_bytes] == ["daemon"]
    process = psutil.Process(light_daemon.pid)
    assert process.children(recursive=True) == []
    if sys.platform == "linux":
        assert not [file.path for file in process.memory_maps() if "/ray/" in file.path]
    shown = run("status", "--data-dir", str(light_daemon.data_dir)).stdout
    assert "form                      light" in shown
    assert "in daemon" in shown


def test_joining_its_ray_is_refused_with_the_reason(light_daemon: DaemonProcess) -> None:
    with pytest.raises(UnavailableError, match="without Ray"):
        join_ray(light_daemon.data_dir)


def test_a_folder_moves_between_the_forms_even_after_a_kill(own_daemon: DaemonProcess) -> None:
    for fact, is_light in zip(FACTS, (True, False, True), strict=True):
        own_daemon.light = is_light
        own_daemon.start()
        with MemoryClient("lena", data_dir=own_daemon.data_dir) as client:
            assert client.status().form == ("light" if is_light else "full")
            client.remember(fact)
        own_daemon.kill()
    own_daemon.start()
    assert {*texts(own_daemon, "lena", "key, VPN and releases")} == {*FACTS}
    assert own_daemon.stop() == 0
