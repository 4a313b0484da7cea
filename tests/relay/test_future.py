"""A future is set once and calls its callbacks."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from relay.future import Future


def test_a_failing_callback_does_not_affect_other_waiters() -> None:
    def fails(_: Future[int]) -> None:
        raise ValueError("the text of a memory")

    future, heard = Future[int](), list[int]()
    future.call_when_done(fails)
    future.call_when_done(lambda done: heard.append(done.result()))
    with capture_logs() as logs:
        future.settle(7)
    assert (heard, future.result(timeout_s=0.0)) == ([7], 7)
    assert [(line["event"], line["error"]) for line in logs] == [("future.callback_failed", "ValueError")]
    assert "the text of a memory" not in str(logs)


def test_an_outcome_is_set_once() -> None:
    future = Future[int]()
    with pytest.raises(TimeoutError):
        future.result(timeout_s=0.0)
    assert future.cancel()
    future.settle(7)
    assert future.cancelled()
