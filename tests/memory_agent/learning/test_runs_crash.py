"""After a process is killed while ingesting run events, a replay yields the same runs byte for byte."""

from __future__ import annotations

import random
import signal
from pathlib import Path
from typing import IO

import pytest
from forks import forking, kill_after, serve
from run_samples import LATER, begin, end, note, step, things_to_use, whole, without_model
from store_checks import verified

from memory_agent.memory import Memory
from memory_agent.storage.snapshot import RECALL_INDEX, RECALLS, RUN_INDEX, RUN_RECALLS, RUNS, USAGE

_BATCH = 3
_RECALL = "01KHJY9080NWG22H9Q8BBD7B80"


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


def kill_while_ingesting(folder: str, batches: int) -> None:
    """Ingest everything in a fork, and kill it after this many batches."""

    def ingest(lines: IO[str]) -> None:
        with without_model(Path(folder)) as memory:
            for number in take_in(memory):
                print(number, file=lines, flush=True)
            signal.pause()  # closing a memory infers uses

    kill_after(batches, ingest)


@pytest.mark.slow
def test_a_replay_after_a_crash_gives_the_same_runs_byte_for_byte(tmp_path: Path) -> None:
    with without_model(tmp_path / "whole") as memory:
        assert list(take_in(memory))
        expected = contents(memory)
    assert len(expected[RUNS]) >= 12  # the first three runs continue runs that are known only by name
    seeded = random.Random(20260216)
    with forking(__file__) as run:
        for attempt in range(2):
            folder = tmp_path / f"crashed-{attempt}"
            assert run(folder, seeded.randrange(1, 10)) == 0
            assert run(folder, seeded.randrange(1, 12)) == 0
            with without_model(folder) as memory:
                list(take_in(memory))
                assert verified(memory._archive.store)
                assert contents(memory) == expected
                assert all(one.state == "ended" for one in memory.runs.list())


def test_runs_survive_a_reopen(tmp_path: Path) -> None:
    with without_model(tmp_path / "alice") as memory:
        memory.ingest(whole("one", 0), now=LATER)
        before = contents(memory), memory.runs.list()
    with without_model(tmp_path / "alice") as memory:
        memory.ingest(whole("one", 0), now=LATER)
        assert (contents(memory), memory.runs.list()) == before


if __name__ == "__main__":
    serve(kill_while_ingesting)
