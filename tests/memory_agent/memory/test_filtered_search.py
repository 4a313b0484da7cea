"""Filters at any selectivity, over 100 to 100,000 memories, by both strategies and the chosen one: always exact."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import msgspec
import numpy as np
import pytest
from filter_worlds import NDIM, START, World, open_world
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from memory_agent.recall.deadline import Deadline, Indexes
from memory_agent.recall.filter_plan import STRATEGIES, Strategy
from memory_agent.recall.filtered_search import FilteredSearch, Found
from memory_agent.records import KINDS, PROVENANCES, SOURCES, Embedding, MemoryFilter

WAYS: tuple[Strategy | None, ...] = (*STRATEGIES, None)
LIMIT = 20
TOLERANCE = 2e-6  # float32 beside float64
FLAT, GRAPH = 1_000_000, 500

ONE_FIELD_EACH: list[dict[str, Any]] = [
    {"kinds": ("episode",)},
    {"kinds": ("pattern", "strategy")},
    {"sources": ("trajectory_outcome",)},
    {"since": START + timedelta(minutes=40)},
    {"until": START + timedelta(minutes=40)},
    {"since": START + timedelta(minutes=40), "until": START + timedelta(minutes=43)},
    {"since": START + timedelta(minutes=40), "until": START + timedelta(minutes=40)},
    {"since": START - timedelta(days=9), "until": START + timedelta(days=900)},
    {"session_id": "s-1"},
    {"session_id": "s-common"},
    {"session_id": "s-unknown"},
    {"run_id": "r-0"},
    {"run_id": "r-30"},
    {"channel_id": "c-0"},
    {"channel_id": "c-1"},
    {"agent_id": "a-2"},
    {"tags": ("three",)},
    {"tags": ("hundredth", "three")},
    {"tags": ("half",)},
    {"tags": ("unknown",)},
    {"provenance": ("cited", "assumed")},
    {"min_quality": 0.0},
    {"min_quality": 0.97},
    {"min_quality": 1.0},
]


@pytest.fixture(scope="module", params=[(100, FLAT), (1_000, FLAT), (10_000, FLAT), (10_000, GRAPH)], ids=str)
def world(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Read-only."""
    count, exact_search_limit = request.param
    with open_world(tmp_path_factory.mktemp("worlds") / "a", count, exact_search_limit) as world:
        assert world.archive.index.is_approximate == (exact_search_limit == GRAPH)
        yield world


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """100,000 memories in a flat table; a graph takes 30 s to build and is measured by the bench."""
    with open_world(tmp_path_factory.mktemp("worlds") / "large", 100_000, FLAT) as world:
        yield world


@st.composite
def filters(draw: st.DrawFn) -> MemoryFilter:
    """Any combination of fields, with values that occur in the worlds and some that do not."""
    fields: dict[str, Any] = {}
    for one in draw(st.lists(st.sampled_from(ONE_FIELD_EACH), min_size=1, max_size=3)):
        fields |= one
    drawn = {
        "kinds": st.lists(st.sampled_from(KINDS), max_size=3, unique=True).map(tuple),
        "sources": st.lists(st.sampled_from(SOURCES), max_size=3, unique=True).map(tuple),
        "provenance": st.lists(st.sampled_from(PROVENANCES), max_size=2, unique=True).map(tuple),
        "since": st.integers(-100, 11_000).map(lambda minutes: START + timedelta(minutes=minutes)),
        "until": st.integers(-100, 11_000).map(lambda minutes: START + timedelta(minutes=minutes)),
        "agent_id": st.sampled_from(["a-0", "a-3", "a-none"]),
        "min_quality": st.floats(0, 1),
    }
    name = draw(st.sampled_from([*drawn, None]))
    return MemoryFilter(**fields | ({} if name is None else {name: draw(drawn[name])}))


queries = st.tuples(st.integers(0, 50), st.sampled_from([1, LIMIT, 300]))
floors = st.none() | st.floats(-1, 1)


def query_of(seed: int) -> Embedding:
    vector: Embedding = np.random.default_rng(1_000 + seed).normal(size=NDIM).astype(np.float32)
    return vector / np.linalg.norm(vector)


def filtered_by(world: World, chosen: MemoryFilter | None, limit: int, way: Strategy | None) -> FilteredSearch:
    return FilteredSearch(Indexes(world.archive, Deadline(600_000)), chosen, limit, strategy=way)


def check_vectors(world: World, chosen: MemoryFilter, seed: int, limit: int, floor: float | None) -> None:
    """Rows, cosines and order equal brute force by each strategy, bit-identical across strategies."""
    searched, raw = query_of(seed), query_of(seed + 1)
    cosines = world.cosines(searched)
    near_floor = np.zeros(len(cosines), dtype=np.bool_)
    allowed = world.passing(chosen) & ~np.isnan(cosines)
    if floor is not None:
        raw_cosines = world.cosines(raw)
        near_floor = np.abs(raw_cosines - floor) < TOLERANCE  # rounding decides about these
        allowed &= (raw_cosines >= floor) | near_floor
    found = []
    for way in WAYS:
        filtered = filtered_by(world, chosen, limit, way)
        if floor is not None:
            filtered.apply_floor(raw, floor, insists=True)
        answer = filtered.nearest(searched, limit)
        assert answer is not None
        found.append(answer)
    if not near_floor.any():
        right = np.sort(cosines[allowed])[::-1][:limit]
        assert np.allclose(found[0][1], right, rtol=0, atol=TOLERANCE)
    for rows, scores in found:
        assert allowed[rows].all()
        assert np.allclose(scores, cosines[rows], rtol=0, atol=TOLERANCE)
        assert np.array_equal(np.lexsort((-rows, -scores)), np.arange(len(rows)))
        assert np.array_equal(rows, found[0][0])
        assert np.array_equal(scores, found[0][1])


def check_words(world: World, chosen: MemoryFilter, limit: int) -> None:
    """BM25 equals that without a filter, by each strategy."""
    for query in ("alpha", "beta word5", "nothing"):
        rows, scores = world.archive.lexicon.search(query, 10**9)
        passed = world.passing(chosen)[rows]
        for way in WAYS:
            found: Found = filtered_by(world, chosen, limit, way).by_words(query, limit)
            assert np.array_equal(found[0], rows[passed][:limit])
            assert np.array_equal(found[1], scores[passed][:limit])


def check_rows(world: World, chosen: MemoryFilter, seed: int) -> None:
    """As for neighbours: which of some rows match."""
    asked = np.random.default_rng(seed).permutation(len(world.vectors))[:50]
    right = np.sort(asked[world.passing(chosen)[asked]])
    for way in WAYS:
        assert np.array_equal(filtered_by(world, chosen, LIMIT, way).passing(asked), right)


@pytest.mark.parametrize("fields", ONE_FIELD_EACH, ids=str)
def test_each_field_is_exact_by_each_strategy(world: World, fields: dict[str, Any]) -> None:
    chosen = MemoryFilter(**fields)
    check_vectors(world, chosen, seed=1, limit=LIMIT, floor=None)
    check_words(world, chosen, LIMIT)
    check_rows(world, chosen, seed=1)


@given(chosen=filters(), query=queries, floor=floors)
@settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_fields_together_are_exact_by_each_strategy(
    world: World, chosen: MemoryFilter, query: tuple[int, int], floor: float | None
) -> None:
    check_vectors(world, chosen, *query, floor)
    check_words(world, chosen, query[1])
    check_rows(world, chosen, query[0])


@pytest.mark.parametrize("floor", [-1.0, -0.5, 0.0, 0.3, 0.6, 0.9, 1.0])
def test_a_floor_alone_is_exact(world: World, floor: float) -> None:
    raw = query_of(3)
    cosines = world.cosines(raw)
    for searched in (raw, query_of(4)):
        filtered = filtered_by(world, None, LIMIT, None)
        filtered.apply_floor(raw, floor, insists=True)
        answer = filtered.nearest(searched, LIMIT)
        assert answer is not None
        right = np.sort(world.cosines(searched)[cosines >= floor])[::-1][:LIMIT]
        assert np.allclose(answer[1], right, rtol=0, atol=TOLERANCE)
        rows, scores = world.archive.lexicon.search("alpha", 10**9)
        reach = cosines[rows] >= floor
        words = filtered.by_words("alpha", LIMIT)
        assert np.array_equal(words[0], rows[reach][:LIMIT])
        assert np.array_equal(words[1], scores[reach][:LIMIT])


@pytest.mark.slow
@pytest.mark.parametrize(
    "fields",
    [
        {"tags": ("three",)},
        {"session_id": "s-7"},
        {"channel_id": "c-1"},
        {"tags": ("tenth",), "min_quality": 0.5},
        {"since": START + timedelta(minutes=99_000)},
        {"since": START + timedelta(minutes=500), "kinds": ("episode",)},
        {"channel_id": "c-0"},
    ],
    ids=str,
)
def test_filters_over_100_000_memories_are_exact_by_each_strategy(large: World, fields: dict[str, Any]) -> None:
    chosen = MemoryFilter(**fields)
    check_vectors(large, chosen, seed=2, limit=200, floor=None)
    check_words(large, chosen, LIMIT)
    check_rows(large, chosen, seed=1)


@pytest.mark.slow
@given(chosen=filters(), query=queries, floor=floors)
@settings(max_examples=6, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_fields_together_are_exact_over_100_000_memories(
    large: World, chosen: MemoryFilter, query: tuple[int, int], floor: float | None
) -> None:
    check_vectors(large, chosen, *query, floor)
    check_rows(large, chosen, query[0])


@pytest.mark.slow
def test_three_of_100_000_are_listed_and_most_of_them_are_searched_first(large: World) -> None:
    few, most = (filtered_by(large, MemoryFilter(**{name: value}), 200, None) for name, value in  # type: ignore[arg-type]
                 [("tags", ("three",)), ("channel_id", "c-0")])  # fmt: skip
    assert (few.plan.strategy, few.matching) == ("filter_first", 3)  # type: ignore[union-attr]
    assert (most.plan.strategy, most.matching) == ("search_first", None)  # type: ignore[union-attr]
    right = large.passing(MemoryFilter(channel_id="c-0")).sum()
    assert abs(most.plan.estimated_matching - right) < 0.1 * right  # type: ignore[union-attr]


@pytest.mark.parametrize("budget_us", [0.0, 500.0])
def test_a_search_that_finds_too_little_lists_after_all(world: World, budget_us: float) -> None:
    """The answer is exact even under a deliberately wrong estimate."""
    chosen = MemoryFilter(tags=("three",))
    filtered = filtered_by(world, chosen, LIMIT, "search_first")
    assert filtered.plan is not None
    total = len(world.records)
    filtered.plan = msgspec.structs.replace(filtered.plan, estimated_matching=total, budget_us=budget_us)
    rows, _ = filtered.nearest(query_of(1), LIMIT) or ([], [])
    right = world.passing(chosen) & ~np.isnan(world.cosines(query_of(1)))
    assert sorted(rows) == np.flatnonzero(right).tolist()
    assert filtered.explanation is not None
    if total > 1_000 or not budget_us:
        assert filtered.explanation["gave_up"]
        assert filtered.matching == world.passing(chosen).sum()


def test_reject_all_lets_nothing_pass(world: World) -> None:
    filtered = filtered_by(world, None, LIMIT, None)
    filtered.reject_all()
    assert filtered.passing(np.arange(1, 50)).tolist() == []
    assert filtered.by_words("alpha", LIMIT)[0].tolist() == []
    rows, _ = filtered.nearest(query_of(1), LIMIT) or ([1], [])
    assert list(rows) == []


def test_the_explanation_says_what_was_estimated_and_what_was_found(world: World) -> None:
    chosen = MemoryFilter(tags=("three",))
    said = filtered_by(world, chosen, LIMIT, "filter_first").explanation
    assert said is not None
    assert said["strategy"] == "filter_first"
    assert said["matching"] == world.passing(chosen).sum()
    assert said["estimated_matching"] >= 0
    assert {*said["cost_ms"]} == {*STRATEGIES}
    assert min(said["cost_ms"].values()) > 0
    assert filtered_by(world, None, LIMIT, None).explanation is None
