"""Test that freed buffers are returned to the system, even if retained objects lie above them."""

from __future__ import annotations

import subprocess
import sys

import pytest

KEEP_AND_FREE = """
import sys
import numpy as np
import psutil
if sys.argv[1] == "returned":
    from memory_agent.embedders.malloc import return_freed_memory
    return_freed_memory()
np.ones(3 << 20)  # once a mapped buffer was freed, glibc takes buffers of that size from the heap
before = psutil.Process().memory_info().rss
buffer = np.ones(2 << 20)
kept = [np.ones(3_000) for _ in range(100)]
del buffer
print(psutil.Process().memory_info().rss - before)
"""
BUFFER_BYTES = 16 << 20


@pytest.mark.skipif(sys.platform != "linux", reason="only glibc has these settings")
def test_a_freed_buffer_is_returned_below_objects_that_are_kept() -> None:
    def grown(way: str) -> int:
        command = [sys.executable, "-c", KEEP_AND_FREE, way]
        return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)

    assert grown("returned") < BUFFER_BYTES / 2
    assert grown("by default") > BUFFER_BYTES / 2, "glibc has changed: the setting may no longer be needed"
