"""Runs a soak: many users work for hours while the daemon is stopped and killed in turn. No write may be lost, and no
resource may grow.

A soak may consist of several parts, which append to the same record (`record.jsonl`, one JSON object per line) and
continue with the same data and ledger. `report` reads the record.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any, NamedTuple

import msgspec

from memory_agent.errors import MemoryAgentError
from memory_agent.settings import DaemonSettings, LearningSettings, Settings
from ops.bench.machine import describe_machine
from ops.bench.spread import percentile
from ops.soak.family import Family
from ops.soak.kills import until_gone
from ops.soak.ledger import Finding, Ledger
from ops.soak.load import Load, Tally
from ops.soak.resources import sample
from ops.soak.served import Served
from relay import JournalSettings, RelayError
from relay.config import BusSettings

_TICK_S = 0.25
_PROGRESS_S = 60.0
_STARTS = 5
_COMPARISONS = 3
_JOURNAL_BYTES = 4 << 20
_RECALLS = 100  # of a user, without a run


class Plan(NamedTuple):
    """One part of a soak. It sends `rate` requests per second, summed over all users, and `light` runs the daemon
    without Ray."""

    hours: float
    users: int
    rate: float
    restart_minutes: float
    sample_s: float
    light: bool
    nice: int


def soak(plan: Plan, folder: Path) -> int:
    """Run one part with the data, the ledger and the record in `folder`; return the number of violated guarantees.

    SIGTERM and SIGINT end the part early, as if its time were over.
    """
    os.nice(plan.nice)
    folder.mkdir(parents=True, exist_ok=True)
    over = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: over.set())
    ledger = Ledger(folder / "ledger.sqlite")
    try:
        with (folder / "record.jsonl").open("a", encoding="utf-8") as file:
            return _Part(plan, folder, ledger, file).run(over)
    finally:
        ledger.close()


class _Part:
    def __init__(self, plan: Plan, folder: Path, ledger: Ledger, file: IO[str]) -> None:
        self._plan = plan
        self._data_dir = folder / "data"
        self._served = Served(self._data_dir, folder / "logs", _settings(plan))
        self._ledger, self._file = ledger, file
        self._tally = Tally()
        self._restarts = itertools.cycle(("kill", "stop"))
        self._began_s = time.monotonic()
        self._latest: dict[str, Any] = {}
        self._broken: list[Finding] = []
        self._ms: list[float] = []
        self._errors = 0

    def run(self, over: threading.Event) -> int:
        """Run until the time is up or `over` is set."""
        with Family() as family:
            self._run(over)
            self._note([Finding("left", "", one) for one in until_gone(family)])
        return len(self._broken)

    def _run(self, over: threading.Event) -> None:
        self._write("part", commit=_commit(), machine=describe_machine(), **self._plan._asdict())
        self._start()
        ended = "killed"
        try:
            with Load(self._data_dir, self._ledger, self._tally, self._plan.users, self._plan.rate) as load:
                self._compare(load)
                for step in self._steps(over):
                    step(load)
                ended = "stopped" if over.is_set() else "complete"
                self._sample(load)
                self._compare(load)
        finally:
            code = self._served.stop() if not self._served.has_ended else None
            self._write("end", how=ended, exit_code=code, complaints=self._served.complaints())

    def _steps(self, over: threading.Event) -> Iterator[Any]:
        """Yield each step when it is due, until the part is over."""
        due = {
            self._sample: self._plan.sample_s,
            self._tell: _PROGRESS_S,
            self._restart: self._plan.restart_minutes * 60,
        }
        last = dict.fromkeys(due, self._began_s)
        while not over.wait(_TICK_S) and (now_s := time.monotonic()) - self._began_s < self._plan.hours * 3_600:
            if self._served.has_ended:
                self._note([Finding("died", "", "the daemon exited on its own")])
                yield self._restart
                last[self._restart] = now_s
            for step, every_s in due.items():
                if now_s - last[step] >= every_s:
                    last[step] = now_s
                    yield step

    def _restart(self, load: Load) -> None:
        """Kill or stop the daemon under load, start it again, and compare the stores."""
        self._sample(load)
        how = "died" if self._served.has_ended else next(self._restarts)
        code = self._served.kill() if how == "kill" else self._served.stop()
        if code != {"kill": -signal.SIGKILL}.get(how, 0) and how != "died":
            self._note([Finding("unclean", "", f"the daemon ended with {code} after {how}")])
        complaints, began_s = self._served.complaints(), time.monotonic()
        self._start()
        ready_s = round(time.monotonic() - began_s, 2)
        self._write("restart", how=how, exit_code=code, ready_s=ready_s, complaints=complaints)
        self._compare(load)

    def _start(self) -> None:
        for attempt in range(_STARTS):
            try:
                self._served.start()
                return
            except MemoryAgentError as error:
                self._note([Finding("not started", "", str(error)[:300])])
                if attempt == _STARTS - 1:
                    raise
                time.sleep(1.0)

    def _compare(self, load: Load) -> None:
        began_s = time.monotonic()
        findings, memories = self._compared(load)
        self._note(findings)
        self._latest["memories"] = memories
        took_s = round(time.monotonic() - began_s, 2)
        self._write("compared", memories=memories, findings=len(findings), took_s=took_s)

    def _compared(self, load: Load) -> tuple[list[Finding], int]:
        """Compare the stores; repeat the comparison if the daemon does not answer in time, because the machine may be
        busy."""
        for attempt in range(_COMPARISONS):
            try:
                return load.compare()
            except (MemoryAgentError, RelayError, OSError) as error:
                if attempt == _COMPARISONS - 1:
                    return [Finding("not compared", "", f"{type(error).__name__}: {error}"[:300])], 0
        raise AssertionError

    def _sample(self, load: Load) -> None:
        taken = self._tally.take()
        self._note(taken.pop("findings"))
        self._ms += itertools.chain(*taken["ms"].values())
        self._errors += sum(taken["errors"].values())
        found = sample(self._served.pid, self._data_dir)
        self._latest |= found
        load_1m = round(os.getloadavg()[0], 2)
        self._write("sample", **found, **taken, streams=load.streamed, daemon=self._served.pid, load_1m=load_1m)

    def _tell(self, _load: Load) -> None:
        """Print one line of progress."""
        daemon = self._latest["roles"]
        ms, self._ms = self._ms or [0.0], []
        disk = sum(size for name, size in self._latest["disk"].items() if name != "files")
        print(
            f"{(time.monotonic() - self._began_s) / 3_600:.2f} of {self._plan.hours:g} h  {len(ms) / _PROGRESS_S:.1f}/s"
            f"  p50 {percentile(ms, 50):.0f} p99 {percentile(ms, 99):.0f} ms  errors {self._errors}"
            f"  {sum(one['pss'] for role, one in daemon.items() if role != 'load') / 1e6:.0f} MB"
            f"  {sum(one['files'] for role, one in daemon.items() if role != 'load')} files  disk {disk / 1e6:.0f} MB"
            f"  memories {self._latest.get('memories', 0)}  broken {len(self._broken)}",
            flush=True,
        )

    def _note(self, findings: list[Finding]) -> None:
        new = [finding for finding in findings if finding not in self._broken]  # comparisons repeat earlier findings
        self._broken += new
        for finding in new:
            self._write("finding", **finding._asdict())
            print(*finding, file=sys.stderr, flush=True)

    def _write(self, event: str, **fields: Any) -> None:
        soaked_s = round(time.monotonic() - self._began_s, 2)
        line = {"event": event, "at": datetime.now(UTC).isoformat(timespec="seconds"), "soaked_s": soaked_s, **fields}
        self._file.write(msgspec.json.encode(line).decode() + "\n")
        self._file.flush()


def _settings(plan: Plan) -> Settings:
    """Return settings that limit the size of the data as long as the number of memories is limited."""
    journal = JournalSettings(retention_bytes=_JOURNAL_BYTES, repeat_horizon_s=3_600.0)
    return Settings(
        daemon=DaemonSettings(light=plan.light, idle_sleep_s=120.0),
        learning=LearningSettings(keep_recalls=_RECALLS),
        relay=BusSettings(journal=journal),
    )


def _commit() -> str:
    with contextlib.suppress(OSError, subprocess.CalledProcessError):
        command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--abbrev=8"]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    return "unknown"
