"""Computes machines, memory, disk and cost for a number of users, from measured constants and assumptions.

    python -m ops.bench.capacity [--users N]... [--awake SHARE] [--memories N] ...

Prints the tables in `ops/CLUSTER.md`. The assumptions are options; `--help` lists them. The constants were measured on
two virtual cores; `CONSTANTS` names the source of each.
"""

from __future__ import annotations

import argparse
import math
import sys
from dataclasses import dataclass, fields

MILLION = 1_000_000
USERS = (10_000, MILLION, 100 * MILLION)
_DAY_S = 86_400
_HOURS_OF_MONTH = 730
_GIGABYTE = 1e9


@dataclass(frozen=True)
class Constant:
    """A measured figure, with its description and the source of the measurement."""

    value: float
    what: str
    source: str


CONSTANTS = {
    "recall_host_ms": Constant(
        6.34, "processor time per recall in the host and the embedder, ms", "results.md: 3.67 + 2.67"
    ),
    "recall_daemon_ms": Constant(0.70, "processor time per recall in the daemon, ms", "nodes.py: 0.68 to 0.76"),
    "event_host_ms": Constant(
        5.47, "processor time per event in the host and the embedder, ms", "results.md: 0.403 + 5.062"
    ),
    "event_daemon_ms": Constant(
        0.16, "processor time per event in the daemon and the relay, ms", "results.md: 0.098 + 0.062"
    ),
    "journal_per_s": Constant(38_567, "events that one journal commits per second", "results.md: window 256"),
    "awake_mb": Constant(0.7, "memory of an awake user without memories, MB", "nodes.py: 1.07 with 100"),
    "memory_kb": Constant(4.8, "memory for each record of an awake user, KB", "results.md: 48.8 MB for 10,000"),
    "disk_kb": Constant(2.9, "disk space of one memory, KB", "results.md: 28.7 MB for 10,000"),
    "daemon_mb": Constant(420, "memory of a daemon with one user, MB", "decision 0009"),
    "machine_mb": Constant(215, "memory of a joined machine that runs no hosts, MB", "nodes.py"),
    "host_mb": Constant(87, "memory of a host process, MB", "nodes.py"),
    "tried_awake": Constant(4_000, "largest tested number of awake users in one daemon", "nodes.py"),
}


@dataclass(frozen=True)
class Assumptions:
    """The users' load, and the size and price of a machine. The defaults are assumptions, not quoted prices."""

    awake: float = 0.02  # share of the users who are awake at peak load
    memories: int = 2_000  # memories of a user
    recalls: float = 10.0  # recalls per user per day
    events: float = 20.0  # events per user per day
    event_bytes: int = 1_500  # size of an event in the journal
    journal_days: float = 30.0  # retention time of events in the journal
    archive_factor: float = 2.0  # size of the archive or of the backups relative to the stores
    peak: float = 3.0  # peak rate relative to the mean rate
    utilisation: float = 0.6  # share of the processors' and the journal's capacity that is used at peak load
    most_awake: int = 4_000  # maximum number of users awake in one daemon (more were not tested)
    cores: int = 8  # of a machine
    machine_gb: float = 32.0  # memory of a machine
    core_hour: float = 0.04  # price of a core per hour
    gb_hour: float = 0.005  # price of a gigabyte of memory per hour
    disk_gb_month: float = 0.10  # price of a gigabyte of disk per month
    object_gb_month: float = 0.023  # price of a gigabyte in the object store per month


@dataclass(frozen=True)
class Plan:
    """The resources needed by a number of users."""

    users: int
    awake: int
    recalls_per_s: float
    events_per_s: float
    cells: int
    bound: str
    machines: int
    machines_bound: str
    memory_gb: float
    disk_gb: float
    archive_gb: float
    cost: float


def plan(users: int, own: Assumptions) -> Plan:
    """Return the resources needed by `users` users.

    A cell is a daemon with its journal, and the machines that joined it. Users are spread evenly over cells.

    >>> small = plan(10_000, Assumptions())
    >>> small.awake, small.cells, small.bound, small.machines
    (200, 1, 'one is enough', 1)
    """
    value = {name: constant.value for name, constant in CONSTANTS.items()}
    awake = math.ceil(users * own.awake)
    recalls_per_s = users * own.recalls * own.peak / _DAY_S
    events_per_s = users * own.events * own.peak / _DAY_S

    daemon_cores = (recalls_per_s * value["recall_daemon_ms"] + events_per_s * value["event_daemon_ms"]) / 1000
    limits = {
        "users awake": awake / own.most_awake,
        "dispatcher": daemon_cores / own.utilisation,  # one process, which uses one core
        "journal": events_per_s / (value["journal_per_s"] * own.utilisation),
    }
    bound = max(limits, key=lambda name: limits[name])
    cells = max(1, math.ceil(limits[bound]))

    host_cores = (recalls_per_s * value["recall_host_ms"] + events_per_s * value["event_host_ms"]) / 1000
    cores = (host_cores + daemon_cores) / own.utilisation / cells
    awake_gb = awake * (value["awake_mb"] * 1e6 + own.memories * value["memory_kb"] * 1e3) / _GIGABYTE / cells
    machine_gb = own.machine_gb - (value["machine_mb"] + own.cores * value["host_mb"]) / 1000
    by_cores, by_memory = cores / own.cores, (awake_gb + value["daemon_mb"] / 1000) / machine_gb
    machines = max(1, math.ceil(max(by_cores, by_memory)))  # in a cell; the daemon runs on the first machine
    hosts_mb = machines * own.cores * value["host_mb"]

    stores_gb = users * own.memories * value["disk_kb"] * 1e3 / _GIGABYTE
    journal_gb = users * own.events * own.journal_days * own.event_bytes / _GIGABYTE
    disk_gb, archive_gb = stores_gb + journal_gb, stores_gb * own.archive_factor
    hour = cells * machines * (own.cores * own.core_hour + own.machine_gb * own.gb_hour)
    return Plan(
        users=users,
        awake=awake,
        recalls_per_s=recalls_per_s,
        events_per_s=events_per_s,
        cells=cells,
        bound=bound if cells > 1 else "one is enough",
        machines=cells * machines,
        machines_bound="cores" if by_cores > by_memory else "memory",
        memory_gb=cells * (awake_gb + (value["daemon_mb"] + (machines - 1) * value["machine_mb"] + hosts_mb) / 1000),
        disk_gb=disk_gb,
        archive_gb=archive_gb,
        cost=hour * _HOURS_OF_MONTH + disk_gb * own.disk_gb_month + archive_gb * own.object_gb_month,
    )


def table(plans: list[Plan]) -> str:
    """Return a Markdown table with one column for each plan."""
    rows = {
        "awake at the busiest time": lambda one: f"{one.awake:,}",
        "recalls/s, events/s then": lambda one: f"{one.recalls_per_s:,.0f}, {one.events_per_s:,.0f}",
        "cells (daemons)": lambda one: f"{one.cells:,}",
        "number of cells set by": lambda one: one.bound,
        "machines": lambda one: f"{one.machines:,}",
        "machines per cell limited by": lambda one: one.machines_bound,
        "memory in use": lambda one: _size(one.memory_gb),
        "disk": lambda one: _size(one.disk_gb),
        "object store": lambda one: _size(one.archive_gb),
        "price of a month": lambda one: f"{one.cost:,.0f}",
        "per user and month": lambda one: f"{one.cost / one.users:.4f}",
    }
    lines = ["| users | " + " | ".join(f"{one.users:,}" for one in plans) + " |", "|---|" + "---:|" * len(plans)]
    lines += [f"| {name} | " + " | ".join(show(one) for one in plans) + " |" for name, show in rows.items()]
    return "\n".join(lines)


def constants() -> str:
    """Return a Markdown table of the constants."""
    lines = ["| constant | value | source |", "|---|---:|---|"]
    return "\n".join(lines + [f"| {one.what} | {one.value:,g} | {one.source} |" for one in CONSTANTS.values()])


def _size(gigabytes: float) -> str:
    return f"{gigabytes / 1000:,.1f} TB" if gigabytes >= 1000 else f"{gigabytes:,.1f} GB"


def main(arguments: list[str]) -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(prog="python -m ops.bench.capacity", description=__doc__.partition("\n")[0])
    parser.add_argument("--users", type=int, action="append", help="how many users; may be repeated")
    for field in fields(Assumptions):
        option = "--" + field.name.replace("_", "-")
        parser.add_argument(option, type=type(field.default), default=field.default, help=f"default: {field.default}")
    options = vars(parser.parse_args(arguments))
    users = options.pop("users") or USERS
    print(table([plan(number, Assumptions(**options)) for number in users]))
    print()
    print(constants())


if __name__ == "__main__":
    main(sys.argv[1:])
