"""Test the histogram of durations, and the histogram that a relay reports."""

from __future__ import annotations

import math

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from relays import event

from relay import Histogram, Publisher, Subscriber


@given(st.lists(st.floats(-10, 1e6)))
def test_each_duration_is_in_all_buckets_whose_bound_it_does_not_exceed(durations: list[float]) -> None:
    histogram = Histogram()
    for took_s in durations:
        histogram.add(took_s)
    counted = [max(0.0, took_s) for took_s in durations]
    for bound_s, count in histogram.buckets():
        assert count == sum(took_s <= bound_s for took_s in counted)
    assert histogram.buckets()[-1] == (math.inf, len(durations))
    assert math.isclose(histogram.sum_s, sum(counted), abs_tol=1e-9)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(histogram), type=Histogram) == histogram


def test_a_relay_reports_how_long_its_acks_took(publisher: Publisher, subscriber: Subscriber) -> None:
    assert subscriber.stats().acks == Histogram()
    for number in range(3):
        publisher.publish(event(number))
        assert publisher.flush().acked == 1 + number
    acks = subscriber.stats().acks
    assert 1 <= sum(acks.counts) <= 3
    assert acks.sum_s > 0
