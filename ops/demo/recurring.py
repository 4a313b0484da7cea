"""Carol's pages: three weeks of recurring incidents, each worded differently, from `recurring.toml`."""

from __future__ import annotations

import random
import tomllib
from collections.abc import Iterator, Sequence
from datetime import datetime
from itertools import product
from pathlib import Path
from string import Formatter
from typing import Any

import msgspec

from memory_agent.records.memories import RetrievedMemory
from ops.demo.story import Event, Run, Week, events_of

FILE = Path(__file__).with_name("recurring.toml")

_SEED = 7
_WEEK_DAYS = 7
_FIRST_PAGE_DAYS_AGO = 18.5
_LOOKED_AT = 2
_ENDING = "conductor.run.completed"


class Kind(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A kind of incident: the past run most similar to its pages, and the successful run (possibly the same run)."""

    name: str
    closest: str
    worked: str
    pages: list[str]
    words: dict[str, list[str]]

    @property
    def looks_deceive(self) -> bool:
        """Whether the most similar run differs from the successful run."""
        return self.closest != self.worked


class Final(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The page of week three that is shown in detail, and its run."""

    kind: str
    page: str
    run: Run


class Page(msgspec.Struct, frozen=True):
    """One page: its text, kind and time. `id` is the id of the page's run. If `is_looked_at`, carol reviews the run at
    its end, and approves it if past work helped.
    """

    id: str
    kind: Kind
    text: str
    days_ago: float
    is_looked_at: bool = False

    @property
    def week(self) -> Week:
        """The page's week, 1 to 3."""
        return 1 if self.days_ago > 2 * _WEEK_DAYS else 2 if self.days_ago > _WEEK_DAYS else 3


class Recurring(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The past runs in carol's memory, and the kinds of recurring incidents."""

    user: str
    pages_per_week: tuple[int, int, int]
    run: list[Run]
    kind: list[Kind]
    final: Final

    @classmethod
    def load(cls) -> Recurring:
        """Read `recurring.toml`."""
        return msgspec.convert(tomllib.loads(FILE.read_text(encoding="utf-8")), cls)

    def pages(self) -> list[Page]:
        """Return the pages in chronological order. All kinds are equally frequent, and no text is repeated."""
        chance = random.Random(_SEED)
        texts = _dealt(self.kind, chance)
        drawn = [next(texts) for _ in range(sum(self.pages_per_week))]
        return [
            Page(f"page-{place:03}", kind, text, days_ago, place % _LOOKED_AT == 0)
            for place, ((kind, text), days_ago) in enumerate(zip(drawn, self._days(), strict=True), 1)
        ]

    def final_page(self) -> Page:
        """Return the page of week three that is shown in detail."""
        kind = next(kind for kind in self.kind if kind.name == self.final.kind)
        return Page(self.final.run.id, kind, self.final.page, self.final.run.days_ago)

    def final_events(self, now: datetime, recall_id: str, used: Sequence[str]) -> list[Event]:
        """Return the final page's events: the first event names the recall, and the finding names the used memories."""
        begin, finding, *others = self._own_events(self.final.run, now)
        begin["payload"]["recall_id"] = recall_id
        finding["payload"]["memory_ids"] = list(used)
        return [begin, finding, *others]

    def ending_of(self, run_id: str) -> str:
        """Return the final message of a past run."""
        run = next(run for run in self.run if run.id == run_id)
        return str(next(payload["summary"] for event_type, payload in run.events if event_type == _ENDING))

    def cited(self, page: Page, shown: Sequence[RetrievedMemory]) -> RetrievedMemory | None:
        """Return the memory that carol's agent uses (the end of the successful run), or None if it was not shown."""
        ending = self.ending_of(page.kind.worked)
        return next((memory for memory in shown if memory.record.text.startswith(ending)), None)

    def past_events(self, now: datetime) -> list[Event]:
        """Return the events of the past runs."""
        return [event for run in self.run for event in self._own_events(run, now)]

    def page_events(self, page: Page, now: datetime, recall_id: str, used: Sequence[str]) -> list[Event]:
        """Return the events of the run for a page. They contain ids but no text, so they create no memory."""
        ending: dict[str, Any] = {"memory_ids": list(used)}
        if used and page.is_looked_at:
            ending["approved"] = True
        rows = [("conductor.run.started", {"recall_id": recall_id}), (_ENDING, ending)]
        run = Run(id=page.id, user=self.user, session=page.id, days_ago=page.days_ago, events=rows)
        return self._own_events(run, now)

    def _own_events(self, run: Run, now: datetime) -> list[Event]:
        """Return a run's events, all published as carol."""
        return [event | {"user_id": self.user} for event in events_of(run, now)]

    def _days(self) -> Iterator[float]:
        for week, count in enumerate(self.pages_per_week):
            begin = _FIRST_PAGE_DAYS_AGO if week == 0 else 21.0 - week * _WEEK_DAYS - 0.1
            end = 21.0 - (week + 1) * _WEEK_DAYS + 0.1
            yield from (begin - (begin - end) * place / count for place in range(count))


def _dealt(kinds: Sequence[Kind], chance: random.Random) -> Iterator[tuple[Kind, str]]:
    """Yield kinds and texts in rounds of one per kind, shuffled within each round, until a kind is exhausted."""
    stacks = [(kind, _texts(kind, chance)) for kind in kinds]
    while all(texts for _, texts in stacks):
        chance.shuffle(stacks)
        yield from [(kind, texts.pop()) for kind, texts in stacks]


def _texts(kind: Kind, chance: random.Random) -> list[str]:
    texts = [text for template in kind.pages for text in _filled(template, kind.words)]
    chance.shuffle(texts)
    return texts


def _filled(template: str, words: dict[str, list[str]]) -> Iterator[str]:
    slots = [name for _, name, _, _ in Formatter().parse(template) if name is not None]
    for chosen in product(*(words[slot] for slot in slots)):
        yield template.format_map(dict(zip(slots, chosen, strict=True)))
