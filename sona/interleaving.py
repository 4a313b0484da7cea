"""Team-draft interleaving: merges two rankings into one list, whose used items show which ranking is better.

In each round, a coin toss determines the ranking that picks first. Then each ranking adds its best item that is not yet
listed (Radlinski, Kurup, Joachims 2008). A common prefix of the two rankings is kept, and credited to neither.

The tosses depend only on a key, so a recall can be recomputed in any process. The key, as one integer modulo a prime,
seeds a SplitMix64 stream (Steele, Lea, Flood 2014). An attacker who chooses keys can determine the tosses.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Literal, NamedTuple

from sona.lesson import Contest

Arm = Literal["baseline", "learned"]

_MASK = (1 << 64) - 1
_PRIME = (1 << 64) - 59
_STRIDE = 0x9E3779B97F4A7C15


class Pick(NamedTuple):
    """An item of the merged list, and the ranking that contributed it (None in the common prefix)."""

    item: int
    arm: Arm | None


def team_draft(baseline: Sequence[int], learned: Sequence[int], limit: int, key: str) -> list[Pick]:
    """Return the first `limit` items of the merged list, without repeats; fewer if both rankings are exhausted."""
    agreed = _agreement(baseline, learned, limit)
    drafted = _draft(baseline, learned, set(baseline[:agreed]), draw(key, "draft", max(limit, 1)))
    return [Pick(item, None) for item in baseline[:agreed]] + [
        pick for pick, _ in zip(drafted, range(limit - agreed), strict=False)
    ]


def contest(picks: Sequence[Pick], used: Collection[int]) -> Contest | None:
    """Return the number of `used` items that each ranking contributed.

    Returns None if there are several items and all of them were used. This shows no preference, although one ranking
    would win if the length of the list were odd.
    """
    if len(picks) > 1 and all(pick.item in used for pick in picks):
        return None
    arms = [pick.arm for pick in picks if pick.item in used]
    return Contest(learned=arms.count("learned"), baseline=arms.count("baseline"))


def _agreement(baseline: Sequence[int], learned: Sequence[int], limit: int) -> int:
    length = 0
    for ours, theirs in zip(baseline[:limit], learned[:limit], strict=False):
        if ours != theirs:
            break
        length += 1
    return length


def _draft(baseline: Sequence[int], learned: Sequence[int], listed: set[int], coins: int) -> Iterator[Pick]:
    teams: dict[Arm, Iterator[int]] = {"baseline": iter(baseline), "learned": iter(learned)}
    while teams:
        order: list[Arm] = sorted(teams, reverse=bool(coins & 1))
        coins >>= 1
        for arm in order:
            item = next((item for item in teams[arm] if item not in listed), None)
            if item is None:
                del teams[arm]
            else:
                listed.add(item)
                yield Pick(item, arm)


def share(key: str, purpose: str) -> float:
    """Return a uniformly random number in [0, 1) derived from the key. Numbers for different purposes are
    independent.
    """
    return draw(key, purpose, 53) / (1 << 53)


def draw(key: str, purpose: str, bits: int = 64) -> int:
    """Return an integer of `bits` random bits derived from the key. Integers for different purposes are independent."""
    seed = _mix(int.from_bytes(f"{purpose}\0{key}".encode("utf-8", "surrogatepass"), "big") % _PRIME)
    drawn = 0
    for word in range(-(-bits // 64)):
        drawn = drawn << 64 | _mix(seed + (word + 1) * _STRIDE & _MASK)
    return drawn & (1 << bits) - 1


def _mix(word: int) -> int:
    word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
    word = (word ^ (word >> 27)) * 0x94D049BB133111EB & _MASK
    return word ^ (word >> 31)
