"""What a run says that it used, and how it says it ended: perfect, as a user's agent would, useless, and wrong.

- oracle: all evidence, found or not, approved. More than anybody says; an upper bound.
- cite: the evidence that was shown, each time with 20 % odds another shown memory instead; the run counts as approved
  when evidence was shown, as failed when none was, and 10 % of those verdicts are the wrong way round. The headline.
- list: everything that was shown, which says nothing of any of it; verdicts as in cite.
- shuffled oracle, shuffled cite: controls. As many memories as in oracle and cite, those of another question, or drawn
  from what was shown. What these gain is not learnt from what was used.

What this does not do: know records; a memory is named by its items, several where it stands for several.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Literal, NamedTuple, get_args

import numpy as np

from memory_agent.evaluation.metrics import Place

Signal = Literal["oracle", "cite", "list", "shuffled oracle", "shuffled cite"]
SIGNALS: tuple[Signal, ...] = get_args(Signal)

APPROVED, FAILED = 1.0, 0.0
WRONG_CITATIONS = 0.2
WRONG_VERDICTS = 0.1


class Account(NamedTuple):
    """The items of the memories that were used, and the quality of the run."""

    used: tuple[str, ...]
    quality: float


def account_for(
    signal: Signal,
    relevant: Collection[str],
    others: Collection[str],
    shown: Sequence[Place],
    random: np.random.Generator,
) -> Account:
    """Return what a run says whose question is answered by `relevant` items and which was shown these places.

    `others` are the relevant items of another question. A used place is named by its first item.
    """
    if signal in ("oracle", "shuffled oracle"):
        return Account(tuple(relevant if signal == "oracle" else others), APPROVED)
    firsts = [place[0] for place in shown]
    right = [place[0] for place in shown if not set(relevant).isdisjoint(place)]
    quality = _verdict(bool(right), random)
    if signal == "list":
        return Account(tuple(firsts), quality)
    if signal == "shuffled cite":
        drawn = random.permutation(len(firsts))[: len(right)]
        return Account(tuple(firsts[place] for place in drawn), quality)
    return Account(_cited(right, firsts, random), quality)


def _cited(right: Sequence[str], shown: Sequence[str], random: np.random.Generator) -> tuple[str, ...]:
    """Return the right memories, some of them mistaken for another one that was shown beside them."""
    wrong = [item for item in shown if item not in right]
    mistaken = random.random(len(right)) < WRONG_CITATIONS
    cited = (
        wrong[random.integers(len(wrong))] if is_wrong and wrong else item
        for item, is_wrong in zip(right, mistaken, strict=True)
    )
    return tuple(dict.fromkeys(cited))


def _verdict(succeeded: bool, random: np.random.Generator) -> float:
    is_wrong = random.random() < WRONG_VERDICTS
    return APPROVED if succeeded != is_wrong else FAILED
