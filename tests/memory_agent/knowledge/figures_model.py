"""A model of a version's figures: the contributions of users, and the values that decision 0023 releases."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import astuple, dataclass, field
from fractions import Fraction
from hashlib import blake2b

from memory_agent.knowledge.figures import lower_bound, mean, shrunk_mean
from memory_agent.records.shared import QualityMetrics

Version = tuple[str, str]
"""An item's id and the name of a version."""
Names = Callable[[str], str]
"""Returns the current pseudonym of a user id."""

LEAST_USERS = 5
COUNTED_OF_EACH, COUNT_STEP, SCORE_STEP = 3, 5, 0.05
PRIOR, PRIOR_WEIGHT, DOUBT = 0.6, 5.0, 0.1
QUARTERS = 4


@dataclass
class Part:
    """One user's contribution to a version: counts, and sums in thousandths."""

    retrievals: int = 0
    uses: int = 0
    quality: int = 0
    rating: int | None = None


@dataclass
class Released:
    """One figure: the released values, the users counted in these values, and users added or changed since then."""

    shown: tuple[float, ...] | None = None
    counted: set[str] = field(default_factory=set)
    changed: set[str] = field(default_factory=set)

    def change(self, user: str, *, contributes: bool) -> None:
        if contributes or user in self.counted:
            self.changed.add(user)
        else:
            self.changed.discard(user)

    def remove(self, user: str) -> None:
        self.changed.discard(user)
        if user in self.counted:
            self.counted.discard(user)
            self.shown = None

    def release(self, users: set[str], figure: Callable[[], tuple[float, ...]]) -> None:
        if len(users) < LEAST_USERS:
            self.shown = None
        elif len(self.changed) >= LEAST_USERS:
            self.shown, self.counted, self.changed = figure(), users, set()


@dataclass
class Tally:
    """The contributions to one version, and what was released. The store's `key` makes levels unpredictable."""

    author: str
    key: bytes
    parts: dict[str, Part] = field(default_factory=dict)
    numbers: dict[str, int] = field(default_factory=dict)
    usage: Released = field(default_factory=Released)
    quality: Released = field(default_factory=Released)
    rating: Released = field(default_factory=Released)

    def count(self, user: str, retrievals: int, qualities: list[float]) -> None:
        if user == self.author:
            return
        part = self.parts.setdefault(user, Part())
        part.retrievals += retrievals
        part.uses += len(qualities)
        part.quality += round(sum(qualities) * 1000)
        if retrievals:
            self.usage.change(user, contributes=True)
        if qualities:
            self.quality.change(user, contributes=True)

    def count_numbered(self, user: str, number: int, retrievals: int, qualities: list[float]) -> None:
        """Count a user's report, unless a report with an equal or higher number was already counted."""
        if user != self.author and number > self.numbers.get(user, 0):
            self.numbers[user] = number
            self.count(user, retrievals, qualities)

    def rate(self, user: str, rating: float | None) -> None:
        part = self.parts.setdefault(user, Part())
        rated = None if rating is None else round(rating * 1000)
        if rated != part.rating:
            part.rating = rated
            self.rating.change(user, contributes=rated is not None)
        if part == Part():
            del self.parts[user]

    def erase(self, user: str) -> None:
        self.parts.pop(user, None)
        self.numbers.pop(user, None)
        for figure in (self.usage, self.quality, self.rating):
            figure.remove(user)

    def release(self, names: Names) -> None:
        seen = {user: part.retrievals for user, part in self.parts.items() if part.retrievals}
        used = {user: part for user, part in self.parts.items() if part.uses}
        rated = {user: part.rating for user, part in self.parts.items() if part.rating is not None}

        def quality() -> tuple[float, ...]:
            levels = self._levels(
                {names(user): Fraction(one.quality, one.uses) for user, one in used.items()}, "quality"
            )
            score = _rounded(shrunk_mean(levels, PRIOR, PRIOR_WEIGHT))
            counts = _counted([part.uses for part in used.values()]), _in_steps(len(used))
            return score, *counts, lower_bound(tuple(levels), DOUBT) > PRIOR

        def rating() -> tuple[float, ...]:
            levels = self._levels({names(user): Fraction(one) for user, one in rated.items()}, "rating")
            return _rounded(mean(levels)), _in_steps(len(rated))

        self.usage.release(set(seen), lambda: (_counted(list(seen.values())),))
        self.quality.release(set(used), quality)
        self.rating.release(set(rated), rating)

    def _levels(self, thousandths: dict[str, Fraction], purpose: str) -> list[int]:
        """Return the number of users at each level: floor(4 q + u), with a constant u in [0, 1) per user."""
        levels = Counter[int]()
        for name, value in thousandths.items():
            digest = blake2b(name.encode(), key=self.key, person=purpose.encode(), digest_size=8).digest()
            offset = Fraction(int.from_bytes(digest, "big"), 1 << 64)
            levels[math.floor(QUARTERS * value / 1000 + offset)] += 1
        return [levels[level] for level in range(QUARTERS + 1)]

    def state(self) -> tuple[dict[str, tuple[int | None, ...]], list[tuple[bool, set[str]]]]:
        """Return each user's contributions and, for each figure, whether it was released and which users have changed
        since the release.
        """
        series = (self.usage, self.quality, self.rating)
        parts = {user: astuple(part) for user, part in self.parts.items()}
        return parts, [(figure.shown is not None, figure.changed) for figure in series]

    @property
    def is_proven(self) -> bool:
        return self.quality.shown is not None and bool(self.quality.shown[3])

    def metrics(self) -> QualityMetrics:
        """The released figures."""
        (retrievals,) = self.usage.shown or (0,)
        score, used, users, _ = self.quality.shown or (None, 0, 0, False)
        rating, raters = self.rating.shown or (None, 0)
        return QualityMetrics(
            avg_trajectory_score=score,
            usage_count=int(retrievals),
            used_count=int(used or 0),
            distinct_users=int(users or 0),
            user_rating=rating,
            raters=int(raters or 0),
        )


def _counted(counts: list[int]) -> int:
    return _in_steps(sum(min(count, COUNTED_OF_EACH) for count in counts))


def _in_steps(count: int) -> int:
    return count // COUNT_STEP * COUNT_STEP


def _rounded(value: float) -> float:
    return round(min(round(value / SCORE_STEP) * SCORE_STEP, 1.0), 6)
