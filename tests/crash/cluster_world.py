"""A cluster under faults: a daemon, three machines that joined it, and clients that publish, write and read.

Processes are killed and stopped by id, the archive refuses access, and machines leave and rejoin. Processes that ended
are restarted, as they would be by a supervisor. Each "machine" has its own loopback address and data folder.
"""

from __future__ import annotations

import random
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

import psutil

from memory_agent import MemoryClient
from memory_agent.errors import MemoryAgentError
from ops.process_memory import process_tree, role_of, still_running
from tests.end_to_end.cluster import NodeProcess, cluster_daemon, nodes, place
from tests.set_history import Violation

from .cluster_clients import Operations, read_once, wait_once
from .cluster_operations import ClusterOperations
from .figures import Figures
from .world import Part, wait_until

USERS = tuple(f"user{number}" for number in range(10))
MACHINES = {"w1": "127.0.0.3", "w2": "127.0.0.4", "w3": "127.0.0.5"}
_SETTINGS = (
    "daemon.owner_wait_s=3",
    "store.takeover_after_s=1",
    "daemon.dedicated_hosts=1",
    "daemon.shared_hosts=1",
    "daemon.idle_sleep_s=2",
    "daemon.upkeep_interval_s=1",
)
_ROLES = {"host": "host", "raylet": "Ray raylet", "gcs": "Ray gcs", "relay": "relay"}
_LONGEST_S = 8.0  # of a stopped process or a refusing archive; a lease lasts 3 s
_SETTLED_S = 240.0
_ASLEEP_S = 15.0
_LIFE_POLL_S = 0.02


class Fault(NamedTuple):
    """A fault in one kind of process, or in another part of a cluster."""

    victim: str
    how: str

    def __str__(self) -> str:
        return f"{self.victim} {self.how}"


FAULTS = (
    *(
        Fault(victim, how)
        for victim in ("host", "raylet", "join process", "machine", "daemon", "gcs", "relay")
        for how in ("killed", "stopped")
    ),
    Fault("home raylet", "killed"),
    Fault("all machines", "killed"),
    Fault("archive", "refuses"),
    Fault("machine", "leaves"),
)


class ClusterWorld:
    """The processes, and what they did. Call `start`, `strike` for each fault, and `finish`."""

    def __init__(self, folder: Path) -> None:
        """Processes write below `folder`, whose path must be short enough for socket files."""
        self.folder = folder
        self.notes = folder / "notes"
        self.notes.mkdir(parents=True)
        self.operations = ClusterOperations(self.notes)
        self.daemon = cluster_daemon(folder, *_SETTINGS)
        self.machines: dict[str, NodeProcess] = {}
        self._archive = folder / "archive"
        self._lives: list[tuple[int, int]] = []
        self._life_watch = threading.Thread(target=self._watch_lives, daemon=True)
        self._ended = threading.Event()
        self._family: dict[int, psutil.Process] = {}
        clients = ["-m", "tests.crash.cluster_clients"]
        works = {
            name: [*clients, name, str(self.daemon.data_dir), str(self.notes), *USERS] for name in ("publish", "use")
        }
        self.clients = [Part(name, work, folder, None, is_ready_said=False) for name, work in works.items()]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._ended.set()
        self._note_family()
        for client in self.clients:
            client.kill()
        for process in self._family.values():  # psutil recognises a reused id
            with suppress(psutil.Error):
                process.kill()
        for machine in self.machines.values():
            machine.kill()
        self.daemon.kill()

    def start(self) -> None:
        """Start everything, with users spread over the machines, and wait until every user receives answers."""
        for number, user_id in enumerate(USERS):
            place(self.daemon, user_id, list(MACHINES)[number % len(MACHINES)])
        self._start_daemon()
        self._life_watch.start()
        for name, address in MACHINES.items():
            (self.folder / name).mkdir()
            self.machines[name] = NodeProcess(self.daemon, self.folder / name, name, address)
            self.machines[name].start()
        for client in self.clients:
            client.start()
        self.settle("the start", time.monotonic_ns())

    def strike(self, fault: Fault, seeded: random.Random) -> int:
        """Inject a fault, repair it, and wait until all users get answers and all machines are up.

        Returns the time at which the fault began.
        """
        self._note_family()
        self._log(fault)
        lasts_s = seeded.uniform(1.0, _LONGEST_S)
        begun_ns = time.monotonic_ns()
        match fault:
            case Fault("archive"):
                with self._refusing_archive():
                    time.sleep(lasts_s)
            case Fault(_, "leaves"):
                machine = self._machine(seeded)
                assert machine.end() == 0, machine.log()[-3_000:]
            case Fault(_, "stopped"):
                with _stopped(self._victims(fault.victim, seeded)):
                    time.sleep(lasts_s)
            case _:
                for process in self._victims(fault.victim, seeded):
                    with suppress(psutil.NoSuchProcess):
                        process.kill()
        if fault.victim == "home raylet":
            wait_until(lambda: not _is_running(self.daemon.pid), "the daemon ends")
        self.settle(str(fault), time.monotonic_ns())
        return begun_ns

    def settle(self, what: str, since_ns: int) -> None:
        """Restart processes that ended, and wait until all users receive answers and all machines are up."""
        deadline_s = time.monotonic() + _SETTLED_S
        silent: Sequence[str] = USERS
        while silent or not self._are_machines_up():
            assert time.monotonic() < deadline_s, f"{_SETTLED_S:g} s after {what}: silent {silent}, {self._states()}"
            for client in self.clients:
                assert client.is_alive, client.log()
            self._restart_ended()
            time.sleep(0.2)
            self.operations.update()
            silent = [user_id for user_id in USERS if not self.operations.has_answered(user_id, since_ns)]

    def rest(self) -> None:
        """Wait a limited time for the users to fall asleep.

        When they wake, users whom earlier faults moved to the daemon's machine are spread over the other machines.
        """
        (self.notes / "rest").touch()
        end_s = time.monotonic() + _ASLEEP_S
        with MemoryClient(data_dir=self.daemon.data_dir) as client:
            while time.monotonic() < end_s and self._awake(client):
                time.sleep(0.2)
        (self.notes / "rest").unlink()
        self.settle("the rest", time.monotonic_ns())

    def _awake(self, client: MemoryClient) -> Sequence[str]:
        try:
            return [user_id for user_id in client.status().active_users if user_id in USERS]
        except MemoryAgentError:
            return USERS

    def violations(self) -> list[Violation]:
        """Check all operations of the clients."""
        self.operations.update()
        return self.operations.violations(self._lives)

    def finish(self) -> list[Violation]:
        """Wait until every event has become a memory, read all users' memories, and stop; return the violations."""
        (self.notes / "stop").touch()
        for client in self.clients:
            assert client.wait() == 0, client.log()
        operations = Operations(self.notes, "read-last")
        for user_id in USERS:
            with MemoryClient(user_id, data_dir=self.daemon.data_dir) as client:
                wait_once(client, operations, 120.0)
                read_once(client, operations)
        time.sleep(2 * _LIFE_POLL_S)  # the daemon is recorded as alive at least once after the reads
        found = self.violations()
        self._note_family()
        for machine in self.machines.values():
            assert machine.end() == 0, machine.log()[-3_000:]
        assert self.daemon.stop() == 0, self.daemon.log()[-3_000:]
        wait_until(lambda: not still_running(list(self._family.values())), "nothing is left running")
        return found

    def keep_logs(self, folder: Path) -> None:
        """Copy what the processes wrote."""
        for file in (*self.folder.glob("*/*.log"), *self.folder.glob("*.log"), *self.notes.iterdir()):
            target = folder / file.relative_to(self.folder)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(file, target)

    def _victims(self, victim: str, seeded: random.Random) -> list[psutil.Process]:
        machine = self._machine(seeded)
        match victim:
            case "all machines":
                return [process for one in self.machines.values() for process in one.family()]
            case "machine":
                return machine.family()
            case "join process":
                return [psutil.Process(machine.pid)]
            case "daemon":
                return [psutil.Process(self.daemon.pid)]
            case "home raylet":
                return self._wait_for("Ray raylet", [self.daemon.pid], seeded)
            case "raylet":
                return self._wait_for("Ray raylet", [machine.pid], seeded)
            case "host":
                return self._wait_for("host", [self.daemon.pid, *(one.pid for one in self.machines.values())], seeded)
            case _:
                return self._wait_for(_ROLES[victim], [self.daemon.pid], seeded)

    def _log(self, fault: Fault) -> None:
        users = {node.name: node.users for node in nodes(self.daemon)}
        with (self.folder / "faults.log").open("a", encoding="utf-8") as log:
            log.write(f"{datetime.now(UTC):%H:%M:%S} {fault}, users {users}\n")

    def _machine(self, seeded: random.Random) -> NodeProcess:
        """Choose a machine that has users, or any machine if none has users."""
        known = nodes(self.daemon)
        names = sorted(node.name for node in known if node.users) or list(MACHINES)
        return self.machines[seeded.choice(names)]

    def _wait_for(self, role: str, roots: Sequence[int], seeded: random.Random) -> list[psutil.Process]:
        found: list[psutil.Process] = []

        def is_there() -> bool:
            with suppress(psutil.Error):
                found[:] = [one for root in roots for one in process_tree(root) if _role(one) == role]
            return bool(found)

        wait_until(is_there, f"there is a process: {role}")
        return [seeded.choice(found)]

    @contextmanager
    def _refusing_archive(self) -> Iterator[None]:
        aside = self._archive.with_name("unreachable")
        self._archive.rename(aside)
        self._archive.touch()  # otherwise the folder would be created again
        try:
            yield
        finally:
            self._archive.unlink()
            aside.rename(self._archive)

    def _restart_ended(self) -> None:
        if self.daemon.ended() is not None:
            self._start_daemon()
        ended = [machine for machine in self.machines.values() if not machine.is_running]
        if ended:
            with ThreadPoolExecutor() as threads:
                list(threads.map(_start_again, ended))

    def _start_daemon(self) -> None:
        self.daemon.start()
        now_ns = time.monotonic_ns()
        self._lives.append((now_ns, now_ns))

    def _watch_lives(self) -> None:
        while not self._ended.wait(_LIFE_POLL_S):
            now_ns = time.monotonic_ns()
            begun_ns, _ = self._lives[-1]
            with suppress(AssertionError):  # it has ended
                if _is_running(self.daemon.pid) and now_ns > begun_ns:
                    self._lives[-1] = (begun_ns, now_ns)

    def _are_machines_up(self) -> bool:
        return self._states() == dict.fromkeys(MACHINES, "up")

    def _states(self) -> dict[str, str]:
        try:
            return {node.name: node.state for node in nodes(self.daemon)}
        except MemoryAgentError as error:
            return {"daemon": error.code}

    def _note_family(self) -> None:
        for one in (self.daemon, *self.machines.values()):
            with suppress(AssertionError, psutil.Error):
                self._family |= {process.pid: process for process in process_tree(one.pid)}


def strike_for(
    world: ClusterWorld, lasts_s: float, seeded: random.Random, figures: Figures, tell: Callable[[], None]
) -> None:
    """Start a cluster, inject faults in random order for some time, and check after each fault and at the end."""
    world.start()
    end_s = time.monotonic() + lasts_s
    todo: list[Fault] = []
    try:
        while time.monotonic() < end_s:
            todo = todo or seeded.sample(FAULTS, len(FAULTS))
            fault = todo.pop()
            world.rest()
            begun_ns = world.strike(fault, seeded)
            counts = figures.kills if fault.how == "killed" else figures.faults
            counts[f"{fault.victim} of a cluster, {fault.how}"] += 1
            for kind in ("read", "write"):
                outages = [world.operations.outage_s(user_id, kind, begun_ns) for user_id in USERS]
                figures.outages.setdefault(f"{fault} ({kind}s)", []).extend(outages)
            _check(world.violations(), figures, f"after {fault}")
            tell()
        _check(world.finish(), figures, "at the end")
    finally:
        operations = world.operations
        figures.totals["acks of a cluster"] += operations.acks
        figures.totals["reads of a cluster"] += operations.reads
        figures.totals["requests of a cluster that failed"] += operations.failures


def _check(violations: Sequence[Violation], figures: Figures, when: str) -> None:
    figures.broken.update(found.kind for found in violations)
    assert not violations, f"{when}: {violations[:10]}"


@contextmanager
def _stopped(processes: Sequence[psutil.Process]) -> Iterator[None]:
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.suspend()
    try:
        yield
    finally:
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                process.resume()


def _is_running(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def _start_again(machine: NodeProcess) -> None:
    machine.ended()
    with suppress(AssertionError):  # the daemon may have ended meanwhile
        machine.start()


def _role(process: psutil.Process) -> str:
    try:
        return role_of(process)
    except psutil.Error:
        return ""
