"""The figures of one version of a shared item: what its users contributed, and what of it is released.

There are three figures: retrievals, quality (with uses and users) and rating. Each is released when at least five users
stand behind it, and again when at least five are new or changed since. Each user has one vote, the mean quality of the
own runs, and the author none.

What all releases together tell of one user
    They are computed from a level of each user's mean quality, a level of the rating, and counts capped at 3. So even
    who controls all other users, and knows what they contributed, learns no more than these, as they were at each
    release. The level is floor(4 q + u) / 4 for a mean of q; the offset u in [0, 1) is secret, and stays the same for
    this user and version (the memoised rounding of Ding, Kulkarni and Yekhanin 2017). So a level leaves open all q
    within 1/4 of it, for levels 0 and 1 on one side: no estimate of q is within .125 for all q that are left. Further
    releases tell nothing more of an unchanged q. Scores are rounded to .05 and counts down to fives, which only slows
    who knows less than all others.

What they do not hide
    That another user exists, has reported since the last release or was erased, from who supplies the rest of the five.
    Whether one's only run went well or badly: those levels are far apart. More than a level from who knows otherwise
    how q has changed, or that the rating, whose offset is another, says the same. This is no differential privacy,
    which requires noise in the number of users, before the threshold, and in the mean: Laplace noise of epsilon 1 takes
    the error of the mean of five users from .09 to .23, the levels to .10 (decision 0054).

Erasing a user takes the contribution out, exactly. A figure that counted it is withdrawn at once, since an updated one
would differ from it by this user alone, and returns when five of the others are new or changed since its release. All
that is known of a version is in one value, its key included: deleting that deletes everything.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Annotated, Generic, Self, TypeVar

import msgspec
from msgspec import Meta

from memory_agent.knowledge.contributions import QUARTERS, Contribution
from memory_agent.knowledge.proof import lower_bound, mean, shrunk_mean
from memory_agent.shared_asks import ReportedItem
from memory_agent.shared_records import QualityMetrics

KEY_BYTES = 16
_BOOST_STEPS = 5

T = TypeVar("T")


class Rules(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When figures are released, and what they are worth.

    A figure needs `users` users, and a new one `changed` that are new or changed. `counts_per_user` caps the
    retrievals and the uses of one user; `count_step` and `score_step` round what is released. `prior` is the mean
    quality of runs in general: a constant, or computed from releases, never from contributions. In the released score
    it counts as `prior_weight` users. A version no better than the prior is proven with a probability of at most
    `doubt`. A proven one gains up to `largest_boost`, and all of it when its lower bound is `full_boost_above` above
    the prior.
    """

    users: Annotated[int, Meta(ge=5)] = 5
    changed: Annotated[int, Meta(ge=5)] = 5
    counts_per_user: Annotated[int, Meta(ge=1)] = 3
    count_step: Annotated[int, Meta(ge=1)] = 5
    score_step: Annotated[float, Meta(ge=0.01, le=0.5)] = 0.05
    prior: Annotated[float, Meta(gt=0.0, lt=1.0)] = 0.6
    prior_weight: Annotated[float, Meta(ge=0.0)] = 5.0
    doubt: Annotated[float, Meta(gt=0.0, le=0.5)] = 0.1
    largest_boost: Annotated[float, Meta(ge=0.0, le=0.05)] = 0.05
    full_boost_above: Annotated[float, Meta(gt=0.0, le=1.0)] = 0.2


class Quality(msgspec.Struct, frozen=True, array_like=True):
    """The released quality: the shrunk score, uses and users (rounded), and the boost, 0 unless proven."""

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
    """One figure: its current release, and the users that are new or changed since the last one.

    `waiting` maps these to whether the last release counts them. It counts everybody else who contributes.
    """

    released: T | None = None
    waiting: dict[bytes, bool] = {}

    def change(self, user: bytes, *, before: bool, now: bool) -> None:
        """Note a change of a user who contributed to it `before`, and does `now`."""
        counted = self.waiting.get(user, before)
        if counted or now:
            self.waiting[user] = counted
        else:
            self.waiting.pop(user, None)

    def remove(self, user: bytes, *, before: bool) -> None:
        """Remove a user, and withdraw a release that counts this user."""
        if self.waiting.pop(user, before):
            self.released = None

    def update(self, rules: Rules, users: int, figure: Callable[[], T]) -> bool:
        """Release `figure` if it is due, where `users` contribute to it; withdraw the release if these are too few.

        Return whether it did. A release of the same value is one: who changes next waits for four others.
        """
        if users < rules.users:
            was_released, self.released = self.released is not None, None
            return was_released
        if len(self.waiting) < rules.changed:
            return False
        self.released, self.waiting = figure(), {}
        return True


class Figures(msgspec.Struct, array_like=True):
    """Contributions to one version and what is released of them. Not thread-safe.

    Users are named by short pseudonyms, secret or not. Make it with `create` or `from_bytes`.

    >>> figures = Figures.create(secrets.token_bytes(KEY_BYTES), author=b"author")
    >>> item = ReportedItem(item_id="i", version="1", retrievals=2, uses=1, quality=1.0)
    >>> [figures.report(user, 1, item) for user in (b"1", b"2", b"3", b"4", b"5", b"author")]
    [True, True, True, True, True, False]
    >>> figures.metrics().distinct_users, figures.release(Rules()), figures.metrics().distinct_users
    (0, True, 5)
    >>> figures.metrics().avg_trajectory_score, figures.is_proven
    (0.8, False)
    """

    key: bytes
    author: bytes
    contributions: dict[bytes, Contribution] = {}
    usage: Series[int] = msgspec.field(default_factory=Series)
    quality: Series[Quality] = msgspec.field(default_factory=Series)
    rating: Series[Rating] = msgspec.field(default_factory=Series)

    @classmethod
    def create(cls, key: bytes, author: bytes) -> Self:
        """Start empty. `key` is KEY_BYTES random bytes, kept for this version alone: it makes levels secret."""
        if len(key) != KEY_BYTES:
            raise ValueError(f"a key has {KEY_BYTES} bytes")
        return cls(key, author)

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Return what `to_bytes` encoded. Raises `msgspec.DecodeError` for anything else."""
        return msgspec.msgpack.decode(data, type=cls)

    def to_bytes(self) -> bytes:
        """Encode everything. The same bytes for the same contributions and releases."""
        self.contributions = dict(sorted(self.contributions.items()))
        for waiting in (self.usage.waiting, self.quality.waiting, self.rating.waiting):
            ordered = sorted(waiting.items())
            waiting.clear()
            waiting.update(ordered)
        return msgspec.msgpack.encode(self)

    def report(self, user: bytes, number: int, item: ReportedItem) -> bool:
        """Count what a checked report says of this version, once. Return whether it counted.

        The author's reports do not count, nor do those with a number that is not above all counted ones of this user.
        A report that arrives after its user was erased counts as the first of a new user: refuse it before.
        """
        before = self.contributions.get(user, Contribution())
        after = before.with_item(number, item)
        if user == self.author or after is before:
            return False
        self.contributions[user] = after
        if item.retrievals:
            self.usage.change(user, before=before.retrievals > 0, now=True)
        if item.uses:
            self.quality.change(user, before=before.uses > 0, now=True)
        return True

    def rate(self, user: bytes, rating: float | None) -> bool:
        """Replace the user's rating, or remove it with None. Return whether it changed.

        The author's rating does not count. Raises `InvalidInputError` for a rating outside 0 to 1.
        """
        before = self.contributions.get(user, Contribution())
        after = before.with_rating(rating)
        if user == self.author or after == before:
            return False
        self.contributions[user] = after
        if after == Contribution():
            del self.contributions[user]
        self.rating.change(user, before=before.rating is not None, now=after.rating is not None)
        return True

    def erase(self, user: bytes) -> bool:
        """Remove a user's contribution, exactly, and withdraw the figures that count it.

        Return whether there was anything of this user.
        """
        known = user in self.contributions or user in self.rating.waiting
        before = self.contributions.pop(user, Contribution())
        self.usage.remove(user, before=before.retrievals > 0)
        self.quality.remove(user, before=before.uses > 0)
        self.rating.remove(user, before=before.rating is not None)
        return known

    def release(self, rules: Rules) -> bool:
        """Release the figures that are due. Return whether there was one, or one was withdrawn.

        It also withdraws a rating when too few are left. Call it on a timer: a release right after a report would tell
        when its user reported.
        """
        contributions = self.contributions.items()
        counts = [each.retrievals for each in self.contributions.values() if each.retrievals]
        usage = self.usage.update(rules, len(counts), lambda: _rounded_count(counts, rules))
        used = {user: each for user, each in contributions if each.uses}
        quality = self.quality.update(rules, len(used), lambda: _quality(used, self.key, rules))
        rated = {user: each for user, each in contributions if each.rating is not None}
        rating = self.rating.update(rules, len(rated), lambda: _rating(rated, self.key, rules))
        return usage or quality or rating

    def metrics(self) -> QualityMetrics:
        """Return what is released."""
        quality, rating = self.quality.released, self.rating.released
        return QualityMetrics(
            avg_trajectory_score=quality.score if quality else None,
            usage_count=self.usage.released or 0,
            used_count=quality.used if quality else 0,
            distinct_users=quality.users if quality else 0,
            user_rating=rating.mean if rating else None,
            raters=rating.raters if rating else 0,
        )

    @property
    def is_proven(self) -> bool:
        """Whether the released lower bound of the mean quality is above the prior."""
        return self.quality.released is not None and self.quality.released.is_proven

    @property
    def boost(self) -> float:
        """What is added to the score of the item, for everyone: 0 unless proven, at most .05, never negative."""
        return self.quality.released.boost if self.quality.released else 0.0


def _quality(used: dict[bytes, Contribution], key: bytes, rules: Rules) -> Quality:
    counts = _histogram([each.quality_level(user, key) for user, each in used.items()])
    above = lower_bound(counts, rules.doubt) - rules.prior
    share = min(max(above / rules.full_boost_above, 0.0), 1.0)
    return Quality(
        score=_rounded(shrunk_mean(counts, rules.prior, rules.prior_weight), rules.score_step),
        used=_rounded_count([each.uses for each in used.values()], rules),
        users=len(used) // rules.count_step * rules.count_step,
        is_proven=above > 0.0,
        boost=math.ceil(share * _BOOST_STEPS) / _BOOST_STEPS * rules.largest_boost,
    )


def _rating(rated: dict[bytes, Contribution], key: bytes, rules: Rules) -> Rating:
    counts = _histogram([each.rating_level(user, key) for user, each in rated.items()])
    return Rating(_rounded(mean(counts), rules.score_step), len(rated) // rules.count_step * rules.count_step)


def _histogram(levels: Sequence[int]) -> list[int]:
    return [levels.count(level) for level in range(QUARTERS + 1)]


def _rounded_count(counts: Sequence[int], rules: Rules) -> int:
    """Return the sum of the capped counts, rounded down."""
    total = sum([min(count, rules.counts_per_user) for count in counts])
    return total // rules.count_step * rules.count_step


def _rounded(value: float, step: float) -> float:
    return round(min(round(value / step) * step, 1.0), 6)
