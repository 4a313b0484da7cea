"""The contract of learning engines (`sona` and a custom engine), and memories with `off`, `sona` and custom engines."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import structlog
from msgspec.structs import replace
from own_engine import NearestUses
from recurring_requests import Company, copied, open_company

from memory_agent.embedders import Embedder
from memory_agent.errors import SettingsError
from memory_agent.learning import LearningEngine
from memory_agent.learning.engine import EngineLearner
from memory_agent.settings import LearningSettings
from sona import REACH, Adaptation, Learner, Lesson, Use

NDIM = 16
ENGINES: dict[str, Callable[[int], LearningEngine]] = {
    "sona": Learner,
    "own": NearestUses,
    "own with the gate of sona": lambda ndim: EngineLearner(ndim, NearestUses),
}


def unit(place: int, other: int = 0, share: float = 0.0) -> np.ndarray:
    """Return a unit vector along one axis, with a component along another axis."""
    axes = np.eye(NDIM, dtype=np.float32)
    vector = axes[place] + share * axes[other]
    return vector / np.linalg.norm(vector)


def lesson(number: int, place: int, memory: int, quality: float = 1.0) -> Lesson:
    query = unit(place, place + 1, 0.05 * (number % 3))
    return Lesson(number, query, (memory,), unit(place + 8)[None, :], (1.0,), quality)


LESSONS = [lesson(number, number % 4, 100 + number % 4) for number in range(1, 13)]


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> LearningEngine:
    return ENGINES[request.param](NDIM)


def taught(engine: LearningEngine, lessons: Iterable[Lesson]) -> LearningEngine:
    for one in lessons:
        engine.learn(one)
    return engine


def reached(found: Adaptation | None) -> list[int]:
    """Return the memories that an adaptation raises, in order of decreasing gain."""
    if found is None:
        return []
    amounts = found.reached.amounts
    return [int(found.reached.memories[place]) for place in np.argsort(-amounts, kind="stable") if amounts[place] > 0]


def test_an_engine_without_lessons_changes_nothing(engine: LearningEngine) -> None:
    assert engine.adapt(unit(0)) is None


def test_memories_that_runs_of_similar_queries_used_are_raised(engine: LearningEngine) -> None:
    taught(engine, LESSONS)
    for place in range(4):
        found = engine.adapt(unit(place))
        assert found is not None
        assert reached(found)[0] == 100 + place
        number, similarity = found.cause(100 + place) or (0, 0.0)
        assert number % 4 == place
        assert similarity > 0.9
        assert found.nearest()[0][0] % 4 == place
    assert reached(engine.adapt(unit(7))) == []


def test_an_adaptation_has_the_shapes_and_bounds_that_a_ranking_needs(engine: LearningEngine) -> None:
    query = unit(1, 2, 0.3)
    found, before = taught(engine, LESSONS).adapt(query), query.copy()
    assert found is not None
    assert found.direction.shape == (NDIM,)
    assert np.linalg.norm(found.direction) <= REACH + 1e-6
    memories, amounts, support, unweighted = found.reached[:4]
    assert memories.shape == amounts.shape == support.shape == unweighted.shape
    assert (np.diff(memories) > 0).all()
    assert ((amounts >= 0) & (amounts <= unweighted) & (unweighted <= 1) & (support >= 0)).all()
    assert np.array_equal(query, before)


def test_a_lesson_with_a_known_number_replaces_it(engine: LearningEngine) -> None:
    taught(engine, [*LESSONS[:4], lesson(1, 1, 555)])
    assert 555 in reached(engine.adapt(unit(1)))
    taught(engine, [lesson(1, 1, 101)])
    assert 555 not in reached(engine.adapt(unit(1)))


def test_a_forgotten_lesson_is_without_effect(engine: LearningEngine) -> None:
    taught(engine, [*LESSONS, lesson(50, 2, 777)])
    assert 777 in reached(engine.adapt(unit(2)))
    assert engine.forget([50, 999]) == 1
    assert 777 not in reached(engine.adapt(unit(2)))
    assert reached(engine.adapt(unit(3)))[0] == 103


def test_a_failed_run_raises_nothing(engine: LearningEngine) -> None:
    taught(engine, [lesson(number, 0, 100, quality=0.0) for number in range(1, 4)])
    found = engine.adapt(unit(0))
    assert reached(found) == []
    assert found is None or (found.cause(100) is None and not found.nearest())


@pytest.mark.parametrize("of", ["unweighted", "used", "lessons", "numbers"])
def test_an_engine_whose_adaptation_has_no_lesson_for_a_memory_is_given_up(of: str) -> None:
    class Unfounded(NearestUses):
        def adapt(self, query: Any) -> Adaptation | None:
            found = Adaptation.of([Use(100, 0.9, 0.5, 4, 0.9)], NDIM)
            if of == "numbers":
                return replace(found, numbers=found.numbers[:0], similarities=found.similarities[:0])
            return replace(found, reached=found.reached._replace(**{of: getattr(found.reached, of)[:0]}))

    assert EngineLearner(NDIM, Unfounded, LESSONS).adapt(unit(0)) is None


def opened(folder: Path, embedder: Embedder, engine: str, mode: str = "on") -> Company:
    return open_company(folder, embedder, LearningSettings(mode=mode, engine=engine))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("mode", "engine", "leads"),
    [("off", "own_engine:NearestUses", False), ("on", "sona", True), ("on", "own_engine:NearestUses", True)],
)
def test_each_engine_ranks_by_the_uses_of_stored_runs(
    tmp_path: Path, taught: Path, embedder: Embedder, mode: str, engine: str, leads: bool
) -> None:
    company = opened(copied(taught, tmp_path / "a"), embedder, engine, mode)
    assert company.leads(range(40, 55)) >= 13 if leads else company.leads(range(40, 55)) <= 5
    status = company.memory.sona.status()
    assert (status.engine, status.credited > 20) == (engine, mode != "off")
    company.memory.close()


def test_a_custom_engine_learns_from_new_runs_and_forgets_with_the_memory(
    tmp_path: Path, taught: Path, embedder: Embedder
) -> None:
    company = opened(copied(taught, tmp_path / "a"), embedder, "own_engine:NearestUses")
    company.learn(range(40, 50))
    thing, result = company.ask(50)
    note = company.notes[thing]
    assert result.memories[0].record.id == note.id
    assert result.memories[0].explanation["caused_by"]
    assert company.memory.sona.consolidate()
    company.memory.forget([note.id])
    assert note.id not in company.places(company.ask(50)[1])
    assert company.memory.recall("anything", min_relevance=0).memories
    company.memory.close()


def test_the_gate_also_controls_a_custom_engine(tmp_path: Path, untaught: Path, embedder: Embedder) -> None:
    company = opened(copied(untaught, tmp_path / "a"), embedder, "own_engine:NearestUses", "auto")
    company.learn(range(5))
    assert company.memory.sona.status().gate.state == "trial"
    assert {found.explanation["arm"] for found in company.ask(6)[1].memories} <= {None, "baseline"}
    company.memory.close()


@pytest.mark.parametrize("engine", ["Failing", "Misshapen", "Exaggerating", "Unknowing", "unavailable"])
def test_a_failing_engine_affects_neither_the_usual_ranking_nor_writes(
    tmp_path: Path, taught: Path, embedder: Embedder, engine: str
) -> None:
    usual, failing = (
        opened(copied(taught, tmp_path / name), embedder, f"own_engine:{engine}", mode)
        for name, mode in (("usual", "off"), ("failing", "on"))
    )
    with structlog.testing.capture_logs() as logs:
        assert failing.places(failing.ask(41)[1]) == usual.places(usual.ask(41)[1])
        failing.learn([42])
        failing.memory.remember("Another note", id="another")
    assert failing.memory.get(["another"])
    events = [one for one in logs if one["event"] == "learning.engine_failed"]
    assert len(events) == (0 if engine in ("Failing", "unavailable") else 1)  # those two failed as the memory opened
    for company in (usual, failing):
        company.memory.close()


@pytest.mark.parametrize(
    ("engine", "reason"),
    [
        ("no.such.module:Engine", "cannot be imported: No module named 'no'"),
        ("own_engine:NoSuch", "cannot be imported: module 'own_engine' has no attribute 'NoSuch'"),
        ("own_engine:NO_CLASS", "is not a class or function"),
    ],
)
def test_an_engine_that_cannot_be_imported_is_refused_by_name(
    tmp_path: Path, untaught: Path, embedder: Embedder, engine: str, reason: str
) -> None:
    with pytest.raises(SettingsError, match=f"learning.engine: {engine} {reason}"):
        opened(copied(untaught, tmp_path / "a"), embedder, engine)
