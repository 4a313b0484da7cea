"""Two rankings of one recall, the baseline and the learned one, and which of them brought each memory in. Pure.

What the run then uses tells which is better. Where both may rank, their answers are interleaved by team draft
(`sona/interleaving`); before, the baseline answers and is compared with the other (`sona/comparison`). Who may rank is
decided by `learning/learner`.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from memory_agent.recall.candidates import Candidates
from memory_agent.recall.selection import Choice
from memory_agent.records.trajectories import Arm
from sona.interleaving import team_draft

_MOST_FOLDED = 100


class Pick(msgspec.Struct, frozen=True):
    """A selected candidate with the ranking it comes from; `arm` is None for the baseline alone, or for both.

    `rank` is its rank in the learned ranking, from 1, where the baseline was compared with it, else 0.
    """

    found: Candidates
    choice: Choice
    arm: Arm | None = None
    shift: float = 0.0
    rank: int = 0

    @property
    def slot(self) -> int:
        """The slot of the memory."""
        return int(self.found.slots[self.choice.place])

    @property
    def row(self) -> int:
        """The row of the memory."""
        return int(self.found.rows[self.choice.place])

    @property
    def learned(self) -> float:
        """What learning added to its score."""
        return float(self.found.association[self.choice.place]) + self.shift

    @property
    def folded(self) -> tuple[int, ...]:
        """The rows of duplicates and former requests folded into it, at most the best hundred."""
        leader = self.choice.leader
        return tuple(int(self.found.rows[place]) for place in (*leader.folded, *leader.requests)[:_MOST_FOLDED])


def interleave(baseline: Sequence[Pick], learned: Sequence[Pick], limit: int, key: str) -> list[Pick]:
    """Return at most `limit` picks of two rankings, without duplicates; `key` seeds the draft."""
    by_arm = {"baseline": _by_text(baseline), "learned": _by_text(learned)}
    drafted = team_draft(list(by_arm["baseline"]), list(by_arm["learned"]), limit, key)
    return [msgspec.structs.replace(by_arm[place.arm or "baseline"][place.item], arm=place.arm) for place in drafted]


def ranked(baseline: Sequence[Pick], learned: Sequence[Pick]) -> list[Pick]:
    """Return the picks of the baseline with their ranks in the learned ranking; beyond its end all have the same."""
    ranks = {fingerprint: rank for rank, fingerprint in enumerate(_by_text(learned), 1)}
    beyond = max(len(baseline), len(learned)) + 1
    return [msgspec.structs.replace(pick, rank=ranks.get(pick.choice.leader.fingerprint, beyond)) for pick in baseline]


def _by_text(picks: Sequence[Pick]) -> dict[int, Pick]:
    return {pick.choice.leader.fingerprint: pick for pick in picks}
