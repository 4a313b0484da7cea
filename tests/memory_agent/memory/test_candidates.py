"""Candidates under a filter: the same by either strategy, with neighbours and narrower searches."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import numpy as np
import pytest
from filter_worlds import NDIM, START, World, open_world

from memory_agent.recall.candidates import Candidates, CandidateSearch
from memory_agent.recall.deadline import Deadline
from memory_agent.recall.filter_plan import STRATEGIES, Strategy
from memory_agent.recall.query import make_query
from memory_agent.recall.query_vectors import QueryVector
from memory_agent.records import Embedding, MemoryFilter, Mode
from memory_agent.settings import RecallSettings
from memory_agent.storage.filter_sql import spanned

COUNT = 3_000
FILTERS = {
    "three": MemoryFilter(tags=("three",)),
    "a tenth": MemoryFilter(tags=("tenth",)),
    "half, above a floor": MemoryFilter(tags=("half",), min_score=0.1),
    "most": MemoryFilter(channel_id="c-0"),
    "nothing": MemoryFilter(session_id="s-unknown"),
}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Read-only."""
    with open_world(tmp_path_factory.mktemp("worlds") / "a", COUNT, exact_search_limit=10_000) as world:
        yield world


def vector(seed: int) -> Embedding:
    drawn: Embedding = np.random.default_rng(seed).normal(size=NDIM).astype(np.float32)
    return drawn / np.linalg.norm(drawn)


QUERY = QueryVector(vector(1), vector(2), "model")


def search(world: World, chosen: MemoryFilter | None, way: Strategy | None, mode: Mode = "hybrid") -> CandidateSearch:
    query = make_query("alpha word5", 5, chosen, mode, 60_000, {}, RecallSettings(), START)
    return CandidateSearch(world.archive, query, Deadline(60_000), 50, way)


def check_same(one: Candidates, other: Candidates) -> None:
    assert np.array_equal(one.rows, other.rows)
    assert np.array_equal(one.cosines, other.cosines, equal_nan=True)
    assert np.array_equal(one.bm25, other.bm25)


@pytest.mark.parametrize("mode", ["hybrid", "vector", "lexical"])
@pytest.mark.parametrize("chosen", FILTERS.values(), ids=FILTERS)
def test_both_strategies_find_the_same_candidates(world: World, chosen: MemoryFilter, mode: Mode) -> None:
    listed, searched, planned = (
        search(world, chosen, way, mode).find(QUERY) for way in ("filter_first", "search_first", None)
    )
    check_same(listed, searched)
    check_same(listed, planned)
    assert world.passing(chosen)[listed.rows].all()


@pytest.mark.parametrize("way", STRATEGIES)
@pytest.mark.parametrize("chosen", FILTERS.values(), ids=FILTERS)
def test_neighbours_pass_the_filter_and_the_floor_too(world: World, chosen: MemoryFilter, way: Strategy) -> None:
    finding = search(world, chosen, way)
    found = finding.find(QUERY)
    asked = range(1, 400)
    widened = finding.widen(found, QUERY, asked)
    raw = world.cosines(QUERY.raw)
    right = world.passing(chosen) & (True if chosen.min_score is None else raw >= chosen.min_score)
    assert set(widened.rows) == set(found.rows) | {row for row in asked if right[row]}
    assert np.allclose(widened.cosines, world.cosines(QUERY.centred)[widened.rows], atol=2e-6, equal_nan=True)


@pytest.mark.parametrize("way", STRATEGIES)
def test_a_second_search_may_be_narrower_in_time(world: World, way: Strategy) -> None:
    chosen = MemoryFilter(tags=("half",))
    spans = [(START, START + timedelta(minutes=200)), (START + timedelta(minutes=2_900), None)]
    found = search(world, chosen, way).find(QUERY, spanned(chosen, spans))
    times = {row: record.timestamp for row, record in world.records.items()}
    within = {
        row
        for row in np.flatnonzero(world.passing(chosen)).tolist()
        if any(since <= times[row] and (until is None or times[row] < until) for since, until in spans)
    }
    assert {*found.rows.tolist()} <= within
    cosines = world.cosines(QUERY.centred)
    nearest = sorted((row for row in within if not np.isnan(cosines[row])), key=lambda row: -cosines[row])[:50]
    assert {*nearest} <= {*found.rows.tolist()}


def test_without_a_vector_a_floor_that_was_asked_for_lets_nothing_through(world: World) -> None:
    assert search(world, MemoryFilter(min_score=0.1), None).find(None).rows.tolist() == []
    assert search(world, None, None).find(None).rows.size > 0
