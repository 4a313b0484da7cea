"""Two rankings of one recall, the usual and the learned one, and which of them brought a memory into the answer. Pure.

Where both may rank, their answers are woven (`sona/interleaving`), so that what the run then uses says which is better.
What this does not do: rank, decide who may (`learning/learner`).
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from memory_agent.recall.learned import Lift
from memory_agent.recall.scoring import Scored
from memory_agent.recall.selection import Choice
from memory_agent.trajectory import Arm
from sona.interleaving import team_draft

_MOST_FOLDED = 100


class Pick(msgspec.Struct, frozen=True):
    """A choice among the candidates of its ranking. `arm` is None where it is the usual ranking's, or that of both."""

    scored: Scored
    choice: Choice
    arm: Arm | None = None
    lift: Lift = Lift()

    @property
    def row(self) -> int:
        """The row of the chosen memory."""
        return int(self.scored.rows[self.choice.place])

    @property
    def folded(self) -> tuple[int, ...]:
        """The rows of candidates that say or ask the same, for which it stands; of many the best hundred."""
        leader = self.choice.leader
        return tuple(int(self.scored.rows[place]) for place in (*leader.folded, *leader.repeats)[:_MOST_FOLDED])


def usual_picks(scored: Scored, choices: Sequence[Choice]) -> list[Pick]:
    """Return the choices of the usual ranking, in their order."""
    return [Pick(scored, choice) for choice in choices]


def learned_picks(scored: Scored, choices: Sequence[Choice], lifts: Sequence[Lift]) -> list[Pick]:
    """Return the choices of the learned ranking, in their order, each with what lifted it."""
    return [Pick(scored, choice, "learned", lift) for choice, lift in zip(choices, lifts, strict=True)]


def woven(usual: Sequence[Pick], learned: Sequence[Pick], limit: int, key: str) -> list[Pick]:
    """Return at most `limit` picks of two rankings of what is said, each said once; `key` decides who begins."""
    by_arm = {
        "baseline": {pick.choice.leader.fingerprint: pick for pick in usual},
        "learned": {pick.choice.leader.fingerprint: pick for pick in learned},
    }
    drafted = team_draft(list(by_arm["baseline"]), list(by_arm["learned"]), limit, key)
    return [msgspec.structs.replace(by_arm[place.arm or "baseline"][place.item], arm=place.arm) for place in drafted]
