"""A model of users who share items: which words each user may see, which words many users offer, and what followers
receive. Each word of a user has a unique mark (`MARK`).
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cache
from typing import NamedTuple

import numpy as np
from figures_model import Names, Tally, Version

from memory_agent.erasure.logs import fingerprint
from memory_agent.records.shared import SharedChange
from relay import SHARED_USER

GROUPS = {
    "quince-ann": ("org:acme",),
    "quince-ben": ("org:acme", "tier:pro"),
    "quince-cas": (),
    "quince-dot": ("tier:pro",),
}
CROWD = {f"quince-of-many-{number}": ("org:acme", "tier:pro") for number in range(6)}
"""Users who publish nothing, but are needed to reach the number of users required for releasing a figure or an item of
many users.
"""
BY_HAND = ("quince-by-hand-1", "quince-by-hand-2")
"""Users who report without a memory: their report numbers may repeat, and arrive in any order."""
ADMIN = "quince-root"
EVERYBODY: dict[str, tuple[str, ...]] = GROUPS | CROWD | dict.fromkeys((*BY_HAND, ADMIN), ())
POLICIES = ("public", "org:acme", "tier:pro")
MARK = re.compile(rb"zq[0-9a-f]{6}x")
LEAST_OFFERERS = 5
_BLOCK_BYTES = 1 << 14


def marks_in(data: bytes) -> set[str]:
    return {mark.decode() for mark in MARK.findall(data.lower())}


def half(numbers: Iterable[float] | None) -> bytes:
    """The stored bytes of a vector."""
    return np.array(numbers, np.float32).astype("<f2").tobytes()


@cache
def forms_of(vector: bytes) -> tuple[bytes, ...]:
    """The bytes of a vector in records, in columns and in computations."""
    floats = np.frombuffer(vector, "<f2").astype(np.float32)
    levels = np.rint(floats / np.abs(floats).max() * np.float32(127)).astype(np.int8)
    return vector, levels.tobytes(), floats.tobytes()


@cache
def printed_forms_of(vector: bytes) -> tuple[str, ...]:
    """The bytes of a vector as a log would print them."""
    return tuple(repr(form)[2:-1] for form in forms_of(vector))


class VectorSearch:
    """Searches for vectors in bytes that are mostly the same as in the previous search."""

    def __init__(self) -> None:
        self._lacks: dict[bytes, set[bytes]] = {}
        """The vectors that each block of the bytes does not contain."""

    def finds_any(self, data: bytes, vectors: set[bytes]) -> bool:
        former, self._lacks = self._lacks, {}
        overlap = max((len(form) for vector in vectors for form in forms_of(vector)), default=0)
        for begin in range(0, len(data), _BLOCK_BYTES):
            block = data[begin : begin + _BLOCK_BYTES + overlap]
            lacks = former.get(block, set())
            if any(form in block for vector in vectors - lacks for form in forms_of(vector)):
                return True
            self._lacks[block] = lacks | vectors
        return False


@dataclass
class PrivateMemory:
    """A memory: the marks of its text, title and tags, and the marks that no item ever has (`hidden`)."""

    user: str
    id: str
    marks: frozenset[str]
    hidden: frozenset[str]


class Words(NamedTuple):
    """The words of an offer, as spelled by its user."""

    title: str
    summary: str


@dataclass
class Offer:
    """One user's offer. Other users may see only marks that more than one user offers (`common`)."""

    id: str
    user: str
    policy: str
    words: Words
    marks: frozenset[str]
    common: frozenset[str]

    @property
    def said(self) -> tuple[str, frozenset[str]]:
        """Return a key that is equal for matching offers."""
        return self.policy, self.common


@dataclass
class Item:
    """A published version of an item. An item of many users has an offer from each of its `offerers`, and no author."""

    id: str
    author: str
    policy: str
    marks: frozenset[str]
    version: int
    data: bytes | None = None
    vector: bytes = b""
    words: Words | None = None
    offerers: dict[str, str] = field(default_factory=dict)

    @property
    def named(self) -> Version:
        return self.id, str(self.version)

    def is_of(self, user: str) -> bool:
        return user == self.author or user in self.offerers


@dataclass
class Unreported:
    """The uses that a user's memory has not reported yet: versions shown, and versions used by each run."""

    shown: list[Version] = field(default_factory=list)
    runs: list[tuple[str, set[Version]]] = field(default_factory=list)


@dataclass
class Journal:
    """The permitted content of the relay's journal. `named`: item ids that its bytes may contain. `astray`: items that
    were removed when only the store was restored, and whose events are still in the journal. `moved`: items withdrawn
    from readers whom only a previous policy admitted. `rated`: versions with a released rating.
    """

    named: set[str] = field(default_factory=set)
    astray: set[str] = field(default_factory=set)
    moved: set[str] = field(default_factory=set)
    rated: set[Version] = field(default_factory=set)


@dataclass
class Model:
    """The current state (memories, items and offers by id, chosen names by user, figures), and the removed content."""

    told: list[PrivateMemory] = field(default_factory=list)
    items: dict[str, Item] = field(default_factory=dict)
    offers: dict[str, Offer] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    tallies: dict[Version, Tally] = field(default_factory=dict)
    unreported: defaultdict[str, Unreported] = field(default_factory=lambda: defaultdict(Unreported))
    journal: Journal = field(default_factory=Journal)
    ended: set[str] = field(default_factory=set)  # ids that must not be reused
    left: set[str] = field(default_factory=set)  # marks of removed content
    vectors: set[bytes] = field(default_factory=set)  # vectors of all memories, queries and items
    public: set[bytes] = field(default_factory=set)  # of all items
    pseudonyms: set[str] = field(default_factory=set)  # of erased users
    said: defaultdict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    is_purged: bool = True

    def admitted(self, user: str) -> dict[str, Item]:
        return {id_: item for id_, item in self.items.items() if item.policy in ("public", *EVERYBODY[user])}

    def of_author(self, user: str) -> dict[str, Item]:
        return {id_: item for id_, item in self.items.items() if item.author == user}

    def offers_of(self, user: str) -> dict[str, str | None]:
        """Return the items created from a user's offers, by offer id."""
        made = {offer: item.id for item in self.items.values() for offer in item.offerers.values()}
        return {offer.id: made.get(offer.id) for offer in self.offers.values() if offer.user == user}

    def may_see(self, user: str) -> set[str]:
        """Return the marks that an answer to a user may contain."""
        seen = {mark for one in self.told if one.user == user for mark in one.marks | one.hidden}
        seen |= {mark for offer in self.offers.values() if offer.user == user for mark in offer.marks}
        for item in (self.admitted(user) | self.of_author(user)).values():
            seen |= item.marks | {self.names.get(item.author, "")}
        return seen | {self.names.get(user, "")}

    def published(self) -> set[str]:
        """Return the marks that the store must contain."""
        kept = (*self.items.values(), *self.offers.values())
        return {mark for one in kept for mark in one.marks} | set(self.names.values())

    def publish(self, item: Item, key: bytes) -> None:
        if item.id in self.items:
            if self.items[item.id].policy != item.policy:
                self.journal.moved.add(item.id)
            self.drop(item.id)
        self.items[item.id] = item
        self.tallies.setdefault(item.named, Tally(item.author, key))
        self.vectors.add(item.vector)
        self.public.add(item.vector)

    def drop(self, id_: str) -> None:
        self.left |= self.items.pop(id_).marks
        self.is_purged = False

    def remove(self, id_: str) -> None:
        """Remove an item permanently, with the figures of all its versions."""
        self.drop(id_)
        self.ended.add(id_)
        self.tallies = {version: tally for version, tally in self.tallies.items() if version[0] != id_}

    def withdraw(self, is_gone: Callable[[Offer], bool]) -> None:
        """Withdraw offers, and remove items with too few remaining offers."""
        gone = {offer.id: offer for offer in self.offers.values() if is_gone(offer)}
        for offer in gone.values():
            del self.offers[offer.id]
            self.left |= offer.marks
            self.is_purged = False
        self.ended |= gone.keys()
        for item in [item for item in self.items.values() if item.offerers]:
            item.offerers = {user: offer for user, offer in item.offerers.items() if offer in self.offers}
            written = {self.offers[offer].words for offer in item.offerers.values()}
            if len(item.offerers) < LEAST_OFFERERS or item.words not in written:
                self.remove(item.id)

    def settle(self, names: Names) -> list[dict[str, Offer]]:
        """Run upkeep: add to each item the users who have offered it since, release figures, and return the proposed
        items by user.
        """
        groups: defaultdict[object, dict[str, Offer]] = defaultdict(dict)
        for offer in self.offers.values():
            groups[offer.said][offer.user] = offer
        for item in [item for item in self.items.values() if item.offerers]:
            behind = groups.pop(self.offers[next(iter(item.offerers.values()))].said)
            for user in behind.keys() - item.offerers.keys():
                item.offerers[user] = behind[user].id
                self.tallies[item.named].erase(user)
        for version, tally in self.tallies.items():
            tally.release(names)
            if tally.rating.shown is not None:
                self.journal.rated.add(version)
        return [group for group in groups.values() if len(group) >= LEAST_OFFERERS]

    def count(self, user: str, quality_of: Callable[[str], float | None]) -> None:
        """Count a report on existing items."""
        said = self.unreported.pop(user, Unreported())
        uses: defaultdict[Version, list[float]] = defaultdict(list)
        for run, versions in said.runs:
            quality = quality_of(run)
            assert quality is not None
            for version in versions:
                uses[version].append(quality)
        shown = Counter(said.shown)
        for version in {*shown, *uses}:
            if version in self.tallies and not self.items[version[0]].is_of(user):
                self.tallies[version].count(user, shown[version], uses[version])

    def erase(self, user: str, pseudonym: str) -> None:
        for id_ in self.of_author(user):
            self.remove(id_)
        self.withdraw(lambda offer: offer.user == user)
        for tally in self.tallies.values():
            tally.erase(user)
        self.left.add(self.names.pop(user, ""))
        self.pseudonyms.add(pseudonym)
        self.unreported.pop(user, None)
        self.told = [one for one in self.told if one.user != user]

    def restore(self, saved: Model, erased: set[str], *, is_whole: bool) -> None:
        """Restore a copy, without the items removed since. With `is_whole`, also restore memories and the journal."""
        self.left |= self.published()
        before = {item.named for item in self.items.values()}
        self.items = {id_: one for id_, one in saved.items.items() if id_ not in self.ended}
        self.offers = saved.offers
        self.names = {user: name for user, name in saved.names.items() if user not in erased}
        self.tallies = {version: one for version, one in saved.tallies.items() if version[0] in self.items}
        for tally in self.tallies.values():
            for user in erased:
                tally.erase(user)
        self.withdraw(lambda offer: offer.id in self.ended)
        if is_whole:
            self.told = [one for one in saved.told if one.user not in erased]
            for user in erased:
                saved.unreported.pop(user, None)
            self.unreported = saved.unreported
            self.journal = saved.journal
            if erased:  # the restore erases these users again, and then announces the changes in the restored log
                self.announce()
        else:  # the journal retains events of removed items, and does not store repeats from the restored log
            self.journal.astray |= {id_ for id_, _ in before - {item.named for item in self.items.values()}}
            self.journal.astray |= self.journal.moved
        self.is_purged = True

    def announce(self) -> None:
        """Announce pending changes as the announcer does, whether or not the announcer completes."""
        self.journal.named |= self.items.keys()

    def compact(self) -> None:
        """Compact the journal, as the relay does after all announcements."""
        self.journal.named &= (self.items.keys() | self.journal.astray) - self.ended

    def check_received(self, user: str, changes: list[SharedChange]) -> None:
        """Check that a user receives exactly the events of existing items whose policies admit the user."""
        journal, groups = self.journal, ("public", *EVERYBODY[user])
        went = {fingerprint(SHARED_USER, id_) for id_ in self.ended | journal.moved | journal.astray}
        present: dict[str, str | None] = {}
        for change in changes:
            assert change.access_policy in groups
            if change.item_id is None:
                assert change.kind == "unpublished"
                assert change.item in went
                assert (change.version, change.content_type) == (None, None)
            elif change.item_id in self.ended or change.item_id not in journal.astray:
                item = self.items[change.item_id]
                assert change.item == fingerprint(SHARED_USER, item.id)
                assert change.access_policy == item.policy
                if change.kind == "rated":
                    assert (item.id, change.version) in journal.rated
                else:
                    present[item.id] = change.version
        expected = {id_: str(item.version) for id_, item in self.admitted(user).items() if id_ not in journal.astray}
        assert present == expected
