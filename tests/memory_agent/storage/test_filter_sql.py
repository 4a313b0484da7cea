"""Rows that pass a filter: listed, looked up, estimated, and searched for words."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from samples import NOW, memory

from memory_agent.records import MemoryFilter
from memory_agent.storage.changes import Change, Changes, indexed_text
from memory_agent.storage.lexicon import Lexicon

COUNT = 20_000

FILTERS = {
    "everything": MemoryFilter(),
    "kind": MemoryFilter(kinds=("finding",)),
    "tag": MemoryFilter(tags=("tenth",)),
    "tags": MemoryFilter(tags=("tenth", "rare")),
    "rare tag": MemoryFilter(tags=("rare",)),
    "session": MemoryFilter(session_id="s-7"),
    "session and tag": MemoryFilter(session_id="s-7", tags=("tenth",)),
    "run and tag": MemoryFilter(run_id="r-1", tags=("tenth",)),
    "quality": MemoryFilter(min_quality=0.5),
    "a narrow time and kind": MemoryFilter(since=NOW + timedelta(seconds=19_000), kinds=("finding",)),
    "a wide time and kind": MemoryFilter(since=NOW + timedelta(seconds=100), kinds=("finding",)),
    "time": MemoryFilter(since=NOW + timedelta(seconds=100), until=NOW + timedelta(seconds=200)),
    "nothing": MemoryFilter(session_id="s-none"),
}


@pytest.fixture(scope="module")
def lexicon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lexicon]:
    """Read-only. One row in nine is deleted."""
    lexicon = Lexicon.fresh(tmp_path_factory.mktemp("filtered") / "lexicon")
    memories = [
        memory(
            f"common word{number % 50}" if number % 5 else "another",
            timestamp=NOW + timedelta(seconds=number),
            kind="finding" if number % 3 else "episode",
            tags=("tenth",) if number % 10 == 0 else ("rare",) if number % 6_000 == 1 else (),
            session_id=f"s-{number // 30}",
            run_id=f"r-{number % 4}",
            quality_score=None if number % 4 else 0.8,
        )
        for number in range(COUNT)
    ]
    lexicon.rebuild(enumerate(memories, start=1), through=1, lineage="store")
    gone = [Change(row, "delete", None, None, False, indexed_text(memories[row - 1])) for row in range(1, COUNT + 1, 9)]
    lexicon.apply(Changes(1, 2, gone))
    yield lexicon
    lexicon.close()


@pytest.mark.parametrize("chosen", FILTERS.values(), ids=FILTERS)
def test_looked_up_one_by_one_the_same_rows_pass_as_are_listed(lexicon: Lexicon, chosen: MemoryFilter) -> None:
    listed = lexicon.matching_rows(chosen)
    assert (np.diff(listed) > 0).all()
    assert lexicon.count_matching(chosen) == len(listed)
    assert np.array_equal(lexicon.passing(np.arange(COUNT + 100), chosen), listed)
    some = np.random.default_rng(1).permutation(COUNT)[:500]
    assert np.array_equal(lexicon.passing(some, chosen), np.intersect1d(some, listed))
    assert lexicon.passing(some[:0], chosen).tolist() == []


def test_more_rows_are_looked_up_than_a_statement_takes_parameters(lexicon: Lexicon) -> None:
    assert len(lexicon.passing(np.arange(300_000), FILTERS["kind"])) == len(lexicon.matching_rows(FILTERS["kind"]))


@pytest.mark.parametrize("chosen", FILTERS.values(), ids=FILTERS)
def test_an_estimate_is_close_and_never_exceeds_the_index_bound(lexicon: Lexicon, chosen: MemoryFilter) -> None:
    total, right = len(lexicon), len(lexicon.matching_rows(chosen))
    estimated, indexed = lexicon.estimate_matching(chosen, total)
    if indexed is None:
        assert abs(estimated - right) < 0.1 * total
    else:
        assert right <= estimated <= indexed < total
    assert lexicon.estimate_matching(chosen, total) == (estimated, indexed)


@pytest.mark.parametrize(("name", "leaves"), [("session", 30), ("rare tag", 4), ("time", 100), ("nothing", 0)])
def test_rows_narrowed_by_an_index_are_counted(lexicon: Lexicon, name: str, leaves: int) -> None:
    _, indexed = lexicon.estimate_matching(FILTERS[name], len(lexicon))
    assert indexed is not None
    assert 0.7 * leaves <= indexed <= leaves


def test_nothing_is_estimated_of_an_empty_lexicon(tmp_path_factory: pytest.TempPathFactory) -> None:
    with Lexicon.fresh(tmp_path_factory.mktemp("empty") / "lexicon") as empty:
        empty.rebuild([], through=1, lineage="store")
        assert empty.estimate_matching(FILTERS["kind"], 0) == (0, None)
        assert empty.matching_rows(FILTERS["kind"]).tolist() == []
        assert empty.passing(np.arange(10), FILTERS["kind"]).tolist() == []


@given(rows=st.lists(st.integers(1, COUNT + 10), max_size=30), limit=st.integers(0, 40))
@settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_words_among_some_rows_have_the_scores_that_they_have_among_all(
    lexicon: Lexicon, rows: list[int], limit: int
) -> None:
    found, scores = lexicon.search("common word7", 10**9)
    chosen = np.array(rows, dtype=np.int64)
    among = np.isin(found, chosen)
    assert np.array_equal(lexicon.search("common word7", limit, rows=chosen)[0], found[among][:limit])
    assert np.array_equal(lexicon.search("common word7", limit, rows=chosen)[1], scores[among][:limit])


def test_words_among_some_rows_go_through_a_filter_too(lexicon: Lexicon) -> None:
    chosen = np.arange(1, 230)
    expected = np.intersect1d(chosen, lexicon.matching_rows(FILTERS["session"]))
    found, _ = lexicon.search("common another", 10**6, FILTERS["session"], rows=chosen)
    assert np.array_equal(np.sort(found), expected)
    assert len(expected) > 10
