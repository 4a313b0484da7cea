"""Who dies within the first write of a folder leaves one that opens, and what was said to be written is there."""

from __future__ import annotations

import itertools
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from .faults import Order
from .full_disk_process import ENGINES, KEPT, NEW
from .world import ROOT

pytestmark = pytest.mark.slow
_MOST = 60


@pytest.mark.parametrize("engine", ["journal", "records"])
@pytest.mark.parametrize("kind", ["kill", "tear"])
def test_a_process_killed_at_any_call_of_its_first_write_leaves_a_folder_that_opens(
    engine: str, kind: str, shim: Path, tmp_path: Path
) -> None:
    order = Order(shim, tmp_path / "order")
    for number in itertools.count(1):
        assert number < _MOST
        folder = tmp_path / f"killed-{number}"
        folder.mkdir()
        order.give(kind, "any" if kind == "kill" else "write", f"/{engine}", number)
        command = [sys.executable, "-m", "tests.crash.first_write_process", engine, str(folder)]
        done = subprocess.run(command, env=order.environment(), cwd=ROOT, capture_output=True, text=True, check=False)
        opened = ENGINES[engine](folder)
        opened.write(NEW)
        assert opened.read(NEW)
        if not order.hits:  # it makes no more calls than this
            assert done.stdout == "written\n", done.stderr
            assert opened.read(KEPT)
            break
        assert done.returncode == -signal.SIGKILL, done.stderr
    assert number > 3, "it was killed a few times"
