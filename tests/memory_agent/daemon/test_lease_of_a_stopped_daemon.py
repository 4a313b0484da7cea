"""Test that a daemon which was stopped keeps its hosts."""

from __future__ import annotations

import asyncio
import time

from memory_agent.daemon.lease import Lease, keep_lease
from memory_agent.errors import DeadlineExceededError

LEASE_S = 0.3


class Renewals:
    """The renewals of a host's lease. It replies to the first one, and then to those from number `again` on."""

    def __init__(self, again: int, stopped_s: float = 0.0) -> None:
        self.lease = Lease()
        self.count = 0
        self._again = again
        self._stopped_s = stopped_s

    async def renew(self, written_s: float, lease_s: float, timeout_s: float) -> float:
        self.count += 1
        if 1 < self.count < self._again:
            time.sleep(self._stopped_s)  # the whole daemon
            await asyncio.sleep(0 if self._stopped_s else timeout_s)
            raise DeadlineExceededError("host-1")
        return self.lease.renew(written_s, lease_s)


def kept(renewals: Renewals, until: int) -> None:
    """Renew the lease until it has ended, at most until this many renewals."""

    async def go() -> None:
        keeping = asyncio.create_task(
            keep_lease(renewals.renew, LEASE_S, is_gone=lambda: False, may_start=lambda: True)
        )
        while renewals.count < until and not keeping.done():
            await asyncio.sleep(0.001)
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)

    asyncio.run(asyncio.wait_for(go(), 60))


def test_a_host_that_does_not_reply_is_given_up_when_its_lease_has_ended() -> None:
    renewals = Renewals(again=1_000)
    started_s = time.monotonic()
    kept(renewals, 1_000)
    assert renewals.count < 10
    assert time.monotonic() - started_s >= LEASE_S
    assert not renewals.lease.is_valid


def test_a_host_keeps_its_lease_after_the_daemon_itself_was_stopped_between_renewals() -> None:
    class Stopped(Renewals):
        async def renew(self, written_s: float, lease_s: float, timeout_s: float) -> float:
            if self.count == 1:  # during the pause that follows
                asyncio.get_running_loop().call_later(0.01, time.sleep, 1.5 * LEASE_S)
            return await super().renew(written_s, lease_s, timeout_s)

    renewals = Stopped(again=1)
    kept(renewals, 5)
    assert renewals.count == 5
    assert renewals.lease.is_valid


def test_a_host_keeps_its_lease_after_the_daemon_itself_was_stopped_during_a_renewal() -> None:
    renewals = Renewals(again=3, stopped_s=3 * LEASE_S)
    kept(renewals, 5)
    assert renewals.count == 5
    assert renewals.lease.is_valid
