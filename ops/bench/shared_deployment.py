"""A deployment in which users recall, use what they are shown, and report how it went: the product, and simulated use.

Each user has a real `Memory` with own texts, and all share one `Knowledge`. A user's agent reads an answer from the top
(a cascade: Craswell et al. 2008) and uses the first memory that it believes. How the run ends depends on whether that
helps the request. Then the run's feedback is reported as any user's is. What is simulated is the agent alone.

Shapes: m metrics.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec
import numpy as np

from memory_agent.embedders import Embedder
from memory_agent.knowledge.figures import Rules
from memory_agent.knowledge.store import Knowledge
from memory_agent.memory import Memory
from memory_agent.recall import tiers
from memory_agent.records import RetrievedMemory, Tier
from memory_agent.settings import Settings
from memory_agent.shared_asks import LARGEST_REPORT, Caller, Report, ReportedItem
from memory_agent.shared_records import FoundItem
from ops.bench.shared_worlds import DEADLINE_MS, FOUND, SETTINGS, Kind, World, own_folder, publish
from relay import SHARED_USER

TOP_K = 5
BOTH: tuple[Tier, ...] = ("local", "global")
Reports = Literal["none", "own", "shuffled"]
Lie = Literal["", "praise", "invert"]

_START = datetime(2026, 1, 5, 8, tzinfo=UTC)
_DAY, _MINUTE = timedelta(days=1), timedelta(minutes=1)
_PROVERS = 20
_SYBILS = 6
_LARGEST_BOOST = Rules().largest_boost
_NEVER = 1 << 30


class Agent(NamedTuple):
    """How an agent reads an answer, and how often its run succeeds. All are assumptions; no data set says them.

    It reads on with a probability of `reads_on` after each memory that it does not use, and uses one that helps with
    `believes`, another with `mistakes`. The run then succeeds with `helped`, `misled`, or `alone` if it used none.
    """

    reads_on: float = 0.85
    believes: float = 0.8
    mistakes: float = 0.3
    helped: float = 0.85
    misled: float = 0.4
    alone: float = 0.5

    def succeeds(self, helps: Sequence[bool]) -> float:
        """Return the probability that a run succeeds, given which of the memories shown to it help."""
        reads, success = 1.0, 0.0
        for is_helpful in helps:
            uses = reads * (self.believes if is_helpful else self.mistakes)
            success += uses * (self.helped if is_helpful else self.misled)
            success += (reads - uses) * (1.0 - self.reads_on) * self.alone
            reads = (reads - uses) * self.reads_on
        return success + reads * self.alone

    def chosen(self, helps: Sequence[bool], random: np.random.Generator) -> int | None:
        """Return the place of the memory that a run uses."""
        for place, is_helpful in enumerate(helps):
            if random.random() < (self.believes if is_helpful else self.mistakes):
                return place
            if random.random() >= self.reads_on:
                return None
        return None


USUAL = Agent()


@dataclass(frozen=True)
class Arm:
    """What happens in a deployment. `liars` is the share of users that lie, in the way of `lie`.

    Liars who praise agree on a look-alike of each kind and report it as used with success; others invert how their runs
    ended. Sybils are six keys that praise the same before anybody else reports. `proven` has twenty users report in
    advance what is true (`helpful`), or the same number of other items at random. `late` publishes an item that helps
    each kind only in the middle. `has_place` is whether a place is kept for shared items; `proven_share` is how often
    it is that of a proven one where the own memories fill the rest.
    """

    name: str
    reports: Reports = "own"
    lie: Lie = ""
    liars: float = 0.0
    sybils: bool = False
    proven: Literal["", "helpful", "random"] = ""
    late: bool = False
    has_place: bool = True
    proven_share: float = tiers.PROVEN_SHARE
    prior: float = SETTINGS.shared.prior
    agent: Agent = USUAL


@dataclass(frozen=True)
class Size:
    """How many users, requests of each in an epoch, and epochs; after which epochs the others ask."""

    users: int = 40
    requests: int = 4
    epochs: int = 6
    asked_after: tuple[int, ...] = (0, 2, 4, 6)
    others: int = 5

    @property
    def late_at(self) -> int:
        """The epoch after which late items are published."""
        return self.epochs // 3


class Figures(NamedTuple):
    """One answer to a user who never used an item.

    `success` is how likely the run succeeds, `first` whether the first shared item helps, `any` whether one of five
    does, `places` the places of shared items, `late` whether a late item is shown.
    """

    success: float
    first: float
    any: float
    places: float
    late: float


class Answered(NamedTuple):
    """One answer: after which epoch, the kind, whether the own memories alone fill it, and the figures."""

    epoch: int
    kind: str
    is_full: bool
    figures: Figures


class Searched(NamedTuple):
    """A search of the items for one kind after an epoch.

    `first` is whether the first item helps; `plain` whether it would without what past use adds to scores, `whole` if
    all proven items had all of the .05, `proven_first` if they came first. `is_moved` is whether what is added makes
    another item the first. `helpful`, `others` and `late` are the shares of those found that are proven, None where
    none was found.
    """

    epoch: int
    kind: str
    first: float
    plain: float
    whole: float
    proven_first: float
    is_moved: float
    helpful: float | None
    others: float | None
    late: float | None


class Lived(msgspec.Struct, frozen=True):
    """What a deployment gave: answers, searches, and the mean quality of all runs that used an item."""

    answers: list[Answered]
    searches: list[Searched]
    quality: float


@dataclass
class _Use:
    """A run that used an item."""

    memory: Memory
    recall_id: str
    item_id: str
    quality: float
    lies: bool


@dataclass
class Deployment:
    """Users, items, and the store of these, in a folder that is removed by the caller."""

    world: World
    arm: Arm
    size: Size
    shared: Knowledge
    author: Memory
    users: list[Memory]
    others: list[Memory]
    random: np.random.Generator
    places: dict[str, int] = field(default_factory=dict)
    ids: dict[int, str] = field(default_factory=dict)
    epoch: int = 0
    qualities: list[float] = field(default_factory=list)
    plain_scores: dict[tuple[str, str], float] = field(default_factory=dict)
    full: dict[tuple[str, str], bool] = field(default_factory=dict)

    @property
    def now(self) -> datetime:
        """The time at which the epoch begins."""
        return _START + self.epoch * _DAY

    def publish(self, places: Iterable[int]) -> None:
        """Publish items of the world."""
        chosen = sorted(places)
        ids = publish(self.author, [self.world.items[place] for place in chosen])
        self.ids.update(zip(chosen, ids, strict=True))
        self.places.update(zip(ids, chosen, strict=True))

    def late(self) -> frozenset[int]:
        """Return the items that are published late: of each kind the one found first among those that help."""
        if not self.arm.late:
            return frozenset()
        return frozenset(next(one for one in kind.found if one in kind.helps) for kind in self.world.kinds)

    def live(self) -> None:
        """Live an epoch: all users ask and use, then their runs are reported and figures released."""
        uses = [use for user in self.users[self._liars("praise") :] for use in self._asked(user)]
        if self.arm.reports == "shuffled":
            for use, quality in zip(uses, self.random.permutation([use.quality for use in uses]), strict=True):
                use.quality = float(quality)
        self.qualities += [use.quality for use in uses]
        for use in uses:
            quality = 1.0 - use.quality if use.lies else use.quality
            use.memory.feedback(use.recall_id, [use.item_id], quality, now=self.now + 2 * _MINUTE)
        self.epoch += 1
        if self.arm.reports != "none":
            for user in self.users[self._liars("praise") :]:
                user.shared.report(self.now)
            for liar in self.users[: self._liars("praise")]:
                self._praise(liar.user_id)
        self.shared.expire(self.now)

    def prepare(self) -> None:
        """Publish, and report what was known in advance."""
        self.publish(set(range(len(self.world.items))) - self.late())
        for kind in self.world.kinds:
            self._searched(kind, frozenset())
        if self.arm.sybils:
            for number in range(_SYBILS):
                self._praise(f"sybil-{number}")
        if self.arm.proven:
            proven = {place for kind in self.world.kinds for place in self._proven_of(kind)}
            reported = [self._reported(place, float(place in proven)) for place in self.ids]
            for number in range(_PROVERS):
                self._report(f"prover-{number}", reported)
        self.shared.expire(self.now)

    def ask(self) -> tuple[list[Answered], list[Searched]]:
        """Ask every kind in held-out words in the name of users who never used an item."""
        late = self.late()
        answers = [self._answered(user, kind, late) for user in self.others for kind in self.world.kinds]
        return answers, [self._searched(kind, late) for kind in self.world.kinds]

    def _liars(self, lie: Lie) -> int:
        return round(self.arm.liars * len(self.users)) if self.arm.lie == lie else 0

    def _asked(self, user: Memory) -> list[_Use]:
        lies = user in self.users[: self._liars("invert")]
        uses = []
        for kind in self.random.choice(len(self.world.kinds), self.size.requests, replace=False).tolist():
            asked = self.world.kinds[kind]
            text = asked.wordings[int(self.random.integers(len(asked.wordings)))]
            recalled = user.recall(text, TOP_K, deadline_ms=DEADLINE_MS, now=self.now + _MINUTE, tiers=BOTH)
            helps = self._helps(recalled.memories, asked)
            place = self.arm.agent.chosen(helps, self.random)
            if place is None or recalled.memories[place].tier == "local":
                continue
            agent = self.arm.agent
            succeeds = self.random.random() < (agent.helped if helps[place] else agent.misled)
            item_id = recalled.memories[place].record.id
            uses.append(_Use(user, recalled.recall_id, item_id, float(succeeds), lies))
        return uses

    def _answered(self, user: Memory, kind: Kind, late: frozenset[int]) -> Answered:
        key = (user.user_id, kind.name)
        if key not in self.full:
            own = user.recall(kind.held, TOP_K, deadline_ms=DEADLINE_MS, now=self.now)
            self.full[key] = len(own.memories) == TOP_K
        found = user.recall(kind.held, TOP_K, deadline_ms=DEADLINE_MS, now=self.now, tiers=BOTH).memories
        helps = self._helps(found, kind)
        shared = [self.places[memory.record.id] for memory in found if memory.tier == "global"]
        figures = Figures(
            success=self.arm.agent.succeeds(helps),
            first=float(shared[:1] != [] and shared[0] in kind.helps),
            any=float(any(helps)),
            places=float(len(shared)),
            late=float(bool(late.intersection(shared).intersection(kind.helps))),
        )
        return Answered(self.epoch, kind.name, self.full[key], figures)

    def _searched(self, kind: Kind, late: frozenset[int]) -> Searched:
        found = self.author.shared.search(kind.held, 2 * FOUND)
        plain = {one.item.id: self._plain_score(kind, one) for one in found}
        orders = {
            "first": found,
            "plain": sorted(found, key=lambda one: -plain[one.item.id]),
            "whole": sorted(found, key=lambda one: -plain[one.item.id] - _LARGEST_BOOST * one.is_proven),
            "proven_first": sorted(found, key=lambda one: (not one.is_proven, -one.sona_score)),
        }
        first = {name: order[0].item.id if order else "" for name, order in orders.items()}
        return Searched(
            epoch=self.epoch,
            kind=kind.name,
            **{name: float(self.places.get(item_id, -1) in kind.helps) for name, item_id in first.items()},
            is_moved=float(first["first"] != first["plain"]),
            helpful=self._share_proven(found, kind.helps - late),
            others=self._share_proven(found, frozenset(kind.found) - kind.helps),
            late=self._share_proven(found, kind.helps & late),
        )

    def _plain_score(self, kind: Kind, found: FoundItem) -> float:
        """Return the score of an item when it was first found, before anything was proven."""
        return self.plain_scores.setdefault((kind.name, found.item.id), found.sona_score)

    def _share_proven(self, found: Sequence[FoundItem], places: frozenset[int]) -> float | None:
        proven = [one.is_proven for one in found if self.places[one.item.id] in places]
        return sum(proven) / len(proven) if proven else None

    def _helps(self, memories: Sequence[RetrievedMemory], kind: Kind) -> list[bool]:
        return [memory.tier == "global" and self.places[memory.record.id] in kind.helps for memory in memories]

    def _proven_of(self, kind: Kind) -> list[int]:
        if self.arm.proven == "helpful":
            return sorted(kind.helps)
        return [kind.found[place] for place in self.random.permutation(len(kind.found))[: len(kind.helps)].tolist()]

    def _praise(self, user_id: str) -> None:
        self._report(user_id, [self._reported(place, 1.0) for place in sorted(self._praised())])

    def _praised(self) -> set[int]:
        """Return the look-alike of each kind that is found first and helps none."""
        helpful = {place for kind in self.world.kinds for place in kind.helps}
        useless = [[place for place in kind.found if place not in helpful] for kind in self.world.kinds]
        return {places[0] for places in useless if places}

    def _reported(self, place: int, quality: float) -> ReportedItem:
        return ReportedItem(item_id=self.ids[place], version="1", retrievals=1, uses=1, quality=quality)

    def _report(self, user_id: str, items: Sequence[ReportedItem]) -> None:
        """Report as a client of one's own does, which need not have recalled or used anything."""
        for part, start in enumerate(range(0, len(items), LARGEST_REPORT)):
            number = 1 + self.epoch * len(self.world.items) + part
            report = Report(number=number, items=tuple(items[start : start + LARGEST_REPORT]))
            self.shared.ask(Caller(user_id=user_id), report)


def lived(world: World, arm: Arm, size: Size, seed: int, stores: Path, folder: Path, embedder: Embedder) -> Lived:
    """Live all epochs of a deployment in an empty folder, on copies of the own memories in `stores`."""
    usual = tiers.RESERVED_OF, tiers.PROVEN_SHARE
    settings = msgspec.structs.replace(SETTINGS, shared=msgspec.structs.replace(SETTINGS.shared, prior=arm.prior))
    tiers.RESERVED_OF, tiers.PROVEN_SHARE = usual[0] if arm.has_place else _NEVER, arm.proven_share
    try:
        with ExitStack() as stack:
            deployment = _opened(world, arm, size, seed, stores, folder, embedder, settings, stack)
            return _lived(deployment)
    finally:
        tiers.RESERVED_OF, tiers.PROVEN_SHARE = usual


def _lived(deployment: Deployment) -> Lived:
    deployment.prepare()
    answers, searches = deployment.ask()
    for epoch in range(1, deployment.size.epochs + 1):
        if deployment.arm.proven:
            break  # nothing is reported after what was known in advance
        deployment.live()
        if epoch == deployment.size.late_at:
            deployment.publish(deployment.late())
        if epoch in deployment.size.asked_after:
            asked = deployment.ask()
            answers += asked[0]
            searches += asked[1]
    quality = float(np.mean(deployment.qualities)) if deployment.qualities else float("nan")
    return Lived(answers, searches, quality)


def _opened(
    world: World,
    arm: Arm,
    size: Size,
    seed: int,
    stores: Path,
    folder: Path,
    embedder: Embedder,
    settings: Settings,
    stack: ExitStack,
) -> Deployment:
    shared = stack.enter_context(Knowledge.open(folder / SHARED_USER, settings=settings, embedder=embedder))

    def opened(name: str, owner: str | None = None) -> Memory:
        if owner is not None:
            shutil.copytree(own_folder(stores, owner), folder / name)
        return stack.enter_context(Memory.open(folder / name, settings=settings, embedder=embedder, shared=shared))

    owners = world.owners
    return Deployment(
        world=world,
        arm=arm,
        size=size,
        shared=shared,
        author=opened("author"),
        users=[opened(f"user-{number}", owners[number % len(owners)]) for number in range(size.users)],
        others=[opened(f"other-{number}", owners[number % len(owners)]) for number in range(size.others)],
        random=np.random.default_rng((seed, len(world.items))),
    )
