"""Stops the daemon of a data folder, and no other process."""

from __future__ import annotations

import os
import time
from pathlib import Path

import psutil

from memory_agent.errors import DaemonRunningError, DeadlineExceededError, UnavailableError
from memory_agent.layout import Layout

_POLL_S = 0.1


def stop_daemon(layout: Layout, timeout_s: float) -> str:
    """Send SIGTERM to the daemon of this folder, and return once its process has ended. No hook starts it again.

    Returns a hint if a service manager may start it again, else "". Raises `UnavailableError` if no daemon serves the
    folder, `DaemonRunningError` if the daemon's process cannot be identified, and `DeadlineExceededError` if it does
    not end in time.
    """
    layout.start.unlink(missing_ok=True)  # otherwise, the next hook would start it again
    holder = layout.holder
    if holder is None:
        raise UnavailableError(f"no daemon serves {layout.data_dir}")
    if not holder.version:
        reason = f"process {holder.pid} uses {layout.data_dir}, but is not a daemon or runs an earlier version"
        raise DaemonRunningError(f"{reason}; wait for it, or end it yourself with: kill {holder.pid}")
    try:
        process = psutil.Process(holder.pid)
        if os.path.realpath(layout.lock) not in {file.path for file in process.open_files()}:
            raise psutil.NoSuchProcess(holder.pid)  # another process has this id, now or in this container
        hint = _hint(process)
        process.terminate()  # psutil compares the start times, so a process that got the same id later is safe
    except (psutil.Error, OSError) as error:
        if layout.holder is None:  # the daemon has exited on its own
            return ""
        reason = f"process {holder.pid} here is not the daemon of {layout.data_dir}, or belongs to another user"
        raise DaemonRunningError(f"{reason}; stop it in its container, or as its user") from error
    until_s = time.monotonic() + timeout_s
    while _is_running(process):
        if time.monotonic() > until_s:
            raise DeadlineExceededError(f"process {holder.pid} is still stopping after {timeout_s:g} s; see its log")
        time.sleep(_POLL_S)
    return hint


def _is_running(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _hint(process: psutil.Process) -> str:
    """Relies on variables that systemd sets for the processes it starts."""
    variables = process.environ()
    if variables.get("SYSTEMD_EXEC_PID") != str(process.pid):
        return ""
    unit = Path(f"/proc/{process.pid}/cgroup").read_text(encoding="utf-8").strip().rpartition("/")[2]
    control = "systemctl --user" if "MANAGERPID" in variables else "systemctl"
    return (
        f"systemd ran it: `{control} start {unit}` starts it again; if it restarts by itself, `{control} stop {unit}`"
    )
