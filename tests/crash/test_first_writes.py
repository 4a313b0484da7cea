"""Test that a folder can be opened after its first writer died, and contains everything reported as written.

The first write of an encrypted folder also creates its key, in another folder.
"""

from __future__ import annotations

import itertools
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from .encryption import KEYS
from .faults import Order
from .first_write_process import FIRST_WRITES
from .full_disk_process import KEPT, NEW
from .world import ROOT

pytestmark = pytest.mark.slow
_MOST = 60


@pytest.mark.parametrize("engine", ["journal", "records"])
@pytest.mark.parametrize("kind", ["kill", "tear"])
def test_a_process_killed_at_any_call_of_its_first_write_leaves_a_folder_that_opens(
    engine: str, kind: str, shim: Path, tmp_path: Path
) -> None:
    assert _kill_at_each_call(engine, kind, f"/{engine}", shim, tmp_path) > 3


@pytest.mark.parametrize(("kind", "kills"), [("kill", 3), ("tear", 1)])
def test_a_process_killed_while_it_creates_a_key_leaves_a_folder_that_opens(
    kind: str, kills: int, shim: Path, tmp_path: Path
) -> None:
    assert _kill_at_each_call("encrypted records", kind, f"/{KEYS}", shim, tmp_path) >= kills


def _kill_at_each_call(engine: str, kind: str, name: str, shim: Path, tmp_path: Path) -> int:
    """Kill a new process at each successive call of this kind on a file of that name; return the number of calls."""
    order = Order(shim, tmp_path / "order")
    command = [sys.executable, "-m", "tests.crash.first_write_process", engine]
    with subprocess.Popen(
        command, env=order.environment(), cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as starter:
        assert starter.stdin is not None
        assert starter.stdout is not None
        for number in itertools.count(1):
            assert number < _MOST
            folder = tmp_path / f"killed-{number}"
            folder.mkdir()
            order.give(kind, "any" if kind == "kill" else "write", name, number)
            print(folder, file=starter.stdin, flush=True)
            status = int(starter.stdout.readline())
            opened = FIRST_WRITES[engine](folder)
            opened.write(NEW)
            assert opened.read(NEW)
            if not order.hits:  # the process makes no further calls
                assert status == 0
                assert opened.read(KEPT)
                return number - 1
            assert status == -signal.SIGKILL
    raise AssertionError("it makes calls for ever")
