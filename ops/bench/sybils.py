"""Simulates attackers with several keys against the figures of a shared item, and what the rules cost honest teams.

    python -m ops.bench.sybils     five minutes; writes ops/bench/sybils.md

Who votes, and from which day (`knowledge.voters.groups_of`), what a vote is (`figures.merged`) and the daily release
(`figures.Figures`) are the shipped code. Only the runs are simulated: on each day, each person uses the item with
probability `Team.uses`, and the run succeeds with the item's probability.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
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
"""How often runs succeed that use a good and a bad item. The prior is .6."""
MOST = 128
"""Largest number of keys that an attacker tries."""
_RULES = Rules()
_START = datetime(2026, 1, 5, tzinfo=UTC)
_ATTACK_DAY, _DAYS = 30, 90

Aim = Literal["prove", "bury"]


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


class Attack(NamedTuple):
    """Keys made on one day, whose users immediately report `aim`: of one person, or each of a different person."""

    aim: Aim
    keys: int
    of_one: bool


class Shown(NamedTuple):
    """The released figures of one day."""

    is_proven: bool
    is_worse: bool


def lived(team: Team, quality: float, policy: Policy, seed: int, attack: Attack | None = None) -> Iterator[Shown]:
    """Yield the figures of each day. Honest runs depend only on the seed, whatever the policy and the attack."""
    random, key = np.random.default_rng(seed), np.random.default_rng((seed, 1)).bytes(KEY_BYTES)
    figures = Figures(Standing.create(key, b"author"), {})
    sums: defaultdict[str, Contribution] = defaultdict(Contribution)
    keys = [
        _key(f"{person}-{number}", person, -team.age_days, policy)
        for person in range(team.people)
        for number in range(team.keys)
    ]
    for day in range(_DAYS):
        for person in np.flatnonzero(random.random(team.people) < team.uses).tolist():
            user, succeeds = f"{person}-{int(random.integers(team.keys))}", random.random() < quality
            sums[user] = _with_run(sums[user], float(succeeds))
        if attack is not None and day == _ATTACK_DAY:
            for number in range(attack.keys):
                holder = "mallory" if attack.of_one else f"mallory-{number}"
                keys.append(_key(f"evil-{number}", holder, day, policy))
                sums[f"evil-{number}"] = _with_run(Contribution(), float(attack.aim == "prove"))
        _vote(figures, sums, keys, policy, _START + timedelta(days=day))
        figures.release(_RULES)
        yield Shown(figures.standing.is_proven, figures.standing.is_worse(_RULES))


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


def _vote(
    figures: Figures, sums: dict[str, Contribution], keys: Sequence[StoredKey], policy: Policy, now: datetime
) -> None:
    """Give each voter who counts the merged sums of its users, as an upkeep does."""
    groups, age = groups_of(keys, policy.settings), timedelta(days=policy.settings.votes_after_days)
    by_voter: defaultdict[str, list[Contribution]] = defaultdict(list)
    for user, one in sums.items():
        name, since = groups[user]
        if since is not None and since + age <= now:
            by_voter[name or user].append(one)
    for voter, some in by_voter.items():
        figures.replace(voter.encode(), merged(some))


def day_of(days: Iterator[Shown], reached: Callable[[Shown], bool]) -> int | None:
    """Return the first day whose figures fulfil a condition, or None."""
    return next((day for day, shown in enumerate(days) if reached(shown)), None)


class Success(NamedTuple):
    """The fewest keys with which an attack succeeds in one deployment, and the days until it does."""

    keys: int
    days: int


def fewest(team: Team, aim: Aim, policy: Policy, seed: int, *, of_one: bool) -> Success | None:
    """Return the fewest keys that prove a bad item, or that bury a good one; None if MOST keys do not.

    An item is buried if it is listed as worse than usual.
    """

    def after(keys: int) -> int | None:
        attack = Attack(aim, keys, of_one)
        days = lived(team, BAD if aim == "prove" else GOOD, policy, seed, attack)
        shown = list(days)[_ATTACK_DAY:]
        return day_of(iter(shown), lambda one: one.is_proven if aim == "prove" else one.is_worse)

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
    return day_of(lived(team, GOOD, policy, seed), lambda shown: shown.is_proven)


def over_seeds(found: Sequence[int | None]) -> str:
    """Return the median, and the interval of 95 % of the seeds, with "never" for None."""
    ordered = sorted(found, key=lambda one: float("inf") if one is None else one)
    places = [round(share * (len(ordered) - 1)) for share in (0.025, 0.5, 0.975)]
    least, median, most = ("never" if one is None else str(one) for one in (ordered[place] for place in places))
    return median if least == most else f"{median} ({least} to {most})"


_HEAD = """\
# Several keys of one person

Written by `python -m ops.bench.sybils` on {date:%Y-%m-%d} (decision 0023). Voters, votes and releases are the shipped
code; runs are simulated. On each of {days} days, each honest person uses the item with the stated probability; a run
succeeds with probability {good} (good item) or {bad} (bad item), and the prior is .6. On day {attack}, the attacker
gets new keys, each for a different user, and reports with all of them at once: only successes to prove a bad item, only
failures to bury a good one (list it as worse than usual). Values are medians over {seeds} seeds, with the interval of
95 % of the seeds; *never* means not within {left} days with {most} keys.

{machine}
"""

_TAIL = """\

## What remains

- An operator who names no person for a key counts its user as a person. Then only the age of keys protects.
- Several people who agree, or one person whom the operator believes to be several, have a vote each. Age only delays
  them, and gives the operator the time to see new keys in `keys list`.
- A voter who has been honest until the vote counts can change the vote at any time; age does not help against that.
- Users whom a key for all users admits have a vote each, at once (unless organisations vote).
- Figures of a team with fewer than six people prove nothing, whatever the rules.
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
    yield "A new team has keys made on the first day, an old one has keys that are a year old.\n"
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
        left=_DAYS - _ATTACK_DAY,
        seeds=len(seeds),
        most=MOST,
        machine=describe_machine(),
    )
    of_teams = [Team(people) for people in teams]
    attacks = [line for aim in ("prove", "bury") for line in _attacks(POLICIES, of_teams, aim, seeds)]
    return "\n".join([head, *attacks, *_delays((*POLICIES, BY_ORG), sizes, seeds)]) + "\n" + _TAIL


if __name__ == "__main__":
    PAGE.write_text(page(range(40), teams=(0, 3, 10, 100), sizes=(3, 10, 100)))
    sys.stdout.write(f"wrote {PAGE}\n")
