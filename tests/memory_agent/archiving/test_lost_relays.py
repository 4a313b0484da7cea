"""Relays that copy their journal are killed, or paused and superseded: each acknowledged event is kept once."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

from memory_agent.archiving import restore_journal
from memory_agent.settings import ArchiveSettings
from relay import (
    Journal,
    JournalSettings,
    Publisher,
    RelayUnavailableError,
    journal_folder,
    read_event,
    relay_endpoints,
)

EVENTS_A_MACHINE = 600
WITHIN_S = 60


class Machine:
    """A relay process in its own folder, and a publisher that records the acknowledged events."""

    def __init__(self, data_dir: Path, archive: ArchiveSettings) -> None:
        data_dir.mkdir(exist_ok=True)
        file = data_dir / "relay-archive.json"
        file.write_bytes(msgspec.json.encode(archive))
        module = "memory_agent.daemon.relay_process"
        command = [sys.executable, "-m", module, "--data-dir", str(data_dir), "--archive", str(file)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert self.process.stdout is not None
        json.loads(self.process.stdout.readline())
        self.published: list[str] = []
        self._acked = 0
        self._publisher = Publisher(relay_endpoints(data_dir).ingest, on_progress=self._note)

    def _note(self, progress: Any) -> None:
        self._acked = progress.acked + progress.duplicates

    @property
    def acked(self) -> list[str]:
        """The ids of the acknowledged events, which are the earliest published events."""
        return self.published[: self._acked]

    def publish(self, ids: list[str]) -> None:
        for event_id in ids:
            self.published.append(event_id)
            self._publisher.publish({"event_id": event_id, "event_type": "a.b", "user_id": f"user-{len(event_id) % 3}"})

    def close(self) -> None:
        with suppress(RelayUnavailableError):
            self._publisher.close(timeout_s=0.1)
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder whose path leaves room for socket names (107 bytes in total)."""
    with tempfile.TemporaryDirectory(prefix="lost-relays-") as folder:
        yield Path(folder)


def until(is_so: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + WITHIN_S
    while not is_so():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


@pytest.mark.slow
@pytest.mark.parametrize("fault", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "paused"])
def test_the_loss_of_machines_loses_and_doubles_no_acknowledged_event(folder: Path, fault: signal.Signals) -> None:
    archive = ArchiveSettings(url=f"file://{folder}/archive", journal=True)
    acked: set[str] = set()
    unacked: list[str] = []
    former: Machine | None = None
    for turn in range(3):
        data_dir = folder / f"machine-{turn}"
        if turn:
            restore_journal(archive, journal_folder(data_dir), JournalSettings())
            with Journal.open(journal_folder(data_dir), readonly=True) as restored:
                held = {read_event(entry.data).event_id for entry in restored.read(0, 10_000)}
            assert acked <= held
        if former is not None and fault == signal.SIGSTOP:
            former.process.send_signal(signal.SIGCONT)
            assert former.process.wait(WITHIN_S) == 1, "it finds itself superseded"
            assert set(former.acked) <= held
            former.close()
        machine = Machine(data_dir, archive)
        machine.publish(unacked)
        machine.publish([f"{turn}-{number}" for number in range(EVENTS_A_MACHINE)])
        until(lambda: len(machine.acked) > EVENTS_A_MACHINE // 2)  # noqa: B023 - called at once
        machine.process.send_signal(fault)
        if fault == signal.SIGKILL:
            machine.close()
        acked |= set(machine.acked)
        unacked = machine.published[len(machine.acked) :]
        former = machine
    assert former is not None
    former.close()
    last = folder / "last"
    restore_journal(archive, journal_folder(last), JournalSettings())
    machine = Machine(last, archive)
    machine.publish(unacked)
    until(lambda: len(machine.acked) == len(unacked))
    machine.close()
    with Journal.open(journal_folder(last), readonly=True) as journal:
        times = Counter(read_event(entry.data).event_id for entry in journal.read(0, 10_000))
    assert set(times) == {f"{turn}-{number}" for turn in range(3) for number in range(EVENTS_A_MACHINE)}
    assert set(times.values()) == {1}
