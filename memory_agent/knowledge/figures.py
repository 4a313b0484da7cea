"""The feedback statistics ("figures") of one version of a shared item: users' contributions and released values.

There are three figures: retrievals, quality (with uses and users) and rating. A figure is released when at least five
users contribute to it, and again when at least five contributions are new or have changed. Each user has one vote,
which is the mean quality of the user's own runs. The author has no vote. All user ids of one person are treated as one
user here (`voters`).

Privacy. Even to an attacker who controls all other users, all releases together reveal at most three things about a
user: the level of the user's mean quality, the level of the user's rating, and counts capped at 3. For a mean of q, the
level is floor(4 q + u) / 4; the offset u in [0, 1) is secret and constant for a user and version (memoised rounding;
Ding, Kulkarni and Yekhanin 2017). A level is consistent with every q within 1/4 of that level, so any estimate is at
least .125 away from some such value of q. Scores are rounded to .05, and counts are rounded down to multiples of five.
An attacker who controls all but one of the five users still learns that another user exists, and that this user has
reported since the last release or was erased. If the user has only one run, the attacker learns whether the run
succeeded. An attacker learns more than a level if q changes, or if q equals the rating. This is not differential
privacy.

Erasing a user removes exactly this user's contribution. A figure that includes this contribution is withdrawn until the
contributions of five other users are new or changed. If the figure were updated sooner, the difference would reveal the
contribution.

Proof (decision 0023). A version is proven if the lower bound of the mean quality of its users exceeds the prior. The
bound is derived by betting (Waudby-Smith and Ramdas 2023) against the claim that the mean is m:

    K(m) = 1/2 prod (x / m) + 1/2 prod (.4 + .6 x / m)        x = the level of each user, 0 to 1

If the mean is at most m, the probability that K(m) ever reaches 1/a is at most a (Ville's inequality). K decreases in
m, so the bound is the m at which K(m) = 1/a. With a = .1, six users at level 1 prove a version against a prior of .6.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import Annotated, Any, Generic, NamedTuple, Protocol, Self, TypeVar

import msgspec
from msgspec import Meta

from memory_agent.errors import InvalidInputError
from memory_agent.records.shared import QualityMetrics
from memory_agent.records.shared_requests import LARGEST_COUNT, LARGEST_REPORT, Report, ReportedItem

QUARTERS = 4
"""A value is rounded to one of five levels: 0, 1/4, 1/2, 3/4, 1. Not a setting, because privacy depends on it."""

COUNTS_PER_USER = 3
"""Maximum number of retrievals, and of uses, counted per user. Not a setting, because sums of the capped numbers are
stored.
"""

KEY_BYTES = 16
_THOUSAND = 1_000
_LARGEST_NUMBER = 1 << 53  # exact in JSON
_OFFSET_BYTES = 8
_BOOST_STEPS = 5
_CAUTIOUS = 0.6  # with .5, more weak effects are proven; with .7, more versions that a few users find worthless
_HALVINGS = 50

T = TypeVar("T")


class Vote(NamedTuple):
    """One user's vote for one figure: a capped count, and a level if the figure has one."""

    counted: int = 0
    level: int | None = None


class Contribution(msgspec.Struct, frozen=True, array_like=True):
    """One user's sums for one version. `report` is the number of the last counted report.

    `quality` and `rating` are in thousandths; `rating` is None if there is no rating.
    """

    report: int = 0
    retrievals: int = 0
    uses: int = 0
    quality: int = 0
    rating: int | None = None

    def with_item(self, number: int, item: ReportedItem) -> Contribution:
        """Add an item of a report, unless a report with this number or a higher one was already counted."""
        if number <= self.report:
            return self
        return Contribution(
            number,
            self.retrievals + item.retrievals,
            self.uses + item.uses,
            self.quality + round(item.quality * _THOUSAND),
            self.rating,
        )

    def with_rating(self, rating: float | None) -> Contribution:
        if rating is not None and not 0.0 <= rating <= 1.0:
            raise InvalidInputError("rating", f"must be between 0 and 1, not {rating}")
        return msgspec.structs.replace(self, rating=None if rating is None else round(rating * _THOUSAND))

    def votes(self, user: bytes, key: bytes) -> tuple[Vote | None, Vote | None, Vote | None]:
        usage = Vote(min(self.retrievals, COUNTS_PER_USER)) if self.retrievals else None
        quality = Vote(min(self.uses, COUNTS_PER_USER), self.quality_level(user, key)) if self.uses else None
        return usage, quality, None if self.rating is None else Vote(level=self.rating_level(user, key))

    def quality_level(self, user: bytes, key: bytes) -> int:
        return _level(self.quality, self.uses, user, key, b"quality")

    def rating_level(self, user: bytes, key: bytes) -> int:
        return _level(self.rating or 0, 1, user, key, b"rating")


def merged(sums: Sequence[Contribution]) -> Contribution:
    """Return the combined sums of one voter's users: the totals of their counts and qualities, and their mean
    rating."""
    ratings = [one.rating for one in sums if one.rating is not None]
    return Contribution(
        retrievals=sum(one.retrievals for one in sums),
        uses=sum(one.uses for one in sums),
        quality=sum(one.quality for one in sums),
        rating=round(sum(ratings) / len(ratings)) if ratings else None,
    )


def check_report(report: Report) -> None:
    """Raise `InvalidInputError` (with the field) if the report is impossible."""
    if not 1 <= report.number <= _LARGEST_NUMBER:
        raise InvalidInputError("number", "must be between 1 and 2^53")
    if not 1 <= len(report.items) <= LARGEST_REPORT:
        raise InvalidInputError("items", f"must contain 1 to {LARGEST_REPORT} items, not {len(report.items)}")
    if len({(item.item_id, item.version) for item in report.items}) < len(report.items):
        raise InvalidInputError("items", "must not name a version more than once")
    for place, item in enumerate(report.items):
        for name, count in (("retrievals", item.retrievals), ("uses", item.uses)):
            if not 0 <= count <= LARGEST_COUNT:
                raise InvalidInputError(f"items[{place}].{name}", f"must be between 0 and {LARGEST_COUNT}, not {count}")
        if not item.retrievals and not item.uses:
            raise InvalidInputError(f"items[{place}]", "was neither retrieved nor used")
        if not 0.0 <= item.quality <= item.uses:
            raise InvalidInputError(f"items[{place}].quality", f"must be between 0 and {item.uses} (the uses)")


def _level(total: int, count: int, user: bytes, key: bytes, purpose: bytes) -> int:
    """Return floor(4 q + u) for the mean q = `total` / `count` thousandths and the user's secret offset u in [0, 1).

    If values were rounded to the nearest level instead, the mean of five users would shift by up to .1.
    """
    offset = int.from_bytes(blake2b(user, digest_size=_OFFSET_BYTES, key=key, person=purpose).digest(), "big")
    whole = 1 << 8 * _OFFSET_BYTES
    return (QUARTERS * total * whole + offset * count * _THOUSAND) // (count * _THOUSAND * whole)


class Rules(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The rules for releasing figures and for boosting proven versions.

    A figure requires `users` users. Each further release requires `changed` users with new or changed votes.
    `count_step` and `score_step` round released values. `prior` is the mean quality of all runs. It is a constant or is
    computed from releases, but never from contributions. In the released score, the prior has the weight of
    `prior_weight` users. A version no better than the prior is proven with probability at most `doubt`. The boost of a
    proven version is at most `largest_boost`, which is reached when the version's lower bound exceeds the prior by
    `full_boost_above`.
    """

    users: Annotated[int, Meta(ge=5)] = 5
    changed: Annotated[int, Meta(ge=5)] = 5
    count_step: Annotated[int, Meta(ge=1)] = 5
    score_step: Annotated[float, Meta(ge=0.01, le=0.5)] = 0.05
    prior: Annotated[float, Meta(gt=0.0, lt=1.0)] = 0.6
    prior_weight: Annotated[float, Meta(ge=0.0)] = 5.0
    doubt: Annotated[float, Meta(gt=0.0, le=0.5)] = 0.1
    largest_boost: Annotated[float, Meta(ge=0.0, le=0.05)] = 0.05
    full_boost_above: Annotated[float, Meta(gt=0.0, le=1.0)] = 0.2


class Quality(msgspec.Struct, frozen=True, array_like=True):
    """The released quality: the shrunk score, uses and users (rounded), and the boost (0 for an unproven version)."""

    score: float
    used: int
    users: int
    is_proven: bool
    boost: float


class Rating(msgspec.Struct, frozen=True, array_like=True):
    """The released rating and the number of raters, rounded."""

    mean: float
    raters: int


class Series(msgspec.Struct, Generic[T], array_like=True):
    """One figure: its current release, the number of releases, and the sums for the next one.

    `waiting` counts the users whose votes were added or changed since the last release. The `Part` of a user has a
    mark: the number of the last release, and whether that release includes the user.
    """

    released: T | None = None
    number: int = 0
    waiting: int = 0
    users: int = 0
    count: int = 0
    levels: list[int] = msgspec.field(default_factory=lambda: [0] * (QUARTERS + 1))

    def is_waiting(self, mark: int | None) -> bool:
        return mark is not None and mark >> 1 == self.number

    def add(self, vote: Vote | None, by: int = 1) -> None:
        """Add a user's vote to the sums, or subtract it if `by` is -1."""
        if vote is not None:
            self.users += by
            self.count += by * vote.counted
            if vote.level is not None:
                self.levels[vote.level] += by

    def change(self, mark: int | None, before: Vote | None, now: Vote | None) -> int | None:
        """Replace a user's vote; return the user's new mark."""
        was_waiting, counted = self.is_waiting(mark), self._counts(mark, before)
        self.add(before, -1)
        self.add(now)
        waits = counted or now is not None
        self.waiting += waits - was_waiting
        return self.number << 1 | counted if waits else None

    def remove(self, mark: int | None, before: Vote | None) -> None:
        """Remove a user, and withdraw the release if it counts this user."""
        if self._counts(mark, before):
            self.released = None
        self.waiting -= self.is_waiting(mark)
        self.add(before, -1)

    def update(self, rules: Rules, figure: Callable[[Series[T], Rules], T]) -> None:
        """Release `figure` if it is due; withdraw the release if too few users contribute to it."""
        if self.users < rules.users:
            self.released = None
        elif self.waiting >= rules.changed:
            self.released, self.number, self.waiting = figure(self, rules), self.number + 1, 0

    def _counts(self, mark: int | None, before: Vote | None) -> bool:
        return bool(mark & 1) if mark is not None and self.is_waiting(mark) else before is not None


Marks = tuple[int | None, int | None, int | None]


class Part(msgspec.Struct, frozen=True, array_like=True):
    """One user's stored data for one version: the contribution, and the marks for usage, quality and rating."""

    sums: Contribution = Contribution()
    marks: Marks = (None, None, None)


class Standing(msgspec.Struct, array_like=True):
    """The releases and the sums of one version.

    `left` lists users who no longer contribute but are still counted in the released rating.
    """

    key: bytes
    author: bytes
    usage: Series[int] = msgspec.field(default_factory=Series)
    quality: Series[Quality] = msgspec.field(default_factory=Series)
    rating: Series[Rating] = msgspec.field(default_factory=Series)
    left: list[bytes] = []

    @classmethod
    def create(cls, key: bytes, author: bytes) -> Self:
        """Create a `Standing` without votes. `key`, KEY_BYTES random bytes, keeps the levels of this version secret."""
        if len(key) != KEY_BYTES:
            raise ValueError(f"key must be {KEY_BYTES} bytes long")
        return cls(key, author)

    @property
    def series(self) -> tuple[Series[Any], Series[Any], Series[Any]]:
        return self.usage, self.quality, self.rating

    @property
    def is_proven(self) -> bool:
        """Whether the released lower bound of the mean quality is above the prior."""
        return self.quality.released is not None and self.quality.released.is_proven

    @property
    def boost(self) -> float:
        """The increase in the item's score for all users: 0 unless proven, at most .05, never negative."""
        return self.quality.released.boost if self.quality.released else 0.0

    def is_worse(self, rules: Rules) -> bool:
        """Whether the released score is below the prior (both rounded). Reveals no more than the score."""
        released = self.quality.released
        return released is not None and released.score < _rounded(rules.prior, rules.score_step)

    def metrics(self) -> QualityMetrics:
        quality, rating = self.quality.released, self.rating.released
        return QualityMetrics(
            avg_trajectory_score=quality.score if quality else None,
            usage_count=self.usage.released or 0,
            used_count=quality.used if quality else 0,
            distinct_users=quality.users if quality else 0,
            user_rating=rating.mean if rating else None,
            raters=rating.raters if rating else 0,
        )

    def counted(self, parts: Mapping[bytes, Part]) -> Standing:
        usage, quality, rating = (Series(one.released, one.number) for one in self.series)
        standing = Standing(self.key, self.author, usage, quality, rating)
        for user, part in parts.items():
            for one, mark, vote in zip(standing.series, part.marks, part.sums.votes(user, self.key), strict=True):
                one.add(vote)
                one.waiting += one.is_waiting(mark)
        standing.left = sorted(user for user, part in parts.items() if _is_empty(part))
        return standing


class Parts(Protocol):
    """A mapping from users to their parts in one version, such as a dictionary."""

    def get(self, user: bytes, /) -> Part | None: ...

    def __setitem__(self, user: bytes, part: Part, /) -> None: ...

    def pop(self, user: bytes, default: None, /) -> Part | None: ...


class Figures:
    """Counts what users contribute to one version, and releases its figures. Changes `standing`. Not thread-safe.

    Users are identified by short pseudonyms, which need not be secret.

    >>> figures = Figures(Standing.create(secrets.token_bytes(KEY_BYTES), author=b"author"), {})
    >>> item = ReportedItem(item_id="i", version="1", retrievals=2, uses=1, quality=1.0)
    >>> [figures.report(user, 1, item) for user in (b"1", b"2", b"3", b"4", b"5", b"author")]
    [True, True, True, True, True, False]
    >>> figures.release(Rules()), figures.standing.metrics().distinct_users
    (True, 5)
    >>> figures.standing.metrics().avg_trajectory_score, figures.standing.is_proven
    (0.8, False)
    """

    def __init__(self, standing: Standing, parts: Parts) -> None:
        self.standing = standing
        self._parts = parts

    def report(self, user: bytes, number: int, item: ReportedItem) -> bool:
        """Count an item of a checked report once. Return whether it counted.

        Ignores reports by the author, and reports whose number does not exceed the user's highest counted number. The
        caller must reject reports from erased users.
        """
        part = self._parts.get(user) or Part()
        sums = part.sums.with_item(number, item)
        if user == self.standing.author or sums is part.sums:
            return False
        self._change(user, part, sums, (item.retrievals > 0, item.uses > 0, False))
        return True

    def rate(self, user: bytes, rating: float | None) -> bool:
        """Replace the user's rating; None removes it. Return whether it changed. The author's rating does not count."""
        part = self._parts.get(user) or Part()
        sums = part.sums.with_rating(rating)
        if user == self.standing.author or sums == part.sums:
            return False
        self._change(user, part, sums, (False, False, True))
        return True

    def replace(self, voter: bytes, sums: Contribution) -> None:
        """Replace the sums of a voter with the sums of several users, as returned by `merged`."""
        part = self._parts.get(voter) or Part()
        before = part.sums
        used = (sums.uses, sums.quality) != (before.uses, before.quality)
        changed = (sums.retrievals != before.retrievals, used, sums.rating != before.rating)
        if any(changed):
            self._change(voter, part, sums, changed)

    def erase(self, user: bytes) -> bool:
        """Remove a user's contribution, and withdraw the figures that count it. Return whether the user had
        contributed.
        """
        standing, part = self.standing, self._parts.pop(user, None)
        if part is None:
            return False
        for series, mark, vote in zip(standing.series, part.marks, part.sums.votes(user, standing.key), strict=True):
            series.remove(mark, vote)
        standing.left = [one for one in standing.left if one != user]
        if not any(series.users or series.waiting for series in standing.series):  # then no user has a mark
            for series in standing.series:
                series.number = 0
        return True

    def release(self, rules: Rules) -> bool:
        """Release the figures that are due. Return whether any figure was released or withdrawn.

        Call this on a timer: a release right after a report would reveal the time of the report.
        """
        standing = self.standing
        before, rating_number = [(series.released, series.number) for series in standing.series], standing.rating.number
        standing.usage.update(rules, lambda usage, rules: _rounded_count(usage.count, rules))
        standing.quality.update(rules, _quality)
        standing.rating.update(rules, _rating)
        if standing.rating.number > rating_number:
            for user in standing.left:
                self._parts.pop(user, None)
            standing.left = []
        return before != [(series.released, series.number) for series in standing.series]

    def _change(self, user: bytes, part: Part, sums: Contribution, changed: tuple[bool, bool, bool]) -> None:
        key, left = self.standing.key, [one for one in self.standing.left if one != user]
        votes = zip(part.sums.votes(user, key), sums.votes(user, key), strict=True)
        usage, quality, rating = (
            series.change(mark, *vote) if is_changed else mark
            for series, mark, vote, is_changed in zip(self.standing.series, part.marks, votes, changed, strict=True)
        )
        kept = Part(sums, (usage, quality, rating))
        if not _is_empty(kept):
            self._parts[user] = kept
        elif rating is not None:
            self._parts[user] = kept
            left = sorted([*left, user])
        else:
            self._parts.pop(user, None)
        self.standing.left = left


def _is_empty(part: Part) -> bool:
    return part.sums == Contribution()


def _quality(votes: Series[Quality], rules: Rules) -> Quality:
    above = lower_bound(tuple(votes.levels), rules.doubt) - rules.prior
    share = min(max(above / rules.full_boost_above, 0.0), 1.0)
    return Quality(
        score=_rounded(shrunk_mean(votes.levels, rules.prior, rules.prior_weight), rules.score_step),
        used=_rounded_count(votes.count, rules),
        users=votes.users // rules.count_step * rules.count_step,
        is_proven=above > 0.0,
        boost=math.ceil(share * _BOOST_STEPS) / _BOOST_STEPS * rules.largest_boost,
    )


def _rating(votes: Series[Rating], rules: Rules) -> Rating:
    raters = votes.users // rules.count_step * rules.count_step
    return Rating(_rounded(mean(votes.levels), rules.score_step), raters)


def _rounded_count(count: int, rules: Rules) -> int:
    return count // rules.count_step * rules.count_step


def _rounded(value: float, step: float) -> float:
    return round(min(round(value / step) * step, 1.0), 6)


def shrunk_mean(counts: Sequence[int], prior: float, weight: float) -> float:
    """Return the mean level, where `counts[i]` users are at level i and the prior counts as `weight` users."""
    return (_total(counts) + weight * prior) / (sum(counts) + weight)


def mean(counts: Sequence[int]) -> float:
    """Return the mean level, from 0 to 1, where `counts[i]` users are at level i. Requires at least one user."""
    return _total(counts) / sum(counts)


@lru_cache(4_096)  # many versions have the same few counts
def lower_bound(counts: tuple[int, ...], doubt: float) -> float:
    """Return a lower bound of the population mean. The bound is wrong with a probability of at most `doubt`.

    `counts[i]` users are at level i of `len(counts)` equally spaced levels from 0 to 1.
    """
    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if _log_wealth(counts, middle) >= -math.log(doubt):
            low = middle
        else:
            high = middle
    return low


def _total(counts: Sequence[int]) -> float:
    return sum([place * count for place, count in enumerate(counts)]) / (len(counts) - 1)


def _log_wealth(counts: Sequence[int], claimed: float) -> float:
    ratios = [(place / (len(counts) - 1) / claimed, count) for place, count in enumerate(counts) if count]
    cautious = sum([count * math.log(1.0 - _CAUTIOUS + _CAUTIOUS * ratio) for ratio, count in ratios])
    if counts[0]:
        return cautious - math.log(2.0)
    bold = sum([count * math.log(ratio) for ratio, count in ratios])
    larger, smaller = max(bold, cautious), min(bold, cautious)
    return larger + math.log1p(math.exp(smaller - larger)) - math.log(2.0)
