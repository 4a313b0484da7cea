"""Computes how many hosts, threads and requests a daemon may have, from its settings or the machine's resources.

The threads of a host share one interpreter, so using several cores requires several hosts.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import psutil

from memory_agent.embedders.lanes import GROUPS, OWN_GROUP, control_group_limits, usable_cores
from memory_agent.settings import DaemonSettings

_SHARED_LEAST = 2
_SHARED_MOST = 32
_CORES_FOR_OTHERS = 2
_DEDICATED_LEAST = 8
_SPARES_PER_CORE = 8
_REQUESTS_LEAST = 512
_REQUESTS_PER_CORE = 32
_ANSWER_THREADS = 8
_INGEST_THREADS = 4
_HOST_BYTES = 100_000_000
_MEMORY_SHARE = 4


@dataclass(frozen=True)
class Capacity:
    """The limits of one daemon. `answer_threads` and `ingest_threads` are per host."""

    dedicated_hosts: int
    shared_hosts: int
    spare_hosts: int
    requests_in_flight: int
    answer_threads: int
    ingest_threads: int


def capacity_here(settings: DaemonSettings) -> Capacity:
    return capacity_of(settings, usable_cores(), usable_memory_bytes())


def usable_memory_bytes(own: Path = OWN_GROUP, groups: Path = GROUPS) -> int:
    """Return the machine's memory, or the lowest limit of this process's cgroups (v2) if that is lower."""
    limits = [int(text) for text in control_group_limits("memory.max", own, groups) if text != "max"]
    return min([psutil.virtual_memory().total, *limits])


def capacity_of(settings: DaemonSettings, cores: int, memory_bytes: int) -> Capacity:
    """Return the capacity that the settings specify; `auto` depends on the machine's cores and memory.

    Shared hosts leave two cores for the daemon's own process and the embedder. At most 32 hosts are shared, because the
    daemon's process spends 0.25 to 0.9 ms per request. Dedicated hosts isolate users; there is one dedicated host per
    core, and at least 8. The number of hosts is limited so that they take at most a quarter of the memory, assuming 100
    MB per host. With 8 clients, a host answered 88 recalls/s with 4 threads, 95 with 8 threads, and 83 with 16 threads.

    >>> capacity_of(DaemonSettings(shared_hosts=3), cores=2, memory_bytes=24 << 30)  # doctest: +NORMALIZE_WHITESPACE
    Capacity(dedicated_hosts=8, shared_hosts=3, spare_hosts=1, requests_in_flight=512, answer_threads=8,
             ingest_threads=4)
    """
    room = max(2, memory_bytes // _MEMORY_SHARE // _HOST_BYTES)
    shared = min(max(_SHARED_LEAST, cores - _CORES_FOR_OTHERS), cores, _SHARED_MOST, room)
    if settings.shared_hosts != "auto":
        shared = settings.shared_hosts
    dedicated = min(max(_DEDICATED_LEAST, cores), max(0, room - shared))
    requests = max(_REQUESTS_LEAST, _REQUESTS_PER_CORE * cores)
    return Capacity(
        dedicated_hosts=dedicated if settings.dedicated_hosts == "auto" else settings.dedicated_hosts,
        shared_hosts=shared,
        spare_hosts=max(1, cores // _SPARES_PER_CORE) if settings.spare_hosts == "auto" else settings.spare_hosts,
        requests_in_flight=requests if settings.requests_in_flight == "auto" else settings.requests_in_flight,
        answer_threads=_ANSWER_THREADS,
        ingest_threads=_INGEST_THREADS,
    )
