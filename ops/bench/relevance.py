"""Measures the relevance of memories: what it lets through of a memory's own questions, and of those of others.

Every question is asked of its own store, and as many of other stores of its data set are asked there, through `Memory`,
with any relevance let through. What a store answers to the question of another bears on nothing: such an answer should
be empty (refused), and the evidence of a store's own questions should stay (kept, a share of recall at 10). Judged
memories are that evidence and all that answers the questions of others; what else answers an own question is not
judged, since annotators mark the least evidence. Each data set weighs the same, and own and others in it.

    python -m ops.bench.relevance --data FOLDER      half an hour; writes ops/bench/relevance.md and relevance.png

FOLDER has `locomo_dev.json`, `beam_dev/` and `swe_runs_dev.json`, or some of them. Runs of a software-engineering agent
are cut into a store for each project, or each issue of a single one.

Shapes: m judged memories, a answers.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.progress import Progress

from memory_agent.evaluation.dataset import Dataset, History, Question, event_id
from memory_agent.evaluation.runs import Prepared, ingested, opener
from memory_agent.evaluation.trial import Plan, filter_of
from memory_agent.memory import Memory
from memory_agent.records import Mode
from memory_agent.settings import RecallSettings, Settings
from ops.bench.ablation import SETS, Set, WithoutWords
from ops.bench.machine import describe_machine

PAGE = Path(__file__).with_name("relevance.md")

_TOP_K = 10
_BINS = 10
_SEED = 1
_DEADLINE_MS = 600_000.0
_MOST_LOGIT = 20.0
_INCHES, _DOTS_PER_INCH = (5.5, 5.5), 110

Array = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]


class Line(NamedTuple):
    """A way to ask: the mode, and whether the query's words have vectors."""

    name: str
    mode: Mode
    words: bool = True


LINES = (
    Line("hybrid", "hybrid"),
    Line("vector", "vector"),
    Line("lexical", "lexical"),
    Line("hybrid, no word vectors", "hybrid", words=False),
)


@dataclass(frozen=True)
class Answered:
    """One answer: the relevance of its memories, which of them are evidence, and how much evidence there is.

    `evidence` is 0 for the question of another store.
    """

    relevance: Array
    is_evidence: Mask
    evidence: int

    @property
    def best(self) -> float:
        """The highest relevance, -1 of an empty answer."""
        return float(self.relevance.max(initial=-1.0))


class Judged(NamedTuple):
    """Judged memories: their logits (m,), whether they are evidence (m,), and their weights (m,)."""

    logits: Array
    is_evidence: Mask
    weights: Array


class Reliability(NamedTuple):
    """What was said and seen in each bin, the share of memories in it, and the mean error."""

    said: Array
    seen: Array
    shares: Array
    error: float


@dataclass(frozen=True)
class Measured:
    """The answers of one data set, by line."""

    name: str
    stores: int
    answers: dict[str, list[Answered]]

    def own(self, line: str) -> list[Answered]:
        """Return the answers to a store's own questions."""
        return [answer for answer in self.answers[line] if answer.evidence]

    def others(self, line: str) -> list[Answered]:
        """Return the answers to the questions of other stores."""
        return [answer for answer in self.answers[line] if not answer.evidence]

    def kept(self, line: str, least: float) -> float:
        """Return the share of recall at 10 that reaches `least`."""
        parts = [(part.relevance[part.is_evidence], min(part.evidence, _TOP_K)) for part in self.own(line)]
        found = sum(len(relevance) / evidence for relevance, evidence in parts)
        return sum(float((relevance >= least).sum()) / evidence for relevance, evidence in parts) / max(found, 1e-9)

    def refused(self, line: str, least: float) -> float:
        """Return the share of the others' questions that get an empty answer."""
        return float(np.mean([answer.best < least for answer in self.others(line)]))

    def shown(self, line: str, least: float) -> float:
        """Return how many memories an own question gets."""
        return float(np.mean([(answer.relevance >= least).sum() for answer in self.own(line)]))

    def area(self, line: str) -> float:
        """Return how often an own question has a better best memory than one of another store."""
        own, others = (np.array([part.best for part in parts]) for parts in (self.own(line), self.others(line)))
        return float(np.mean((own[:, None] > others) + 0.5 * (own[:, None] == others)))

    def judged(self, line: str) -> Judged:
        """Return the judged memories; each question weighs the same, own and others together 1 each."""
        parts = [(part, part.is_evidence if part.evidence else ~part.is_evidence) for part in self.answers[line]]
        parts = [(part, judged) for part, judged in parts if judged.any()]
        sizes = {own: sum(bool(part.evidence) == own for part, _ in parts) for own in (True, False)}
        relevance = np.concatenate([part.relevance[judged] for part, judged in parts])
        tiny = 1.0 / (1.0 + np.exp(_MOST_LOGIT))
        relevance = np.clip(relevance, tiny, 1.0 - tiny)
        return Judged(
            logits=np.log(relevance / (1.0 - relevance)),
            is_evidence=np.concatenate([part.is_evidence[judged] for part, judged in parts]),
            weights=np.concatenate(
                [np.full(judged.sum(), 1.0 / judged.sum() / sizes[bool(part.evidence)]) for part, judged in parts]
            ),
        )


def measure(which: Set, folder: Path, stores: Path | None, progress: Progress) -> Measured:
    """Ingest a data set once and ask it in all ways. The memories are kept in `stores`."""
    dataset = separate(which.read(folder / which.place))
    plan = Plan(
        dataset=dataset,
        settings=Settings(),
        mode="hybrid",
        top_k=_TOP_K,
        data_dir=stores / which.name if stores else None,
    )
    told = progress.add_task(f"{which.name}: ingest")

    def tell(_what: str, done: int, total: int) -> None:
        progress.update(told, completed=done, total=total)

    with ingested(plan, tell) as prepared:
        task = progress.add_task(f"{which.name}: ask", total=len(LINES) * len(dataset.histories))
        answers = {line.name: _ask(prepared, line, lambda: progress.advance(task)) for line in LINES}
    return Measured(which.name, len(dataset.histories), answers)


def separate(dataset: Dataset) -> Dataset:
    """Return the dataset with a history for each project, or issue, if all items are one user's.

    What runs no question has evidence in are left out.
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
    """Ask each store its own questions, and as many of others, drawn with a fixed seed."""
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
            found += [_answered(memory, user_id, line, question, is_own=True) for question in own]
            found += [_answered(memory, user_id, line, others[place], is_own=False) for place in drawn.tolist()]
        done()
    return found


def _answered(memory: Memory, user_id: str, line: Line, question: Question, *, is_own: bool) -> Answered:
    result = memory.recall(
        question.text,
        _TOP_K,
        filter_of(question) if is_own else None,
        line.mode,
        _DEADLINE_MS,
        reference_time=question.asked_at,
        min_relevance=0.0,
    )
    relevant = {event_id(user_id, id_) for id_ in question.relevant} if is_own else set()
    known = [part for part in result.memories if part.relevance is not None]
    return Answered(
        relevance=np.array([part.relevance for part in known], dtype=np.float64),
        is_evidence=np.array([part.record.event_id in relevant for part in known], dtype=np.bool_),
        evidence=len(relevant),
    )


def calibration(parts: Sequence[Judged]) -> tuple[float, float]:
    """Return the slope and offset of the logits that fit best, by Newton's method; 1 and 0 where all is as said."""
    logits, seen, weights = (np.concatenate([part[place] for part in parts]) for place in range(3))
    design = np.stack([logits, np.ones(len(logits))])
    fitted = np.array([1.0, 0.0])
    for _ in range(50):
        said = _share(fitted @ design)
        curvature = (design * (weights * said * (1.0 - said))) @ design.T + 1e-9 * np.eye(2)
        step = np.linalg.solve(curvature, design @ (weights * (said - seen)))
        fitted -= step
        if np.abs(step).max() < 1e-9:
            break
    return float(fitted[0]), float(fitted[1])


def reliability(judged: Judged, slope: float = 1.0, offset: float = 0.0) -> Reliability:
    """Compare what is said with what is seen, in ten bins."""
    said = _share(slope * judged.logits + offset)
    bins = np.minimum((said * _BINS).astype(int), _BINS - 1)
    weights = np.bincount(bins, judged.weights, _BINS)
    there = weights > 0
    means = [np.bincount(bins, judged.weights * part, _BINS)[there] / weights[there] for part in (said, judged[1])]
    shares = weights[there] / weights.sum()
    return Reliability(means[0], means[1], shares, float(shares @ np.abs(means[0] - means[1])))


def _share(logits: Array) -> Array:
    share: Array = 1.0 / (1.0 + np.exp(-np.clip(logits, -2 * _MOST_LOGIT, 2 * _MOST_LOGIT)))
    return share


def draw(found: Sequence[Measured], file: Path) -> None:
    """Draw the reliability of hybrid recall to a PNG file."""
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


def page(found: Sequence[Measured], machine: dict[str, str], now: datetime) -> str:
    """Return the tables as Markdown."""
    least = RecallSettings().min_relevance
    text = [
        "# What relevance lets through",
        "",
        f"Written by `python -m ops.bench.relevance` on {now:%Y-%m-%d}; at `recall.min_relevance` {least:g}.",
        "",
        "- AUC: how often the best memory of an own question is more relevant than that of another store's question.",
        "- Kept: the share of recall at 10 that stays. Refused: questions of other stores with an empty answer.",
        "  Shown: of ten memories, those that an own question gets.",
        "- Error: between relevance and the share that is evidence, in ten bins. Slope and offset are those of the",
        "  logits that fit best: 1 and 0 where nothing needs to change. Left out: fitted on the other data sets.",
        "",
        "; ".join(f"{name}: {value}" for name, value in machine.items()) + ".",
    ]
    head = "| | own, others' questions | AUC | kept | refused | shown | error | slope, offset | error, left out |"
    for line in LINES:
        text += ["", f"## {line.name}", "", head, "|---" * 9 + "|"]
        text += [_row(part, found, line.name, least) for part in found]
        slope, offset = calibration([part.judged(line.name) for part in found])
        text.append(f"| all | | | | | | | {slope:.2f}, {offset:+.2f} | |")
    text += ["", "## Reliability, hybrid", "", "![reliability](relevance.png)", ""]
    text += ["| | relevance: seen (share of judged memories) |", "|---|---|"]
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


def _bins(part: Measured) -> str:
    found = reliability(part.judged("hybrid"))
    bins = zip(found.said.tolist(), found.seen.tolist(), found.shares.tolist(), strict=True)
    return ", ".join(f"{said:.2f}: {seen:.2f} ({share:.2f})" for said, seen, share in bins)


def main(arguments: Sequence[str]) -> int:
    """Measure the data sets of the given folder; write the page and the diagram."""
    parser = argparse.ArgumentParser(
        "python -m ops.bench.relevance", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, metavar="FOLDER", help="the folder of the data sets")
    parser.add_argument("--stores", type=Path, metavar="FOLDER", help="keep the memories there, for the next time")
    given = parser.parse_args(arguments)
    there = [which for which in SETS if (given.data / which.place).exists()]
    if not there:
        parser.error(f"{given.data} has none of {', '.join(which.place for which in SETS)}")
    with Progress(console=Console(stderr=True)) as progress:
        found = [measure(which, given.data, given.stores, progress) for which in there]
    draw(found, PAGE.with_suffix(".png"))
    PAGE.write_text(page(found, describe_machine(), datetime.now(UTC)), encoding="utf-8")
    print(PAGE.read_text(encoding="utf-8"))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
