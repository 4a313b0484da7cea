"""What to measure, and what came of it: plain data between those who hold a trial and those who read it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from memory_agent.evaluation.dataset import Dataset, History
from memory_agent.evaluation.trial import Answer
from memory_agent.records import Mode
from memory_agent.settings import Settings


@dataclass(frozen=True)
class Plan:
    """What to measure, and how. Without a `data_dir` a temporary one is used.

    Users are `PREFIX-NAME`, the prefix the dataset's name unless one is given; so several datasets, and runs with
    prefixes of their own, have room in one folder.
    """

    dataset: Dataset
    settings: Settings
    mode: Mode
    top_k: int
    data_dir: Path | None = None
    prefix: str = ""
    timeout_s: float = 1800.0

    def users(self) -> Iterator[tuple[str, History]]:
        """Go over the user ids and their histories."""
        return ((f"{self.prefix or self.dataset.name}-{part.user}", part) for part in self.dataset.histories)

    @property
    def events(self) -> int:
        """How many events the histories have."""
        return sum(len(history.items) for history in self.dataset.histories)


@dataclass(frozen=True)
class Run:
    """What came of a plan. `took_s`: from the first event given in to the last recallable.

    `memories` are those that the users had then, `model` what their vectors come from. `settings_known` is False where
    a daemon that somebody else started has its own.
    """

    plan: Plan
    answers: tuple[Answer, ...]
    took_s: float
    memories: int
    model: str | None
    embedded: bool
    settings_known: bool = True
