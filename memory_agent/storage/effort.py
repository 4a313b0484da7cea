"""What it costs to find the nearest of some vectors, in microseconds: reading them one by one, or scanning all. Pure.

Measured by `python -m ops.bench.filters --constants` (2 cores, Zen4 class, 384 dimensions). They decide which way is
gone, never what is found; so another machine may be a factor off in all of them and still decide the same.
"""

from __future__ import annotations

from math import log

READ_US = 5.0
"""One vector from the store, checked, and its cosine in float32: 5.1 with 10,000 memories, 6.4 with 100,000; 3.0 and
4.5 on the same machine when it did nothing else, and the others are less by the same part then."""

SCAN_US = 0.08
"""One vector in an exact scan of the engine: .082 in int8 (100,000 memories), .12 in bfloat16 (10,000)."""

_INSERT_US = 0.25
_MOVE_US = 4.5e-5
"""The engine keeps the best in a sorted array: an insertion costs something, and moves what lies behind its place.
Of 100,000, the best 2,000 cost 3 ms over the bare scan, 8,000: 20 ms, 30,000: 137 ms, all: 460 ms; of 10,000, the best
2,000 1.1 ms, 8,000: 4.7 ms."""


def reading_us(rows: int) -> float:
    """Return the cost of scoring so many rows one by one."""
    return rows * READ_US


def scanning_us(total: int, count: int) -> float:
    """Return the cost of a scan of `total` vectors for the best `count` of them."""
    if not total or not count:
        return 0.0
    count = min(count, total)
    inserted = count * (1 + log(total / count))
    return total * SCAN_US + inserted * (_INSERT_US + _MOVE_US * count)
