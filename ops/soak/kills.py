"""Kills the processes of a daemon one after another.

Checks that the daemon recovers or states why it exits, and that it leaves no process, socket file, shared-memory file
or Ray folder behind. If the daemon itself is killed, this is checked after its successor has started.
"""

from __future__ import annotations

import signal
import time
from typing import Any

import psutil

from memory_agent import MemoryClient
from memory_agent.errors import MemoryAgentError
from memory_agent.evaluation import temporary_daemon
from memory_agent.settings import Settings
from ops.soak.family import Family

ENDS = {"daemon", "Ray gcs", "Ray raylet", "Ray agent", "Ray runtime env"}
"""The daemon, and processes without which Ray cannot run: if one of them is killed, the supervisor restarts the
daemon."""
REPLACED = {"relay", "embedder", "host"}

_PATIENCE_S = 120.0
_GONE_WITHIN_S = 60.0
_PAUSE_S = 0.2
_TEXT = "The spare key is under the third stone"


def kills() -> dict[str, Any]:
    """Run the test; return the outcome by process role. Raises `AssertionError` if something is left behind."""
    with Family() as family:
        return {role: _killed(family, role) for role in _roles(family)}


def until_gone(family: Family, within_s: float = _GONE_WITHIN_S) -> list[str]:
    """Wait up to `within_s` seconds until all of the family's processes and files are gone; return what remains."""
    deadline_s = time.monotonic() + within_s
    while (left := family.left()) and time.monotonic() < deadline_s:
        time.sleep(_PAUSE_S)
    return left


def works(client: MemoryClient) -> bool:
    """Return whether a memory can be stored and recalled."""
    try:
        kept = client.remember(_TEXT)
        return any(one.record.id == kept.id for one in client.recall(_TEXT, deadline_ms=10_000.0, top_k=50).memories)
    except MemoryAgentError:
        return False


def _roles(family: Family) -> list[str]:
    with temporary_daemon(Settings()) as data_dir, MemoryClient(data_dir=data_dir) as client:
        client.remember(_TEXT)
        roles = sorted(family.by_role())
    left = until_gone(family)
    assert not left, left
    return roles


def _killed(family: Family, role: str) -> dict[str, Any]:
    with temporary_daemon(Settings()) as data_dir:
        with MemoryClient(data_dir=data_dir) as client:
            client.remember(_TEXT)
            outcome = kill(family, role, client)
        log = (data_dir / "daemon.log").read_text(encoding="utf-8")
    assert role == "daemon" or outcome != "ended" or "ray.died" in log, log
    began_s = time.monotonic()
    left = until_gone(family)
    figures = {"daemon": outcome, "all_gone_after_s": round(time.monotonic() - began_s, 1)}
    if left:
        assert role == "daemon", (role, left)
        with temporary_daemon(Settings()):
            pass
        figures["left_until_the_next_start"] = left
        left = until_gone(family)
        assert not left, (role, left)
    return figures


def kill(family: Family, role: str, client: MemoryClient) -> str:
    """Kill the role's processes; return what the daemon did."""
    processes = family.by_role()
    for process in processes[role]:
        process.send_signal(signal.SIGKILL)
    (daemon,) = processes["daemon"]
    before = {process.pid for process in processes[role]}
    deadline_s = time.monotonic() + _PATIENCE_S
    while time.monotonic() < deadline_s:
        if not daemon.is_running() or daemon.status() == psutil.STATUS_ZOMBIE:
            return "ended"
        now = {process.pid for process in family.by_role().get(role, ())}
        is_settled = role not in ENDS and not now & before and (now or role not in REPLACED)
        if is_settled and works(client):
            return "recovered, with a new process" if now else "recovered without it"
        time.sleep(_PAUSE_S)
    raise AssertionError(f"{role}: the daemon neither recovered nor exited")
