"""A simulated deployment: agents recall, use memories and report outcomes.

Users' own memories, items and scores come from `shared_worlds`. Merging both tiers (`recall.shared.merged`) and
computing figures from reports (`knowledge.figures.Figures`) use the shipped code; only the agents are simulated. An
agent reads an answer from the top (the cascade model of Craswell et al. 2008) and uses the first memory that it
believes. The run's outcome depends on whether that memory helps with the request.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import msgspec
import numpy as np

from memory_agent.knowledge.figures import KEY_BYTES, Figures, Rules, Standing
from memory_agent.recall import shared as tiers
from memory_agent.recall.shared import as_memories
from memory_agent.records.memories import RetrievedMemory
from memory_agent.records.shared import FoundItem
from memory_agent.records.shared_requests import ReportedItem
from ops.bench.shared_worlds import SETTINGS, TOP_K, Kind, World

Reports = Literal["none", "own", "shuffled"]
Lie = Literal["", "praise", "invert"]

_PROVERS = 20
_VERSION = "1"
_LARGEST_BOOST = Rules().largest_boost
_NEVER = 1 << 30


class Agent(NamedTuple):
    """How an agent reads an answer, and how often its run succeeds. All values are assumptions, not derived from data.

    The agent uses a helpful memory with probability `believes`, and any other memory with probability `mistakes`.
    After a memory that it does not use, it continues with probability `reads_on`. The run succeeds with probability
    `helped` if the used memory helps, `misled` if it does not, and `alone` if none was used.
    """

    reads_on: float = 0.85
    believes: float = 0.8
    mistakes: float = 0.3
    helped: float = 0.85
    misled: float = 0.4
    alone: float = 0.5

    def succeeds(self, helps: Sequence[bool]) -> float:
        """Return the probability that a run succeeds, given which of the shown memories help."""
        reads, success = 1.0, 0.0
        for is_helpful in helps:
            uses = reads * (self.believes if is_helpful else self.mistakes)
            success += uses * (self.helped if is_helpful else self.misled)
            success += (reads - uses) * (1.0 - self.reads_on) * self.alone
            reads = (reads - uses) * self.reads_on
        return success + reads * self.alone

    def chosen(self, helps: Sequence[bool], random: np.random.Generator) -> int | None:
        """Return the position of the memory that a run uses, or None."""
        for place, is_helpful in enumerate(helps):
            if random.random() < (self.believes if is_helpful else self.mistakes):
                return place
            if random.random() >= self.reads_on:
                return None
        return None


USUAL = Agent()


@dataclass(frozen=True)
class Arm:
    """The conditions of a deployment.

    `liars` is the share of users who lie, and `lie` is how they lie. To praise, liars agree on one look-alike per kind
    and report it as used successfully; to invert, they report the opposite of their runs' outcomes. `sybils` is the
    number of keys that report before anybody else: they praise the same look-alikes, or bury all other items by
    reporting them as used without success. With `proven`, twenty users report in advance that they used every item:
    with success for all helpful items (`helpful`) or as many random items (`random`), without success for all others.
    `late` delays the publication of one helpful item per kind until epoch `Size.late_at`. `has_place` reserves a place
    for shared items. `proven_share` is how often the best proven item takes this place if the user's own memories fill
    the other places. `worse_last` ranks new items before those that are worse than usual.
    """

    name: str
    reports: Reports = "own"
    lie: Lie = ""
    liars: float = 0.0
    sybils: int = 0
    they: Literal["praise", "bury"] = "praise"
    proven: Literal["", "helpful", "random"] = ""
    late: bool = False
    has_place: bool = True
    worse_last: bool = True
    proven_share: float = tiers.PROVEN_SHARE
    prior: float = SETTINGS.shared.prior
    agent: Agent = USUAL


@dataclass(frozen=True)
class Size:
    """The size of a deployment; `others` is the number of additional users, who ask after the epochs `asked_after`."""

    kinds: int = 6
    users: int = 40
    requests: int = 4
    epochs: int = 6
    asked_after: tuple[int, ...] = (0, 2, 4, 6)
    others: int = 5

    @property
    def late_at(self) -> int:
        """The number of the epoch after which late items are published."""
        return self.epochs // 3


class Seen(NamedTuple):
    """Measurements of one answer to a user who never used an item.

    `success` is the probability that the run succeeds, and `places` is the number of shared items shown. `first`, `any`
    and `late` indicate whether the first shared item helps, whether any shown memory helps, and whether a helpful late
    item is shown.
    """

    success: float
    first: float
    any: float
    places: float
    late: float


class Answered(NamedTuple):
    """One answer: the last completed epoch, the kind, whether the user's own memories can fill the answer, and its
    measurements.
    """

    epoch: int
    kind: str
    is_full: bool
    figures: Seen


class Searched(NamedTuple):
    """The results of one search for a kind after an epoch.

    For each of `ORDERS`, `first` indicates whether the first item helps, and `praised` whether liars praise it.
    `helpful`, `others` and `late` are the proven shares of three groups of found items: helpful items, other items, and
    late helpful items. A share is None if its group is empty.
    """

    epoch: int
    kind: str
    first: dict[str, bool]
    praised: dict[str, bool]
    helpful: float | None
    others: float | None
    late: float | None


class Lived(msgspec.Struct, frozen=True):
    """A deployment's results: answers, searches, and the mean quality of all runs that used an item."""

    answers: list[Answered]
    searches: list[Searched]
    quality: float


Order = Callable[[Sequence[FoundItem], Mapping[str, float]], list[FoundItem]]
"""Sorts the items found by a search; the mapping contains the scores that they had before any figures were released."""


def _by(added: Callable[[FoundItem, float], float]) -> Order:
    """Sort by the score before any release, plus the result of `added(item, boost)`."""

    def order(found: Sequence[FoundItem], plain: Mapping[str, float]) -> list[FoundItem]:
        def score(one: FoundItem) -> float:
            before = plain[one.item.id]
            return before + added(one, one.sona_score - before)

        return sorted(found, key=score, reverse=True)

    return order


def _past_one(found: Sequence[FoundItem], plain: Mapping[str, float]) -> list[FoundItem]:
    """Move each proven item ahead by one unproven item."""
    order: list[FoundItem] = []
    for one in found:
        is_past = bool(one.is_proven and order and not order[-1].is_proven)
        order.insert(len(order) - is_past, one)
    return order


AS_RELEASED = "as released"
ORDERS: Mapping[str, Order] = {
    "without figures": _by(lambda one, boost: 0.0),
    AS_RELEASED: _by(lambda one, boost: boost),
    ".05 added if proven": _by(lambda one, boost: _LARGEST_BOOST * one.is_proven),
    ".2 added if proven": _by(lambda one, boost: 4 * _LARGEST_BOOST * one.is_proven),
    "four times the released boost": _by(lambda one, boost: 4 * boost),
    "proven items up by one": _past_one,
    "worse items last": _by(lambda one, boost: boost - _NEVER * one.is_worse),
    "proven items first": _by(lambda one, boost: float(_NEVER * one.is_proven)),
}
"""Orders in which a search could list items, by name."""


class _Use(NamedTuple):
    """A run that used an item: its user, the item's position, whether it succeeds, and whether the user lies."""

    user: int
    place: int
    succeeds: bool
    lies: bool


@dataclass
class Deployment:
    """The state of a deployment: some of a world's kinds, and the figures of the world's items."""

    world: World
    kinds: tuple[Kind, ...]
    arm: Arm
    size: Size
    random: np.random.Generator
    figures: list[Figures]
    places: dict[str, int]
    published: set[int]
    epoch: int = 0
    qualities: list[bool] = field(default_factory=list)
    shown: dict[str, list[RetrievedMemory]] = field(default_factory=dict)

    @classmethod
    def open(cls, world: World, arm: Arm, size: Size, seed: int) -> Deployment:
        """Publish the items and submit the advance reports. Each seed uses the world's next kinds."""
        random = np.random.default_rng((seed, len(world.items)))
        count = min(size.kinds, len(world.kinds))
        kinds = tuple(world.kinds[(seed * count + place) % len(world.kinds)] for place in range(count))
        figures = [Figures(Standing.create(random.bytes(KEY_BYTES), b"author"), {}) for _ in world.items]
        places = {item_id: place for place, item_id in enumerate(world.items)}
        deployment = cls(world, kinds, arm, size, random, figures, places, set(range(len(places))))
        deployment.published -= deployment.late()
        deployment._report_in_advance()
        deployment._release()
        return deployment

    @property
    def rules(self) -> Rules:
        """The rules for releasing figures, with the arm's prior."""
        return Rules(prior=self.arm.prior)

    def late(self) -> frozenset[int]:
        """Return the items that are published late: for each kind, the helpful item that a search finds first."""
        if not self.arm.late:
            return frozenset()
        return frozenset(next(one for one in kind.found if one in kind.helps) for kind in self.kinds)

    def live(self) -> None:
        """Run an epoch: all users recall and use memories, their runs are reported, and the figures are released."""
        uses = [use for user in range(self._liars("praise"), self.size.users) for use in self._asked(user)]
        succeeded = [use.succeeds for use in uses]
        if self.arm.reports == "shuffled":
            succeeded = self.random.permutation(succeeded).tolist()
        self.qualities += succeeded
        self.epoch += 1
        if self.arm.reports != "none":
            said: dict[tuple[int, int], list[bool]] = {}
            for use, succeeds in zip(uses, succeeded, strict=True):
                said.setdefault((use.user, use.place), []).append(succeeds != use.lies)
            for (user, place), ends in said.items():
                self._report(f"user-{user}", place, len(ends), sum(ends))
            for liar in range(self._liars("praise")):
                self._praise(f"user-{liar}")
        if self.epoch == self.size.late_at:
            self.published |= self.late()
        self._release()

    def ask(self) -> tuple[list[Answered], list[Searched]]:
        """For every kind, recall and search in its held-out wording, on behalf of users who never used an item."""
        late, praised = self.late(), self._praised()
        answers = [self._answered(user, kind, late) for user in range(self.size.others) for kind in self.kinds]
        return answers, [self._searched(kind, late, praised) for kind in self.kinds]

    def recalled(self, owner: str, text: str, key: str) -> tuple[RetrievedMemory, ...]:
        """Return the answer to a recall of both tiers; `key` is the recall's id."""
        if text not in self.shown:
            self.shown[text] = as_memories(self.released(self.world.found[text]), with_embedding=False)
        return tiers.merged(self.world.own[owner, text], self.shown[text], TOP_K, key, SETTINGS.recall.min_relevance)

    def released(self, found: Iterable[FoundItem]) -> list[FoundItem]:
        """Of the items found, return those that are published, sorted by their scores after the last release."""
        published = [one for one in found if self.places[one.item.id] in self.published]
        return sorted((self._released(one) for one in published), key=lambda one: one.sona_score, reverse=True)

    def _released(self, one: FoundItem) -> FoundItem:
        standing = self.figures[self.places[one.item.id]].standing
        return msgspec.structs.replace(
            one,
            item=msgspec.structs.replace(one.item, quality_metrics=standing.metrics()),
            sona_score=one.sona_score + standing.boost,
            boost=standing.boost,
            is_proven=standing.is_proven,
            is_worse=self.arm.worse_last and standing.is_worse(self.rules),
        )

    def _report_in_advance(self) -> None:
        for number in range(self.arm.sybils):
            if self.arm.they == "praise":
                self._praise(f"sybil-{number}")
            else:
                self._bury(f"sybil-{number}")
        if self.arm.proven:
            proven = {place for kind in self.kinds for place in self._proven_of(kind)}
            for place in range(len(self.figures)):
                for number in range(_PROVERS):
                    self._report(f"prover-{number}", place, 1, int(place in proven))

    def _release(self) -> None:
        for figures in self.figures:
            figures.release(self.rules)
        self.shown.clear()

    def _liars(self, lie: Lie) -> int:
        return round(self.arm.liars * self.size.users) if self.arm.lie == lie else 0

    def _owner(self, user: int) -> str:
        return self.world.owners[user % len(self.world.owners)]

    def _asked(self, user: int) -> list[_Use]:
        agent, uses = self.arm.agent, []
        for number in self.random.choice(
            len(self.kinds), min(self.size.requests, len(self.kinds)), replace=False
        ).tolist():
            kind = self.kinds[number]
            text = kind.wordings[int(self.random.integers(len(kind.wordings)))]
            found = self.recalled(self._owner(user), text, self._key())
            helps = self._helps(found, kind)
            chosen = agent.chosen(helps, self.random)
            if chosen is None or found[chosen].tier == "local":
                continue
            succeeds = self.random.random() < (agent.helped if helps[chosen] else agent.misled)
            lies = user < self._liars("invert")
            uses.append(_Use(user, self.places[found[chosen].record.id], bool(succeeds), lies))
        return uses

    def _answered(self, user: int, kind: Kind, late: frozenset[int]) -> Answered:
        owner = self._owner(user)
        found = self.recalled(owner, kind.held, self._key())
        helps = self._helps(found, kind)
        shared = [self.places[memory.record.id] for memory in found if memory.tier == "global"]
        figures = Seen(
            success=self.arm.agent.succeeds(helps),
            first=float(shared[:1] != [] and shared[0] in kind.helps),
            any=float(any(helps)),
            places=float(len(shared)),
            late=float(bool(late.intersection(shared).intersection(kind.helps))),
        )
        return Answered(self.epoch, kind.name, len(self.world.own[owner, kind.held]) == TOP_K, figures)

    def _searched(self, kind: Kind, late: frozenset[int], praised: set[int]) -> Searched:
        found = self.released(self.world.searched[kind.held])
        plain = {one.item.id: one.sona_score for one in self.world.searched[kind.held]}
        first = {name: self.places[order(found, plain)[0].item.id] for name, order in ORDERS.items()} if found else {}
        return Searched(
            epoch=self.epoch,
            kind=kind.name,
            first={name: place in kind.helps for name, place in first.items()},
            praised={name: place in praised for name, place in first.items()},
            helpful=self._share_proven(found, kind.helps - late),
            others=self._share_proven(found, frozenset(kind.found) - kind.helps),
            late=self._share_proven(found, kind.helps & late),
        )

    def _key(self) -> str:
        """Draw a recall's id."""
        return self.random.bytes(8).hex()

    def _share_proven(self, found: Sequence[FoundItem], places: frozenset[int]) -> float | None:
        proven = [one.is_proven for one in found if self.places[one.item.id] in places]
        return sum(proven) / len(proven) if proven else None

    def _helps(self, memories: Sequence[RetrievedMemory], kind: Kind) -> list[bool]:
        return [memory.tier == "global" and self.places[memory.record.id] in kind.helps for memory in memories]

    def _proven_of(self, kind: Kind) -> list[int]:
        if self.arm.proven == "helpful":
            return sorted(kind.helps)
        return [kind.found[place] for place in self.random.permutation(len(kind.found))[: len(kind.helps)].tolist()]

    def _praise(self, user: str) -> None:
        for place in self._praised():
            self._report(user, place, 1, 1)

    def _bury(self, user: str) -> None:
        for place in {place for kind in self.kinds for place in kind.found} - self._praised():
            self._report(user, place, 1, 0)

    def _praised(self) -> set[int]:
        """Return, for each kind, the first look-alike in its results that does not help with any kind."""
        helpful = {place for kind in self.kinds for place in kind.helps}
        useless = [[place for place in kind.found if place not in helpful] for kind in self.kinds]
        return {places[0] for places in useless if places}

    def _report(self, user: str, place: int, uses: int, succeeded: int) -> None:
        item = ReportedItem(
            item_id=self.world.items[place], version=_VERSION, retrievals=uses, uses=uses, quality=float(succeeded)
        )
        self.figures[place].report(user.encode(), 1 + self.epoch, item)


def lived(world: World, arm: Arm, size: Size, seed: int) -> Lived:
    """Run all epochs of a deployment and return its results."""
    usual = tiers.RESERVED_OF, tiers.PROVEN_SHARE
    tiers.RESERVED_OF, tiers.PROVEN_SHARE = usual[0] if arm.has_place else _NEVER, arm.proven_share
    try:
        return _lived(Deployment.open(world, arm, size, seed))
    finally:
        tiers.RESERVED_OF, tiers.PROVEN_SHARE = usual


def _lived(deployment: Deployment) -> Lived:
    answers, searches = deployment.ask()
    for epoch in range(1, deployment.size.epochs + 1):
        if deployment.arm.proven:
            break  # all reports were submitted in advance
        deployment.live()
        if epoch in deployment.size.asked_after:
            asked = deployment.ask()
            answers += asked[0]
            searches += asked[1]
    quality = float(np.mean(deployment.qualities)) if deployment.qualities else float("nan")
    return Lived(answers, searches, quality)
