"""Test a recall by a new user immediately after `serve &`."""

from __future__ import annotations

import threading

import pytest

from memory_agent import MemoryClient
from memory_agent.layout import Layout

from .conftest import DaemonProcess
from .test_killed import wait_until

pytestmark = pytest.mark.slow


def test_a_recall_while_the_daemon_starts_on_a_new_folder_is_answered(own_daemon: DaemonProcess) -> None:
    starting = threading.Thread(target=own_daemon.start)
    starting.start()
    try:
        wait_until(Layout(own_daemon.data_dir).daemon_runs)
        with MemoryClient("early", data_dir=own_daemon.data_dir) as client:
            assert client.recall("anything", deadline_ms=60_000).memories == ()
    finally:
        starting.join()
