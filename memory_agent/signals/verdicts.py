"""Reads the outcome of a run or task from a payload, as a quality from 0 to 1. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from memory_agent.records.trajectories import Reason
from memory_agent.signals.payloads import read_value, with_reports

_DONE, _FAILED = 0.8, 0.0
_REASONS: dict[float, Reason] = {1.0: "approved", 0.4: "retried", 0.0: "rejected"}
_STARS = 5
_WORDS = ("status", "outcome", "result", "verdict", "rating")

Objects = Sequence[Mapping[str, Any]]


class Verdict(NamedTuple):
    """A quality and its reason. `is_outright`: whether it is a number, rating or approval, rather than a status."""

    quality: float
    reason: Reason
    is_outright: bool


def verdict(objects: Objects, outcomes: Mapping[str, float]) -> Verdict | None:
    """Return the quality that the most explicit field states, or None. `outcomes` maps words to qualities."""
    objects = with_reports(objects)
    if (quality := _by_quality(objects)) is not None:
        return Verdict(quality, "rated", True)
    if (quality := _by_approval(objects)) is not None:
        return Verdict(quality, reason_of(quality), True)
    if (quality := _by_rating(objects)) is not None:
        return Verdict(quality, "rated", True)
    for implied in (_by_exit_code(objects), _by_success(objects), _by_words(objects, outcomes)):
        if implied is not None:
            return Verdict(implied, reason_of(implied), implied not in (_DONE, _FAILED))
    return None


def reason_of(quality: float) -> Reason:
    return _REASONS.get(quality, "rated")


def _by_quality(objects: Objects) -> float | None:
    values = (read_value(objects, name) for name in ("quality_score", "quality"))
    return next((float(value) for value in values if _is_number(value) and 0 <= value <= 1), None)


def _by_approval(objects: Objects) -> float | None:
    approved = read_value(objects, "approved")
    return float(approved) if isinstance(approved, bool) else None


def _by_rating(objects: Objects) -> float | None:
    """Return a rating in stars, 1 to `max_rating` (default 5), as a fraction; a value below 1 is unchanged."""
    rating, best = read_value(objects, "rating"), read_value(objects, "max_rating")
    if isinstance(rating, bool):
        return float(rating)
    if not _is_number(rating):
        return None
    if 0 <= rating < 1:
        return float(rating)
    most = best if _is_number(best) and best > 1 else _STARS
    return float((rating - 1) / (most - 1)) if 1 <= rating <= most else None


def _by_exit_code(objects: Objects) -> float | None:
    codes = (read_value(objects, name) for name in ("exit_code", "exitCode", "returncode"))
    return next((_DONE if code == 0 else _FAILED for code in codes if type(code) is int), None)


def _by_success(objects: Objects) -> float | None:
    success = read_value(objects, "success")
    return (_DONE if success else _FAILED) if isinstance(success, bool) else None


def _by_words(objects: Objects, outcomes: Mapping[str, float]) -> float | None:
    stated = (read_value(objects, name) for name in _WORDS)
    found = (outcomes.get(word.strip().lower()) for word in stated if isinstance(word, str))
    return next((quality for quality in found if quality is not None), None)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
