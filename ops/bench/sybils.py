"""Simulates attacks, with several keys, on the figures of a shared item, and measures what the rules cost honest teams.

    python -m ops.bench.sybils     two minutes; writes ops/bench/sybils.md

The shipped code determines who votes and from which day (`knowledge.voters.groups_of`), what a vote is
(`figures.merged`), and the daily release (`figures.Figures`). Only the runs are simulated: on each day, each person
uses the item with probability `Team.uses`, and the run succeeds with the item's probability.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from memory_agent.knowledge.figures import KEY_BYTES, Contribution, Figures, Rules, Standing, merged
from memory_agent.knowledge.voters import groups_of
from memory_agent.records.shared_requests import ReportedItem
from memory_agent.settings import SharedSettings
from ops.bench.machine import describe_machine
from relay import StoredKey

PAGE = Path(__file__).with_name("sybils.md")

GOOD, BAD = 0.85, 0.4
"""The success rate of a run with a good item, and with a bad item. The prior is .6."""
MOST = 128
"""Largest number of keys that an attacker tries."""
_RULES = Rules()
_START = datetime(2026, 1, 5, tzinfo=UTC)
_ATTACK_DAY, _DAYS = 30, 90

Aim = Literal["prove", "bury"]
AIMS: tuple[Aim, ...] = ("prove", "bury")


class Policy(NamedTuple):
    """How votes count. Without `by_person`, no key names a person, so each user votes, as in earlier versions."""

    name: str
    by_person: bool = True
    settings: SharedSettings = SharedSettings(votes_after_days=0.0)


BEFORE = Policy("each user, at once (before)", by_person=False)
SHIPPED = Policy("person, after 7 days", settings=SharedSettings())
POLICIES = (
    BEFORE,
    Policy("person, at once"),
    SHIPPED,
    Policy("person, after 30 days", settings=SharedSettings(votes_after_days=30.0)),
)
BY_ORG = Policy(
    "organisation of ten, after 7 days", settings=SharedSettings(one_vote_per="organisation", votes_after_days=7.0)
)


class Team(NamedTuple):
    """Honest people, with `keys` users each, whose keys are `age_days` old on the first day."""

    people: int
    uses: float = 0.1
    keys: int = 1
    age_days: int = 365


class Shown(NamedTuple):
    """The released figures of one day."""

    is_proven: bool
    is_worse: bool


class Deployment:
    """One item and its users. Honest runs depend only on the seed, whatever the policy and the attack."""

    def __init__(self, team: Team, quality: float, policy: Policy, seed: int) -> None:
        key = np.random.default_rng((seed, 1)).bytes(KEY_BYTES)
        self._team, self._quality, self._policy = team, quality, policy
        self._random = np.random.default_rng(seed)
        self._figures = Figures(Standing.create(key, b"author"), {})
        self._sums: defaultdict[str, Contribution] = defaultdict(Contribution)
        self._voted: dict[str, list[Contribution]] = {}
        self._keys = [
            _key(f"{person}-{number}", person, -team.age_days, policy)
            for person in range(team.people)
            for number in range(team.keys)
        ]
        self._groups = groups_of(self._keys, policy.settings)
        self._day = 0

    def attack(self, aim: Aim, keys: int, *, of_one: bool) -> None:
        """Create keys, all for one person or each for a different person, and have their users report `aim`
        immediately.
        """
        for number in range(keys):
            user = f"evil-{number}"
            self._keys.append(_key(user, "mallory" if of_one else f"mallory-{number}", self._day, self._policy))
            self._sums[user] = _with_run(Contribution(), float(aim == "prove"))
        self._groups = groups_of(self._keys, self._policy.settings)

    def live(self, days: int) -> Iterator[Shown]:
        """Yield the figures released on each of the next days."""
        for _ in range(days):
            for person in np.flatnonzero(self._random.random(self._team.people) < self._team.uses).tolist():
                user = f"{person}-{int(self._random.integers(self._team.keys))}"
                self._sums[user] = _with_run(self._sums[user], float(self._random.random() < self._quality))
            self._vote()
            self._figures.release(_RULES)
            self._day += 1
            yield Shown(self._figures.standing.is_proven, self._figures.standing.is_worse(_RULES))

    def _vote(self) -> None:
        """For each voter whose vote counts, merge the sums of the voter's users, as the daemon's upkeep does."""
        now, age = _START + timedelta(days=self._day), timedelta(days=self._policy.settings.votes_after_days)
        by_voter: defaultdict[str, list[Contribution]] = defaultdict(list)
        for user, sums in self._sums.items():
            name, since = self._groups[user]
            if since is not None and since + age <= now:
                by_voter[name or user].append(sums)
        for voter, some in by_voter.items():
            if self._voted.get(voter) != some:
                self._voted[voter] = some
                self._figures.replace(voter.encode(), merged(some))


def _key(user: str, holder: object, day: int, policy: Policy) -> StoredKey:
    org = f"org-{int(holder) // 10}" if isinstance(holder, int) else "evil"
    return StoredKey(
        id=user,
        created=_START + timedelta(days=day),
        scopes=(),
        user_id=user,
        orgs=(org,),
        person=f"person-{holder}" if policy.by_person else None,
    )


def _with_run(sums: Contribution, quality: float) -> Contribution:
    item = ReportedItem(item_id="item", version="1", retrievals=1, uses=1, quality=quality)
    return sums.with_item(sums.report + 1, item)


def day_of(days: Iterator[Shown], reached: Callable[[Shown], bool]) -> int | None:
    """Return the first day whose figures meet a condition, or None."""
    return next((day for day, shown in enumerate(days) if reached(shown)), None)


class Success(NamedTuple):
    """The smallest number of keys with which an attack succeeds in one deployment, and how many days it takes."""

    keys: int
    days: int


def fewest(team: Team, aim: Aim, policy: Policy, seed: int, *, of_one: bool) -> Success | None:
    """Return the smallest number of keys that gets a bad item proven or a good item buried; None if MOST keys do not
    suffice.

    An item is buried if it is listed as worse than usual.
    """
    before = Deployment(team, BAD if aim == "prove" else GOOD, policy, seed)
    for _ in before.live(_ATTACK_DAY):
        pass

    def after(keys: int) -> int | None:
        deployment = deepcopy(before)
        deployment.attack(aim, keys, of_one=of_one)
        days = deployment.live(_DAYS - _ATTACK_DAY)
        return day_of(days, lambda shown: shown.is_proven if aim == "prove" else shown.is_worse)

    low, high, days = 0, MOST, after(MOST)
    if days is None:
        return None
    while high - low > 1:
        middle = (low + high) // 2
        found = after(middle)
        low, high, days = (middle, high, days) if found is None else (low, middle, found)
    return Success(high, days)


def delay(team: Team, policy: Policy, seed: int) -> int | None:
    """Return the first day on which a good item is proven, or None."""
    return day_of(Deployment(team, GOOD, policy, seed).live(_DAYS), lambda shown: shown.is_proven)


def over_seeds(found: Sequence[int | None]) -> str:
    """Return the median, and the interval that contains 95 % of the seeds, with "never" for None."""
    ordered = sorted(found, key=lambda one: float("inf") if one is None else one)
    places = [round(share * (len(ordered) - 1)) for share in (0.025, 0.5, 0.975)]
    least, median, most = ("never" if one is None else str(one) for one in (ordered[place] for place in places))
    return median if least == most else f"{median} ({least} to {most})"


_HEAD = """\
# Several keys of one person

Written by `python -m ops.bench.sybils` on {date:%Y-%m-%d} (decision 0023). Voters, votes and releases are computed by
the shipped code; runs are simulated. On each of {days} days, each honest person uses the item with the stated
probability; a run succeeds with probability {good} (good item) or {bad} (bad item), and the prior is .6. On day
{attack}, the attacker gets new keys, each for a different user, and reports with all of them at once. To prove a bad
item, all reports are successes; to bury a good item (have it listed as worse than usual), all are failures. Values are
medians over {seeds} seeds, with the interval that contains 95 % of the seeds; *never* means not within the {days} days.
Attackers try up to {most} keys.

{machine}"""

_TAIL = """\
## What remains

- If the operator assigns no person to a key, the key's user counts as a separate person. In this case, only the minimum
  age of keys protects the figures.
- Several people who agree have one vote each. If the operator mistakes one person for several, each of these supposed
  persons counts as a voter. The minimum age of keys only delays such votes, and gives the operator time to notice new
  keys in `keys list`.
- The single vote of one person can change the result of a figure that is close to a limit, for example a figure of five
  people.
- A person with an old key can vote falsely at any time; the minimum age does not prevent that.
- Each user admitted by a key for all users can vote immediately (unless organisations vote).
- Figures for a team of fewer than six people prove nothing, regardless of the rules.
"""


def _attacks(policies: Sequence[Policy], teams: Sequence[Team], aim: Aim, seeds: range) -> Iterator[str]:
    yield f"\n## Keys that {aim} {'a bad' if aim == 'prove' else 'a good'} item\n"
    yield "| honest people | votes count by | keys of one person | keys of as many people | days until then |"
    yield "|---|---|---|---|---|"
    for team in teams:
        for policy in policies:
            one = [fewest(team, aim, policy, seed, of_one=True) for seed in seeds]
            many = [fewest(team, aim, policy, seed, of_one=False) for seed in seeds]
            cells = [over_seeds([found and found.keys for found in some]) for some in (one, many)]
            cells.append(over_seeds([found and found.days for found in many]))
            yield f"| {team.people} | {policy.name} | {' | '.join(cells)} |"


def _delays(policies: Sequence[Policy], sizes: Sequence[int], seeds: range) -> Iterator[str]:
    yield "\n## Days until a good item is proven\n"
    yield "The keys of a new team are created on the first day, and those of an old team are a year old.\n"
    yield "| people | uses a day | keys each | votes count by | old team | new team |"
    yield "|---|---|---|---|---|---|"
    for people in sizes:
        for uses, keys in ((0.1, 1), (0.5, 1), (0.1, 2)):
            for policy in policies:
                cells = [
                    over_seeds([delay(Team(people, uses, keys, age), policy, seed) for seed in seeds])
                    for age in (365, 0)
                ]
                yield f"| {people} | {uses} | {keys} | {policy.name} | {' | '.join(cells)} |"


def page(seeds: range, teams: Sequence[int], sizes: Sequence[int]) -> str:
    """Return the page."""
    head = _HEAD.format(
        date=datetime.now(UTC),
        days=_DAYS,
        good=GOOD,
        bad=BAD,
        attack=_ATTACK_DAY,
        seeds=len(seeds),
        most=MOST,
        machine="; ".join(f"{name}: {value}" for name, value in describe_machine().items()),
    )
    of_teams = [Team(people) for people in teams]
    attacks = [line for aim in AIMS for line in _attacks(POLICIES[:3], of_teams, aim, seeds)]
    return "\n".join([head, *attacks, *_delays((*POLICIES, BY_ORG), sizes, seeds)]) + "\n\n" + _TAIL


if __name__ == "__main__":
    PAGE.write_text(page(range(40), teams=(0, 3, 10, 100), sizes=(3, 10, 100)))
    sys.stdout.write(f"wrote {PAGE}\n")
