"""The moments at which a planner asks, by name: what is fetched at each (DESIGN 6).

A profile fills in what the caller leaves open and nothing else; what the caller says goes first. Pure.
"""

from __future__ import annotations

import msgspec

from memory_agent.records import Kind, Profile


class Fetch(msgspec.Struct, frozen=True, kw_only=True):
    """What a profile fetches: how many, of which kinds (empty: all)."""

    top_k: int
    kinds: tuple[Kind, ...] = ()


USUAL = Fetch(top_k=5)
"""What is fetched without a profile."""

FETCHES: dict[Profile, Fetch] = {
    # New input, before anything is planned: whatever it resembles.
    "before_planning": Fetch(top_k=5),
    # A document comes into being: what is known, not what was said along the way.
    "document": Fetch(top_k=3, kinds=("finding", "pattern")),
    # A run has ended: how such runs were planned and how they ended, to learn from.
    "trajectory": Fetch(top_k=5, kinds=("strategy", "pattern")),
}


def fetch(profile: Profile | None) -> Fetch:
    """Return what `profile` fetches."""
    return USUAL if profile is None else FETCHES[profile]
