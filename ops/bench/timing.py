"""Times single actions."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import ParamSpec

P = ParamSpec("P")


def timed_s(act: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> tuple[float, float]:
    """Call `act`; return its wall time, and the processor time of all threads of this process."""
    began_s, used_s = time.perf_counter(), time.process_time()
    act(*args, **kwargs)
    return time.perf_counter() - began_s, time.process_time() - used_s


def milliseconds(act: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> float:
    """Call `act`; return its wall time in milliseconds."""
    began_s = time.perf_counter()
    act(*args, **kwargs)
    return (time.perf_counter() - began_s) * 1000
