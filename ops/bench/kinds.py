"""Measures how well questions about runs and sessions find the kind of memory that they ask for, with and without
`recall.kind_weight`.

    python -m ops.bench.kinds --data FOLDER      15 minutes; writes ops/bench/kinds.md

FOLDER contains `swe_runs_dev.json`, from which `kind_questions` makes sessions and questions. The first half was used
to choose weights and words. Most questions are answered by several memories, so a question counts as found at k if any
of these is among the first k. The default relevance threshold applies, as for callers. With `--stores`, the stores are
kept and reused.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from memory_agent.evaluation import Answer, Plan, bootstrap
from memory_agent.evaluation.runs import Prepared, ingested
from memory_agent.settings import RecallSettings, Settings
from ops.bench.kind_questions import HALVES, read_kinds
from ops.bench.machine import describe_machine

PAGE = Path(__file__).with_name("kinds.md")

_CUTOFFS = (1, 5, 10)
_TOP_K = 50
_RESAMPLES, _SEED, _INTERVAL = 10_000, 1, (2.5, 97.5)
_OTHERS = ("lookup", "issue")
_TITLES = {"dev": "First half (used for choices)", "held": "Second half"}

Pair = tuple[Answer, Answer]
"""Answers to one question without and with the weight."""


def measure(half: str, file: Path, stores: Path | None, tell: Callable[[str], None]) -> list[Pair]:
    """Ingest the events of half of the users, and ask each question with weight 0 and with the shipped weight."""
    dataset = read_kinds(file)
    users = [history.user for history in dataset.histories if history.user.startswith(half)]
    settings = Settings()
    plan = Plan(
        dataset=dataset.only(users),
        settings=settings,
        mode="hybrid",
        top_k=_TOP_K,
        data_dir=stores,
        min_relevance=settings.recall.min_relevance,
    )
    with ingested(plan, lambda *_: None) as prepared:
        tell(f"{half}: ingested")
        before, after = (_asked(prepared, weight) for weight in (0.0, settings.recall.kind_weight))
    tell(f"{half}: asked")
    return list(zip(before, after, strict=True))


def _asked(prepared: Prepared, weight: float) -> tuple[Answer, ...]:
    recall = msgspec.structs.replace(prepared.plan.settings.recall, kind_weight=weight)
    settings = msgspec.structs.replace(prepared.plan.settings, recall=recall)
    return prepared.ask(replace(prepared.plan, settings=settings), lambda *_: None).answers


def _rows(pairs: Sequence[Pair]) -> Iterator[str]:
    by_category: defaultdict[str, list[Pair]] = defaultdict(list)
    for pair in pairs:
        category = pair[0].question.category
        by_category[category].append(pair)
        if category not in _OTHERS:
            by_category["**all questions about kinds**"].append(pair)
    for category in sorted(by_category, key=lambda name: (name in _OTHERS, name)):
        yield _row(category, by_category[category])


def _row(category: str, pairs: Sequence[Pair]) -> str:
    before, after = (np.array([_found(pair[side]) for pair in pairs]) for side in (0, 1))
    groups = {pair[0].question.group: 0 for pair in pairs}
    numbers = {group: number for number, group in enumerate(groups)}
    units = np.array([numbers[pair[0].question.group] for pair in pairs])
    cells = [category, f"{len(pairs):,}", *_shown(before, units), *_shown(after - before, units, "+")]
    return f"| {' | '.join(cells)} |"


def _found(answer: Answer) -> list[float]:
    return [float(answer.metrics["mrr"] * k > 1 - 1e-9) for k in _CUTOFFS]


def _shown(values: npt.NDArray[np.float64], units: npt.NDArray[np.intp], sign: str = "") -> Iterator[str]:
    """Yield, in percent, the mean at each cutoff and its interval over issues."""
    low, high = np.percentile(bootstrap(values, units, _RESAMPLES, _SEED), _INTERVAL, axis=0)
    for mean, least, most in zip(values.mean(axis=0), low, high, strict=True):
        yield f"{100 * mean:{sign}.1f} ({100 * least:{sign}.1f} to {100 * most:{sign}.1f})"


def page(halves: Mapping[str, Sequence[Pair]], machine: Mapping[str, str], now: datetime) -> str:
    """Return the contents of kinds.md."""
    text = [
        "# Questions about runs and sessions by kind",
        "",
        f"Written by `python -m ops.bench.kinds` on {now:%Y-%m-%d}; values in %, with the 95 % interval of a",
        f"bootstrap over issues. `kind_weight` is {RecallSettings().kind_weight:g}, except in the columns without it,",
        "where it is 0. Found at k: a memory that answers the question is among the first k. `min_relevance` is",
        f"{RecallSettings().min_relevance:g}. `lookup` and `issue` questions do not ask for a particular kind. The",
        "other wordings and languages of the second half were not used to choose words and weights, but were written",
        "by the same author.",
        "",
        "; ".join(f"{name}: {value}" for name, value in machine.items()) + ".",
    ]
    head = (
        "| | questions | without: found at 1 | at 5 | at 10 | with, minus without: at 1 | at 5 | at 10 |\n"
        "|---|---|---|---|---|---|---|---|"
    )
    for half, pairs in halves.items():
        text += ["", f"## {_TITLES[half]}", "", head, *_rows(pairs)]
    return "\n".join(text) + "\n"


def main(arguments: Sequence[str]) -> int:
    """Measure both halves and write kinds.md."""
    parser = argparse.ArgumentParser(
        "python -m ops.bench.kinds", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, metavar="FOLDER", help="folder that contains the data set")
    parser.add_argument("--stores", type=Path, metavar="FOLDER", help="keep and reuse the ingested stores in FOLDER")
    given = parser.parse_args(arguments)
    file: Path = given.data / "swe_runs_dev.json"
    if not file.exists():
        parser.error(f"not found: {file}")
    halves = {half: measure(half, file, given.stores, lambda line: print(line, file=sys.stderr)) for half in HALVES}
    PAGE.write_text(page(halves, describe_machine(), datetime.now(UTC)), encoding="utf-8")
    print(PAGE.read_text(encoding="utf-8"))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
