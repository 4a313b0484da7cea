"""Test leases with clocks that the tests advance: a host never works after the daemon considers the lease expired."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from memory_agent.daemon import lease as lease_module
from memory_agent.daemon.lease import Lease, keep_lease
from memory_agent.errors import DeadlineExceededError, MemoryAgentError

LEASE_S = 6.0


class Clock:
    """The daemon's clock, which replaces `time` and `asyncio` in `lease`. Sleeping advances it.

    `stopped_s`: seconds for which the daemon is stopped during its next pause.
    """

    def __init__(self) -> None:
        self.now_s = 1_000.0
        self.stopped_s = 0.0

    def monotonic(self) -> float:
        return self.now_s

    async def sleep(self, duration_s: float) -> None:
        self.now_s += max(duration_s, self.stopped_s)
        self.stopped_s = 0.0


Renew = Callable[[float, float, float], Awaitable[float]]


def never() -> bool:
    return False


def always() -> bool:
    return True


def kept(
    clock: Clock, renew: Renew, is_gone: Callable[[], bool] = never, may_start: Callable[[], bool] = always
) -> float:
    """Hold a lease, timed by the daemon's `clock`, until it ends; return its duration."""
    began_s = clock.now_s
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lease_module, "time", clock)
        patch.setattr(lease_module, "asyncio", clock)
        asyncio.run(keep_lease(renew, LEASE_S, is_gone=is_gone, may_start=may_start))
    return clock.now_s - began_s


async def silent(written_s: float, lease_s: float, timeout_s: float) -> float:
    raise DeadlineExceededError("host-1")


def test_a_host_may_work_from_the_second_renewal_until_the_lease_after_the_first() -> None:
    clock = Clock()
    lease = Lease(clock.monotonic)
    assert not lease.is_valid
    written_s = lease.renew(0.0, LEASE_S)
    assert not lease.is_valid
    clock.now_s += 2.0
    lease.renew(written_s, LEASE_S)
    clock.now_s += 3.9
    assert lease.is_valid
    clock.now_s += 0.1
    assert not lease.is_valid


def test_a_renewal_that_arrives_late_does_not_shorten_a_lease() -> None:
    clock = Clock()
    lease = Lease(clock.monotonic)
    first_s = lease.renew(0.0, LEASE_S)
    clock.now_s += 2.0
    second_s = lease.renew(first_s, LEASE_S)
    lease.renew(second_s, LEASE_S)
    lease.renew(first_s, LEASE_S)
    clock.now_s += 5.9
    assert lease.is_valid


def test_a_time_written_before_a_restart_grants_no_lease() -> None:
    clock = Clock()
    written_s = Lease(clock.monotonic).renew(0.0, LEASE_S)
    clock.now_s = 20.0  # a monotonic clock restarts with its machine
    restarted = Lease(clock.monotonic)
    restarted.renew(written_s, LEASE_S)
    assert not restarted.is_valid


class Host:
    """A host behind a network with delays and losses. Its clock has a different origin and runs at a different rate.

    Each of `exchanges` is a pair of delays in seconds, one for a request and one for its reply; None stands for a lost
    message. After the last pair, requests still arrive if `still_hears`, but replies do not. The daemon detects a loss
    when its timeout expires or, with `fails_fast`, immediately.
    """

    def __init__(self, clock: Clock, exchanges: list[tuple[float | None, float | None]], speed: float) -> None:
        self.clock = clock
        self.lease = Lease(lambda: 50.0 + (clock.now_s - 1_000.0) * speed)
        self.still_hears = True
        self.fails_fast = False
        self.worked = False
        self._exchanges = iter(exchanges)

    async def renew(self, written_s: float, lease_s: float, timeout_s: float) -> float:
        request_s, reply_s = next(self._exchanges, (0.0 if self.still_hears else None, None))
        deadline_s = self.clock.now_s + timeout_s
        if request_s is not None and request_s < timeout_s:
            self.clock.now_s += request_s
            now_s = self.lease.renew(written_s, lease_s)
            self.worked = self.worked or self.lease.is_valid
            if reply_s is not None and self.clock.now_s + reply_s < deadline_s:
                self.clock.now_s += reply_s
                return now_s
        if not self.fails_fast:
            self.clock.now_s = deadline_s
        raise DeadlineExceededError("host-1")


delays = st.none() | st.floats(0.0, 2 * LEASE_S)


@given(st.lists(st.tuples(delays, delays), max_size=12), st.floats(0.92, 1.5), st.booleans(), st.booleans())
@example([(0.0, 0.0)] * 3, 0.92, True, True)
def test_the_lease_of_a_host_is_over_when_the_daemon_says_so(
    exchanges: list[tuple[float | None, float | None]], speed: float, still_hears: bool, fails_fast: bool
) -> None:
    host = Host(Clock(), exchanges, speed)
    host.still_hears, host.fails_fast = still_hears, fails_fast
    kept(host.clock, host.renew)
    assert not host.lease.is_valid


def test_a_host_that_replies_keeps_its_lease() -> None:
    host = Host(Clock(), [(0.01, 0.01)] * 100, 1.0)
    lasted_s = kept(host.clock, host.renew)
    assert host.worked
    assert lasted_s > 97 * LEASE_S / 6


@pytest.mark.parametrize(
    "error",
    [DeadlineExceededError("host-1"), MemoryAgentError("internal error (KeyError)"), RuntimeError("unforeseen")],
)
def test_a_failed_renewal_is_repeated(error: Exception) -> None:
    host = Host(Clock(), [(0.0, 0.0)] * 10, 1.0)
    renewals = 0

    async def renew(written_s: float, lease_s: float, timeout_s: float) -> float:
        nonlocal renewals
        renewals += 1
        if renewals == 5:
            raise error
        return await host.renew(written_s, lease_s, timeout_s)

    kept(host.clock, renew)
    assert renewals > 10


@pytest.mark.parametrize("during", ["pause", "renewal"])
def test_a_host_keeps_its_lease_after_the_daemon_itself_was_stopped(during: str) -> None:
    host = Host(Clock(), [(0.0, 0.0)] * 10, 1.0)
    renewals, valid = 0, []

    async def renew(written_s: float, lease_s: float, timeout_s: float) -> float:
        nonlocal renewals
        renewals += 1
        if renewals == 3 and during == "renewal":
            host.clock.now_s += 3 * LEASE_S  # the daemon reads the reply too late
            raise DeadlineExceededError("host-1")
        host.clock.stopped_s = 3 * LEASE_S if renewals == 3 else 0.0
        now_s = await host.renew(written_s, lease_s, timeout_s)
        valid.append(host.lease.is_valid)
        return now_s

    kept(host.clock, renew)
    assert len(valid) == 10
    assert valid[-1]


def test_a_host_that_never_replies_is_given_up_after_the_time_that_a_start_takes() -> None:
    assert kept(Clock(), silent) == pytest.approx(60.0)


def test_a_host_that_ended_or_whose_machine_left_before_its_first_reply_is_given_up_at_once() -> None:
    assert kept(Clock(), silent, is_gone=always) == 0.0
    assert kept(Clock(), silent, may_start=never) == 0.0


def test_a_host_that_ended_after_its_first_reply_keeps_its_lease_until_its_end() -> None:
    """Its process may still be running on a machine that is cut off."""
    host = Host(Clock(), [(0.0, 0.0)] * 3, 1.0)
    replied = 0

    async def renew(written_s: float, lease_s: float, timeout_s: float) -> float:
        nonlocal replied
        replied += 1
        return await host.renew(written_s, lease_s, timeout_s)

    kept(host.clock, renew, is_gone=lambda: replied == 3)
    assert replied == 3
    assert not host.lease.is_valid
