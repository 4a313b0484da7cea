"""Compares two runs on the same questions with a paired bootstrap (Efron 1979; Koehn 2004).

The bootstrap resamples each question's difference B - A, which cancels out the question's difficulty. Questions about a
conversation share its turns, so they are not independent: an interval from resampled questions is too narrow for claims
about new conversations. Resampling conversations gives a correct interval, which is wide if there are few
conversations. If a dataset groups its questions (`Question.group`), groups are resampled instead.

Shapes: q questions, u resampled units, m metrics, r resamples.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, get_args

import msgspec
import numpy as np
import numpy.typing as npt

from memory_agent.errors import InvalidInputError
from memory_agent.evaluation.results import Header, Line, Results

Unit = Literal["question", "conversation"]
UNITS: tuple[Unit, ...] = get_args(Unit)

RESAMPLES = 10_000
SEED = 0
_AT_A_TIME = 1_000
_INTERVAL = (2.5, 97.5)
FEWEST = 3  # minimum number of units for an interval: with two units, there are only three different means

Array = npt.NDArray[np.float64]


class MetricDifference(msgspec.Struct, frozen=True, kw_only=True):
    """The difference in one metric. `difference` is B - A; `low` and `high` bound 95 % of the resampled differences.

    `share_above_0` is the share of resamples in which B is better; `better` and `worse` count questions. With fewer
    than 3 units, `low`, `high` and `share_above_0` are NaN (null in JSON).
    """

    metric: str
    questions: int
    mean_a: float
    mean_b: float
    difference: float
    low: float
    high: float
    share_above_0: float
    better: int
    worse: int


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """Two runs compared on their common `questions`, resampled by `unit`. `changed` lists the settings that differ."""

    a: str
    b: str
    dataset: str
    questions: int
    only_a: int
    only_b: int
    unit: Unit
    units: int
    resamples: int
    seed: int
    changed: dict[str, tuple[Any, Any]]
    metrics: tuple[MetricDifference, ...]


def compare(
    a: Results, b: Results, unit: Unit = "question", resamples: int = RESAMPLES, seed: int = SEED
) -> Comparison:
    """Compare B with A on their common questions. The same input and seed give the same result.

    Raises `InvalidInputError` if the runs have different inputs or no common question.
    """
    pairs = _pairs(a, b)
    # A run with a smaller `top_k` has fewer cutoffs.
    metrics = list(dict.fromkeys(name for own, other in pairs for name in own.metrics if name in other.metrics))
    own, other = (_values([pair[side] for pair in pairs], metrics) for side in (0, 1))
    units = _units([line for line, _ in pairs], unit)
    resampled = bootstrap(other - own, units, resamples, seed)
    return Comparison(
        a=str(a.file),
        b=str(b.file),
        dataset=a.header.dataset,
        questions=len(pairs),
        only_a=len(a.lines) - len(pairs),
        only_b=len(b.lines) - len(pairs),
        unit=unit,
        units=int(units.max()) + 1,
        resamples=resamples,
        seed=seed,
        changed=_changed(a.header, b.header),
        metrics=tuple(
            _difference(name, own[:, i], other[:, i], units, resampled[:, i]) for i, name in enumerate(metrics)
        ),
    )


def bootstrap(differences: Array, units: npt.NDArray[np.intp], resamples: int, seed: int) -> Array:
    """Return the mean differences (r, m) of `resamples` samples with replacement.

    `differences` (q, m) is NaN where a question lacks the metric. `units` (q,) contains the number of each question's
    unit, counted from 0. A sample draws u units with all their questions; its mean is NaN if none of the drawn
    questions has the metric.
    """
    measured = ~np.isnan(differences)
    count = int(units.max()) + 1
    sums, sizes = np.zeros((count, differences.shape[1])), np.zeros((count, differences.shape[1]))
    np.add.at(sums, units, np.where(measured, differences, 0.0))
    np.add.at(sizes, units, measured)
    random = np.random.default_rng(seed)
    means = np.full((resamples, differences.shape[1]), np.nan)
    for start in range(0, resamples, _AT_A_TIME):  # bounds the memory used: a block of samples is (1000, u)
        rows = min(_AT_A_TIME, resamples - start)
        drawn = random.multinomial(count, np.full(count, 1 / count), size=rows).astype(np.float64)
        asked = drawn @ sizes
        np.divide(drawn @ sums, asked, out=means[start : start + rows], where=asked > 0)
    return means


def _pairs(a: Results, b: Results) -> list[tuple[Line, Line]]:
    for field in ("dataset", "digest"):
        own, other = getattr(a.header, field), getattr(b.header, field)
        if own != other:
            raise InvalidInputError(
                str(b.file), f"covers different questions from {a.file}: {field} is {other}, not {own}"
            )
    of_b = {line.id: line for line in b.lines}
    pairs = [(line, of_b[line.id]) for line in a.lines if line.id in of_b]
    if not pairs:
        raise InvalidInputError(str(b.file), f"has no question in common with {a.file}")
    for own_line, other_line in pairs:
        if own_line.relevant != other_line.relevant:
            raise InvalidInputError(str(b.file), f"has different evidence from {a.file} for question {own_line.id}")
    return pairs


def _values(lines: Sequence[Line], metrics: Sequence[str]) -> Array:
    """Return the metrics (q, m), with NaN where a question lacks a metric."""
    return np.array([[line.metrics.get(name, np.nan) for name in metrics] for line in lines])


def _units(lines: Sequence[Line], unit: Unit) -> npt.NDArray[np.intp]:
    if unit == "question":
        return np.arange(len(lines))
    groups = [line.group or line.user for line in lines]
    numbers = {group: number for number, group in enumerate(dict.fromkeys(groups))}
    return np.array([numbers[group] for group in groups])


def _difference(
    metric: str, own: Array, other: Array, units: npt.NDArray[np.intp], resampled: Array
) -> MetricDifference:
    measured = ~np.isnan(own) & ~np.isnan(other)
    difference = (other - own)[measured]
    low, high, above_0 = _bounds(resampled) if len(set(units[measured])) >= FEWEST else (np.nan,) * 3
    return MetricDifference(
        metric=metric,
        questions=int(measured.sum()),
        mean_a=float(own[measured].mean()),
        mean_b=float(other[measured].mean()),
        difference=float(difference.mean()),
        low=low,
        high=high,
        share_above_0=above_0,
        better=int((difference > 0).sum()),
        worse=int((difference < 0).sum()),
    )


def _bounds(resampled: Array) -> tuple[float, float, float]:
    known = resampled[~np.isnan(resampled)]
    low, high = np.percentile(known, _INTERVAL)
    return float(low), float(high), float((known > 0).mean())


def _changed(a: Header, b: Header) -> dict[str, tuple[Any, Any]]:
    fields = ("mode", "top_k", "embedded", "version", "model", "settings")
    own, other = (_flat({name: getattr(header, name) for name in fields}) for header in (a, b))
    names = dict.fromkeys((*own, *other))
    return {name: (own.get(name), other.get(name)) for name in names if own.get(name) != other.get(name)}


def _flat(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the leaves of a nested object, by dotted path."""
    leaves: dict[str, Any] = {}
    for name, value in tree.items():
        leaves |= _flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {f"{prefix}{name}": value}
    return leaves
