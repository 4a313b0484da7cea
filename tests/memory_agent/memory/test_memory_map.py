"""Each memory with a vector appears on the map exactly once, at a stable position; forgotten memories never appear."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest
from made_vectors import MadeVectors
from memory_samples import NOW, START, message, open_without_model

from memory_agent.memory import Memory, memory_map
from memory_agent.records.memories import MemoryMap
from relay.config import EncryptionSettings

COUNT = 300


def fill(memory: Memory, count: int = COUNT, since: int = 0) -> None:
    memory.ingest([message(number) for number in range(since, since + count)])


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[Memory]:
    with Memory.open(tmp_path / "alice", embedder=MadeVectors()) as memory:
        fill(memory)
        yield memory


def places(found: MemoryMap) -> dict[str, tuple[float, float]]:
    return dict(zip(found.ids, zip(found.x, found.y, strict=True), strict=True))


def test_each_column_describes_the_memory_of_its_id(memory: Memory) -> None:
    run = memory.runs.begin("Fix the race", run_id="r-1", session_id="s-0", now=NOW)
    memory.runs.end(run.id, quality=0.25, now=NOW)
    record = memory.remember("word " * 100, "strategy", title="A\nlong  title", quality_score=0.5, timestamp=START)
    memory.remember("word " * 100, run_id="r-1", id="of the run")
    found = memory.map()
    assert len(found.ids) == len(set(found.ids)) == found.total == memory.stats().memories
    records = memory.get(found.ids)
    assert found.kinds == tuple(one.kind for one in records)
    assert found.session_ids == tuple(one.session_id for one in records)
    assert found.timestamps == tuple(one.timestamp for one in records)
    place = found.ids.index(record.id)
    assert (found.titles[place], found.qualities[place]) == ("A long title", 0.5)
    of_run = found.ids.index("of the run")
    assert (len(found.titles[of_run]), found.qualities[of_run]) == (80, 0.25)
    assert max(map(abs, found.x + found.y)) == 1.0
    assert found.model == memory.stats().model
    assert 0.0 < found.explained < 1.0


def test_memories_about_one_subject_are_near_each_other(memory: Memory) -> None:
    found = memory.map()
    points = np.stack([found.x, found.y], axis=1)
    subjects = np.array([title.partition(",")[0] for title in found.titles])
    distances = np.square(points[:, None] - points[None]).sum(axis=2)
    np.fill_diagonal(distances, np.inf)
    assert (subjects[distances.argsort(axis=1)[:, :5]] == subjects[:, None]).mean() > 0.95


def test_positions_stay_until_more_than_one_memory_in_a_hundred_has_changed(memory: Memory) -> None:
    before = places(memory.map())
    assert memory.map() == memory.map()
    memory.remember("Something new", id="new")
    memory.forget([next(iter(before))])
    after = places(memory.map())
    assert after.items() <= before.items()
    assert len(after) == COUNT - 1
    fill(memory, 10, since=COUNT)
    later = places(memory.map())
    assert len(later) == COUNT + 10
    assert "new" in later
    moved = [np.subtract(later[one], before[one]) for one in before.keys() & later.keys()]
    assert np.quantile(np.linalg.norm(moved, axis=1), 0.9) < 0.1


def test_no_text_or_id_is_kept_between_two_maps(memory: Memory) -> None:
    record = memory.remember("The secret of the safe", session_id="s-secret")
    assert record.id in memory.map().ids
    memory.forget([record.id])
    kept = msgspec.json.encode([part for part in vars(memory._maps).values() if isinstance(part, tuple)], enc_hook=str)
    assert [text for text in ("secret", record.id) if text in kept.decode()] == []
    assert record.id not in memory.map().ids


def test_a_sample_of_many_memories_stays_the_same_as_more_come(memory: Memory) -> None:
    first = memory.map(limit=100)
    assert (len(first.ids), first.total) == (100, COUNT)
    fill(memory, 30, since=COUNT)
    second = memory.map(limit=100)
    assert len(second.ids) == 100
    assert len(set(first.ids) & set(second.ids)) > 75


def test_a_smaller_map_is_part_of_a_larger_one_that_was_computed(memory: Memory) -> None:
    first, larger, smaller = memory.map(limit=100), memory.map(limit=200), memory.map(limit=100)
    assert smaller.ids == first.ids
    assert places(smaller).items() <= places(larger).items()
    assert memory.map(limit=200) == larger


def test_a_map_has_only_the_memories_with_vectors(tmp_path: Path) -> None:
    with open_without_model(tmp_path / "alice") as memory:
        assert memory.map() == MemoryMap()
        fill(memory, 40)
        assert memory.map() == MemoryMap(total=40)
    with Memory.open(tmp_path / "alice", embedder=MadeVectors()) as memory:
        assert memory.fill_vectors(20) == 20
        found = memory.map()
        assert (len(found.ids), found.total) == (20, 40)
        memory.fill_vectors()
        assert len(memory.map().ids) == 40


def test_the_map_of_an_encrypted_memory_is_the_same(memory: Memory, tmp_path: Path) -> None:
    keys = EncryptionSettings(keys_folder=str(tmp_path / "keys"))
    with Memory.open(tmp_path / "bob", embedder=MadeVectors(), encryption_settings=keys) as encrypted:
        fill(encrypted)
        found, plain = encrypted.map(), memory.map()
    assert (found.titles, found.x, found.y) == (plain.titles, plain.x, plain.y)


def test_another_model_gives_another_map(tmp_path: Path) -> None:
    with Memory.open(tmp_path / "alice", embedder=MadeVectors()) as memory:
        fill(memory, 60)
        before = memory.map()
    with Memory.open(tmp_path / "alice", embedder=MadeVectors(model="other")) as memory:
        memory.map()
        memory.reembed()
        after = memory.map()
    assert after.ids == before.ids
    assert (after.model, after.x) != (before.model, before.x)


def test_while_a_map_is_computed_others_get_the_former_one(memory: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    former = places(memory.map())
    fill(memory, 30, since=COUNT)
    is_begun, go_on = threading.Event(), threading.Event()
    arrange = memory_map.arrange

    def waiting(*arguments: memory_map.Floats) -> memory_map.Floats:
        is_begun.set()
        assert go_on.wait(60.0)
        return arrange(*arguments)

    monkeypatch.setattr(memory_map, "arrange", waiting)
    computed: list[MemoryMap] = []
    thread = threading.Thread(target=lambda: computed.append(memory.map()))
    thread.start()
    try:
        assert is_begun.wait(60.0)
        assert places(memory.map()) == former
    finally:
        go_on.set()
        thread.join()
    assert len(computed[0].ids) == COUNT + 30
    assert places(memory.map()) == places(computed[0])
