"""Measures filters that keep from three memories to all: their masks, and vector searches under them.

Each filter comes in three kinds: by quality, by time and by tag. Times are processor time of the searching thread,
since the machine may be shared. Recall is against brute force and must be 1.

Run alone: `python -m ops.bench.filters [--large]`; `--large` adds 100,000 memories.
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

from memory_agent.records import Embedding, MemoryFilter
from memory_agent.settings import StoreSettings
from memory_agent.storage.archive import Archive
from memory_agent.storage.columns import View
from ops.bench.storage import nearest
from ops.bench.synthetic import START, SyntheticTexts, SyntheticVectors, synthetic_record

SIZES = (100, 1_000, 10_000)
LARGE_SIZES = (*SIZES, 100_000)
SHARES = (0.0, 0.001, 0.01, 0.05, 0.1, 0.3, 0.6, 1.0)
TARGET_RECALL = 1.0

_LIMIT = 200
_BATCH = 1_000
_QUERIES = 5
_TEXTS = 2_000
_LEAST_KEPT = 3
_TOLERANCE = 1e-5  # the vectors here are those of the store, in float16


def measure(sizes: tuple[int, ...] = SIZES) -> dict[str, Any]:
    """Return, for each size, the figures of each filter and their summary."""
    return {str(size): _measure_one(size) for size in sizes}


def _measure_one(size: int) -> dict[str, Any]:
    with filled_archive(size) as archive:
        vectors = archive.store.vectors(np.arange(1, size + 1))
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        filters = [_filtered(archive.view, vectors, name, chosen) for name, chosen in _filters(size).items()]
    names = ("mask_ms", "search_ms", "unfiltered_ms")
    return {"filters": filters, "recall": min(one["recall"] for one in filters)} | {
        name: {
            "median": round(statistics.median(one[name] for one in filters), 3),
            "most": max(one[name] for one in filters),
        }
        for name in names
    }


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
                        text = drawn[number % len(drawn)]
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


def _filtered(view: View, vectors: Embedding, name: str, chosen: MemoryFilter) -> dict[str, Any]:
    mask = view.mask(chosen)
    assert mask is not None
    allowed = view.rows[mask]
    mask_ms, search_ms, unfiltered_ms, right = [], [], [], []
    for query in SyntheticVectors(seed=1).draw(_QUERIES, seed=4):
        best = np.sort(vectors[allowed - 1] @ query)[::-1][:_LIMIT]
        mask_ms.append(_timed(lambda: view.mask(chosen))[0])
        took_ms, rows = _timed(lambda q=query: nearest(view, q, _LIMIT, mask))
        search_ms.append(took_ms)
        unfiltered_ms.append(_timed(lambda q=query: nearest(view, q, _LIMIT))[0])
        scores = vectors[np.array(rows, dtype=np.int64) - 1] @ query
        is_right = set(rows) <= set(allowed.tolist()) and len(scores) == len(best)
        right.append(float(np.mean(np.abs(scores - best) < _TOLERANCE)) if is_right and len(best) else float(is_right))
    return {
        "filter": name,
        "matching": len(allowed),
        "recall": min(right),
        "mask_ms": round(statistics.median(mask_ms), 3),
        "search_ms": round(statistics.median(search_ms), 3),
        "unfiltered_ms": round(statistics.median(unfiltered_ms), 3),
    }


def _timed(action: Callable[[], Any]) -> tuple[float, Any]:
    started_s = time.thread_time()
    result = action()
    return (time.thread_time() - started_s) * 1000, result


def main(arguments: list[str]) -> None:
    """Print the figures as JSON."""
    print(json.dumps(measure(LARGE_SIZES if "--large" in arguments else SIZES), indent=2))


if __name__ == "__main__":
    main(sys.argv[1:])
