"""Measures what each part of the ranking contributes: parts are added one by one, and removed one at a time.

LoCoMo has short turns, BEAM has longer messages with short evidence, and the runs of a software-engineering agent (SWE)
have long reports and outputs. Parts are switched on and off by settings, so every row of the tables is measured with
the shipped code, called through `Memory` on the same stores. The exception is late interaction, which is switched off
by an embedder without word vectors: a query word then matches only memories that contain the word. Differences from the
shipped recall are bootstrapped over groups (conversations, chats, issues), because the questions of one group are not
independent.

    python -m ops.bench.ablation --data FOLDER      ten minutes; writes ops/bench/ablation.md

FOLDER contains `locomo_dev.json`, `beam_dev/` and `swe_runs_dev.json`. Embedding takes half the time. With `--stores`,
the stores are kept, so that later runs (for example with different ranking constants) need not embed again.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.progress import Progress, TaskID

from memory_agent.embedders import Embedder, EmbedderInfo, PendingVector, PendingVectors
from memory_agent.embedders import Progress as Told
from memory_agent.evaluation import (
    Averages,
    Comparison,
    Dataset,
    Figures,
    Plan,
    Results,
    Run,
    compare,
    read_beam,
    read_locomo,
    read_results,
    read_swe,
    summarise,
    write_results,
)
from memory_agent.evaluation.runs import Prepared, ingested
from memory_agent.records.memories import Mode
from memory_agent.settings import RecallSettings, Settings
from ops.bench.machine import describe_machine

PAGE = Path(__file__).with_name("ablation.md")

_TOP_K = 50  # as in `memory-agent eval`
_SHIPPED = "shipped"
_METRICS = ("recall@1", "recall@5", "recall@10", "session_recall@10")


@dataclass(frozen=True)
class Set:
    """A data set: its display name, its path in the folder, and the name of its groups."""

    name: str
    place: str
    read: Callable[[Path], Dataset]
    groups: str


SETS = (
    Set("LoCoMo", "locomo_dev.json", read_locomo, "conversations"),
    Set("BEAM", "beam_dev", read_beam, "chats"),
    Set("SWE", "swe_runs_dev.json", read_swe, "issues"),
)


@dataclass(frozen=True)
class Part:
    """A part of the ranking, with the settings that switch it off."""

    name: str
    off: dict[str, object]
    words: bool = True
    """Whether the query's words are embedded if the part is off."""


_PARTS = (
    Part("late interaction", {}, words=False),
    Part("words met beside", {"context_words": 0.0}),
    Part("answers", {"contiguity": 0.0}),
    Part("times", {"dates": "ignore"}),
    Part("the relevance threshold", {"min_relevance": 0.0}),
)
_KEPT = (Part("cosine", {"vector_weight": 0.0}), Part("who spoke", {"speaker_weight": 0.0}))
"""Parts that are enabled in every hybrid line except the line that omits them."""


@dataclass(frozen=True)
class Line:
    """One line of a table: the recall settings, and whether the query's words are embedded."""

    name: str
    mode: Mode
    recall: RecallSettings
    words: bool = True


def lines() -> list[Line]:
    """Return the lines: only vectors, only words, parts added one by one, then parts removed one at a time."""
    found = [
        Line("vectors alone", "vector", RecallSettings(dates="ignore", min_relevance=0.0)),
        Line("words alone", "lexical", RecallSettings(dates="ignore", min_relevance=0.0)),
        _without("cosine and words", _PARTS),
    ]
    for place, part in enumerate(_PARTS, 1):
        rest = _PARTS[place:]
        found.append(_without(f"+ {part.name}" if rest else _SHIPPED, rest))
    return found + [_without(f"shipped without {part.name}", [part]) for part in (*_KEPT, *_PARTS[:-1])]


def _without(name: str, parts: Sequence[Part]) -> Line:
    off: dict[str, Any] = {setting: value for part in parts for setting, value in part.off.items()}
    recall = msgspec.convert(msgspec.structs.asdict(RecallSettings()) | off, RecallSettings)
    return Line(name, "hybrid", recall, words=all(part.words for part in parts))


class WithoutWords(Embedder):
    """An embedder that returns the wrapped embedder's query vectors, but no vectors for the query's words."""

    def __init__(self, embedder: Embedder) -> None:
        self._embedder = embedder

    @property
    def info(self) -> EmbedderInfo:
        """Like `Embedder.info`."""
        return self._embedder.info

    def begin_query(self, text: str, timeout_s: float | None = None) -> PendingVector:
        """Like `Embedder.begin_query`."""
        return self._embedder.begin_query(text, timeout_s)

    def begin_texts(self, texts: Sequence[str], progress: Told | None = None) -> PendingVectors:
        """Like `Embedder.begin_texts`."""
        return self._embedder.begin_texts(texts, progress)

    def count_tokens(self, text: str, timeout_s: float | None = None) -> int:
        """Like `Embedder.count_tokens`."""
        return self._embedder.count_tokens(text, timeout_s)

    def close(self) -> None:
        """Do nothing; the caller closes the wrapped embedder."""


@dataclass(frozen=True)
class Table:
    """The table rows for one data set, with the numbers of its questions, groups and memories."""

    title: str
    groups: str
    questions: int
    units: int
    memories: int
    rows: list[str]


def measure(which: Set, folder: Path, stores: Path | None, progress: Progress) -> Table:
    """Ingest a data set once, recall its questions with each line's settings, and return the table.

    If `stores` is set, the ingested stores are kept there and reused.
    """
    plan = Plan(
        dataset=which.read(folder / which.place),
        settings=Settings(),
        mode="hybrid",
        top_k=_TOP_K,
        data_dir=stores / which.name if stores else None,
    )
    with ingested(plan, _tell(progress, progress.add_task(f"{which.name}: ingest"))) as prepared:
        task = progress.add_task(f"{which.name}: ask", total=len(lines()))
        runs = {line.name: _run(prepared, line, lambda: progress.advance(task)) for line in lines()}
    figures = {name: summarise(run) for name, run in runs.items()}
    differences = _differences(runs)
    shipped = differences[_SHIPPED]
    return Table(
        title=which.name,
        groups=which.groups,
        questions=shipped.questions,
        units=shipped.units,
        memories=runs[_SHIPPED].memories,
        rows=[_row(name, figures[name], differences[name]) for name in runs],
    )


def _run(prepared: Prepared, line: Line, done: Callable[[], None]) -> Run:
    settings = msgspec.structs.replace(prepared.plan.settings, recall=line.recall)
    asked = prepared if line.words else replace(prepared, embedder=WithoutWords(prepared.embedder))
    run = asked.ask(replace(prepared.plan, settings=settings, mode=line.mode), lambda *_: None)
    done()
    return run


def _differences(runs: dict[str, Run]) -> dict[str, Comparison]:
    """Compare each run with the shipped run; return the comparisons by run name."""
    with tempfile.TemporaryDirectory(prefix="ablation-") as folder:
        results = {
            name: _written(run, Path(folder) / f"{place}.jsonl") for place, (name, run) in enumerate(runs.items())
        }
    return {name: compare(results[_SHIPPED], result, "conversation") for name, result in results.items()}


def _written(run: Run, file: Path) -> Results:
    write_results(run, file)
    return read_results(file)


def _row(name: str, figures: Figures, difference: Comparison) -> str:
    cells = [name, *(_percent(figures.recall_at[k]) for k in ("1", "5", "10")), _percent(_sessions(figures)["10"])]
    by_metric = {metric.metric: metric for metric in difference.metrics}
    for metric in _METRICS:
        found = by_metric.get(metric)
        if name == _SHIPPED or found is None:
            cells.append("")
        else:
            cells.append(f"{100 * found.difference:+.1f} ({100 * found.low:+.1f} to {100 * found.high:+.1f})")
    return f"| {' | '.join(cells)} |"


def _sessions(figures: Figures) -> Averages:
    return figures.session_recall_at_all or figures.session_recall_at


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f}"


def page(tables: Iterable[Table], machine: dict[str, str], now: datetime) -> str:
    """Return the contents of ablation.md."""
    head = (
        "| | R@1 | R@5 | R@10 | sessions@10 | R@1, minus shipped | R@5 | R@10 | sessions@10 |\n"
        "|---|---|---|---|---|---|---|---|---|"
    )
    text = [
        "# Contribution of each part of the ranking",
        "",
        f"Written by `python -m ops.bench.ablation` on {now:%Y-%m-%d}; values in %.",
        "",
        "- All rows are measured with the shipped code, with different settings. The first two use only vectors or",
        "  only words. In `cosine and words`, a query word matches only memories that contain the word. Each following",
        "  row adds a part. All of these rows take the speaker into account.",
        "- Differences are relative to the shipped recall, with the 95 % interval of a paired bootstrap over groups. A",
        "  data set supports a part if, in the row without that part, the interval is entirely below 0.",
        f"- `+ {_PARTS[-2].name}` is the shipped recall without {_PARTS[-1].name}.",
        "- `cosine and words` and `shipped without late interaction` show the results of an embedder without word",
        "  vectors.",
        "- LoCoMo's `sessions@10` includes all questions; those without evidence count as found.",
        f"- Shipped settings: {', '.join(f'{name} {value}' for name, value in _shipped().items())}.",
        "- The constants were tuned on these questions; the intervals account for sampling, but not for this tuning.",
        "",
        "; ".join(f"{name}: {value}" for name, value in machine.items()) + ".",
    ]
    for table in tables:
        sizes = f"{table.questions:,} questions, {table.memories:,} memories, {table.units} {table.groups}."
        text += ["", f"## {table.title}", "", sizes, "", head, *table.rows]
    return "\n".join(text) + "\n"


def _shipped() -> dict[str, object]:
    """Return the default values of `candidates`, `date_weight` and the settings that the lines change."""
    names = ["candidates", "date_weight", *(name for part in (*_KEPT, *_PARTS) for name in part.off)]
    return {name: getattr(RecallSettings(), name) for name in names}


def _tell(progress: Progress, task: TaskID) -> Callable[[str, int, int], None]:
    def tell(_what: str, done: int, total: int) -> None:
        progress.update(task, completed=done, total=total)

    return tell


def main(arguments: Sequence[str]) -> int:
    """Measure the data sets in the `--data` folder and write ablation.md."""
    parser = argparse.ArgumentParser(
        "python -m ops.bench.ablation", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, metavar="FOLDER", help="folder that contains the data sets")
    parser.add_argument("--stores", type=Path, metavar="FOLDER", help="keep and reuse the ingested stores in FOLDER")
    given = parser.parse_args(arguments)
    folder: Path = given.data
    if absent := [which.place for which in SETS if not (folder / which.place).exists()]:
        parser.error(f"not found in {folder}: {', '.join(absent)}")
    with Progress(console=Console(stderr=True)) as progress:
        tables = [measure(which, folder, given.stores, progress) for which in SETS]
    PAGE.write_text(page(tables, describe_machine(), datetime.now(UTC)), encoding="utf-8")
    print(PAGE.read_text(encoding="utf-8"))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
