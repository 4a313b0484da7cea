"""Five thousand users come and go: what is kept for each of them goes with them. No Ray, no store."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import cast

from memory_agent.config import DaemonSettings
from memory_agent.daemon.actors import Cluster
from memory_agent.daemon.host import MemoryHost
from memory_agent.daemon.hosts import Hosts
from memory_agent.embedders.remote import RemoteEmbedder
from memory_agent.settings import Settings

USERS = [f"user-{number}" for number in range(5_000)]


class Host:
    """A process that answers at once."""

    def __init__(self, name: str) -> None:
        self.name = name

    async def call(self, user_id: str, method: str, params: bytes, deadline_ms: float) -> bytes:
        await asyncio.sleep(0)
        return user_id.encode()

    async def sleep(self, user_id: str, timeout_s: float) -> None:
        await asyncio.sleep(0)

    def end(self) -> None:
        pass


class Processes:
    """What starts processes."""

    def host(self, name: str) -> Host:
        return Host(name)


def test_nothing_is_kept_for_users_that_sleep() -> None:
    async def go() -> None:
        hosts = Hosts(cast(Cluster, Processes()), DaemonSettings(idle_sleep_s=1e-9))
        replies = await asyncio.gather(*(hosts.call(user_id, "stats", b"", 60_000.0) for user_id in USERS))
        assert replies == [user_id.encode() for user_id in USERS]
        await asyncio.gather(hosts.sleep_idle(), *(hosts.call(user_id, "stats", b"", 60_000.0) for user_id in USERS))
        await hosts.sleep_idle()
        assert (hosts.awake(), len(hosts._gates), len(hosts._busy), len(hosts._hosts)) == ((), 0, 0, 0)

    asyncio.run(go())


def test_a_host_keeps_no_lock_of_users_that_sleep(tmp_path: Path) -> None:
    host = MemoryHost(tmp_path, Settings(), cast(RemoteEmbedder, None))

    def visit() -> None:
        for user_id in USERS:
            host.sleep(user_id)

    threads = [threading.Thread(target=visit) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not host._locks
    host.close()
