"""Runs one input under machine-independent limits on the number of calls and on the bytes allocated at once.

Both limits grow in proportion to the input. A loop inside a C function is ended only by the time limit of the test or
run.
"""

from __future__ import annotations

import sys
import tracemalloc
from collections.abc import Callable
from types import FrameType

CALLS, CALLS_A_BYTE = 60_000, 250
BYTES, BYTES_A_BYTE = 8 << 20, 1_200  # deflate expands data by a factor of up to 1,032


class LimitError(AssertionError):
    """An input used more calls or bytes than its size allows."""


class _Counter:
    def __init__(self, most: int) -> None:
        self.left = most

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        self.left -= event in ("call", "c_call")
        if self.left < 0:
            sys.setprofile(None)
            raise LimitError(f"too many calls; the last in {frame.f_code.co_qualname}")


def within_limits(function: Callable[[bytes], object], data: bytes) -> None:
    """Call `function` with `data`. Raises what `function` raises, and `LimitError`."""
    most_bytes = BYTES + BYTES_A_BYTE * len(data)
    tracemalloc.start(1)
    sys.setprofile(_Counter(CALLS + CALLS_A_BYTE * len(data)))
    try:
        function(data)
    finally:
        sys.setprofile(None)
        peak_bytes = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    if peak_bytes > most_bytes:
        raise LimitError(f"{peak_bytes} bytes at once; the limit for {len(data)} bytes of input is {most_bytes}")
