"""After a process is killed while ingesting run events, a replay yields the same runs byte for byte."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest
from run_samples import LATER, begin, end, note, step, things_to_use, whole, without_model
from store_checks import verified

from memory_agent.memory import Memory
from memory_agent.storage.snapshot import RECALL_INDEX, RECALLS, RUN_INDEX, RUN_RECALLS, RUNS, USAGE

_BATCH = 3
_RECALL = "01KHJY9080NWG22H9Q8BBD7B80"
_WRITER = """
import signal, sys
from pathlib import Path
sys.path[:0] = {here!r}, str(Path({here!r}).parent)
from run_samples import without_model
from test_runs_crash import take_in
with without_model(Path({folder!r})) as memory:
    for number in take_in(memory):
        print(number, flush=True)
    signal.pause()  # closing a memory infers uses
"""


def take_in(memory: Memory):  # type: ignore[no-untyped-def]
    """Ingest everything in journal order; yield each batch's number once it is on disk."""
    things = things_to_use(memory, 3)
    note(memory, _RECALL, 1, things)
    events = []
    for number in range(12):
        name, minute = f"run-{number}", 20.0 * number
        words = "Fix the race in the auth module" + "!" * (number % 4)
        recalls = {"recall_id": _RECALL} if number == 2 else {}
        events += [
            begin(name, minute, words, previous_run_id=f"run-{number - 3}", **recalls),
            step(name, 1, minute + 1, memory_ids=[things[number % 3]]),
            end(name, minute + 2),
        ]
    events = events[1:] + events[:1]
    for start in range(0, len(events), _BATCH):
        batch = events[start : start + _BATCH]
        memory.ingest(batch, seqs=range(start + 1, start + 1 + len(batch)), now=LATER)
        yield start


def contents(memory: Memory) -> dict[str, dict[bytes, bytes]]:
    with memory._archive.store.snapshot() as snapshot:
        databases = (RUNS, RUN_INDEX, RECALLS, RUN_RECALLS, RECALL_INDEX, USAGE)
        return {name: dict(snapshot._transaction.scan(name)) for name in databases}


def killed_after(folder: Path, batches: int) -> None:
    code = _WRITER.format(here=str(Path(__file__).parent), folder=str(folder))
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        for _ in range(batches):
            assert writer.stdout.readline()
        writer.kill()


@pytest.mark.slow
def test_a_replay_after_a_crash_gives_the_same_runs_byte_for_byte(tmp_path: Path) -> None:
    with without_model(tmp_path / "whole") as memory:
        assert list(take_in(memory))
        expected = contents(memory)
    assert len(expected[RUNS]) >= 12  # the first three runs continue runs that are known only by name
    seeded = random.Random(20260216)
    for attempt in range(2):
        folder = tmp_path / f"crashed-{attempt}"
        killed_after(folder, seeded.randrange(1, 10))
        killed_after(folder, seeded.randrange(1, 12))
        with without_model(folder) as memory:
            list(take_in(memory))
            assert verified(memory._archive.store)
            assert contents(memory) == expected
            assert all(run.state == "ended" for run in memory.runs.list())


def test_runs_survive_a_reopen(tmp_path: Path) -> None:
    with without_model(tmp_path / "alice") as memory:
        memory.ingest(whole("one", 0), now=LATER)
        before = contents(memory), memory.runs.list()
    with without_model(tmp_path / "alice") as memory:
        memory.ingest(whole("one", 0), now=LATER)
        assert (contents(memory), memory.runs.list()) == before
