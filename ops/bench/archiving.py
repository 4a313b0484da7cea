"""Measures one user's archive in a local folder: snapshots, increments, restorations, and the time that archiving adds
to ingest.

Two copies of a filled store ingest the same batches alternately; changes to one of the copies are recorded, and
archived between batches.

To run only this benchmark: `python -m ops.bench --only archiving [--quick]`.
"""

from __future__ import annotations

import shutil
import statistics
import tempfile
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec

from memory_agent.archiving import Limits, ObjectStore, UserArchive, restore
from memory_agent.records.embedded import Embedding
from memory_agent.records.memories import MemoryRecord
from memory_agent.settings import ArchiveSettings
from memory_agent.storage.environment import RECORDS_FOLDER
from memory_agent.storage.store import Store
from ops.bench.spread import spread
from ops.bench.timing import milliseconds

TARGET_RESTORE_MS = 1000

_TURNS = 5
_BATCHES = 120
_BATCH = 25
_USER = "one"
_MEGABYTE = 1e6


def measure(store: Path) -> dict[str, Any]:
    """Return the figures for an archive of `store`; the store is not changed."""
    with tempfile.TemporaryDirectory(prefix="bench-archive-") as folder:
        return _measure_in(Path(folder), store)


def _measure_in(folder: Path, filled: Path) -> dict[str, Any]:
    plain_folder, archived_folder = (Path(shutil.copytree(filled, folder / name)) for name in ("plain", "archived"))
    objects = ObjectStore.open(ArchiveSettings(url=f"file://{folder}/archive")).of_user(_USER)
    archive = UserArchive(objects, _USER, 1, folder / "scratch", Limits(increments=1 << 30, share=float("inf")))
    with (
        closing(Store.open(plain_folder)) as plain,
        closing(Store.open(archived_folder, on_commit=archive.note)) as archived,
    ):
        archive.start(archived.copy)
        snapshots = [milliseconds(archive.renew) for _ in range(_TURNS)]
        snapshot_bytes = sum(path.stat().st_size for path in (folder / "archive").rglob("*.snapshot"))
        restored = _restored_ms(objects, folder)
        batches: dict[str, list[float]] = {"plain": [], "archived": []}
        increments = []
        for number in range(_BATCHES):
            made = _batch(plain, number)
            order = [("plain", plain), ("archived", archived)]
            for name, one in order if number % 2 else reversed(order):
                batches[name].append(milliseconds(_write, one, made))
            increments.append(milliseconds(archive.flush))
        increment_bytes = sum(path.stat().st_size for path in (folder / "archive").rglob("*.increment"))
        memories = archived.counts().memories
        restored_after = _restored_ms(objects, folder)
    return {
        "memories": memories - _BATCHES * _BATCH,
        "snapshot_ms": spread(snapshots, digits=1),
        "snapshot_mb": round(snapshot_bytes / _MEGABYTE, 1),
        "increment_ms": spread(increments),
        "increment_kb": round(increment_bytes / _BATCHES / 1000, 1),
        "increments": _BATCHES,
        "restore_ms": spread(restored, digits=1),
        "restore_with_increments_ms": spread(restored_after, digits=1),
        "target_restore_ms": TARGET_RESTORE_MS,
        "batch": _BATCH,
        "plain_batch_ms": spread(batches["plain"]),
        "archived_batch_ms": spread(batches["archived"]),
        "batch_ratio": round(statistics.median(batches["archived"]) / statistics.median(batches["plain"]), 3),
    }


def _batch(store: Store, number: int) -> list[tuple[MemoryRecord, Embedding]]:
    """Return new memories with the texts and vectors of stored memories."""
    rows = [1 + (number * _BATCH + place) % (store.counts().memories - 1) for place in range(_BATCH)]
    found = zip(store.records(rows), store.vectors(rows), strict=True)
    return [
        (msgspec.structs.replace(record, id=f"new-{number}-{place}", event_id=f"new-{number}-{place}"), vector)
        for place, (record, vector) in enumerate(found)
        if record is not None
    ]


def _write(store: Store, made: Sequence[tuple[MemoryRecord, Embedding]]) -> None:
    with store.batch() as batch:
        for record, vector in made:
            batch.put(record, vector)


def _restored_ms(objects: Any, folder: Path) -> list[float]:
    took_ms = []
    for _ in range(_TURNS):
        target = folder / "restored" / RECORDS_FOLDER
        took_ms.append(milliseconds(restore, objects, _USER, target))
        shutil.rmtree(target.parent)
    return took_ms
