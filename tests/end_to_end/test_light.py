"""Test the daemon without Ray (`serve --light`): one process, the same folder as with Ray, the same answers."""

from __future__ import annotations

import sys

import psutil
import pytest

from memory_agent import MemoryClient, join_ray
from memory_agent.errors import MemoryAgentError, UnavailableError

from .conftest import DaemonProcess, invoke
from .test_daemon import texts
from .test_lifecycle import publish, said

POISON = "this text crashes the process"
CRASHING = f"""
import os, signal
from memory_agent.daemon.host import MemoryHost
from memory_agent.__main__ import main

ingest = MemoryHost.ingest
def crash(host, user_id, batch, *placement):
    if {POISON.encode()!r} in batch:
        os.kill(os.getpid(), signal.SIGKILL)
    return ingest(host, user_id, batch, *placement)
MemoryHost.ingest = crash
main()
"""
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
        soft, hard = process.rlimit(psutil.RLIMIT_NOFILE)
        assert soft >= min(hard, 65_536)  # each awake user needs four open files
    shown = invoke("status", "--data-dir", str(light_daemon.data_dir)).stdout
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
        if fact is not FACTS[-1]:
            own_daemon.kill()
    assert {*texts(own_daemon, "lena", "key, VPN and releases")} == {*FACTS}
    assert own_daemon.stop() == 0


def test_an_event_that_crashes_the_process_is_quarantined_and_the_others_are_stored(own_daemon: DaemonProcess) -> None:
    """Regression: every start read the same event again and crashed, for all users."""
    own_daemon.program = (sys.executable, "-c", CRASHING)
    own_daemon.start()
    through = publish(own_daemon, *(said("lena", f"fact {number}") for number in range(20)))
    with MemoryClient("lena", data_dir=own_daemon.data_dir) as client:
        client.wait(through, timeout_s=60)
    through = publish(
        own_daemon,
        *(said("lena", f"later fact {number}") for number in range(10)),
        said("lena", POISON),
        *(said("lena", f"last fact {number}") for number in range(10)),
    )
    starts = 0
    while (code := own_daemon.ended()) is not None or not is_handled(own_daemon, through):
        if code is not None:
            starts += 1
            assert starts <= 6
            own_daemon.start()
    with MemoryClient("lena", data_dir=own_daemon.data_dir) as client:
        (entry,) = client.quarantined()
        assert entry.code == "host_died"
        assert client.stats().memories == 40
    assert starts >= 3
    assert own_daemon.stop() == 0


def is_handled(daemon: DaemonProcess, through: dict[str, int]) -> bool:
    with MemoryClient("lena", data_dir=daemon.data_dir) as client:
        try:
            client.wait(through, timeout_s=0.2)
        except MemoryAgentError:
            return False
        return True
