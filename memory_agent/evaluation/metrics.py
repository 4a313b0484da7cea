"""Computes retrieval metrics. Pure.

A rank has one id, or several ids that are shown as one memory. Repeated occurrences of an id at later ranks are
ignored. At least one id must be relevant; `trial` omits questions without one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np

Place = tuple[str, ...]  # the ids at one rank


def recall_at_k(ranked: Sequence[Place], relevant: Collection[str], k: int) -> float:
    """Return the share of the `relevant` ids found in the first `k` ranks."""
    found = {id_ for place in ranked[:k] for id_ in place}
    return len(found & set(relevant)) / len(set(relevant))


def ndcg_at_k(ranked: Sequence[Place], grades: Mapping[str, int], k: int) -> float:
    """Return the normalised discounted cumulative gain of the first `k` ranks (Burges et al. 2005).

    DCG = sum over ranks i = 1 … k of (2^grade_i - 1) / log2(i + 1), divided by the DCG of the ideal order. An id that
    is not in `grades` has grade 0; the grades are 1 or more. A rank with several ids gets the highest of their grades.
    """
    seen: set[str] = set()
    gained = []
    for place in ranked[:k]:
        gained.append(max((grades.get(id_, 0) for id_ in place if id_ not in seen), default=0))
        seen.update(place)
    return _dcg(gained) / _dcg(sorted(grades.values(), reverse=True)[:k])


def reciprocal_rank(ranked: Sequence[Place], relevant: Collection[str]) -> float:
    """Return 1 / r, where r is the first rank (from 1) with a relevant id, or 0 if there is none."""
    return next((1 / number for number, place in enumerate(ranked, 1) if not set(relevant).isdisjoint(place)), 0.0)


def distinct(ids: Iterable[str | None]) -> list[str]:
    """Return the distinct ids in order of first occurrence, without None."""
    return [id_ for id_ in dict.fromkeys(ids) if id_ is not None]


def mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def quantiles_ms(durations_ms: Sequence[float]) -> dict[str, float | None]:
    if not durations_ms:
        return {"p50": None, "p99": None}
    p50, p99 = np.quantile(durations_ms, (0.5, 0.99))
    return {"p50": round(float(p50), 3), "p99": round(float(p99), 3)}


def _dcg(grades: Sequence[int]) -> float:
    places = np.arange(1, len(grades) + 1)
    return float(np.sum((np.exp2(np.asarray(grades, dtype=float)) - 1) / np.log2(places + 1)))
