"""Processor time used by the processes that a request passes through."""

from __future__ import annotations

import os

import psutil

from memory_agent import MemoryClient

Seconds = dict[str, float]


def processor_s(client: MemoryClient) -> Seconds:
    """Return the processor seconds used by this process (`client`) and by each part of its daemon, by name."""
    pids = {"client": os.getpid()} | {part.name: part.pid for part in client.status().parts if part.pid is not None}
    return {name: sum(psutil.Process(pid).cpu_times()[:2]) for name, pid in pids.items()}


def spent_ms(before: Seconds, after: Seconds, requests: int) -> dict[str, float]:
    """Return the milliseconds per request, with the sum of all host processes as `hosts`."""
    each = {name: (after[name] - before.get(name, 0.0)) * 1000 / requests for name in after}
    hosts = sum(spent for name, spent in each.items() if is_host(name))
    return {name: spent for name, spent in each.items() if not is_host(name)} | {"hosts": hosts}


def is_host(name: str) -> bool:
    """Whether a part is a host process."""
    return name.startswith(("shared-", "user-", "spare-"))
