"""`memory-agent`, whose daemon runs the hosts of all users on the machine `w1` of its cluster."""

from __future__ import annotations

from typing import Any

from memory_agent.__main__ import main
from memory_agent.daemon import process
from memory_agent.daemon.supervisor import Host

original = process._supervisor


def supervisor_that_hosts_elsewhere(*arguments: Any) -> Any:
    supervisor = original(*arguments)
    start_host = supervisor.start_host

    def start(*, shared: bool = False, node: str = "") -> Host:
        return start_host(shared=shared, node=node if shared else "w1")

    supervisor.start_host = start  # type: ignore[method-assign]
    return supervisor


process._supervisor = supervisor_that_hosts_elsewhere
main()
