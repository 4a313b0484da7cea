"""An entire daemon under fault injection, with the real Ray and model: processes are killed by id and restarted.

When Ray's own processes die, the daemon exits and a supervisor restarts it. The daemon recovers from all other faults.
The same checker as in the other worlds compares promises with the disk.
"""

from __future__ import annotations

import random
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil

from memory_agent import MemoryClient
from memory_agent.errors import MemoryAgentError
from memory_agent.settings import StoreSettings
from ops.process_memory import process_tree, role_of
from relay import Journal, RelayError, journal_folder

from .disk import fill, small_disk
from .events import ROOMS, USERS, is_to_be_forgotten
from .history import History
from .reading import lines, read_history
from .world import PUBLISHER, Part, count_lines, wait_until

OF_RAY = ("Ray raylet", "Ray gcs")
VICTIMS = (*OF_RAY, "host", "relay", "embedder", "daemon")
_PACE_S = 0.5
_PROGRESS = 60  # events ingested after a fault
_STARTS = 3
_SETTINGS = ("daemon.owner_wait_s=3", "store.takeover_after_s=1")


class DaemonWorld:
    """A daemon and two publishers, one of them with a spool, on one data folder."""

    def __init__(self, folder: Path, data_dir: Path | None = None, *, light: bool = False) -> None:
        """Processes write below `folder`, whose path must be short (socket files)."""
        self.data_dir, self.notes = data_dir or folder / "data", folder / "notes"
        self.notes.mkdir(parents=True)
        (self.notes / "unbounded").touch()
        data, pace = str(self.data_dir), ["--pace", str(_PACE_S)]
        settings = [word for setting in _SETTINGS for word in ("--set", setting)]
        serve = ["-m", "memory_agent", "serve", "--data-dir", data, *settings, *(["--light"] if light else [])]
        self.daemon = Part("daemon", serve, folder, None, is_ready_said=True)
        plain = [*PUBLISHER, data, "plain", str(self.notes), *pace]
        spooling = [*PUBLISHER, data, "spooling", str(self.notes), "--spool", str(folder / "spool"), *pace]
        self.plain = Part("plain", plain, folder, None, is_ready_said=False)
        self.spooling = Part("spooling", spooling, folder, None, is_ready_said=False)
        self._family: dict[int, psutil.Process] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._note_family()
        for part in (self.plain, self.spooling, self.daemon):
            part.kill()
        for process in self._family.values():  # orphans; psutil recognises a reused id
            with suppress(psutil.Error):
                process.kill()
        if isinstance(error, AssertionError):
            error.add_note(f"--- daemon\n{self.daemon.log()}")

    def start(self) -> None:
        self._start_daemon()
        for part in (self.plain, self.spooling):
            part.start()
        self.wait_for_progress()

    def kill(self, victim: str, seeded: random.Random) -> None:
        """Kill one process of the daemon, restart the daemon if it ends, and wait until events are ingested again."""
        self._note_family()
        if victim == "daemon":
            self.daemon.kill()
            self._start_daemon()
        else:
            seeded.choice(self._wait_for(victim)).kill()
        if victim in OF_RAY:
            wait_until(lambda: not self.daemon.is_alive, f"the daemon ends without {victim}")
            assert self.daemon.wait() > 0, self.daemon.log()
            self._start_daemon()
        self.wait_for_progress()
        self._forget(seeded)

    def finish(self) -> History:
        """Wait until everything is delivered and ingested with vectors, stop cleanly, and read the disk."""
        (self.notes / "stop").touch()
        for part in (self.plain, self.spooling):
            assert part.wait() == 0, part.log()
        wait_until(lambda: self._reach() == self._reach("last"), "everything is taken in", 240.0)
        wait_until(lambda: all(map(self._has_all_vectors, USERS)), "every memory has its vector", 240.0)
        self._note_family()
        self.daemon.signal(signal.SIGTERM)
        assert self.daemon.wait() == 0, self.daemon.log()
        return read_history(self.data_dir, self.notes, settings=StoreSettings(), embedder=None)

    @property
    def acked(self) -> int:
        return sum(count_lines(file) for file in self.notes.glob("*.acked"))

    def _wait_for(self, role: str) -> list[psutil.Process]:
        found: list[psutil.Process] = []

        def is_there() -> bool:
            found[:] = [process for process in process_tree(self.daemon.pid) if _role(process) == role]
            return bool(found)

        wait_until(is_there, f"there is a process: {role}")
        return found

    def wait_for_progress(self) -> None:
        """Wait until `_PROGRESS` more events are ingested."""
        aim = self._reach() + _PROGRESS

        wait_until(lambda: self._reach() >= aim, f"the journal is processed up to {aim}", 240.0)

    def _start_daemon(self) -> None:
        for attempt in range(_STARTS):
            if self.daemon.is_started:
                self.daemon.wait()
            try:
                self.daemon.start()
                return
            except AssertionError:
                if attempt == _STARTS - 1:
                    raise

    def _reach(self, what: str = "cursor") -> int:
        """Return the consumer's cursor in the journal, or the last journal number; 0 if the journal cannot be read."""
        try:
            with Journal.open(journal_folder(self.data_dir), readonly=True) as journal:
                return journal.last_seq if what == "last" else journal.cursor("memory")
        except RelayError:
            return 0

    def _has_all_vectors(self, user_id: str) -> bool:
        try:
            with MemoryClient(user_id, data_dir=self.data_dir) as client:
                return client.stats().without_vector == 0
        except MemoryAgentError:
            return False

    def _forget(self, seeded: random.Random) -> None:
        """Forget a few memories; a failed request may or may not have been carried out."""
        user_id, gone = seeded.choice(USERS), set(lines(self.notes / "doubtful"))
        with suppress(MemoryAgentError), MemoryClient(user_id, data_dir=self.data_dir) as client:
            found = client.recall(f"look after the {seeded.choice(ROOMS)}", 50, deadline_ms=10_000.0).memories
            ids = {str(one.record.event_id): one.record.id for one in found}
            chosen = {event: memory for event, memory in ids.items() if is_to_be_forgotten(event) and event not in gone}
            if chosen:
                self._note("doubtful", chosen)
                client.forget(list(chosen.values()))
                self._note("deleted", chosen)

    def _note(self, name: str, ids: dict[str, str]) -> None:
        with (self.notes / name).open("a", encoding="utf-8") as file:
            file.writelines(f"{event_id}\n" for event_id in ids)

    def _note_family(self) -> None:
        if self.daemon.is_alive:
            with suppress(psutil.Error):
                self._family |= {process.pid: process for process in process_tree(self.daemon.pid)[1:]}


def daemon_kills(seeded: random.Random, rounds: int) -> list[str]:
    """Return each victim `rounds` times, shuffled with `seeded`."""
    todo = list(VICTIMS) * rounds
    seeded.shuffle(todo)
    return todo


def strike_all(world: DaemonWorld, todo: list[str], seeded: random.Random, tell: Callable[[str], None]) -> History:
    """Start a daemon, inject every fault, and return the contents of the disk."""
    world.start()
    for victim in todo:
        world.kill(victim, seeded)
        tell(victim)
    return world.finish()


def fill_disk_of(folder: Path) -> History:
    """Fill a daemon's disk under load; check that it still answers, and ingests again once there is room.

    Raises `CannotMountError`.
    """
    folder.mkdir()
    with small_disk(folder / "disk", 96 << 20) as disk, DaemonWorld(folder, disk / "data") as world:
        world.start()
        ballast = fill(disk)
        wait_until(lambda: "journal_full" in world.daemon.log(whole=True), "the intake stops")
        for user_id in USERS:
            with MemoryClient(user_id, data_dir=world.data_dir) as client:
                assert client.recall("the lamp in the kitchen", 3, deadline_ms=10_000.0).memories, world.daemon.log()
        assert world.daemon.is_alive, world.daemon.log()
        ballast.unlink()
        world.wait_for_progress()
        return world.finish()


def _role(process: psutil.Process) -> str:
    try:
        return role_of(process)
    except psutil.Error:
        return ""
