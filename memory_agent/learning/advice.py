"""What the learner says of one recall: how it would rank, whether it may, and which past runs make it say so.

Plain data between the learner and the recall.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from memory_agent.trajectory import RecalledRun
from sona.engine import Adaptation
from sona.gate import Route

RunOf = Callable[[int, float], RecalledRun | None]
"""Returns the run of a lesson, by its number, which is so much like the request."""


@dataclass(frozen=True)
class Advice:
    """`adaptation` is None where nothing was learnt. `key` decides whose turn it is where both rankings take part."""

    route: Route = "baseline"
    adaptation: Adaptation | None = None
    key: str = ""
    run_of: RunOf = lambda _number, _similarity: None

    def causes(self, row: int) -> list[dict[str, Any]]:
        """Return the past runs that lift the memory in `row`: the one that used it, else those for requests like it."""
        if self.adaptation is None:
            return []
        found = (self.run_of(number, similarity) for number, similarity in self.adaptation.causes(row))
        return [msgspec.structs.asdict(run) for run in found if run is not None]


USUAL = Advice()
