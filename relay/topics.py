"""Topic patterns over event types: a type itself, `worker.*` for everything below a dot, `*` for everything.

Wildcards in the middle (`a.*.c`) are not supported: a prefix test could not answer them.
"""

from __future__ import annotations

from collections.abc import Iterable


def matches(pattern: str, event_type: str) -> bool:
    """Return whether `event_type` matches `pattern`; `worker.*` matches `worker.task.done`, not `worker`.

    >>> matches("worker.*", "worker.task.done"), matches("worker.*", "worker"), matches("*", "worker")
    (True, False, True)
    """
    if pattern == "*":
        return True
    if pattern.endswith(".*"):
        return len(event_type) >= len(pattern) and event_type.startswith(pattern[:-1])
    return pattern == event_type


def matches_any(patterns: Iterable[str], event_type: str) -> bool:
    """Return whether `event_type` matches any of the patterns.

    >>> matches_any(["feedback.*", "user_input"], "user_input")
    True
    """
    return any(matches(pattern, event_type) for pattern in patterns)
