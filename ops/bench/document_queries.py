"""Measures how well a document's query finds related findings, compared with its title or its beginning.

A run's thoughts are the document, and the first line of its issue is the title. Four thoughts of every run are stored
as findings; findings of other runs on the same issue are related. Each query recalls three findings, excluding those of
its own run, with the default threshold and without one.

    python -m ops.bench.document_queries SWE_RUNS_FILE      half a minute
"""

from __future__ import annotations

import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from memory_agent.embedders import Embedder, open_embedder
from memory_agent.memory import Memory
from memory_agent.settings import EmbedderSettings
from memory_agent.triggers.document_query import Revisions, document_query

_ASKED = 3
_BEGINNING_CHARS = 1_500
_DEADLINE_MS = 60_000.0
_KEPT_CHARS = 4_000
_SHARES = (0.25, 0.5, 0.75, 1.0)

Ask = Callable[[str, str], str]
"""Returns a document's query, from its title and text."""


class _Step(msgspec.Struct):
    thought: str = ""


class Run(msgspec.Struct):
    """A run in the file, with its issue and its steps."""

    instance_id: str
    task: str
    steps: list[_Step]

    @property
    def title(self) -> str:
        """The first line of the issue, used as the document's title."""
        return self.task.split("\n", 1)[0]

    @property
    def thoughts(self) -> list[str]:
        """The run's non-empty thoughts, in order."""
        return [step.thought for step in self.steps if step.thought]


def measure(runs: list[Run], embedder: Embedder) -> Iterator[dict[str, Any]]:
    """Yield, for each kind of query and threshold, the number of documents for which a related finding is recalled."""
    asks: dict[str, Ask] = {
        "title": lambda title, _: title,
        "title and beginning": lambda title, text: f"{title}\n{text[:_BEGINNING_CHARS]}",
        "title and first sentences": lambda title, text: document_query(title, text, "", Revisions(), lambda _: None),
        "title and central sentences": lambda title, text: document_query(
            title, text, "", Revisions(), embedder.embed_texts
        ),
    }
    with tempfile.TemporaryDirectory() as folder, Memory.open(Path(folder) / "user", embedder=embedder) as memory:
        issues = _fill(memory, runs)
        often = Counter(run.instance_id for run in runs)
        asked = [(number, run) for number, run in enumerate(runs) if often[run.instance_id] > 1]
        for name, ask in asks.items():
            for floor in (None, 0.0):
                found = [_related(memory, number, run, ask, floor, issues) for number, run in asked]
                yield {
                    "query": name,
                    "floor": "default" if floor is None else floor,
                    "documents": len(found),
                    "found": sum(any(one) for one in found),
                    "empty": sum(not one for one in found),
                    "related of shown": round(sum(map(sum, found)) / max(1, sum(map(len, found))), 3),
                }


def _fill(memory: Memory, runs: list[Run]) -> dict[str, str]:
    """Store four thoughts from each run; return each memory's issue, by memory id."""
    issues = {}
    for number, run in enumerate(runs):
        thoughts = run.thoughts
        for place in sorted({max(0, round(share * len(thoughts)) - 1) for share in _SHARES} if thoughts else ()):
            record = memory.remember(thoughts[place][:_KEPT_CHARS], source="worker_result", run_id=_run_id(number))
            issues[record.id] = run.instance_id
    return issues


def _related(
    memory: Memory, number: int, run: Run, ask: Ask, floor: float | None, issues: dict[str, str]
) -> list[bool]:
    """Return, for each recalled finding, whether it belongs to the run's issue."""
    query = ask(run.title, "\n\n".join(run.thoughts))
    result = memory.recall(
        query, _ASKED, {"kinds": ["finding"]}, None, _DEADLINE_MS, by_run=_run_id(number), min_relevance=floor
    )
    return [issues[found.record.id] == run.instance_id for found in result.memories]


def _run_id(number: int) -> str:
    return f"run-{number}"


def main(file: Path) -> None:
    """Print the results as JSON lines."""
    runs = msgspec.json.decode(file.read_bytes(), type=list[Run])
    embedder = open_embedder(EmbedderSettings(allow_download=False))
    try:
        for figures in measure(runs, embedder):
            print(msgspec.json.encode(figures).decode())
    finally:
        embedder.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
