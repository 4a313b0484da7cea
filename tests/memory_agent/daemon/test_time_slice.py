"""Test that short time slices are requested and inherited by threads, without other effects."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

_SCRIPT = """
import os, threading
from memory_agent.daemon.time_slice import SLICE_NS, request_short_slices
before = os.getpriority(os.PRIO_PROCESS, 0)
print(request_short_slices())
found = []
thread = threading.Thread(target=lambda: found.append(open("/proc/thread-self/sched").read()))
thread.start()
thread.join()
line = next((line for line in found[0].splitlines() if line.startswith("se.slice")), "")
print(int(line.split()[-1]) == SLICE_NS if line else None, os.getpriority(os.PRIO_PROCESS, 0) == before)
"""


@pytest.mark.skipif(not Path("/proc/thread-self/sched").exists(), reason="needs Linux with scheduler statistics")
@pytest.mark.parametrize("niceness", ["0", "5"])
def test_threads_get_short_slices_and_keep_their_niceness(niceness: str) -> None:
    command = ["nice", "-n", niceness, sys.executable, "-c", _SCRIPT]
    granted, slices = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    assert slices in (f"{granted} True", "None True")


def test_a_process_with_a_policy_of_its_own_is_left_alone() -> None:
    script = f"import os; os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))\n{_SCRIPT}"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[0] == "False"
