"""Describes carol's answers: which past run leads each week, why one does, and the gate's evidence. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from memory_agent.recall.context import ending
from memory_agent.records import RetrievedMemory
from memory_agent.trajectory import SonaStatus
from ops.demo.recurring import Page
from ops.demo.story import Week
from sona.gate import SHADOW_LESSONS

_BAR = 24
_PARTS = {
    "association": "was used for requests like this one",
    "shift": "lies where such requests lead",
    "outcome": "how its run ended",
}


@dataclass
class Standings:
    """Counts by week, for pages whose most similar run did not work: the pages, and which run came first.

    `unlearned` counts when the run that worked comes first in the order without what runs taught.
    """

    pages: Counter[Week] = field(default_factory=Counter)
    closest: Counter[Week] = field(default_factory=Counter)
    worked: Counter[Week] = field(default_factory=Counter)
    unlearned: Counter[Week] = field(default_factory=Counter)

    def count(self, page: Page, shown: Sequence[RetrievedMemory]) -> None:
        """Count the answer to a page."""
        kind = page.kind
        if kind.looks_deceive:
            self.pages[page.week] += 1
            self.closest[page.week] += rank_of(kind.closest, shown) == 1
            self.worked[page.week] += rank_of(kind.worked, shown) == 1
            self.unlearned[page.week] += rank_of(kind.worked, by_likeness(shown)) == 1

    def rows(self) -> list[tuple[str, ...]]:
        """Return a row per week: its name, the pages, and how often each run came first."""
        counts = (self.pages, self.closest, self.worked, self.unlearned)
        return [(f"week {week}", *(f"{count[week]}" for count in counts)) for week in sorted(self.pages)]


def rank_of(run_id: str, shown: Sequence[RetrievedMemory]) -> int | None:
    """Return the best rank of a run's memories, from 1, or None."""
    return next((place for place, memory in enumerate(shown, 1) if memory.record.run_id == run_id), None)


def plain_score(memory: RetrievedMemory) -> float:
    """Return the score without what runs taught: past use, and how they ended, which follows the lead of that use."""
    return memory.sona_score - memory.learned - memory.explanation.get("outcome", 0.0)


def by_likeness(shown: Sequence[RetrievedMemory]) -> list[RetrievedMemory]:
    """Return the memories in the order of their scores without what runs taught."""
    return sorted(shown, key=plain_score, reverse=True)


def progress(done: int, total: int, status: SonaStatus) -> str:
    """Return a line with the progress and the gate's evidence."""
    full = round(_BAR * done / total)
    return f"{'█' * full}{'░' * (_BAR - full)} {done:>3} pages  {status.gate.state}: {_evidence(status)}"


def reasons(best: RetrievedMemory, asked: Mapping[str, str]) -> Iterator[str]:
    """Yield lines on what raised a memory: the parts of its score, and past runs with their requests (`asked`)."""
    parts = best.explanation
    yield f"learned {parts['learned']:+.2f}:"
    yield from (f"  {parts[name]:+.2f} {words}" for name, words in _PARTS.items())
    for cause in parts["caused_by"]:
        quality = cause["quality"]
        ended = "" if quality is None else f", ended: {ended_as(quality)}"
        request = asked.get(cause["trajectory_id"], "?")
        yield f"because of {cause['trajectory_id']} “{request}”, alike {cause['similarity']:.2f}{ended}"
    if best.record.quality_score is not None:
        yield f"and it is of {best.record.run_id}: that run was {ended_as(best.record.quality_score)}"


def ended_as(quality: float | None) -> str:
    """Return a quality as a word and a number."""
    return "-" if quality is None else f"{ending(quality)} ({quality:.1f})"


def _evidence(status: SonaStatus) -> str:
    gate = status.gate
    if gate.state == "shadow":
        return f"{status.credited} of {SHADOW_LESSONS} lessons; no answer is changed"
    contests = f"learned won {gate.won} of {gate.won + gate.lost} decided"
    if gate.state == "trial":
        return f"compared, not shown; {contests}, wealth {gate.evidence:.0f} of {gate.threshold:g}"
    return f"what was learned ranks; {contests} since" if gate.state == "on" else f"{contests}: no help"
