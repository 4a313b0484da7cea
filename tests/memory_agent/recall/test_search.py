"""Filters and minimum scores are exact at any selectivity, and the shortlist contains the best scores of the store."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pytest
from filter_worlds import NDIM, START, World, open_world
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from made_vectors import MadeVectors
from memory_samples import NOW, message
from talks import GivenVector

from memory_agent.embedders import Embedder
from memory_agent.errors import InvalidInputError
from memory_agent.memory import Memory
from memory_agent.recall.candidates import Candidates, fuse, lexical_share, scored, shortlist
from memory_agent.recall.evidence import REACH
from memory_agent.recall.query import Deadline, QueryDefaults, make_query
from memory_agent.recall.search import QueryVector, Search
from memory_agent.records.embedded import Embedding
from memory_agent.records.memories import KINDS, PROVENANCES, SOURCES, Kind, MemoryFilter, Mode, UnderstoodDate
from memory_agent.settings import EmbedderSettings, RecallSettings, Settings

LIMIT = 20
TOLERANCE = 4e-5  # of two int8 planes of 16 dimensions, relative to float64; float16 is no more precise
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


@pytest.fixture(scope="module", params=[(100, FLAT), (1_000, FLAT), (10_000, FLAT), (5_000, GRAPH)], ids=str)
def world(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Read-only."""
    count, exact_search_limit = request.param
    with open_world(tmp_path_factory.mktemp("worlds") / "a", count, exact_search_limit) as world:
        yield world


@pytest.fixture(scope="module")
def boxes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Memory]:
    """1,100 similar memories. Read-only."""
    with Memory.open(tmp_path_factory.mktemp("boxes") / "a", embedder=MadeVectors()) as memory:
        memory.ingest([message(number, f"box {number} of the store") for number in range(1_100)], now=NOW)
        yield memory


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with open_world(tmp_path_factory.mktemp("worlds") / "large", 25_000, FLAT) as world:
        yield world


@st.composite
def filters(draw: st.DrawFn) -> MemoryFilter:
    """Draw a combination of fields, with values that occur in the worlds and values that do not."""
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


def vector_of(seed: int) -> Embedding:
    vector: Embedding = np.random.default_rng(1_000 + seed).normal(size=NDIM).astype(np.float32)
    return vector / np.linalg.norm(vector)


def searched(
    world: World,
    chosen: MemoryFilter | None = None,
    seed: int | None = 1,
    *,
    mode: Mode = "hybrid",
    text: str = "alpha word5",
    dates: tuple[UnderstoodDate, ...] = (),
    dates_mode: str = "boost",
) -> Search:
    """Search with the vector of `seed`, without word vectors."""
    options: Any = {"dates": dates_mode}
    query = make_query(text, 5, chosen, mode, 600_000, options, QueryDefaults(RecallSettings(), START))
    words = np.zeros((0, NDIM), np.float16)
    vector = None if seed is None else QueryVector(vector_of(seed), "model", (), words, "")
    return GivenVector(world.archive, vector).search_for(query, dates)


def rows_in(found: Search) -> set[int]:
    view = found.view
    passing = view.alive if found.mask is None else found.mask & view.alive
    return set(view.rows[passing].tolist())


def check_filter(world: World, chosen: MemoryFilter, seed: int, floor: float | None) -> None:
    """Check the mask against brute force over the records."""
    found = searched(world, MemoryFilter(**{**as_fields(chosen), "min_score": floor}), seed)
    allowed = world.passing(chosen)
    near_floor = np.zeros(len(allowed), dtype=np.bool_)
    if floor is not None:
        raw = world.cosines(vector_of(seed))
        near_floor = np.abs(raw - floor) < TOLERANCE  # rounding decides whether these pass
        allowed = allowed & (raw >= floor)
    unsure = set(np.flatnonzero(near_floor).tolist())
    assert rows_in(found) - unsure == set(np.flatnonzero(allowed).tolist()) - unsure


def as_fields(chosen: MemoryFilter) -> dict[str, Any]:
    return {name: getattr(chosen, name) for name in chosen.__struct_fields__}


def by_hand(
    world: World, found: Search, chosen: MemoryFilter | None, seed: int
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return each slot's cosine by brute force (NaN if filtered out), and its BM25 score from the word index."""
    view = found.view
    cosines = np.where(view.alive, world.cosines(vector_of(seed))[view.rows], np.nan)
    bm25 = np.where(view.alive, view.words.scores(found.words), 0.0)
    if chosen is None:
        return cosines, bm25
    allowed = view.alive & world.passing(chosen)[view.rows]
    return np.where(allowed, cosines, np.nan), np.where(allowed, bm25, 0.0)


def best_of(found: Candidates, limit: int) -> list[float]:
    return np.sort(found.total[np.isfinite(found.cosines)])[::-1][:limit].tolist()


def with_neighbours_of(found: Search, slots: npt.NDArray[np.int64]) -> set[int]:
    """Return the slots that pass the filter and are within `REACH` places of `slots` in the session."""
    around = np.unique(found.view.windows(slots, REACH))
    around = around[around >= 0]
    return set(around[found.mask[around]].tolist() if found.mask is not None else around.tolist())


@pytest.mark.parametrize("fields", ONE_FIELD_EACH, ids=str)
def test_each_field_is_exact(world: World, fields: dict[str, Any]) -> None:
    check_filter(world, MemoryFilter(**fields), seed=1, floor=None)


@given(chosen=filters(), seed=st.integers(0, 50), floor=st.none() | st.floats(-1, 1))
@settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_fields_together_are_exact(world: World, chosen: MemoryFilter, seed: int, floor: float | None) -> None:
    check_filter(world, chosen, seed, floor)


@pytest.mark.parametrize("floor", [-1.0, -0.5, 0.0, 0.3, 0.6, 0.9, 1.0])
def test_a_floor_alone_is_exact(world: World, floor: float) -> None:
    check_filter(world, MemoryFilter(), seed=3, floor=floor)


@pytest.mark.parametrize("limit", [1, 5, 225])
@pytest.mark.parametrize(
    "chosen",
    [None, *(MemoryFilter(tags=(tag,)) for tag in ("three", "hundredth", "half")), MemoryFilter(channel_id="c-0")],
)
def test_in_vector_mode_the_shortlist_has_the_best_memories_by_exact_scores(
    world: World, chosen: MemoryFilter | None, limit: int
) -> None:
    if chosen is None and world.archive.view.vectors.is_approximate:
        pytest.skip("without a filter, the graph may miss a memory; its recall is tested elsewhere")
    for seed in range(5):
        found = searched(world, chosen, seed, mode="vector")
        short = shortlist(found, limit, sure=limit)
        right, _ = by_hand(world, found, chosen, seed)
        right = np.sort(right[np.isfinite(right)])[::-1][:limit]
        assert np.allclose(best_of(short, limit), right, rtol=0, atol=TOLERANCE)
        assert np.array_equal(short.slots, np.unique(short.slots))


def least_of(values: npt.NDArray[np.float64], limit: int, texts: npt.NDArray[np.int64] | None = None) -> float:
    """Return the `limit`-th highest finite value (one per text with `texts`), or -inf if there are too few."""
    best = values[np.isfinite(values)]
    if texts is not None:
        highest: dict[int, float] = {}
        for text, value in zip(texts[np.isfinite(values)].tolist(), best.tolist(), strict=True):
            highest[text] = max(value, highest.get(text, -np.inf))
        best = np.array(list(highest.values()))
    return float(np.sort(best)[-limit]) if best.size > limit else -np.inf


@pytest.mark.parametrize("limit", [1, 5, 50])
@pytest.mark.parametrize("chosen", [None, MemoryFilter(tags=("half",)), MemoryFilter(session_id="s-common")])
@pytest.mark.parametrize("text", ["alpha word5", "word5 word6 word7", "nothing of it"])
def test_the_shortlist_has_the_best_by_vector_and_by_words_and_their_neighbours(
    world: World, chosen: MemoryFilter | None, limit: int, text: str
) -> None:
    for seed in range(3):
        found = searched(world, chosen, seed, text=text)
        assert found.cosines is not None
        short = set(shortlist(found, limit, sure=limit).slots.tolist())
        cosines, bm25 = by_hand(world, found, chosen, seed)
        if found.cosines.unseen > -np.inf:  # a graph returns only the best slots that it found
            cosines = np.where(np.isnan(found.cosines.values), np.nan, cosines)
        error = 2 * found.cosines.error + TOLERANCE
        cosines, bm25 = np.nan_to_num(cosines, nan=-np.inf), np.where(bm25 > 0, bm25, -np.inf)
        above = (cosines > least_of(cosines, limit) + error) | (bm25 > least_of(bm25, limit))
        texts = found.view.fingerprints  # one copy per text suffices
        reaching = (cosines >= least_of(cosines, limit, texts) - error) | (bm25 >= least_of(bm25, limit, texts))
        certain = np.flatnonzero(above)
        possible = np.flatnonzero(reaching & (np.isfinite(cosines) | np.isfinite(bm25)))
        assert with_neighbours_of(found, certain) <= short <= with_neighbours_of(found, possible)


@pytest.mark.parametrize("mode", ["hybrid", "vector", "lexical"])
def test_each_mode_uses_its_own_scores(world: World, mode: Mode) -> None:
    search = searched(world, mode=mode, seed=1)
    found = shortlist(search, 50, sure=10)
    assert np.isfinite(found.cosines).any() == (mode != "lexical")
    assert (found.bm25 > 0).any() == (mode != "vector")
    shares = lexical_share(found.bm25, float(search.bm25.max()))
    if mode == "hybrid":
        right = fuse(found.cosines, found.words, shares, search.settings.vector_weight)
    else:
        right = found.cosines if mode == "vector" else shares
    assert np.array_equal(found.fused, right)
    assert np.array_equal(found.total, right + found.speaker)


def test_a_memory_without_a_vector_is_found_by_its_words(world: World) -> None:
    lacking = [row for row in world.records if np.isnan(world.vectors[row, 0])]
    text = world.records[lacking[0]].text
    found = shortlist(searched(world, seed=1, text=text), 50, sure=10)
    assert set(lacking) & set(found.rows[np.isnan(found.cosines)].tolist())


def test_dates_that_filter_narrow_the_search_in_time(world: World) -> None:
    spans = ((START, START + timedelta(minutes=20)), (START + timedelta(minutes=60), None))
    dates = tuple(UnderstoodDate(phrase="then", since=since, until=until) for since, until in spans)
    chosen = MemoryFilter(tags=("half",))
    found = searched(world, chosen, dates=dates, dates_mode="filter")
    within = {
        row
        for row in np.flatnonzero(world.passing(chosen)).tolist()
        if any(
            since <= world.records[row].timestamp and (until is None or world.records[row].timestamp < until)
            for since, until in spans
        )
    }
    assert rows_in(found) == within


def test_dates_that_boost_add_candidates_that_are_not_among_the_best(world: World) -> None:
    when = UnderstoodDate(phrase="then", since=START, until=START + timedelta(minutes=1))
    boosted, plain = (shortlist(searched(world, dates=dates), 10, sure=10) for dates in ((when,), ()))
    assert boosted.dates.max() > 0
    assert not plain.dates.any()
    if world.archive.view.live > 100:
        assert np.setdiff1d(boosted.slots, plain.slots).size
    if world.archive.view.vectors.is_approximate:
        return
    search = searched(world, dates=(when,))
    cosines, _ = by_hand(world, search, None, 1)
    everything = scored(search, np.flatnonzero(np.isfinite(cosines)))
    near = everything.dates + everything.cosines
    best = everything.slots[np.argsort(np.where(everything.dates > 0, -near, np.inf))[:5]]
    assert set(best.tolist()) <= set(boosted.slots.tolist())


@pytest.mark.parametrize("mode", ["hybrid", "vector", "lexical"])
def test_after_the_deadline_neighbours_are_left_out(world: World, mode: Mode) -> None:
    found = searched(world, mode=mode)
    late = msgspec.structs.replace(found, deadline=Deadline(0))
    short, whole = shortlist(late, 10, sure=10), shortlist(found, 10, sure=10)
    assert set(short.slots.tolist()) <= set(whole.slots.tolist())
    assert (short.slots.size < whole.slots.size) == (mode == "hybrid")
    assert late.deadline.degraded == (["deadline"] if mode == "hybrid" else [])


def test_without_a_vector_no_memory_passes_a_floor_that_the_caller_set(world: World) -> None:
    assert not rows_in(searched(world, MemoryFilter(min_score=0.1), seed=None))
    assert shortlist(searched(world, seed=None), 50, sure=10).slots.size > 0


def test_without_a_vector_the_mode_vector_falls_back_to_words(world: World) -> None:
    assert shortlist(searched(world, seed=None, mode="vector"), 50, sure=10).bm25.min() > 0


@pytest.mark.parametrize("mode", ["hybrid", "vector", "lexical"])
@pytest.mark.parametrize("text", ["alpha word5", "all", "nothing of it"])
def test_a_shortlist_is_marked_complete_exactly_when_it_has_everything_that_can_answer(
    world: World, mode: Mode, text: str
) -> None:
    """Otherwise a recall would omit memories that belong in its answer, or search until the deadline."""
    given = searched(world, text=text, mode=mode)
    found = given.with_more_cosines(1_000_000)
    view = found.view
    can_answer = view.alive & (found.bm25 > 0)
    if mode != "lexical":
        can_answer |= np.isfinite(view.vectors.scan(vector_of(1), view.count, view.alive).values)
    limit, is_all = 10, False
    while not is_all:
        assert limit < 100 * view.count, "it is found out"
        short = shortlist(found, limit, sure=1)
        is_all = short.is_all
        has_all = bool(np.isin(np.flatnonzero(can_answer), short.slots).all())
        assert np.isin(view.fingerprints[can_answer], view.fingerprints[short.slots]).all() or not is_all
        assert is_all or not has_all or mode == "hybrid"  # the neighbours may include all other slots
        limit *= 8
    assert shortlist(given, view.count, sure=1).is_all == (found is given)


def test_candidates_without_a_vector_get_the_mean_cosine_of_the_others(world: World) -> None:
    found = searched(world, seed=1)
    lacking = found.view.slots([row for row in world.records if np.isnan(world.vectors[row, 0])][:2])
    slots = np.union1d(shortlist(found, 5, sure=5).slots, lacking)
    joined = scored(found, slots)
    weight = found.settings.vector_weight
    by_words = fuse(np.zeros(len(slots)), joined.words, joined.shares, weight)
    right = (weight * np.nanmean(joined.cosines) + by_words)[np.isin(slots, lacking)]
    assert np.allclose(joined.fused[np.isin(slots, lacking)], right)


@pytest.mark.slow
@pytest.mark.parametrize(
    "fields",
    [{"tags": ("three",)}, {"session_id": "s-7"}, {"channel_id": "c-0"}, {"tags": ("tenth",), "min_quality": 0.5}],
    ids=str,
)
def test_filters_over_25_000_memories_are_exact(large: World, fields: dict[str, Any]) -> None:
    chosen = MemoryFilter(**fields)
    check_filter(large, chosen, seed=2, floor=None)
    check_filter(large, chosen, seed=2, floor=0.2)
    found = searched(large, chosen, 2, mode="vector")
    right, _ = by_hand(large, found, chosen, 2)
    right = np.sort(right[np.isfinite(right)])[::-1][:50]
    assert np.allclose(best_of(shortlist(found, 50, sure=50), 50), right, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("mode", ["hybrid", "vector", "lexical"])
def test_an_answer_may_have_a_thousand_memories(boxes: Memory, mode: Mode) -> None:
    found = boxes.recall("which box is in the store?", top_k=1_000, mode=mode, deadline_ms=60_000, min_relevance=0.0)
    assert found.degraded == ()
    assert len({one.record.id for one in found.memories}) == 1_000
    scores = [one.sona_score for one in found.memories]
    assert scores == sorted(scores, reverse=True)


def test_of_equal_memories_the_later_one_comes_first(tmp_path: Path, embedder: Embedder) -> None:
    with Memory.open(tmp_path / "a", embedder=embedder) as memory:
        kinds: tuple[Kind, ...] = ("finding", "pattern", "episode")
        modes: tuple[Mode, ...] = ("hybrid", "vector", "lexical")
        twins = [memory.remember("Staging needs the VPN", kind=kind) for kind in kinds]
        for mode in modes:
            found = memory.recall("what does staging need?", mode=mode).memories
            ids = [one.record.id for one in found]
            assert ids == [twin.id for twin in reversed(twins)]


TOPICS = ("The kiln for the pottery needs six hours", "Users are signed out when two tabs refresh a token")


@pytest.fixture
def told(tmp_path: Path, embedder: Embedder) -> Iterator[Memory]:
    with Memory.open(tmp_path / "alice", embedder=embedder) as memory:
        for number, text in enumerate(TOPICS):
            memory.remember(text, id=f"m-{number}")
        yield memory


def test_the_callers_own_vector_finds_what_its_text_finds_without_an_embedder(told: Memory, tmp_path: Path) -> None:
    own = told.get(["m-1"], with_embedding=True)[0].embedding
    model = told.stats().model
    assert own is not None
    by_text = told.recall(TOPICS[1], mode="vector")
    told.close()
    no_model = Settings(embedder=EmbedderSettings(folder="none", allow_download=False))
    with Memory.open(tmp_path / "alice", settings=no_model) as memory:
        for vector in (own, *([scale * one for one in own] for scale in (7, 1e200, 1e-200)), np.array(own)):
            found = memory.recall(vector=vector, vector_model=model)
            assert ([one.record.id for one in found.memories], found.degraded) == (["m-1"], ())
            assert found.memories[0].score == pytest.approx(by_text.memories[0].score, abs=1e-3)
        both = memory.recall("pottery kiln", vector=own, vector_model=model, min_relevance=0, context_tokens=200)
        assert {one.record.id: one.retrieval for one in both.memories} == {"m-0": "hybrid", "m-1": "vector"}
        assert TOPICS[0] in (both.context or "")


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"vector": [1.0] * 3}, "vector"),
        ({"vector": [0.0] * 384}, "vector"),
        ({"vector": [float("nan")] * 384}, "vector"),
        ({"vector": "0.5"}, "vector"),
        ({"vector": [[0.5]]}, "vector"),
        ({"vector_model": "a-model-of-mine"}, "vector_model"),
        ({"vector_model": None}, "vector_model"),
        ({"vector": None}, "vector_model"),
        ({"mode": "lexical"}, "mode"),
        ({"tiers": ["local", "global"]}, "query"),
    ],
    ids=str,
)
def test_a_vector_that_cannot_be_compared_is_refused(told: Memory, given: dict[str, Any], field: str) -> None:
    right: dict[str, Any] = {"vector": [1.0] * 384, "vector_model": told.stats().model}
    assert told.recall(**right, min_relevance=0).total == 2
    with pytest.raises(InvalidInputError) as caught:
        told.recall(**(right | given))
    assert caught.value.field == field


def test_a_vector_alone_finds_nothing_in_a_store_without_vectors(tmp_path: Path) -> None:
    no_model = Settings(embedder=EmbedderSettings(folder="none", allow_download=False))
    with Memory.open(tmp_path / "alice", settings=no_model) as memory:
        memory.remember(TOPICS[0])
        found = memory.recall(vector=[1.0, 0.0], vector_model="mine", min_relevance=0)
        assert (found.memories, found.degraded) == ((), ("vectors_pending",))
