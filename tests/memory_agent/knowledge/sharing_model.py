"""What should be of a world in which users share: who may see which words, and what figures are made of.

Every word that a user says has a mark of its own (`MARK`).
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import astuple, dataclass, field

import numpy as np
import pytest

from memory_agent.shared_records import QualityMetrics

GROUPS = {
    "quince-ann": ("org:acme",),
    "quince-ben": ("org:acme", "tier:pro"),
    "quince-cas": (),
    "quince-dot": ("tier:pro",),
}
CROWD = {f"quince-of-many-{number}": ("org:acme", "tier:pro") for number in range(6)}
"""Users who publish nothing, so that there are enough of them for figures."""
EVERYBODY = GROUPS | CROWD
MARK = re.compile(rb"zq[0-9a-f]{6}x", re.IGNORECASE)
LEAST_USERS = 5
COUNTED_OF_EACH, COUNT_STEP = 3, 5
PRIOR, PRIOR_WEIGHT = 0.6, 5
ROUNDED, LEVELED = 0.025, 0.25
"""How far a released mean may be from that of what users contributed: rounded, of levels."""

Version = tuple[str, str]


def marks_in(data: bytes) -> set[str]:
    return {mark.decode().lower() for mark in MARK.findall(data)}


def half(numbers: Iterable[float] | None) -> bytes:
    """A vector as the store holds it."""
    return np.array(numbers, np.float32).astype("<f2").tobytes()


def forms_of(vector: bytes) -> tuple[bytes, ...]:
    """A vector as records hold it, as columns do, and as it is computed with."""
    floats = np.frombuffer(vector, "<f2").astype(np.float32)
    levels = np.rint(floats / np.abs(floats).max() * np.float32(127)).astype(np.int8)
    return vector, levels.tobytes(), floats.tobytes()


@dataclass
class Told:
    """A memory: the marks of its text, title and tags, and those that an item never has (`hidden`)."""

    user: str
    id: str
    marks: frozenset[str]
    hidden: frozenset[str]


@dataclass
class Item:
    """A version of an item, as published."""

    id: str
    author: str
    policy: str
    marks: frozenset[str]
    version: int
    data: bytes | None = None
    vector: bytes = b""

    @property
    def named(self) -> Version:
        return self.id, str(self.version)


@dataclass
class Part:
    """What one user contributed to a version: counts, and sums in thousandths."""

    retrievals: int = 0
    uses: int = 0
    quality: int = 0
    rating: int | None = None


@dataclass
class Released:
    """One figure: what everybody sees, whom that counts, and who is new or changed since."""

    shown: tuple[int, int, float] | None = None
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

    def release(self, users: set[str], figure: Callable[[], tuple[int, int, float]]) -> None:
        if len(users) < LEAST_USERS:
            self.shown = None
        elif len(self.changed) >= LEAST_USERS:
            self.shown, self.counted, self.changed = figure(), users, set()


@dataclass
class Tally:
    """The contributions to one version and what is released of them, by the rules of decision 0054."""

    author: str
    parts: dict[str, Part] = field(default_factory=dict)
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
        for figure in (self.usage, self.quality, self.rating):
            figure.remove(user)

    def release(self) -> None:
        seen = {user: part.retrievals for user, part in self.parts.items() if part.retrievals}
        used = {user: part for user, part in self.parts.items() if part.uses}
        rated = {user: part.rating for user, part in self.parts.items() if part.rating is not None}
        self.usage.release(set(seen), lambda: (_counted(seen.values()), len(seen), 0.0))
        means = [part.quality / part.uses / 1000 for part in used.values()]
        uses = [part.uses for part in used.values()]
        self.quality.release(set(used), lambda: (_counted(uses), len(used), sum(means) / len(means)))
        self.rating.release(set(rated), lambda: (0, len(rated), sum(rated.values()) / len(rated) / 1000))

    def state(self) -> tuple[dict[str, tuple[int | None, ...]], list[tuple[bool, set[str]]]]:
        """By user what was contributed; and of each figure, whether it is released, and who changed since."""
        series = (self.usage, self.quality, self.rating)
        parts = {user: astuple(part) for user, part in self.parts.items()}
        return parts, [(figure.shown is not None, figure.changed) for figure in series]

    def check(self, metrics: QualityMetrics) -> None:
        """Check what somebody was shown."""
        usage, quality, rating = self.usage.shown, self.quality.shown, self.rating.shown
        assert metrics.usage_count == (usage[0] if usage else 0)
        counts = metrics.used_count, metrics.distinct_users
        assert counts == ((quality[0], _in_steps(quality[1])) if quality else (0, 0))
        assert metrics.raters == (_in_steps(rating[1]) if rating else 0)
        assert (metrics.avg_trajectory_score is None, metrics.user_rating is None) == (not quality, not rating)
        if quality:
            users, mean = quality[1:]
            shrunk = (users * mean + PRIOR_WEIGHT * PRIOR) / (users + PRIOR_WEIGHT)
            allowed = LEVELED * users / (users + PRIOR_WEIGHT) + ROUNDED
            assert metrics.avg_trajectory_score == pytest.approx(shrunk, abs=allowed)
        if rating:
            assert metrics.user_rating == pytest.approx(rating[2], abs=LEVELED + ROUNDED)


def _counted(counts: Iterable[int]) -> int:
    return _in_steps(sum(min(count, COUNTED_OF_EACH) for count in counts))


def _in_steps(count: int) -> int:
    return count // COUNT_STEP * COUNT_STEP


@dataclass
class Unreported:
    """What a user's memory has not reported yet: versions shown, and runs with the versions that they used."""

    shown: list[Version] = field(default_factory=list)
    runs: list[tuple[str, set[Version]]] = field(default_factory=list)


@dataclass
class Model:
    """What is: memories, items by id, chosen names by user, figures. And what is no more."""

    told: list[Told] = field(default_factory=list)
    items: dict[str, Item] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    tallies: dict[Version, Tally] = field(default_factory=dict)
    unreported: defaultdict[str, Unreported] = field(default_factory=lambda: defaultdict(Unreported))
    ended: set[str] = field(default_factory=set)  # ids that never return
    left: set[str] = field(default_factory=set)  # marks of what is no more
    vectors: set[bytes] = field(default_factory=set)  # of every memory, query and item that ever was
    public: set[bytes] = field(default_factory=set)  # of every item that ever was
    pseudonyms: set[str] = field(default_factory=set)  # of erased users
    said: defaultdict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    is_purged: bool = True

    def admitted(self, user: str) -> dict[str, Item]:
        return {id_: item for id_, item in self.items.items() if item.policy in ("public", *EVERYBODY[user])}

    def of_author(self, user: str) -> dict[str, Item]:
        return {id_: item for id_, item in self.items.items() if item.author == user}

    def may_see(self, user: str) -> set[str]:
        """The marks that an answer to a user may have."""
        seen = {mark for one in self.told if one.user == user for mark in one.marks | one.hidden}
        for item in (self.admitted(user) | self.of_author(user)).values():
            seen |= item.marks | {self.names.get(item.author, "")}
        return seen | {self.names.get(user, "")}

    def published(self) -> set[str]:
        """The marks that the store holds."""
        return {mark for item in self.items.values() for mark in item.marks} | set(self.names.values())

    def publish(self, item: Item) -> None:
        if item.id in self.items:
            self.drop(item.id)
        self.items[item.id] = item
        self.tallies.setdefault(item.named, Tally(item.author))
        self.vectors.add(item.vector)
        self.public.add(item.vector)

    def drop(self, id_: str) -> None:
        self.left |= self.items.pop(id_).marks
        self.is_purged = False

    def end(self, id_: str) -> None:
        """Take an item away for good, with the figures of all its versions."""
        self.drop(id_)
        self.ended.add(id_)
        self.tallies = {version: tally for version, tally in self.tallies.items() if version[0] != id_}

    def count(self, user: str, quality_of: Callable[[str], float | None]) -> None:
        """What a report says is counted, of items that are there."""
        said = self.unreported.pop(user, Unreported())
        uses: defaultdict[Version, list[float]] = defaultdict(list)
        for run, versions in said.runs:
            quality = quality_of(run)
            assert quality is not None
            for version in versions:
                uses[version].append(quality)
        shown = Counter(said.shown)
        for version in {*shown, *uses}:
            if version in self.tallies:
                self.tallies[version].count(user, shown[version], uses[version])

    def erase(self, user: str, pseudonym: str) -> None:
        for id_ in self.of_author(user):
            self.end(id_)
        for tally in self.tallies.values():
            tally.erase(user)
        self.left.add(self.names.pop(user, ""))
        self.pseudonyms.add(pseudonym)
        self.unreported.pop(user, None)
        self.told = [one for one in self.told if one.user != user]

    def restore(self, saved: Model, erased: set[str], *, is_whole: bool) -> None:
        """Go back to the items of a copy, but for what was taken away since; `is_whole`: and to the memories."""
        self.left |= self.published()
        self.items = {id_: one for id_, one in saved.items.items() if id_ not in self.ended}
        self.names = {user: name for user, name in saved.names.items() if user not in erased}
        self.tallies = {version: one for version, one in saved.tallies.items() if version[0] not in self.ended}
        for tally in self.tallies.values():
            for user in erased:
                tally.erase(user)
        if is_whole:
            self.told = [one for one in saved.told if one.user not in erased]
            for user in erased:
                saved.unreported.pop(user, None)
            self.unreported = saved.unreported
        self.is_purged = True
