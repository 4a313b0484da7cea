"""Topics match event types."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay import matches, matches_any

event_types = st.from_regex(r"\A[a-z]{1,5}(\.[a-z]{1,5}){0,3}\Z")


@pytest.mark.parametrize(
    ("pattern", "event_type", "expected"),
    [
        ("*", "anything.at.all", True),
        ("worker.*", "worker.task.completed", True),
        ("worker.*", "worker.x", True),
        ("worker.*", "worker", False),
        ("worker.*", "worker.", False),
        ("worker.*", "workers.task", False),
        ("worker.task.*", "worker.report", False),
        ("chat.user_msg", "chat.user_msg", True),
        ("chat.user_msg", "chat.user_msg.edited", False),
        ("chat", "chat.user_msg", False),
    ],
)
def test_a_topic_matches_a_type_a_prefix_at_a_dot_or_everything(pattern: str, event_type: str, expected: bool) -> None:
    assert matches(pattern, event_type) is expected


@given(event_types, event_types)
def test_a_prefix_matches_only_at_a_dot(prefix: str, event_type: str) -> None:
    parts, below = prefix.split("."), event_type.split(".")
    assert matches(f"{prefix}.*", event_type) == (len(below) > len(parts) and below[: len(parts)] == parts)


def test_one_of_several_topics_is_enough() -> None:
    assert matches_any(("chat.*", "worker.*"), "worker.done")
    assert not matches_any((), "worker.done")
