"""Test the detection of other programs that starve the low-priority (`nice`) threads."""

from __future__ import annotations

from memory_agent.embedders.lanes import Pace


def worked(pace: Pace, taken_s: float, processor_s: float) -> Pace:
    pace.began(1, 10.0)
    pace.ended(1, 10.0 + taken_s, processor_s)
    return pace


def test_threads_that_share_a_core_with_each_other_are_not_starved() -> None:
    assert not Pace().is_slow(0.0)
    assert not worked(Pace(), 0.064, 0.032).is_slow(11.0)


def test_threads_that_mostly_wait_for_the_processor_are_starved_until_they_progress_again() -> None:
    pace = worked(Pace(), 0.1, 0.005)
    assert pace.is_slow(11.0)
    assert not worked(pace, 0.006, 0.005).is_slow(12.0)


def test_a_cached_text_that_took_no_time_changes_nothing() -> None:
    assert worked(worked(Pace(), 0.1, 0.005), 0.0, 0.0).is_slow(11.0)


def test_a_thread_that_hangs_is_starved_before_it_returns() -> None:
    pace = Pace()
    pace.began(1, 10.0)
    pace.began(2, 10.4)
    assert not pace.is_slow(10.4)
    assert pace.is_slow(10.8)
    pace.ended(1, 10.8, 0.75)
    assert not pace.is_slow(10.8)
