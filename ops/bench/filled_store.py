"""A user folder with many memories, filled once and shared by several benchmarks."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from memory_agent import Memory
from memory_agent.settings import EmbedderSettings
from ops.bench.texts import events, passages

MEMORIES = 10_000
QUICK_MEMORIES = 2_000

_BATCH = 250
_SEED = 7

Tell = Callable[[str], None]


@contextmanager
def filled_store(count: int, tell: Tell | None = None) -> Iterator[Path]:
    """Yield the folder of a closed `Memory` with `count` memories, embedded by the real model; remove it afterwards."""
    with tempfile.TemporaryDirectory(prefix="bench-store-") as folder:
        path = Path(folder) / "filled"
        started_s = time.perf_counter()
        with Memory.open(path, embedder_settings=EmbedderSettings(allow_download=False, bulk_niceness=0)) as memory:
            made = events(passages(count, _SEED), "filled", "fill")
            for start in range(0, count, _BATCH):
                memory.ingest(made[start : start + _BATCH])
                if tell is not None and start % (_BATCH * 8) == 0:
                    tell(f"{start} of {count} memories, {time.perf_counter() - started_s:.0f} s elapsed")
            assert memory.stats().memories == count
            assert memory.stats().without_vector == 0
        yield path
