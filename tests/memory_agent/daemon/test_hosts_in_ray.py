"""Test hosts in a real Ray: waking right after an end, restarts, and reports of unexpected errors."""

from __future__ import annotations

import asyncio
import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec
import psutil
import pytest

from memory_agent.daemon.actors import Cluster, Host
from memory_agent.daemon.capacity import capacity_of
from memory_agent.daemon.hosts import Hosts
from memory_agent.errors import HostDiedError, MemoryAgentError
from memory_agent.records.memories import MemoryStats
from memory_agent.records.trajectories import Trajectory
from memory_agent.settings import DaemonSettings, Settings
from memory_agent.verbs.params import NoParams, RunBeginParams, RunListParams
from memory_agent.verbs.protocol import decode_reply, encode

pytestmark = pytest.mark.ray

CAPACITY = capacity_of(Settings().daemon, cores=2, memory_bytes=8 << 30)


def hosts_of(cluster: Cluster, settings: DaemonSettings | None = None) -> Hosts:
    settings = settings or DaemonSettings()
    return Hosts(cluster, settings, capacity_of(settings, cores=2, memory_bytes=8 << 30))


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with tempfile.TemporaryDirectory(prefix="hosts-") as folder:
        data_dir = Path(folder)
        (data_dir / "run").mkdir()
        cluster = Cluster(Settings(), data_dir, data_dir / "run", f"ipc://{folder}/none.sock", CAPACITY)
        yield cluster
        cluster.stop()


def test_ray_listens_on_loopback_alone(cluster: Cluster) -> None:
    assert cluster.address.startswith("127.0.0.1:")
    listening = asyncio.run(_listening_beside_a_user(cluster))
    assert {"gcs_server", "raylet"} <= {name for name, _ in listening}
    assert {address for _, address in listening} == {"127.0.0.1"}


async def _listening_beside_a_user(cluster: Cluster) -> set[tuple[str, str]]:
    """Return (process, address) for everything that listens while a user is awake: this test and Ray."""
    hosts = hosts_of(cluster)
    await hosts.call("alice", "stats", encode(NoParams()), 60_000.0)
    family = [psutil.Process(), *psutil.Process().children(recursive=True)]
    listening = {
        (process.name(), connection.laddr.ip.removeprefix("::ffff:"))
        for process in family
        for connection in process.net_connections("inet")
        if connection.status == psutil.CONN_LISTEN
    }
    await hosts.close()
    return listening


def test_a_user_put_to_sleep_wakes_in_a_new_process(cluster: Cluster) -> None:
    run = cluster._run_folder

    async def go() -> list[int]:
        hosts = hosts_of(cluster)
        pids = []
        for _ in range(4):
            reply = await hosts.call("alice", "stats", encode(NoParams()), 60_000.0)
            assert decode_reply(reply, MemoryStats).user_id == "alice"
            pids += (await hosts.pids()).values()
            await hosts.close()
            assert [*run.glob("*.sock")] == [], "an ended host leaves no socket file"
        return pids

    pids = asyncio.run(go())
    assert len(set(pids)) == 4


def test_a_request_while_the_user_falls_asleep_is_answered(cluster: Cluster) -> None:
    """Without spare processes, each new process starts while the former process ends."""
    settings = msgspec.structs.replace(Settings().daemon, idle_sleep_s=1e-9, spare_hosts=0)

    async def go() -> None:
        hosts = hosts_of(cluster, settings)
        for turn in range(4):
            await hosts.call("dora", "stats", encode(NoParams()), 60_000.0)
            sleeping = asyncio.create_task(hosts.sleep_idle())
            for _ in range(turn):
                await asyncio.sleep(0)
            reply = await hosts.call("dora", "rebuild", encode(NoParams()), 60_000.0)  # a verb that is never retried
            assert decode_reply(reply, int) == 0
            await sleeping
        await hosts.close()

    asyncio.run(go())


def test_a_permanently_ended_host_is_distinguished_from_a_restarting_one(cluster: Cluster) -> None:
    async def go() -> None:
        host = cluster.start_host()
        os.kill(await host.pid(60.0), signal.SIGKILL)
        async with asyncio.timeout(60.0):
            while await _answers(host):
                await asyncio.sleep(0.01)
        assert not host.is_gone
        async with asyncio.timeout(60.0):
            while not await _answers(host):
                await asyncio.sleep(0.05)
        host.end()
        async with asyncio.timeout(60.0):
            while not host.is_gone:
                await _answers(host)
                await asyncio.sleep(0.05)

    asyncio.run(go())


async def _answers(host: Host) -> bool:
    try:
        return await host.pid(60.0) > 0
    except HostDiedError:
        return False


def test_ray_keeps_no_record_of_calls(cluster: Cluster) -> None:
    """Regression: the gcs kept a record of 5 KB (measured) for each of the last 100,000 calls."""

    async def go() -> int:
        host = cluster.start_host()
        await _asked(host, 200)
        before = _own_bytes(gcs)
        await _asked(host, 3_000)
        await asyncio.sleep(1.5)  # gcs receives the records once a second
        host.end()
        return _own_bytes(gcs) - before

    (gcs,) = (process for process in cluster._system if process.name() == "gcs_server")
    grown = asyncio.run(go())
    assert grown < 6_000_000


async def _asked(host: Host, times: int) -> None:
    for _ in range(times):
        await host.pid(60.0)


def _own_bytes(process: psutil.Process) -> int:
    memory = process.memory_info()
    return int(memory.rss - memory.shared)


def test_a_run_begins_once_even_if_its_host_is_killed(cluster: Cluster) -> None:
    """The second caller does not notice the death: the request has an event id, so it may be repeated."""
    too_short_to_embed = "Fix"
    params = encode(RunBeginParams(objective=too_short_to_embed, event_id="begin-1"))

    async def go() -> list[Trajectory]:
        hosts = hosts_of(cluster)
        first = decode_reply(await hosts.call("carol", "run_begin", params, 60_000.0), Trajectory)
        (pid,) = (await hosts.pids()).values()
        os.kill(pid, signal.SIGKILL)
        again = decode_reply(await hosts.call("carol", "run_begin", params, 60_000.0), Trajectory)
        listed = decode_reply(
            await hosts.call("carol", "run_list", encode(RunListParams()), 60_000.0), list[Trajectory]
        )
        await hosts.close()
        assert listed == [again]
        return [first, again]

    first, again = asyncio.run(go())
    assert first == again


def test_an_unexpected_error_is_reported_and_not_retried(cluster: Cluster) -> None:
    async def go() -> MemoryAgentError:
        host = cluster.start_host()
        await host.pid(60.0)
        with pytest.raises(MemoryAgentError, match="TypeError") as caught:
            await host.sleep(["no user id"], 60.0)  # type: ignore[arg-type]
        await host.pid(60.0)
        host.end()
        return caught.value

    error = asyncio.run(go())
    assert not isinstance(error, HostDiedError)
    assert not error.retryable
