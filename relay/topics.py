"""Patterns over event types: a type itself, `worker.*` for everything below a dot, `*` for everything.

What this does not do: it gives event types no meaning. Rejected: wildcards in the middle (`a.*.c`), which nobody asked
for and which a plain prefix test could not answer.
"""

from __future__ import annotations

from collections.abc import Iterable


def matches(pattern: str, event_type: str) -> bool:
    """Return whether `event_type` falls under `pattern`. `worker.*` takes `worker.task.done`, not `worker`."""
    if pattern == "*":
        return True
    if pattern.endswith(".*"):
        return len(event_type) >= len(pattern) and event_type.startswith(pattern[:-1])
    return pattern == event_type


def matches_any(patterns: Iterable[str], event_type: str) -> bool:
    """Return whether `event_type` falls under one of the patterns."""
    return any(matches(pattern, event_type) for pattern in patterns)
