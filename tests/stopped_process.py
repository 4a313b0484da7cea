"""Pauses a child process."""

from __future__ import annotations

import os
import signal


def stop(pid: int) -> None:
    """Stop a child process, and wait until all of its threads have stopped; until then, a thread may still answer."""
    os.kill(pid, signal.SIGSTOP)
    os.waitid(os.P_PID, pid, os.WSTOPPED)
