"""Measures the size of a user's memories on disk and in memory, and the speed and quality of searches.

`python -m ops.bench.storage` measures 10,000 memories; `--large` adds 100,000 (about two minutes). Each size runs in
its own process, and resident memory is counted over that of the same process with an empty store. Texts and vectors are
synthetic; queries are new draws from the same clusters.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from memory_agent.records import Embedding, MemoryFilter
from memory_agent.settings import StoreSettings
from memory_agent.storage import derived
from memory_agent.storage.lexicon import Lexicon
from memory_agent.storage.store import Store
from memory_agent.storage.vector_index import VectorIndex
from ops.bench.synthetic import SyntheticTexts, SyntheticVectors, synthetic_record

SIZES = (10_000,)
LARGE_SIZES = (10_000, 100_000)
TARGETS = {10_000: {"disk_mb": 25, "resident_mb": 60}, 100_000: {"disk_mb": 250, "resident_mb": 400, "recall": 0.98}}

_SETTINGS = StoreSettings()
_BATCH = 100
_QUERIES = 200


def measure(sizes: tuple[int, ...] = SIZES) -> dict[str, Any]:
    """Return the figures of each size, with their targets."""
    return {str(size): _measure_apart(size) | {"targets": TARGETS.get(size, {})} for size in sizes}


def _measure_apart(size: int) -> dict[str, Any]:
    command = [sys.executable, "-m", "ops.bench.storage", "--one", str(size)]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    figures: dict[str, Any] = json.loads(done.stdout)
    return figures


def _measure_one(size: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="bench-storage-") as folder:
        filled = _fill(Path(folder) / "user", size)
        return filled | _use(Path(folder) / "user")


def _fill(folder: Path, size: int) -> dict[str, Any]:
    vectors, texts = SyntheticVectors(seed=1), SyntheticTexts(seed=2)
    with Store.open(folder, _SETTINGS) as store:
        index, lexicon = derived.open_index(store, _SETTINGS), derived.open_lexicon(store)
        took_s = 0.0
        for start in range(0, size, _BATCH):
            batch_vectors = vectors.draw(_BATCH)
            records = [synthetic_record(number, texts.draw()) for number in range(start, start + _BATCH)]
            begun = time.perf_counter()
            with store.batch() as batch:
                for record, vector in zip(records, batch_vectors, strict=True):
                    batch.put(record, vector)
                batch.cursor = start + _BATCH
            derived.apply(store, index, lexicon, batch.changes)
            derived.save_if_due(store, index, lexicon)
            took_s += time.perf_counter() - begun
        derived.save(store, index, lexicon)
        lexicon.close()
    return {"stored_per_s": round(size / took_s)}


def _use(folder: Path) -> dict[str, Any]:
    """Reopen the filled store in this process and measure its use."""
    with Store.open(folder, _SETTINGS) as store:
        begun = time.perf_counter()
        index, lexicon = derived.open_index(store, _SETTINGS), derived.open_lexicon(store)
        open_ms = (time.perf_counter() - begun) * 1000
        figures = _searches(store, index, lexicon)
        parts = {path.name: path.stat().st_blocks * 512 / 1e6 for path in folder.rglob("*") if path.is_file()}
        figures |= {
            "open_ms": round(open_ms, 1),
            "disk_mb": round(store.disk_bytes / 1e6, 1),
            "disk_parts_mb": {name: round(mb, 1) for name, mb in parts.items() if mb > 0.05},
        }
        lexicon.close()
    return figures | {"resident_mb": round(_resident_apart(folder), 1)}


def _resident_apart(folder: Path) -> float:
    """Return the megabytes that opening and searching the folder adds to a fresh process with an empty store."""
    grown = []
    for source in (folder, folder.with_name("empty")):
        command = [sys.executable, "-m", "ops.bench.storage", "--resident", str(source)]
        grown.append(float(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout))
    return grown[0] - grown[1]


def _resident(folder: Path) -> float:
    with Store.open(folder, _SETTINGS) as store:
        index, lexicon = derived.open_index(store, _SETTINGS), derived.open_lexicon(store)
        texts = SyntheticTexts(seed=3)
        for query in SyntheticVectors(seed=1).draw(50, seed=4):
            store.records(index.search(query, 50)[0])
            lexicon.search(texts.draw(), 50)
        lexicon.close()
        return psutil.Process().memory_info().rss / 1e6


def _searches(store: Store, index: VectorIndex, lexicon: Lexicon) -> dict[str, Any]:
    queries = SyntheticVectors(seed=1).draw(_QUERIES, seed=4)
    texts = SyntheticTexts(seed=3)
    questions = [texts.draw(words=12) for _ in range(_QUERIES)]
    tagged = MemoryFilter(tags=("auth",))
    within = lexicon.matching_rows(tagged)
    return {
        "approximate": index.is_approximate,
        "recall_at_10": round(_recall(store, index, queries), 4),
        "vector_ms": _times(lambda i: index.search(queries[i], 10)),
        "vector_200_ms": _times(lambda i: index.search(queries[i], 200)),
        "filtered_vector_ms": _times(lambda i: index.search_within(queries[i], within, 10)),
        "words_ms": _times(lambda i: lexicon.search(questions[i], 50)),
        "filter_ms": _times(lambda _: lexicon.matching_rows(tagged)),
    }


def _recall(store: Store, index: VectorIndex, queries: Embedding) -> float:
    """Return the recall at 10 against exact float32 cosines."""
    with store.snapshot() as snapshot:
        chunks = [(rows, queries @ vectors.T) for rows, vectors in snapshot.scan_vectors()]
    rows = np.concatenate([rows for rows, _ in chunks])
    nearest = np.argsort(-np.concatenate([scores for _, scores in chunks], axis=1), axis=1)[:, :10]
    found = (set(index.search(query, 10)[0].tolist()) for query in queries)
    return statistics.fmean(len(one & set(rows[best].tolist())) / 10 for one, best in zip(found, nearest, strict=True))


def _times(action: Callable[[int], object]) -> dict[str, float]:
    """Return p50 and p99 in milliseconds."""
    taken = []
    for i in range(_QUERIES):
        begun = time.perf_counter()
        action(i)
        taken.append((time.perf_counter() - begun) * 1000)
    return {"p50": round(float(np.quantile(taken, 0.5)), 3), "p99": round(float(np.quantile(taken, 0.99)), 3)}


def main(arguments: list[str]) -> None:
    """Print the figures as JSON."""
    if arguments[:1] == ["--one"]:
        print(json.dumps(_measure_one(int(arguments[1]))))
    elif arguments[:1] == ["--resident"]:
        print(_resident(Path(arguments[1])))
    else:
        print(json.dumps(measure(LARGE_SIZES if "--large" in arguments else SIZES), indent=2))


if __name__ == "__main__":
    main(sys.argv[1:])
