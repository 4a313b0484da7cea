"""Weaves two rankings into one list, so that what its reader uses says which ranking he would rather have had.

Team-draft interleaving (Radlinski, Kurup, Joachims 2008): in each round a coin says which ranking picks first, then
each adds its best item that is not listed yet. Where both rankings begin alike, that common prefix is shown as it is
and belongs to neither: it says nothing of either. The coins depend on a key, so that a recall comes out the same when
it is computed again. Rejected: balanced interleaving, which favours one of two nearly equal rankings (shown there).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Literal, NamedTuple

from sona.chance import draw
from sona.lesson import Contest

Arm = Literal["baseline", "learned"]

UNTELLING = 4


class Pick(NamedTuple):
    """An item of the woven list, and the ranking that alone brought it in; None where neither did."""

    item: int
    arm: Arm | None


def team_draft(baseline: Sequence[int], learned: Sequence[int], limit: int, key: str) -> list[Pick]:
    """Return the first `limit` items of the two rankings, each item once; fewer where both run out."""
    agreed = _agreement(baseline, learned, limit)
    drafted = _draft(baseline, learned, set(baseline[:agreed]), draw(key, "draft", max(limit, 1)))
    return [Pick(item, None) for item in baseline[:agreed]] + [
        pick for pick, _ in zip(drafted, range(limit - agreed), strict=False)
    ]


def contest(picks: Sequence[Pick], used: Collection[int]) -> Contest | None:
    """Return how many of the `used` items each ranking brought in.

    None where all of at least four shown items were used: who names everything prefers nothing, and by a list of odd
    length one ranking would still get more than the other.
    """
    if len(picks) >= UNTELLING and all(pick.item in used for pick in picks):
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
