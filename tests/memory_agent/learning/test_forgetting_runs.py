"""Forgetting a memory or session removes it from runs, recalls and the learner."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from run_samples import LATER, at, begin, end, event, note, step, things_to_use, whole, without_model
from store_checks import verified

from memory_agent.errors import InvalidInputError, RunUnknownError, StoreFullError
from memory_agent.memory import Memory
from memory_agent.records.memories import Utility
from memory_agent.settings import EmbedderSettings, StoreSettings
from memory_agent.storage.snapshot import RECALL_INDEX, RECALLS, RUN_INDEX, RUN_RECALLS, RUNS

RECALL = "01KHJY9080NWG22H9Q8BBD7B80"
OTHER = "01KHJY9080NWG22H9Q8BBD7B81"


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[Memory]:
    with without_model(tmp_path / "alice") as memory:
        yield memory


def id_of(memory: Memory, event_id: str) -> str:
    record = memory._archive.store.record(memory._archive.store.row_of_event(event_id) or 0)
    assert record is not None
    return record.id


def test_a_memory_that_is_forgotten_is_not_in_any_run_or_recall(memory: Memory) -> None:
    things = things_to_use(memory)
    note(memory, RECALL, 0, things[:3])
    memory.ingest([begin("r", 1, recall_id=RECALL), end("r", 2, memory_ids=things[:2])], now=LATER)
    version = memory._archive.store.state.lessons_version
    assert memory.forget([things[0]]) == 1
    store = memory._archive.store
    run, kept = memory.runs.get("r"), store.recall_note(RECALL)
    assert run is not None
    assert kept is not None
    assert [use.record_id for use in run.used] == [things[1]]
    assert (len(kept.rows), kept.size) == (2, 3)
    assert store.state.lessons_version > version
    assert verified(store) == 6
    memory.ingest([event("f", "feedback.recall", 5, recall_id=RECALL, memory_ids=things[:2])], now=LATER)
    run = memory.runs.get("r")
    assert run is not None
    assert [use.record_id for use in run.used] == [things[1]]


def test_forgetting_the_memory_of_a_request_keeps_the_run_without_its_text(memory: Memory) -> None:
    memory.ingest(whole("r", 0), now=LATER)
    memory.forget([id_of(memory, "r-begin")])
    run = memory.runs.get("r")
    assert run is not None
    assert (run.objective, run.state, run.quality) == (None, "ended", 0.8)
    with memory._archive.store.snapshot() as snapshot:
        stored = snapshot.trajectory("r")
        assert stored is not None
        assert stored.begin_row is None
        raw = b"".join(value for _, value in snapshot._transaction.scan(RUNS))
    assert b"auth" not in raw
    memory.ingest([begin("again", 6, "fix the RACE in the auth module!")], now=LATER)
    assert memory.runs.get("r").quality == 0.8  # type: ignore[union-attr]


def test_a_step_whose_memory_is_forgotten_stays_a_step(memory: Memory) -> None:
    memory.ingest([begin("r", 0), step("r", 1, 1), step("r", 2, 2)], now=LATER)
    memory.forget([id_of(memory, "r-step-1")])
    run = memory.runs.get("r")
    assert run is not None
    assert [told.record_id is None for told in run.steps] == [True, False]


def test_a_forgotten_session_leaves_only_ids(memory: Memory) -> None:
    things = things_to_use(memory)
    note(memory, RECALL, 0, things[:3], session_id="s-1")
    note(memory, OTHER, 0, things[:3], session_id="s-2")
    gone = [
        begin("gone", 1, session_id="s-1"),
        step("gone", 1, 2, session_id="s-1", memory_ids=things[:1]),
        end("gone", 3, session_id="s-1"),
        event("noise", "worker.heartbeat", 3, "gone", session_id="s-1", memory_ids=things[1]),
    ]
    memory.ingest(gone, now=LATER)
    memory.feedback(RECALL, things[2:3], 1.0, "It was the lock", now=at(4))
    memory.ingest([begin("stays", 5, "Bake", recall_id=OTHER), end("stays", 6, memory_ids=things[:1])], now=LATER)
    assert memory.forget_session("s-1") == 4
    store = memory._archive.store
    assert [run.id for run in memory.runs.list()] == ["stays"]
    assert store.recall_note(RECALL) is None
    assert store.recall_note(OTHER) is not None
    used = [record.utility for record in memory.get(things[:3])]
    assert used == [Utility(used=1, reward_sum=0.8), Utility(), Utility()]
    assert verified(store) == 7
    memory.ingest([*gone, approval_of("gone")], now=LATER)
    assert [run.id for run in memory.runs.list()] == ["stays"]
    with pytest.raises(RunUnknownError, match="forgotten"):
        memory.runs.step("gone", "Going on all the same")


def approval_of(run_id: str) -> dict[str, Any]:
    return event("late-approval", "feedback.approved", 9, run_id)


def test_relations_of_a_forgotten_run_are_withdrawn(memory: Memory) -> None:
    memory.ingest([*whole("one", 0), begin("two", 7, "fix the RACE in the auth module!", session_id="s-2")], now=LATER)
    memory.ingest(whole("three", 100, "Go on", session_id="s-3", previous_run_id="two"), now=LATER)
    memory.ingest([end("two", 9)], now=LATER)
    assert memory.runs.get("one").quality == 0.4  # type: ignore[union-attr]
    assert memory.forget_session("s-3") == 2
    assert memory.runs.get("two").quality == 0.8  # type: ignore[union-attr]
    assert memory.forget_session("s-2") == 2  # the end event has no session, but its run belongs to s-2
    assert memory.runs.get("one").quality == 0.8  # type: ignore[union-attr]
    assert verified(memory._archive.store)


def test_a_store_that_forgot_everything_holds_the_same_runs_as_one_that_never_saw_it(tmp_path: Path) -> None:
    seen = [begin("x", 50, session_id="s-9"), end("x", 51, session_id="s-9")]

    def lessons(folder: Path, *, forgetful: bool) -> tuple[Any, ...]:
        with without_model(folder) as memory:
            things = things_to_use(memory)
            memory.ingest([begin("r", 1), end("r", 2, memory_ids=things[:1])], now=LATER)
            if forgetful:
                memory.ingest([*seen, end("y", 52, session_id="s-9", memory_ids=things[:1])], now=LATER)
                memory.forget_session("s-9")
            with memory._archive.store.snapshot() as snapshot:
                return list(snapshot.trajectories()), dict(snapshot._transaction.scan(RUN_INDEX))

    assert lessons(tmp_path / "a", forgetful=True) == lessons(tmp_path / "b", forgetful=False)


def test_forgetting_a_session_without_runs_deletes_its_recalls(memory: Memory) -> None:
    note(memory, RECALL, 0, [], session_id="s-1", by_run="never-begun", vector=b"\x00<" * 4)
    memory.expire(at(1))
    memory.forget_session("s-1")
    with memory._archive.store.snapshot() as snapshot:
        for name in (RECALLS, RUN_RECALLS, RECALL_INDEX):
            assert not dict(snapshot._transaction.scan(name))


@pytest.mark.parametrize("session_id", ["", " ", 7])
def test_an_invalid_session_id_is_refused(memory: Memory, session_id: Any) -> None:
    with pytest.raises(InvalidInputError, match="session_id"):
        memory.forget_session(session_id)


def fill(memory: Memory) -> None:
    for number in range(100_000):
        memory.ingest([event(f"e-{number}", "chat.user_msg", number / 100, text=os.urandom(3000).hex())], now=LATER)


def test_forgetting_works_on_a_full_disk(tmp_path: Path) -> None:
    if os.geteuid():
        pytest.skip("mounting a small disk requires root")
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(disk)], check=False).returncode:
        pytest.skip("this machine does not allow mounting a tmpfs")
    nowhere = EmbedderSettings(folder=str(tmp_path / "none"), allow_download=False)
    small = StoreSettings(map_size_bytes=64 << 20, reserve_bytes=1 << 20)
    try:
        with Memory.open(disk / "alice", embedder_settings=nowhere, store_settings=small) as memory:
            things = things_to_use(memory)
            for number, name in enumerate(("one", "two")):
                memory.ingest(
                    [begin(name, 100 * number), end(name, 100 * number + 1, memory_ids=things[:1])], now=LATER
                )
            with pytest.raises(StoreFullError):
                fill(memory)
            assert memory.runs.get("one").quality == 0.9  # type: ignore[union-attr]
            assert memory.forget(things[:1]) == 1
            assert memory.runs.get("one").quality == 0.8  # type: ignore[union-attr]
    finally:
        subprocess.run(["umount", "--lazy", str(disk)], check=True)
