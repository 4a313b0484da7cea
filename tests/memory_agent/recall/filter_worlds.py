"""Archives of synthetic memories and vectors, with brute-force filter results."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from memory_agent.records.embedded import Embedding
from memory_agent.records.memories import KINDS, PROVENANCES, SOURCES, MemoryFilter, MemoryRecord
from memory_agent.settings import StoreSettings
from memory_agent.storage.archive import Archive
from memory_agent.storage.codec import unit_vector

NDIM = 16
CHANCES = 10
START = datetime(2026, 1, 1, tzinfo=UTC)

_BATCH = 10_000


class World:
    """An archive with its records and its vectors (rows, NDIM), both by row; a missing vector is NaN."""

    def __init__(self, archive: Archive, count: int) -> None:
        self.archive = archive
        self.records: dict[int, MemoryRecord] = {}
        self.vectors = np.full((count + 1, NDIM), np.nan)
        self._masks: dict[bytes, npt.NDArray[np.bool_]] = {}

    def passing(self, chosen: MemoryFilter) -> npt.NDArray[np.bool_]:
        """Return whether each row passes the filter, ignoring the minimum score."""
        key = msgspec.msgpack.encode(chosen)
        if key not in self._masks:
            mask = np.zeros(len(self.vectors), dtype=np.bool_)
            mask[[row for row, record in self.records.items() if passes(record, chosen)]] = True
            self._masks[key] = mask
        return self._masks[key]

    def cosines(self, vector: Embedding) -> npt.NDArray[np.float64]:
        """Return the cosine of `vector` with each row's vector, or NaN for a row without one."""
        unit = vector.astype(np.float64) / np.linalg.norm(vector.astype(np.float64))
        return self.vectors @ unit


def passes(record: MemoryRecord, chosen: MemoryFilter) -> bool:
    """Reference implementation of a filter, ignoring the minimum score."""
    return (
        (not chosen.kinds or record.kind in chosen.kinds)
        and (not chosen.sources or record.source in chosen.sources)
        and (chosen.since is None or record.timestamp >= chosen.since)
        and (chosen.until is None or record.timestamp < chosen.until)
        and (chosen.session_id is None or record.session_id == chosen.session_id)
        and (chosen.run_id is None or record.run_id == chosen.run_id)
        and (chosen.channel_id is None or record.channel_id == chosen.channel_id)
        and (chosen.in_channel is None or record.channel_id in (chosen.in_channel, None))
        and (chosen.agent_id is None or record.agent_id == chosen.agent_id)
        and (not chosen.tags or not {*chosen.tags}.isdisjoint(record.tags))
        and (not chosen.provenance or record.provenance in chosen.provenance)
        and (
            chosen.min_quality is None
            or (record.quality_score is not None and record.quality_score >= chosen.min_quality)
        )
    )


@contextmanager
def open_world(folder: Path, count: int, exact_search_limit: int, seed: int = 1) -> Iterator[World]:
    """Yield a world of `count` memories. Some were changed or deleted after insertion."""
    settings = StoreSettings(exact_search_limit=exact_search_limit)
    archive = Archive.open(folder, settings, "library")
    try:
        rng = np.random.default_rng(seed)
        world = World(archive, count)
        vectors, chances, lacking = (
            clustered(count, rng),
            rng.random((count, CHANCES)).tolist(),
            rng.random(count) < 0.03,
        )
        for start in range(0, count, _BATCH):
            with archive.batch() as batch:
                for number in range(start, min(start + _BATCH, count)):
                    vector = None if lacking[number] else vectors[number]
                    record = made(number, chances[number])
                    row = batch.put(record, vector)
                    world.records[row] = record
                    _keep(world, row, vector)
        _change(world, rng)
        yield world
    finally:
        archive.close()


def clustered(count: int, rng: np.random.Generator) -> Embedding:
    """Return (count, NDIM) vectors around centres; one in fifty is a duplicate."""
    centres = rng.normal(size=(max(1, count // 100), NDIM))
    vectors = centres[rng.integers(len(centres), size=count)] + 0.7 * rng.normal(size=(count, NDIM))
    twins = rng.random(count) < 0.02
    vectors[twins] = vectors[rng.integers(max(1, count // 200), size=int(twins.sum()))]
    return vectors.astype(np.float32)


def made(number: int, chances: list[float]) -> MemoryRecord:
    """Return a memory whose fields depend on CHANCES numbers from 0 to 1. Filters select between three and almost all
    memories.
    """
    kind, source, half, tenth, hundredth, channel, run, has_quality, quality, minute = chances
    shares = {"half": half < 0.5, "tenth": tenth < 0.1, "hundredth": hundredth < 0.01, "three": number in (3, 33, 77)}
    return MemoryRecord(
        id=f"memory-{number:08d}",
        text=" ".join(["alpha"] * int(3 * half) + ["beta"] * (number % 10 == 0) + [f"word{number % 97}", "all"]),
        source=SOURCES[int(len(SOURCES) * source**4)],
        kind=KINDS[int(len(KINDS) * kind**4)],
        timestamp=START + timedelta(minutes=number + int(100 * minute) - 50),
        session_id=f"s-{number // 30}" if number % 5 else "s-common",
        run_id=None if number % 3 else f"r-{int(50 * run**4)}",
        channel_id=None if channel > 0.97 else f"c-{int(channel < 0.02)}",
        agent_id=None if number % 7 == 0 else f"a-{number % 4}",
        tags=tuple(tag for tag, has in shares.items() if has),
        provenance=None if number % 2 else PROVENANCES[number // 2 % len(PROVENANCES)],
        quality_score=None if has_quality < 0.4 else round(quality, 2),
    )


def _change(world: World, rng: np.random.Generator) -> None:
    """Delete some memories, change all columns of others, and set or replace some vectors."""
    chosen = rng.permutation(np.array(list(world.records)))[: max(12, len(world.records) // 25)]
    gone, changed, given = np.array_split(chosen, 3)
    with world.archive.batch() as batch:
        for row in gone.tolist():
            batch.delete(row)
            del world.records[row]
            world.vectors[row] = np.nan
        for row in changed.tolist():
            fields: dict[str, Any] = msgspec.structs.asdict(
                made(int(rng.integers(10**6)), rng.random(CHANCES).tolist())
            )
            world.records[row] = MemoryRecord(**fields | {"id": world.records[row].id})
            batch.update(world.records[row])
        for row, vector in zip(given.tolist(), clustered(len(given), rng), strict=True):
            batch.set_vector(row, vector)
            _keep(world, row, vector)


def _keep(world: World, row: int, vector: Embedding | None) -> None:
    """Record a vector as the store would keep it: with unit length, in float16."""
    if vector is not None:
        stored = unit_vector(vector, NDIM).astype(np.float16).astype(np.float64)
        world.vectors[row] = stored / np.linalg.norm(stored)
