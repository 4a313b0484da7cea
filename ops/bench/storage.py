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
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from memory_agent.records import Embedding, MemoryFilter
from memory_agent.settings import StoreSettings
from memory_agent.storage.archive import Archive
from memory_agent.storage.columns import View
from memory_agent.storage.indexes import Mask
from memory_agent.storage.terms import query_words
from ops.bench.synthetic import SyntheticTexts, SyntheticVectors, synthetic_record

SIZES = (10_000,)
LARGE_SIZES = (10_000, 100_000)
TARGETS = {
    10_000: {"disk_mb": 25, "resident_mb": 60, "worst_batch": 10},
    100_000: {"disk_mb": 250, "resident_mb": 400, "recall": 0.98, "worst_batch": 10},
}

_SETTINGS = StoreSettings()
_BATCH = 100
_QUERIES = 200
_WORD_LIMIT = 50


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
    archive = Archive.open(folder, _SETTINGS, "library")
    taken_s: list[float] = []
    cpu_s = 0.0
    for start in range(0, size, _BATCH):
        batch_vectors = vectors.draw(_BATCH)
        records = [synthetic_record(number, texts.draw()) for number in range(start, start + _BATCH)]
        begun, begun_cpu = time.perf_counter(), time.process_time()
        with archive.batch() as batch:
            for record, vector in zip(records, batch_vectors, strict=True):
                batch.put(record, vector)
            batch.cursor = start + _BATCH
        taken_s.append(time.perf_counter() - begun)
        cpu_s += time.process_time() - begun_cpu
    archive.close()
    return {
        "stored_per_s": round(size / sum(taken_s)),
        "stored_cpu_us": round(cpu_s / size * 1e6, 1),
        "worst_batch": round(max(taken_s) / statistics.median(taken_s), 1),
    }


def _use(folder: Path) -> dict[str, Any]:
    """Reopen the filled store in this process and measure its use."""
    begun = time.perf_counter()
    with closing(Archive.open(folder, _SETTINGS, "library")) as archive:
        open_ms = (time.perf_counter() - begun) * 1000
        figures = _searches(archive)
        parts = {path.name: path.stat().st_blocks * 512 / 1e6 for path in folder.rglob("*") if path.is_file()}
        figures |= {
            "open_ms": round(open_ms, 1),
            "disk_mb": round(archive.store.disk_bytes / 1e6, 1),
            "disk_parts_mb": {name: round(mb, 1) for name, mb in parts.items() if mb > 0.05},
        }
    resident_mb = _resident_apart(folder)
    with closing(Archive.open(folder, _SETTINGS, "library")) as archive:
        begun = time.perf_counter()
        archive.rebuild()
        return figures | {"rebuild_s": round(time.perf_counter() - begun, 2), "resident_mb": round(resident_mb, 1)}


def _resident_apart(folder: Path) -> float:
    """Return the megabytes that opening and searching the folder adds to a fresh process with an empty store."""
    grown = []
    for source in (folder, folder.with_name("empty")):
        command = [sys.executable, "-m", "ops.bench.storage", "--resident", str(source)]
        grown.append(float(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout))
    return grown[0] - grown[1]


def _resident(folder: Path) -> float:
    with closing(Archive.open(folder, _SETTINGS, "library")) as archive:
        texts = SyntheticTexts(seed=3)
        for query in SyntheticVectors(seed=1).draw(50, seed=4):
            archive.store.records(nearest(archive.view, query, 50))
            _best_by_words(archive.view, texts.draw())
        return psutil.Process().memory_info().rss / 1e6


def _searches(archive: Archive) -> dict[str, Any]:
    view = archive.view
    queries = SyntheticVectors(seed=1).draw(_QUERIES, seed=4)
    texts = SyntheticTexts(seed=3)
    questions = [texts.draw(words=12) for _ in range(_QUERIES)]
    tagged = MemoryFilter(tags=("auth",))
    mask = view.mask(tagged)
    return {
        "approximate": view.vectors.is_approximate,
        "recall_at_10": round(_recall(archive, queries), 4),
        "vector_ms": _times(lambda i: nearest(view, queries[i], 10)),
        "vector_200_ms": _times(lambda i: nearest(view, queries[i], 200)),
        "filtered_vector_ms": _times(lambda i: nearest(view, queries[i], 10, mask)),
        "words_ms": _times(lambda i: _best_by_words(view, questions[i])),
        "filter_ms": _times(lambda _: view.mask(tagged)),
    }


def nearest(view: View, query: Embedding, limit: int, mask: Mask | None = None) -> list[int]:
    """Return the rows of the best `limit` by exact cosine, best first, as a recall finds them."""
    approximate, error, _ = view.vectors.scan(query, limit, mask)
    known = np.flatnonzero(~np.isnan(approximate))
    values = approximate[known]
    if len(known) > limit:
        least = np.partition(values, -limit)[-limit]
        known = known[values >= least - 2 * error]
    scores = view.vectors.cosines(query, known)
    rows: list[int] = view.rows[known[np.argsort(-scores, kind="stable")[:limit]]].tolist()
    return rows


def _best_by_words(view: View, question: str) -> list[int]:
    scores = view.words.scores(query_words(question))
    rows: list[int] = view.rows[np.argpartition(scores, -_WORD_LIMIT)[-_WORD_LIMIT:]].tolist() if len(scores) else []
    return rows


def _recall(archive: Archive, queries: Embedding) -> float:
    """Return the recall at 10 against exact float32 cosines."""
    with archive.store.snapshot() as snapshot:
        chunks = [(rows, queries @ vectors.T) for rows, vectors in snapshot.scan_vectors()]
    rows = np.concatenate([rows for rows, _ in chunks])
    best = np.argsort(-np.concatenate([scores for _, scores in chunks], axis=1), axis=1)[:, :10]
    found = (set(nearest(archive.view, query, 10)) for query in queries)
    return statistics.fmean(len(one & set(rows[top].tolist())) / 10 for one, top in zip(found, best, strict=True))


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
