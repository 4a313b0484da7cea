"""Settings for glibc's allocator in processes whose threads free large buffers."""

from __future__ import annotations

import ctypes
import sys

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8  # malloc.h


def return_freed_memory() -> None:
    """Make glibc return freed memory to the system. Call this before starting threads.

    By default, each thread retains as much memory as its longest text needed, and once a large buffer has been freed,
    later ones are allocated on the heap. Under load, the embedder then takes 181 MB instead of 133 MB; a daemon with
    1,000 active users takes 4.1 GB instead of 1.5 GB.
    """
    if sys.platform != "linux":
        return
    library = ctypes.CDLL(None)
    if hasattr(library, "mallopt"):
        for option, value in ((_M_ARENA_MAX, 2), (_M_MMAP_THRESHOLD, 1 << 20), (_M_TRIM_THRESHOLD, 4 << 20)):
            library.mallopt(option, value)
