"""Measures searches with filters that keep from three memories to all: both strategies, and how well the plan chose.

Each filter comes in three kinds: by quality (no index), by time and by tag (an index). Both strategies and the chosen
one take turns over the same new queries; times are processor time of the searching thread, since the machine may be
shared. Regret is the cost of the choice over the better strategy. Recall is against brute force and must be 1.

Run alone: `python -m ops.bench.filters [--large] [--constants]`; `--large` adds 100,000 memories (four minutes),
`--constants` measures the constants of the cost model instead.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from memory_agent.recall.deadline import Deadline, Indexes
from memory_agent.recall.filter_plan import STRATEGIES, Strategy
from memory_agent.recall.filtered_search import FilteredSearch
from memory_agent.records import Embedding, MemoryFilter
from memory_agent.settings import RecallSettings, StoreSettings
from memory_agent.storage.archive import Archive
from ops.bench.synthetic import START, SyntheticTexts, SyntheticVectors, synthetic_record

SIZES = (100, 1_000, 10_000)
LARGE_SIZES = (*SIZES, 100_000)
SHARES = (0.0, 0.001, 0.01, 0.05, 0.1, 0.3, 0.6, 1.0)
TARGET_RECALL = 1.0

_LIMIT = RecallSettings().candidates
_BATCH = 1_000
_QUERIES = 5
_TEXTS = 2_000
_COMMON = "common"  # in six of ten texts
_LEAST_KEPT = 3
_TOLERANCE = 2e-6


def measure(sizes: tuple[int, ...] = SIZES) -> dict[str, Any]:
    """Return, for each size, the figures of each filter and their summary."""
    return {str(size): _measure_one(size) for size in sizes}


def _measure_one(size: int) -> dict[str, Any]:
    with filled_archive(size) as archive:
        vectors = archive.store.vectors(np.arange(1, size + 1))
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        filters = [_compare(archive, vectors, name, chosen) for name, chosen in _filters(size).items()]
    regrets = [one["chosen_ms"] - min(one[f"{strategy}_ms"] for strategy in STRATEGIES) for one in filters]
    return {
        "filters": filters,
        "recall": min(one["recall"] for one in filters),
        "chosen_ms": {"median": _median(filters, "chosen_ms"), "most": max(one["chosen_ms"] for one in filters)},
        "always_ms": {s: {"median": _median(filters, f"{s}_ms"), "most": max(one[f"{s}_ms"] for one in filters)}
                      for s in STRATEGIES},
        "regret_ms": {"median": round(statistics.median(regrets), 3), "most": round(max(regrets), 3)},
        "worst_words_ms": max(one["words_ms"] for one in filters),
    }  # fmt: skip


@contextmanager
def filled_archive(size: int) -> Iterator[Archive]:
    """Yield an archive of synthetic memories; removed afterwards."""
    vectors, texts, random = SyntheticVectors(seed=1), SyntheticTexts(seed=2), np.random.default_rng(3)
    drawn = [texts.draw() for _ in range(min(size, _TEXTS))]
    with tempfile.TemporaryDirectory(prefix="bench-filters-") as folder:
        archive = Archive.open(Path(folder) / "user", StoreSettings(), "library")
        try:
            for start in range(0, size, _BATCH):
                count = min(_BATCH, size - start)
                with archive.batch() as batch:
                    for number, vector in enumerate(vectors.draw(count), start):
                        text = drawn[number % len(drawn)] + f" {_COMMON}" * (number % 10 < 6)
                        chance = float(random.random())
                        batch.put(
                            msgspec.structs.replace(
                                synthetic_record(number, text),
                                quality_score=chance,
                                tags=_tags(number, float(random.random())),
                            ),
                            vector,
                        )
            yield archive
        finally:
            archive.close()


def _tags(number: int, chance: float) -> tuple[str, ...]:
    few = ("keeps 0",) if number < _LEAST_KEPT else ()
    return few + tuple(f"keeps {share:g}" for share in SHARES if chance < share)


def _filters(size: int) -> dict[str, MemoryFilter]:
    """Return the filters by kind and share; a share of 0 stands for three memories."""
    made = {}
    for share in SHARES:
        part = max(share, _LEAST_KEPT / size)
        made[f"quality {part:.2g}"] = MemoryFilter(min_quality=1 - part)
        made[f"time {part:.2g}"] = MemoryFilter(since=START + timedelta(minutes=round(size * (1 - part))))
        made[f"tag {part:.2g}"] = MemoryFilter(tags=(f"keeps {share:g}",))
    return made


def _compare(archive: Archive, vectors: Embedding, name: str, chosen: MemoryFilter) -> dict[str, Any]:
    allowed = archive.lexicon.matching_rows(chosen)
    ways: dict[str, Strategy | None] = {strategy: strategy for strategy in STRATEGIES}
    ways["chosen"] = None
    taken_ms: dict[str, list[float]] = {way: [] for way in ways}
    right, words_ms = [], []
    filtered = _filtered(archive, chosen, None)
    for query in SyntheticVectors(seed=1).draw(_QUERIES, seed=4):
        best = np.sort(vectors[allowed - 1] @ query)[::-1][:_LIMIT]
        for way, strategy in ways.items():
            took_ms, (rows, scores) = _timed(lambda s=strategy, q=query: _nearest(archive, chosen, s, q))
            taken_ms[way].append(took_ms)
            right.append(_recall(scores, best) if set(rows.tolist()) <= set(allowed.tolist()) else 0.0)
        words_ms.append(_timed(lambda: filtered.by_words(_COMMON, _LIMIT))[0])
    assert filtered.plan is not None
    return {
        "filter": name,
        "matching": len(allowed),
        "estimated": filtered.plan.estimated_matching,
        "strategy": filtered.plan.strategy,
        "recall": min(right),
        "words_ms": round(statistics.median(words_ms), 3),
        "estimated_ms": filtered.plan.costs_ms,
    } | {f"{way}_ms": round(statistics.median(taken), 3) for way, taken in taken_ms.items()}


def _recall(scores: np.typing.NDArray[np.float32], best: np.typing.NDArray[np.float32]) -> float:
    """Return the share of the best cosines that were found."""
    if len(scores) != len(best):
        return 0.0
    return float(np.mean(np.abs(scores - best) < _TOLERANCE)) if len(best) else 1.0


def _filtered(archive: Archive, chosen: MemoryFilter, strategy: Strategy | None) -> FilteredSearch:
    return FilteredSearch(Indexes(archive, Deadline(600_000)), chosen, _LIMIT, strategy=strategy)


def _nearest(archive: Archive, chosen: MemoryFilter, strategy: Strategy | None, query: Embedding) -> Any:
    return _filtered(archive, chosen, strategy).nearest(query, _LIMIT)


def constants(size: int) -> dict[str, float]:
    """Return the constants of the cost model, in microseconds, over `size` memories."""
    with filled_archive(size) as archive:
        index, lexicon = archive.index, archive.lexicon
        query = SyntheticVectors(seed=1).draw(1, seed=4)[0]
        some = np.sort(np.random.default_rng(1).choice(size, 2_000, replace=False)) + 1
        none, most = MemoryFilter(min_quality=1.0), MemoryFilter(min_quality=0.4)
        passing = len(lexicon.matching_rows(most))
        tag, narrow = MemoryFilter(tags=("keeps 0.05",)), MemoryFilter(since=START + timedelta(minutes=size - 2_000))
        through_us = _us(lambda: lexicon.matching_rows(none))
        scan = {k: _us(lambda k=k: index._candidates(query, k, exact=True)) for k in (16, 2_000, 8_000)}
        return {
            "read": _us(lambda: index.score_rows(query, some)) / len(some),
            "scan": scan[16] / size,
            "best 2,000 over the bare scan, ms": (scan[2_000] - scan[16]) / 1000,
            "best 8,000 over the bare scan, ms": (scan[8_000] - scan[16]) / 1000,
            "go through": through_us / size,
            "list": (_us(lambda: lexicon.matching_rows(most)) - through_us) / passing,
            "by time": _us(lambda: lexicon.matching_rows(narrow)) / 2_000,
            "by tag": _us(lambda: lexicon.matching_rows(tag)) / len(lexicon.matching_rows(tag)),
            "look up": _us(lambda: lexicon.passing(some, most)) / len(some),
        }


def _timed(action: Callable[[], Any]) -> tuple[float, Any]:
    started_s = time.thread_time()
    result = action()
    return (time.thread_time() - started_s) * 1000, result


def _us(action: Callable[[], Any]) -> float:
    return statistics.median(_timed(action)[0] for _ in range(9)) * 1000


def _median(filters: list[dict[str, Any]], name: str) -> float:
    return round(statistics.median(one[name] for one in filters), 3)


def main(arguments: list[str]) -> None:
    """Print the figures as JSON."""
    sizes = LARGE_SIZES if "--large" in arguments else SIZES
    if "--constants" in arguments:
        figures = {str(size): {name: round(value, 3) for name, value in constants(size).items()} for size in sizes[2:]}
        print(json.dumps(figures, indent=2))
    else:
        print(json.dumps(measure(sizes), indent=2))


if __name__ == "__main__":
    main(sys.argv[1:])
