"""Describes how often the successful run ranks first in carol's answers and why, and the gate's evidence. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from memory_agent.cli.render import counted
from memory_agent.recall.context import ending
from memory_agent.records.memories import RetrievedMemory
from memory_agent.records.trajectories import SonaStatus
from ops.demo.recurring import Page
from ops.demo.story import Week
from sona import SHADOW_LESSONS

_KINDS_OF_PAGES = ((True, False), (True,), (False,))
_PARTS = {
    "association": "was used for similar requests",
    "shift": "is close to what such requests used",
    "outcome": "outcome of its run",
}


@dataclass
class Standings:
    """Counts the pages, and how often the successful run ranked first, by week and by whether similarity misleads.

    `unlearned` counts how often that run ranked first without the learned parts of scores.
    """

    pages: Counter[tuple[Week, bool]] = field(default_factory=Counter)
    worked: Counter[tuple[Week, bool]] = field(default_factory=Counter)
    unlearned: Counter[tuple[Week, bool]] = field(default_factory=Counter)

    def count(self, page: Page, shown: Sequence[RetrievedMemory]) -> None:
        """Record the answer to a page."""
        key = page.week, page.kind.looks_deceive
        self.pages[key] += 1
        self.worked[key] += rank_of(page.kind.worked, shown) == 1
        self.unlearned[key] += rank_of(page.kind.worked, by_likeness(shown)) == 1

    def led(self, week: Week) -> tuple[int, int]:
        """Return how often, in one week, the successful run ranked first with the learned parts, and how often without
        them.
        """
        return _sum(self.worked, week), _sum(self.unlearned, week)

    def rows(self) -> list[tuple[str, ...]]:
        """Return one row per week: all pages, the pages for which similarity misleads, and the remaining pages."""
        weeks = sorted({week for week, _ in self.pages})
        return [(f"week {week}", *(self._cell(week, *kinds) for kinds in _KINDS_OF_PAGES)) for week in weeks]

    def _cell(self, week: Week, *kinds: bool) -> str:
        worked, unlearned, pages = (
            sum(count[week, kind] for kind in kinds) for count in (self.worked, self.unlearned, self.pages)
        )
        return f"{worked} ({unlearned}) of {pages}"


def _sum(count: Counter[tuple[Week, bool]], week: Week) -> int:
    return count[week, True] + count[week, False]


def rank_of(run_id: str, shown: Sequence[RetrievedMemory]) -> int | None:
    """Return the best rank of a run's memories, counted from 1, or None if none is shown."""
    return next((place for place, memory in enumerate(shown, 1) if memory.record.run_id == run_id), None)


def plain_score(memory: RetrievedMemory) -> float:
    """Return the score without its learned parts."""
    return memory.sona_score - memory.learned - memory.explanation.get("outcome", 0.0)


def by_likeness(shown: Sequence[RetrievedMemory]) -> list[RetrievedMemory]:
    """Sort the memories by their scores without the learned parts."""
    return sorted(shown, key=plain_score, reverse=True)


def raised(memory: RetrievedMemory) -> float:
    """Return the learned part of a memory's score, as the sum of the rounded parts."""
    return sum(part for _, part in _parts(memory))


def progress(week: Week, done: int, status: SonaStatus) -> str:
    """Return a line with the number of pages done and the gate's state."""
    return f"week {week}, page {done:>3}  {status.gate.state}: {_evidence(status)}"


def reasons(best: RetrievedMemory, asked: Mapping[str, str]) -> Iterator[str]:
    """Yield lines that explain a memory's rank: the learned parts of its score, and past runs with their requests."""
    yield f"raised by {raised(best):+.2f}:"
    yield from (f"  {part:+.2f} {_PARTS[name]}" for name, part in _parts(best))
    for cause in best.explanation["caused_by"]:
        quality = cause["quality"]
        ended = "" if quality is None else f", ended: {ended_as(quality)}"
        request = asked.get(cause["trajectory_id"], "?")
        yield f"because of {cause['trajectory_id']} “{request}”, {100 * cause['similarity']:.0f} % similar{ended}"
    if best.record.quality_score is not None:
        yield f"and it is from {best.record.run_id}, which was {ended_as(best.record.quality_score)}"


def ended_as(quality: float) -> str:
    """Return a quality as a word and a number."""
    return f"{ending(quality)} ({quality:.1f})"


def _parts(memory: RetrievedMemory) -> list[tuple[str, float]]:
    return [(name, round(memory.explanation.get(name, 0.0), 2)) for name in _PARTS]


def _evidence(status: SonaStatus) -> str:
    gate = status.gate
    decided = gate.won + gate.lost
    won = f"won {gate.won} of {counted(decided, 'comparison')}" if decided else "no comparison yet"
    if gate.state == "shadow":
        return f"{status.credited} of the {SHADOW_LESSONS} runs required before a trial"
    if gate.state == "trial":
        return f"compared but not shown; {won}" + (f", the bet is at {gate.evidence:.0f}" if decided else "")
    if gate.state == "on":
        return f"{won} since" if decided else f"the bet reached {gate.threshold:g}, so learned rankings are now shown"
    return f"learning did not help; {won}"
