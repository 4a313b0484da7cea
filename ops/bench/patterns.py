"""Measures whether patterns group runs by task, using 100 real runs of an airline agent (25 tasks, four trials each).

A run's request is either the customer's first message, often just "I would like to change my flight", or everything
that the customer wants, as a conductor would state its objective. Thresholds were tuned on even-numbered tasks. A
pattern is pure if all its runs belong to one task. An impure pattern is not always wrong, since some tasks (8 and 9,
for example) differ in little more than the customer's name. The second part measures whether steps shared by several
runs distinguish success from failure (`shared_steps`).

    python -m ops.bench.patterns AIRLINE_FILE SWE_FILE      five minutes; writes ops/bench/patterns.md
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from memory_agent.embedders import Embedder, open_embedder
from memory_agent.learning.patterns import PastRun, find_patterns
from memory_agent.records.memories import MemoryRecord
from memory_agent.settings import Settings
from ops.bench.shared_steps import groups_of_patterns, groups_of_repositories, page_rows

PAGE = Path(__file__).with_name("patterns.md")

_REQUESTS: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "what the customer says first": lambda run: str(run["messages"][0]["content"]),
    "everything that the customer wants": lambda run: str(run["instruction"]),
}
_TASKS: dict[str, Callable[[int], bool]] = {
    "even (chosen on)": lambda task: task % 2 == 0,
    "odd": lambda task: task % 2 == 1,
    "all": lambda task: True,
}
_COMPLETED = 0.8  # the quality of a completed run (decision 0008)


def past_runs(
    runs: Sequence[Mapping[str, Any]], request_of: Callable[[Mapping[str, Any]], str], embedder: Embedder
) -> list[PastRun]:
    """Convert the runs to past runs that ended on consecutive days, each in its own session."""
    vectors = embedder.embed_texts([request_of(run) for run in runs])
    return [
        PastRun(
            id=f"{run['task_id']}-{run['trial']}",
            objective=request_of(run),
            vector=vector,
            session_id=f"s-{number}",
            ended_at=datetime(2024, 5, 1, tzinfo=UTC) + timedelta(days=number),
            outcome="completed" if run["reward"] else "failed",
            quality=_COMPLETED * run["reward"],
            steps=tuple(call["name"] for message in run["messages"] for call in message["tool_calls"] or ()),
        )
        for number, (run, vector) in enumerate(zip(runs, vectors, strict=True))
    ]


def _task(run_id: str) -> int:
    return int(run_id.partition("-")[0])


def row(request: str, tasks: str, runs: Sequence[PastRun]) -> str:
    """Return the table row for the patterns of these runs."""
    found = [pattern.record for pattern in find_patterns(runs)]
    by_task = [Counter(map(_task, record.metadata["run_ids"])) for record in found]
    held = sum(map(Counter.total, by_task))
    mostly = sum(max(counts.values()) for counts in by_task)
    cells = [
        request,
        tasks,
        f"{held} of {len(runs)}",
        str(len(found)),
        str(sum(len(counts) == 1 for counts in by_task)),
        f"{mostly / held:.2f}",
        f"{len({counts.most_common(1)[0][0] for counts in by_task})} of {len({_task(run.id) for run in runs})}",
        str(sum(_tells_failure(record) for record in found)),
    ]
    return f"| {' | '.join(cells)} |"


def _tells_failure(record: MemoryRecord) -> bool:
    return bool(record.metadata["failed_steps"])


def page(rows: Sequence[str], step_rows: Sequence[str], now: datetime) -> str:
    """Return the contents of patterns.md."""
    head = [
        "# Do patterns group runs by task?",
        "",
        f"Written by `python -m ops.bench.patterns` on {now:%Y-%m-%d}, with an airline agent's 100 runs (25",
        "tasks, four trials each) and `memory_agent/learning/patterns.py` as shipped. Purity is the share of runs in",
        "patterns whose task is the most frequent task in their pattern. The last column counts the patterns that name",
        "a failure step: a step taken by at least two of the failed runs, by at least half of them, and by no",
        "other runs.",
        "",
        "| request | tasks | runs in patterns | patterns | pure | purity | tasks found | with a failure step |",
        "|---|---|---|---|---|---|---|---|",
    ]
    return "\n".join([*head, *rows, "", *_HEAD_OF_STEPS, *step_rows]) + "\n"


_HEAD_OF_STEPS = (
    "## Do shared steps distinguish success from failure?",
    "",
    "Two runs share the steps in their longest common subsequence. Two steps are the same if their similarity reaches",
    "the threshold (shipped: .6). *Shared* is the mean share of shared steps. *Difference* is how much more two",
    "successful runs share than a successful and a failed run, with its 95 % interval (bootstrap over runs). *Chance*",
    "is the difference with the outcomes in each group shuffled, and the share of shuffles that reach the real",
    "difference. *Warnings* is the number of steps that only failed runs took, and the number with shuffled outcomes",
    "(mean, minimum to maximum). For airline runs, groups are patterns of requests, and steps are tool calls. For",
    "software runs, a group is all issues of one repository, and steps are the agent's thoughts.",
    "",
    "| runs | likeness | groups, runs | shared | difference | chance | warnings |",
    "|---|---|---|---|---|---|---|",
)
_LIKENESSES = (0.5, 0.55, 0.6, 0.65, 0.7, 0.8)


def step_rows(runs: Mapping[str, Sequence[PastRun]], swe_file: Path, embedder: Embedder) -> list[str]:
    """Return the rows of the shared-steps table."""
    rows = []
    for request, past in runs.items():
        rows += page_rows(f"airline, {request}", groups_of_patterns(past, embedder), _LIKENESSES)
    return rows + page_rows("issues of a repository", groups_of_repositories(swe_file, embedder), _LIKENESSES)


def main(arguments: list[str]) -> int:
    """Measure the given files and write patterns.md."""
    if len(arguments) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    runs = json.loads(Path(arguments[0]).read_bytes())
    embedder = open_embedder(Settings().embedder)
    try:
        told = {request: past_runs(runs, request_of, embedder) for request, request_of in _REQUESTS.items()}
        steps = step_rows(told, Path(arguments[1]), embedder)
    finally:
        embedder.close()
    rows = [
        row(request, tasks, [run for run in past if among(_task(run.id))])
        for request, past in told.items()
        for tasks, among in _TASKS.items()
    ]
    PAGE.write_text(page(rows, steps, datetime.now(UTC)), encoding="utf-8")
    print(PAGE.read_text(encoding="utf-8"))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
