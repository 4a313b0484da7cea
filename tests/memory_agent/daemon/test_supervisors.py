"""Test one contract for both supervisors (hosts wake, sleep and exit), then properties that hold only with Ray."""

from __future__ import annotations

import asyncio
import os
import signal
import tempfile
import threading
from collections.abc import Coroutine, Iterator
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import psutil
import pytest
from polling import until

from memory_agent.daemon import hosts as hosts_module
from memory_agent.daemon.capacity import capacity_of
from memory_agent.daemon.hosts import Hosts
from memory_agent.daemon.local_supervisor import LocalSupervisor, ThreadHost
from memory_agent.daemon.ray_supervisor import Cluster, RaySupervisor
from memory_agent.daemon.raylet import ray
from memory_agent.daemon.supervisor import Endpoints, Host, Supervisor
from memory_agent.errors import DeadlineExceededError, HostDiedError, MemoryAgentError, UnavailableError
from memory_agent.layout import Layout
from memory_agent.records.memories import MemoryStats
from memory_agent.records.trajectories import Trajectory
from memory_agent.settings import DaemonSettings, EmbedderSettings, Settings
from memory_agent.verbs.params import NoParams, RunBeginParams, RunListParams
from memory_agent.verbs.protocol import decode_reply, encode
from ops.process_memory import role_of
from relay import Broker, JournalInUseError, Publisher

pytestmark = pytest.mark.ray

T = TypeVar("T")
with_ray = pytest.mark.parametrize("supervised", ["full"], indirect=True)
without_ray = pytest.mark.parametrize("supervised", ["light"], indirect=True)


class Supervised:
    """A started supervisor, with the event loop from which it must be used."""

    def __init__(self, form: str, folder: Path) -> None:
        self.layout = Layout(folder)
        self.layout.create()
        settings = Settings(embedder=EmbedderSettings(folder=str(folder / "no-model")))
        self._runner = asyncio.Runner()
        kind = LocalSupervisor if form == "light" else RaySupervisor
        self.supervisor: Supervisor = kind(settings, self.layout)
        self.progress: list[str] = []
        self.listens: Endpoints = self.run(self.supervisor.start(self.progress.append))

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine to completion."""
        return self._runner.run(work)

    def hosts(self, settings: DaemonSettings | None = None) -> Hosts:
        """Return new `Hosts` for the supervisor."""
        settings = settings or DaemonSettings()
        return Hosts(self.supervisor, settings, capacity_of(settings, cores=2, memory_bytes=8 << 30))

    @property
    def cluster(self) -> Cluster:
        """The Ray cluster of the full form."""
        assert isinstance(self.supervisor, RaySupervisor)
        return self.supervisor

    def stop(self) -> None:
        """End everything."""
        self.run(self.supervisor.stop())
        self._runner.close()


@pytest.fixture(scope="module", params=["full", "light"])
def supervised(request: pytest.FixtureRequest) -> Iterator[Supervised]:
    with tempfile.TemporaryDirectory(prefix="supervised-") as folder:
        supervised = Supervised(request.param, Path(folder))
        yield supervised
        supervised.stop()
        Broker(Path(folder)).start().stop()  # the journal is free again


@pytest.fixture(scope="module")
def host(supervised: Supervised) -> Host:
    """A host that the tests share. With Ray, it is a process, which takes a second to start."""
    return supervised.supervisor.start_host()


def test_relay_and_embedder_listen_and_are_listed(supervised: Supervised) -> None:
    form = supervised.supervisor.form
    assert ("ray" in supervised.listens) == (form == "full") == any("Ray" in part for part in supervised.progress)
    with Publisher(str(supervised.listens["relay"])) as publisher:
        publisher.publish({"event_type": "chat.user_msg", "user_id": "eve", "payload": {"text": "hello"}})
        assert publisher.flush().pending == 0
    parts = {part.name: part for part in supervised.supervisor.parts()}
    assert [(name, part.state) for name, part in parts.items()] == [("relay", "running"), ("embedder", "running")]
    assert all((part.pid == os.getpid()) == (form == "light") for part in parts.values())
    assert supervised.supervisor.model is None
    with pytest.raises(JournalInUseError):
        Broker(supervised.layout.data_dir)


def test_a_sleeping_user_wakes_on_a_request_in_a_new_host_and_ended_hosts_leave_no_socket_file(
    supervised: Supervised,
) -> None:
    async def go() -> list[int]:
        before = {*supervised.layout.run.glob("*.sock")}
        pids: list[int] = []
        for _ in range(2):
            hosts = supervised.hosts()
            reply = await hosts.call("alice", "stats", encode(NoParams()), 60_000.0)
            assert decode_reply(reply, MemoryStats).user_id == "alice"
            await hosts.keep_up(fill_vectors=False)
            (pid,) = (await hosts.pids()).values()
            pids.append(pid)
            await hosts.close()
            await until(lambda: {*supervised.layout.run.glob("*.sock")} == before)
        return pids

    pids = supervised.run(go())
    assert len({*pids, os.getpid()}) == (3 if supervised.supervisor.form == "full" else 1)


def test_an_ended_host_is_gone(supervised: Supervised) -> None:
    async def go() -> None:
        host = supervised.supervisor.start_host()
        assert await host.pid(60.0) > 0
        host.end()
        async with asyncio.timeout(60.0):
            while not host.is_gone:
                await _answers(host)
                await asyncio.sleep(0.05)
        for ask in (host.endpoints, lambda: host.sleep("alice", 60.0), lambda: host.keep_up(60.0, fill_vectors=False)):
            with pytest.raises(HostDiedError):
                await ask()

    supervised.run(go())


def test_a_host_that_does_not_answer_in_time_is_reported(supervised: Supervised, host: Host) -> None:
    async def go() -> None:
        assert await host.pid(60.0) > 0
        with pytest.raises(DeadlineExceededError, match=host.name):
            await host.keep_up(1e-6, fill_vectors=False)

    supervised.run(go())


def test_only_an_actor_has_an_address_in_ray(supervised: Supervised, host: Host) -> None:
    if supervised.supervisor.form == "full":
        assert host.address.actor == host.name
    else:
        with pytest.raises(UnavailableError, match="without Ray"):
            host.address  # noqa: B018


def test_a_failed_relay_is_started_again(supervised: Supervised) -> None:
    supervisor = supervised.supervisor

    def relay() -> tuple[str, int]:
        part = supervisor.parts()[0]
        return part.state, part.restarts

    async def go() -> None:
        state, restarts = relay()
        assert state == "running"
        if isinstance(supervisor, LocalSupervisor):
            assert supervisor._relay._broker is not None
            supervisor._relay._broker._fail(OSError("the disk failed"))
        else:
            pid = supervisor.parts()[0].pid
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
        async with asyncio.timeout(60.0):
            while relay() != ("running", restarts + 1):
                await asyncio.sleep(0.05)

    supervised.run(go())
    with Publisher(str(supervised.listens["relay"])) as publisher:
        publisher.publish({"event_type": "chat.user_msg", "user_id": "eve", "payload": {"text": "hello again"}})
        assert publisher.flush().pending == 0


@without_ray
def test_a_memory_that_does_not_close_in_time_keeps_its_host_and_answers_later(
    supervised: Supervised, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: a new host in the same process could not open the store that the previous host had left open."""
    monkeypatch.setattr(hosts_module, "_SLEEP_TIMEOUT_S", 0.05)

    async def go() -> None:
        hosts = supervised.hosts()
        await hosts.call("gina", "stats", encode(NoParams()), 60_000.0)
        (host,) = hosts._pool._used.values()
        assert isinstance(host, ThreadHost)
        lock = host._memories._lock("gina")
        lock.acquire()
        try:
            await hosts.sleep("gina")
            assert not host.is_gone
            later = asyncio.create_task(hosts.call("gina", "stats", encode(NoParams()), 60_000.0))
            await asyncio.sleep(0.1)
        finally:
            lock.release()
        assert decode_reply(await later, MemoryStats).user_id == "gina"
        assert list(hosts._pool._used.values()) == [host]
        await hosts.close()

    supervised.run(go())


@without_ray
def test_rounds_of_upkeep_do_not_overlap(supervised: Supervised, monkeypatch: pytest.MonkeyPatch) -> None:
    async def go() -> None:
        host = supervised.supervisor.start_host()
        assert isinstance(host, ThreadHost)
        rounds, go_on = [], threading.Lock()
        go_on.acquire()

        def slow(now: datetime, *, fill_vectors: bool) -> None:
            rounds.append(now)
            go_on.acquire()

        monkeypatch.setattr(host._memories, "keep_up", slow)
        with pytest.raises(DeadlineExceededError):
            await host.keep_up(0.05, fill_vectors=False)
        await host.keep_up(60.0, fill_vectors=False)
        assert len(rounds) == 1
        go_on.release()
        await until(lambda: not host._is_kept_up.locked())
        host.end()

    supervised.run(go())


@without_ray
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_relay_whose_thread_ends_ends_the_daemon(supervised: Supervised) -> None:
    supervisor = supervised.supervisor
    assert isinstance(supervisor, LocalSupervisor)
    assert supervisor._relay._broker is not None
    supervisor._relay._broker._fail(SystemExit("not an Exception"))
    with pytest.raises(UnavailableError, match="thread"):
        supervised.run(supervisor.watch())


@with_ray
def test_ray_listens_on_loopback_alone(supervised: Supervised, host: Host) -> None:
    assert supervised.cluster.address.startswith("127.0.0.1:")
    listening = supervised.run(_listening_beside(host))
    assert {"gcs_server", "raylet"} <= {name for name, _ in listening}
    assert {address for _, address in listening} == {"127.0.0.1"}


async def _listening_beside(host: Host) -> set[tuple[str, str]]:
    """Return (process, address) of each listening socket of this test and Ray while the host runs."""
    pid = await host.pid(60.0)
    family = [psutil.Process(), *psutil.Process().children(recursive=True)]
    assert pid in {process.pid for process in family}
    return {
        (process.name(), connection.laddr.ip.removeprefix("::ffff:"))
        for process in family
        for connection in process.net_connections("inet")
        if connection.status == psutil.CONN_LISTEN
    }


def test_a_request_while_the_user_falls_asleep_is_answered(supervised: Supervised) -> None:
    """Without spare processes, each new process starts while the former process ends."""
    settings = msgspec.structs.replace(Settings().daemon, idle_sleep_s=1e-9, spare_hosts=0)

    async def go() -> None:
        hosts = supervised.hosts(settings)
        for turn in range(4) if supervised.supervisor.form == "light" else (0, 3):  # a process takes a second
            await hosts.call("dora", "stats", encode(NoParams()), 60_000.0)
            sleeping = asyncio.create_task(hosts.sleep_idle())
            for _ in range(turn):
                await asyncio.sleep(0)
            reply = await hosts.call("dora", "rebuild", encode(NoParams()), 60_000.0)  # this verb is never retried
            assert decode_reply(reply, int) == 0
            await sleeping
        await hosts.close()

    supervised.run(go())


@with_ray
def test_a_killed_host_is_restarted_and_not_gone(supervised: Supervised, host: Host) -> None:
    async def go() -> None:
        os.kill(await host.pid(60.0), signal.SIGKILL)
        async with asyncio.timeout(60.0):
            while await _answers(host):
                await asyncio.sleep(0.01)
        assert not host.is_gone
        async with asyncio.timeout(60.0):
            while not await _answers(host):
                await asyncio.sleep(0.05)

    supervised.run(go())


async def _answers(host: Host) -> bool:
    try:
        return await host.pid(60.0) > 0
    except HostDiedError:
        return False


@with_ray
def test_the_agent_for_runtime_environments_starts_with_the_first_task_that_has_one(supervised: Supervised) -> None:
    def agent() -> psutil.Process:
        found = []
        for process in psutil.Process().children(recursive=True):
            with suppress(psutil.Error):  # a worker of an earlier test may be exiting
                found += [process] if role_of(process) == "Ray runtime env" else []
        (only,) = found
        return only

    @ray.remote(num_cpus=0, runtime_env={"env_vars": {"COLOUR": "blue"}})
    def colour() -> str:
        return os.environ["COLOUR"]

    waiting = agent()
    assert waiting.cmdline()[1:3] == ["-I", "-S"]
    assert ray.get(colour.remote(), timeout=60) == "blue"
    assert agent() == waiting
    assert "-S" not in waiting.cmdline()
    listening = [one for one in waiting.net_connections("inet") if one.status == psutil.CONN_LISTEN]
    assert {one.laddr.ip for one in listening} == {"127.0.0.1"}


@with_ray
def test_ray_keeps_no_record_of_calls(supervised: Supervised, host: Host) -> None:
    """Regression: the gcs kept a record of 5 KB (measured) for each of the last 100,000 calls."""

    async def go() -> int:
        await _asked(host, 200)
        before = _own_bytes(gcs)
        await _asked(host, 1_000)
        await asyncio.sleep(1.5)  # gcs receives the records once a second
        return _own_bytes(gcs) - before

    (gcs,) = (process for process in supervised.cluster._system if process.name() == "gcs_server")
    grown = supervised.run(go())
    assert grown < 2_000_000


async def _asked(host: Host, times: int) -> None:
    for _ in range(times):
        await host.pid(60.0)


def _own_bytes(process: psutil.Process) -> int:
    memory = process.memory_info()
    return int(memory.rss - memory.shared)


@with_ray
def test_a_run_begins_once_even_if_its_host_is_killed(supervised: Supervised) -> None:
    """The second caller is not affected, because a request with an event id may be repeated."""
    too_short_to_embed = "Fix"
    params = encode(RunBeginParams(objective=too_short_to_embed, event_id="begin-1"))

    async def go() -> list[Trajectory]:
        hosts = supervised.hosts()
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

    first, again = supervised.run(go())
    assert first == again


def test_an_unexpected_error_is_reported_and_not_retried(supervised: Supervised, host: Host) -> None:
    async def go() -> MemoryAgentError:
        await host.pid(60.0)
        with pytest.raises(MemoryAgentError, match="TypeError") as caught:
            await host.sleep(["no user id"], 60.0)  # type: ignore[arg-type]
        await host.pid(60.0)
        return caught.value

    error = supervised.run(go())
    assert not isinstance(error, HostDiedError)
    assert not error.retryable
