"""Measures what the relevance threshold keeps in answers to a store's own questions, and how often it refuses questions
of other stores.

Each store is asked its own questions and as many questions of the data set's other stores, through `Memory`, without a
threshold. The answer to another store's question should be empty ("refused"), and the evidence for the store's own
questions should be kept ("kept", a share of recall@10). Data sets have equal weight, and so do a store's own questions
and those of other stores. Then small stores are sampled from all sets (`store_sizes`).

    python -m ops.bench.relevance --data FOLDER      half an hour; writes ops/bench/relevance.md and relevance.png

FOLDER contains at least one of `locomo_dev.json`, `beam_dev/` and `swe_runs_dev.json`. A software-engineering agent's
runs are divided into one store per project or, if there is only one project, per issue.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
from rich.console import Console
from rich.progress import Progress

from memory_agent.evaluation import Dataset, History, Plan
from memory_agent.evaluation.runs import Prepared, ingested, opener
from memory_agent.records.memories import Mode
from memory_agent.settings import RecallSettings, Settings
from ops.bench.ablation import SETS, Set, WithoutWords
from ops.bench.judged_answers import TOP_K, Answered, Measured, ask, calibration, reliability
from ops.bench.machine import describe_machine
from ops.bench.store_sizes import MIXTURES, SIZES, Embeddings, ask_small_stores

PAGE = Path(__file__).with_name("relevance.md")

_SEED = 1
_INCHES, _DOTS_PER_INCH = (5.5, 5.5), 110


class Line(NamedTuple):
    """A kind of recall: its mode, and whether the query's words are embedded."""

    name: str
    mode: Mode
    words: bool = True


LINES = (
    Line("hybrid", "hybrid"),
    Line("vector", "vector"),
    Line("lexical", "lexical"),
    Line("hybrid, no word vectors", "hybrid", words=False),
)


def measure(which: Set, dataset: Dataset, stores: Path | None, embeddings: Embeddings, progress: Progress) -> Measured:
    """Ingest a data set, add its embeddings, and ask all questions with each kind of recall. `stores` are kept."""
    plan = Plan(
        dataset=dataset,
        settings=Settings(),
        mode="hybrid",
        top_k=TOP_K,
        data_dir=stores / which.name if stores else None,
    )
    told = progress.add_task(f"{which.name}: ingest")

    def tell(_what: str, done: int, total: int) -> None:
        progress.update(told, completed=done, total=total)

    with ingested(plan, tell) as prepared:
        task = progress.add_task(f"{which.name}: ask", total=len(LINES) * len(dataset.histories))
        answers = {line.name: _ask(prepared, line, lambda: progress.advance(task)) for line in LINES}
        embeddings.add(prepared)
    return Measured(which.name, len(dataset.histories), answers)


def separate(dataset: Dataset) -> Dataset:
    """If the dataset has a single history, divide it into one for each project (or issue, if there is one project).

    Runs without evidence for any question are omitted.
    """
    if len(dataset.histories) != 1:
        return dataset
    (history,) = dataset.histories
    sessions = {item.id: item.session for item in history.items}
    groups = {sessions[id_]: question.group for question in history.answerable for id_ in question.relevant}
    projects = {group: group.partition("__")[0] for group in groups.values()}
    if len(set(projects.values())) == 1:
        projects = {group: group for group in projects}
    return msgspec.structs.replace(
        dataset,
        histories=tuple(
            History(
                user=project,
                items=tuple(item for item in history.items if projects.get(groups.get(item.session, "")) == project),
                questions=tuple(asked for asked in history.answerable if projects.get(asked.group) == project),
            )
            for project in sorted(set(projects.values()))
        ),
    )


def _ask(prepared: Prepared, line: Line, done: Callable[[], None]) -> list[Answered]:
    """Ask each store its own questions and an equal number of other stores' questions, drawn with a fixed seed."""
    plan, random = prepared.plan, np.random.default_rng(_SEED)
    embedder = prepared.embedder if line.words else WithoutWords(prepared.embedder)
    open_memory = opener(plan.settings, prepared.data_dir, embedder)
    found: list[Answered] = []
    for user_id, history in plan.users():
        own = history.answerable
        others = [asked for other in plan.dataset.histories if other is not history for asked in other.answerable]
        drawn = random.permutation(len(others))[: len(own)]
        with ExitStack() as stack:
            memory = stack.enter_context(open_memory(user_id))
            found += [ask(memory, user_id, question, line.mode, is_own=True) for question in own]
            found += [ask(memory, user_id, others[place], line.mode, is_own=False) for place in drawn.tolist()]
        done()
    return found


def draw(found: Sequence[Measured], file: Path) -> None:
    """Plot the reliability of hybrid recall to a PNG file."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=_INCHES, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.plot([0, 1], [0, 1], color="grey", linewidth=0.8)
    for part in found:
        seen = reliability(part.judged("hybrid"))
        axes.plot(seen.said, seen.seen, marker="o", markersize=4, label=f"{part.name}, mean error {seen.error:.3f}")
    axes.set_xlabel("relevance")
    axes.set_ylabel("share that is evidence, among judged memories")
    axes.legend(frameon=False)
    figure.savefig(file, dpi=_DOTS_PER_INCH, metadata={"Software": None})


def page(found: Sequence[Measured], small: Sequence[Measured], machine: dict[str, str], now: datetime) -> str:
    """Return the contents of relevance.md."""
    least = RecallSettings().min_relevance
    text = [
        "# Effect of the relevance threshold",
        "",
        f"Written by `python -m ops.bench.relevance` on {now:%Y-%m-%d}; `recall.min_relevance` is {least:g}.",
        "",
        "- AUC is the probability that the best memory for one of the store's own questions is more relevant than the",
        "  best memory for another store's question.",
        '- "Kept" is the share of recall@10 that remains. "Refused" is the share of other stores\' questions with',
        '  an empty answer. "Shown" is the mean number of memories (out of ten) in the answers to the store\'s own',
        "  questions.",
        '- "Error" is the mean, over ten bins, of the difference between relevance and the share of evidence. "Slope"',
        '  and "offset" fit the logits best; they are 1 and 0 if relevance is calibrated. "Left out" is the error of a',
        "  fit to the other data sets.",
        "",
        "; ".join(f"{name}: {value}" for name, value in machine.items()) + ".",
    ]
    head = "| | own, others' questions | AUC | kept | refused | shown | error | slope, offset | error, left out |"
    for line in LINES:
        text += ["", f"## {line.name}", "", head, "|---" * 9 + "|"]
        text += [_row(part, found, line.name, least) for part in found]
        slope, offset = calibration([part.judged(line.name) for part in found])
        text.append(f"| all | | | | | | | {slope:.2f}, {offset:+.2f} | |")
    text += _sizes(small, least)
    text += ["", "## Reliability, hybrid", "", "![reliability](relevance.png)", ""]
    text += ["| | relevance: observed (share of judged memories) |", "|---|---|"]
    return "\n".join([*text, *(f"| {part.name} | {_bins(part)} |" for part in found)]) + "\n"


def _row(part: Measured, found: Iterable[Measured], line: str, least: float) -> str:
    judged = part.judged(line)
    slope, offset = calibration([judged])
    rest = [other.judged(line) for other in found if other is not part]
    left_out = f"{reliability(judged, *calibration(rest)).error:.3f}" if rest else "-"
    cells = [
        part.name,
        f"{len(part.own(line)):,}, {len(part.others(line)):,}",
        f"{100 * part.area(line):.1f}",
        f"{part.kept(line, least):.3f}",
        f"{part.refused(line, least):.3f}",
        f"{part.shown(line, least):.1f}",
        f"{reliability(judged).error:.3f}",
        f"{slope:.2f}, {offset:+.2f}",
        left_out,
    ]
    return f"| {' | '.join(cells)} |"


def _sizes(small: Sequence[Measured], least: float) -> list[str]:
    """Return the lines of the section on small stores."""
    text = [
        "",
        "## By store size, hybrid",
        "",
        'The stores are sampled from the data sets (`ops/bench/store_sizes.py`). "Missing" is the share of empty',
        "answers to questions whose evidence was not sampled. For some of the store's own questions, the top ten",
        'contains memories from other conversations, chats or projects. "Strange" is the share of these',
        "questions whose answer shows such a memory.",
    ]
    for mixture in MIXTURES:
        head = (
            f"| {mixture.name} | memories | own, others' | AUC | kept | refused | missing | strange | shown | error |"
        )
        text += ["", head, "|---" * 10 + "|"]
        for part in small:
            rows = [(size, f"{mixture.name} {size.memories}") for size in SIZES]
            text += [_size_row(part, size.memories, line, least) for size, line in rows if part.answers.get(line)]
    return text


def _size_row(part: Measured, memories: int, line: str, least: float) -> str:
    missing = part.refused(f"{line} missing", least) if part.answers[f"{line} missing"] else float("nan")
    cells = [
        part.name,
        str(memories),
        f"{len(part.own(line))}, {len(part.others(line))}",
        f"{100 * part.area(line):.1f}",
        f"{part.kept(line, least):.3f}",
        f"{part.refused(line, least):.3f}",
        f"{missing:.3f}",
        f"{part.strange(line, least):.3f}",
        f"{part.shown(line, least):.1f}",
        f"{reliability(part.judged(line)).error:.3f}",
    ]
    return f"| {' | '.join(cells)} |".replace("nan", "-")


def _bins(part: Measured) -> str:
    found = reliability(part.judged("hybrid"))
    bins = zip(found.said.tolist(), found.seen.tolist(), found.shares.tolist(), strict=True)
    return ", ".join(f"{said:.2f}: {seen:.2f} ({share:.2f})" for said, seen, share in bins)


def main(arguments: Sequence[str]) -> int:
    """Measure the data sets in the `--data` folder; write relevance.md and relevance.png."""
    parser = argparse.ArgumentParser(
        "python -m ops.bench.relevance", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, metavar="FOLDER", help="folder that contains the data sets")
    parser.add_argument("--stores", type=Path, metavar="FOLDER", help="keep and reuse the ingested stores in FOLDER")
    given = parser.parse_args(arguments)
    there = [which for which in SETS if (given.data / which.place).exists()]
    if not there:
        parser.error(f"{given.data} contains none of {', '.join(which.place for which in SETS)}")
    datasets = {which: separate(which.read(given.data / which.place)) for which in there}
    embeddings = Embeddings()
    with Progress(console=Console(stderr=True)) as progress:
        found = [measure(which, dataset, given.stores, embeddings, progress) for which, dataset in datasets.items()]
        small = ask_small_stores(
            {which.name: dataset for which, dataset in datasets.items()}, embeddings, progress, SIZES
        )
    draw(found, PAGE.with_suffix(".png"))
    PAGE.write_text(page(found, small, describe_machine(), datetime.now(UTC)), encoding="utf-8")
    print(PAGE.read_text(encoding="utf-8"))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
