"""What each part of the ranking contributes: recall built up step by step, and without one part at a time.

Parts are settings, so every line is the shipped code, asked through `Memory` on the same stores. Settings were chosen
on conversations 0 to 2 of the development file; 3 and 4, on which nothing was chosen, are reported separately.
Differences to the shipped recall are resampled in pairs.

    python -m ops.bench.ablation LOCOMO_FILE      some minutes; writes ops/bench/ablation.md
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import msgspec
from rich.console import Console
from rich.progress import Progress, TaskID

from memory_agent.evaluation.compare import MetricDifference, compare
from memory_agent.evaluation.locomo import read_locomo
from memory_agent.evaluation.report import Figures, summarise
from memory_agent.evaluation.results import Results, read_results, write_results
from memory_agent.evaluation.runs import Prepared, ingested
from memory_agent.evaluation.trial import Plan, Run
from memory_agent.records import Mode
from memory_agent.settings import RecallSettings, Settings
from ops.bench.machine import describe_machine

PAGE = Path(__file__).with_name("ablation.md")

_TOP_K = 100
_SHIPPED = "shipped"
_PARTS: dict[str, dict[str, object]] = {
    "contiguity": {"contiguity": 0.0},
    "words in context": {"context_words": 0.0},
    "times": {"dates": "ignore"},
    "likeness": {"diversity": 0.0},
}
_GROUPS = {"0 to 2 (chosen on)": ("0", "1", "2"), "3 and 4": ("3", "4"), "all": ("0", "1", "2", "3", "4")}
_METRICS = ("recall@5", "recall@10", "session_recall@10")


@dataclass(frozen=True)
class Line:
    """One line of the table: a name and the settings of a recall."""

    name: str
    mode: Mode
    recall: RecallSettings


def lines() -> list[Line]:
    """Return the lines: each side alone, then cumulative parts, then all parts but one."""
    without = {name: value for part in _PARTS.values() for name, value in part.items()}
    found = [
        Line("vectors alone", "vector", RecallSettings()),
        Line("words alone", "lexical", RecallSettings()),
        Line("fusion", "hybrid", _settings(without)),
    ]
    left = dict(_PARTS)
    for part in _PARTS:
        del left[part]
        rest = {name: value for remaining in left.values() for name, value in remaining.items()}
        found.append(Line(f"+ {part}" if left else _SHIPPED, "hybrid", _settings(rest)))
    found += [Line(f"shipped without {part}", "hybrid", _settings(off)) for part, off in list(_PARTS.items())[:-1]]
    return found


def _settings(changes: dict[str, object]) -> RecallSettings:
    return msgspec.convert(msgspec.structs.asdict(RecallSettings()) | changes, RecallSettings)


def measure(file: Path, progress: Progress) -> dict[str, list[str]]:
    """Return the rows of the table for each group of conversations."""
    plan = Plan(dataset=read_locomo(file), settings=Settings(), mode="hybrid", top_k=_TOP_K)
    with ingested(plan, _tell(progress, progress.add_task("ingest"))) as prepared:
        task = progress.add_task("ask", total=len(lines()))
        runs = {line.name: _run(prepared, line, lambda: progress.advance(task)) for line in lines()}
    return {group: _rows({name: _part(run, users) for name, run in runs.items()}) for group, users in _GROUPS.items()}


def _run(prepared: Prepared, line: Line, done: Callable[[], None]) -> Run:
    settings = msgspec.structs.replace(prepared.plan.settings, recall=line.recall)
    run = prepared.ask(replace(prepared.plan, settings=settings, mode=line.mode), lambda *_: None)
    done()
    return run


def _part(run: Run, users: tuple[str, ...]) -> Run:
    """Return the part of a run over some of its histories."""
    histories = tuple(history for history in run.plan.dataset.histories if history.user in users)
    plan = replace(run.plan, dataset=msgspec.structs.replace(run.plan.dataset, histories=histories))
    return replace(run, plan=plan, answers=tuple(answer for answer in run.answers if answer.user in users))


def _rows(runs: dict[str, Run]) -> list[str]:
    with tempfile.TemporaryDirectory(prefix="ablation-") as folder:
        results = {
            name: _written(run, Path(folder) / f"{place}.jsonl") for place, (name, run) in enumerate(runs.items())
        }
        shipped = results[_SHIPPED]
        return [_row(name, summarise(run), compare(shipped, results[name]).metrics) for name, run in runs.items()]


def _written(run: Run, file: Path) -> Results:
    write_results(run, file)
    return read_results(file)


def _row(name: str, figures: Figures, differences: Iterable[MetricDifference]) -> str:
    turns, sessions = figures.recall_at, figures.session_recall_at_all or figures.session_recall_at
    cells = [name, *(_percent(turns[k]) for k in ("1", "5", "10")), _percent(sessions["10"])]
    cells += [_percent(figures.ndcg_at["10"]), f"{figures.mrr or 0:.3f}"]
    by_metric = {difference.metric: difference for difference in differences}
    cells += ["" if name == _SHIPPED else _difference(by_metric[metric]) for metric in _METRICS]
    return f"| {' | '.join(cells)} |"


def _difference(found: MetricDifference) -> str:
    return f"{100 * found.difference:+.1f} ({100 * found.low:+.1f} to {100 * found.high:+.1f})"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f}"


def page(tables: dict[str, list[str]], machine: dict[str, str], now: datetime) -> str:
    """Return the tables as Markdown."""
    head = (
        "| | turns at 1 | at 5 | at 10 | sessions at 10 | NDCG@10 | MRR | turns at 5, less shipped | turns at 10 "
        "| sessions at 10 |\n|---|---|---|---|---|---|---|---|---|---|"
    )
    text = [
        "# What each part of the ranking brings",
        "",
        f"Written by `python -m ops.bench.ablation` on {now:%Y-%m-%d}; LoCoMo, conversations 0 to 4; figures in %.",
        "Every line is the shipped code under other settings. Sessions: all questions, those without evidence count as",
        "found. Differences: less the shipped recall, with the 95 % interval of a paired bootstrap over questions; as",
        "those of one conversation are not independent, a claim about other conversations needs a wider one.",
        "",
        "; ".join(f"{name}: {value}" for name, value in machine.items()) + ".",
    ]
    for group, rows in tables.items():
        text += ["", f"## Conversations {group}", "", head, *rows]
    return "\n".join(text) + "\n"


def _tell(progress: Progress, task: TaskID) -> Callable[[str, int, int], None]:
    def tell(_what: str, done: int, total: int) -> None:
        progress.update(task, completed=done, total=total)

    return tell


def main(arguments: list[str]) -> int:
    """Measure the given file and write the page."""
    if len(arguments) != 1:
        print(__doc__, file=sys.stderr)
        return 2
    with Progress(console=Console(stderr=True)) as progress:
        tables = measure(Path(arguments[0]), progress)
    PAGE.write_text(page(tables, describe_machine(), datetime.now(UTC)), encoding="utf-8")
    print(PAGE.read_text(encoding="utf-8"))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
