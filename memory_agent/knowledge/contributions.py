"""What one user contributes to the figures of one shared version, and the coarse form in which it counts.

Reports hold counts and sums only: no text, vector, query or run. Sums are kept in thousandths, so that they do not
depend on the order of the reports. `Contribution` never leaves the store; figures are made of its `level`s and capped
counts alone, and `figures` says what that hides.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import NamedTuple

import msgspec

from memory_agent.errors import InvalidInputError
from memory_agent.records.shared_requests import LARGEST_COUNT, LARGEST_REPORT, Report, ReportedItem

QUARTERS = 4
"""A value counts as one of five levels: 0, 1/4, 1/2, 3/4, 1. Not a setting: what a release tells depends on it."""

COUNTS_PER_USER = 3
"""What counts at most of the retrievals, and of the uses, of one user. Not a setting: sums of it are stored."""

_THOUSAND = 1_000
_LARGEST_NUMBER = 1 << 53  # what JSON carries exactly
_OFFSET_BYTES = 8


class Vote(NamedTuple):
    """What counts of one user for one figure: a capped count, and a level where the figure has one."""

    counted: int = 0
    level: int | None = None


class Contribution(msgspec.Struct, frozen=True, array_like=True):
    """The sums of one user for one version. `report` is the number of the last report that counted.

    `quality` and `rating` are in thousandths; `rating` is None without one.
    """

    report: int = 0
    retrievals: int = 0
    uses: int = 0
    quality: int = 0
    rating: int | None = None

    def with_item(self, number: int, item: ReportedItem) -> Contribution:
        """Add an item of the report with this number; without effect unless the number is above all counted ones.

        A lower number that was never counted is lost, since it cannot be told from one that was.
        """
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
        """Replace the rating; None removes it. Raises `InvalidInputError` for a rating outside 0 to 1."""
        if rating is not None and not 0.0 <= rating <= 1.0:
            raise InvalidInputError("rating", f"is 0 to 1, not {rating}")
        return msgspec.structs.replace(self, rating=None if rating is None else round(rating * _THOUSAND))

    def votes(self, user: bytes, key: bytes) -> tuple[Vote | None, Vote | None, Vote | None]:
        """Return what counts for usage, quality and rating; None where the user does not contribute."""
        usage = Vote(min(self.retrievals, COUNTS_PER_USER)) if self.retrievals else None
        quality = Vote(min(self.uses, COUNTS_PER_USER), self.quality_level(user, key)) if self.uses else None
        return usage, quality, None if self.rating is None else Vote(level=self.rating_level(user, key))

    def quality_level(self, user: bytes, key: bytes) -> int:
        """Return the level of the mean quality of the user's runs that used the version; there is at least one."""
        return _level(self.quality, self.uses, user, key, b"quality")

    def rating_level(self, user: bytes, key: bytes) -> int:
        """Return the level of the rating; there is one."""
        return _level(self.rating or 0, 1, user, key, b"rating")


def check_report(report: Report) -> None:
    """Raise `InvalidInputError`, naming the field, for a report that cannot be true."""
    if not 1 <= report.number <= _LARGEST_NUMBER:
        raise InvalidInputError("number", "is 1 to 2^53")
    if not 1 <= len(report.items) <= LARGEST_REPORT:
        raise InvalidInputError("items", f"a report names 1 to {LARGEST_REPORT} items, not {len(report.items)}")
    if len({(item.item_id, item.version) for item in report.items}) < len(report.items):
        raise InvalidInputError("items", "a report names each version once")
    for place, item in enumerate(report.items):
        for name, count in (("retrievals", item.retrievals), ("uses", item.uses)):
            if not 0 <= count <= LARGEST_COUNT:
                raise InvalidInputError(f"items[{place}].{name}", f"is 0 to {LARGEST_COUNT}, not {count}")
        if not item.retrievals and not item.uses:
            raise InvalidInputError(f"items[{place}]", "was neither retrieved nor used")
        if not 0.0 <= item.quality <= item.uses:
            raise InvalidInputError(f"items[{place}].quality", f"of {item.uses} uses is 0 to {item.uses}")


def _level(total: int, count: int, user: bytes, key: bytes, purpose: bytes) -> int:
    """Return floor(4 q + u) for the mean q = `total` / `count` thousandths and the user's secret offset u in [0, 1).

    Over the offsets its mean is 4 q: rounding to the nearest level would move the mean of five users by up to .1.
    """
    offset = int.from_bytes(blake2b(user, digest_size=_OFFSET_BYTES, key=key, person=purpose).digest(), "big")
    whole = 1 << 8 * _OFFSET_BYTES
    return (QUARTERS * total * whole + offset * count * _THOUSAND) // (count * _THOUSAND * whole)
