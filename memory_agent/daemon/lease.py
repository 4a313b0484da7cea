"""Leases: how long a host on another node may work without hearing from the daemon (Gray, Cheriton 1989).

Each renewal repeats the time of the host's last reply, as measured by the host's own monotonic clock. The host may work
until that time plus the length of the lease. The daemon received the reply after the host wrote it. Therefore, once the
length of the lease has elapsed on the daemon's clock since the reply was received, the lease has also ended on the
host. Clocks are not compared; only their speeds must be similar (`_MARGIN`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from memory_agent.errors import MemoryAgentError
from relay.log import log

_RENEWALS = 6
_MARGIN = 1.1
"""The factor by which a host's clock may be slower than the daemon's clock."""
_STOPPED = 0.25
"""If the daemon's own timers are late by more than this fraction of a lease, the daemon itself was suspended."""
_START_S = 60.0


class Lease:
    """The host's side of a lease. Thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._until_s = 0.0

    @property
    def is_valid(self) -> bool:
        return self._clock() < self._until_s

    def renew(self, written_s: float, lease_s: float) -> float:
        """Extend the lease until `lease_s` after `written_s`, as returned by an earlier call. Return the current time.

        The first call, with 0, extends nothing.
        """
        now_s = self._clock()
        if 0 < written_s <= now_s:  # a later time was written before this machine was restarted
            self._until_s = max(self._until_s, written_s + lease_s)
        return now_s


async def keep_lease(
    renew: Callable[[float, float, float], Awaitable[float]],
    lease_s: float,
    *,
    is_gone: Callable[[], bool],
    may_start: Callable[[], bool],
) -> None:
    """Renew a host's lease until the host no longer replies and the lease has expired.

    `renew` calls `Lease.renew` on the host, with a timeout in seconds as the last argument. `is_gone`: whether the
    process is known to have ended. `may_start`: whether a host that has not replied yet may still start. A suspended
    daemon places no user elsewhere, so a host that replies again keeps its users.
    """
    written_s = 0.0
    deadline_s = time.monotonic() + _START_S
    while (left_s := deadline_s - time.monotonic()) > 0:
        if not written_s and (is_gone() or not may_start()):
            return
        asked_s, patience_s, pause_s = time.monotonic(), min(left_s, lease_s), min(left_s, lease_s / _RENEWALS)
        if not is_gone():
            try:
                former_s, written_s = written_s, await renew(written_s, lease_s, patience_s)
            except MemoryAgentError:
                pass
            except Exception:  # a bug; the host may keep working until its lease expires
                log.exception("lease.failed")
            else:
                deadline_s = time.monotonic() + lease_s * _MARGIN
                pause_s = lease_s / _RENEWALS if former_s else 0.0  # only the second call grants the lease
        renewed_s = time.monotonic()
        await asyncio.sleep(pause_s)
        late_s = max(renewed_s - asked_s - patience_s, time.monotonic() - renewed_s - pause_s)
        if late_s > lease_s * _STOPPED:
            deadline_s = max(deadline_s, time.monotonic() + lease_s)
