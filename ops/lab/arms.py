"""What is compared: ways to rank, and signals to learn from. Every arm is the real `Memory` under other settings.

Parts of what is learnt are tried alone where a setting takes the others away: the bank, the association (which is what
the nearest past requests used), the quality prior. Beside them, one vector for all queries (`rocchio`), which no
setting gives: the memory, with learning off, gets an embedder that moves its queries.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, get_args

import msgspec
import numpy as np

from memory_agent.config import LearningSettings
from memory_agent.evaluation.metrics import Place
from memory_agent.records import Mode
from memory_agent.settings import Settings
from ops.lab.histories import SplitName

Learning = Literal["auto", "on", "off"]

_NOTHING_BUT_VECTORS: dict[str, Any] = {"contiguity": 0.0, "context_words": 0.0, "dates": "ignore", "diversity": 0.0}


@dataclass(frozen=True)
class Arm:
    """One way: what its runs say they used (None: nothing), whether what is learnt acts, and how it looks.

    `recall` and `parts` are settings of recall and of learning that differ from those given. An arm with a `curve` is
    asked while it learns, too; one that is there for comparison takes a `few` seeds alone, since minutes are short. One
    that `moves` is asked with all queries moved by what its runs used, less what they had asked for.
    """

    name: str
    signal: Signal | None
    learning: Learning
    splits: tuple[SplitName, ...]
    mode: Mode | None = None
    recall: dict[str, Any] = field(default_factory=dict)
    parts: dict[str, Any] = field(default_factory=dict)
    curve: bool = False
    few: bool = False
    moves: bool = False

    def settings(self, given: Settings) -> Settings:
        """Return the settings that were given, with those of this arm."""
        replace = msgspec.structs.replace
        learning = replace(given.learning, mode=self.learning, **self.parts)
        return replace(given, learning=learning, recall=replace(given.recall, **self.recall))


OFF = "learning off"
ORACLE, CITE, LIST = "oracle", "cite", "list"
GATED = "cite, gate decides"
SHUFFLED_ORACLE, SHUFFLED_CITE = "shuffled oracle", "shuffled cite"
RAW, CENTRED = "vectors, raw", "vectors, centred"
BANK, ASSOCIATION, PRIOR = "cite, bank alone", "cite, association alone", "cite, prior alone"
ROCCHIO, SHUFFLED_ROCCHIO = "cite, one vector for all", "shuffled cite, one vector"

CONTROLS: dict[str, str] = (
    {ORACLE: SHUFFLED_ORACLE}
    | dict.fromkeys((CITE, GATED, LIST, BANK, ASSOCIATION, PRIOR), SHUFFLED_CITE)
    | {ROCCHIO: SHUFFLED_ROCCHIO}
)
"""The control that an arm has to beat."""

_NO_PART: dict[str, Any] = dict.fromkeys(("association", "recurrence", "shift", "outcome", "prior"), 0.0)
_SHIPPED = LearningSettings()
_ASSOCIATION_ALONE = _NO_PART | {"association": _SHIPPED.association, "recurrence": _SHIPPED.recurrence}
_CENTRED: dict[str, Any] = {"centering": True}
_PRIOR = 0.1
"""Where the design bounds the weight of the prior, which is off by default."""

_RANDOM: tuple[SplitName, ...] = ("random",)
_DISJOINT: tuple[SplitName, ...] = ("disjoint",)
_BOTH: tuple[SplitName, ...] = ("random", "disjoint")

ARMS: tuple[Arm, ...] = (
    Arm(OFF, None, "off", _BOTH, curve=True),
    Arm(RAW, None, "off", _RANDOM, mode="vector", recall=_NOTHING_BUT_VECTORS | {"centering": False}, few=True),
    Arm(CENTRED, None, "off", _RANDOM, mode="vector", recall=_NOTHING_BUT_VECTORS, few=True),
    Arm(ORACLE, "oracle", "on", _BOTH, curve=True),
    Arm(CITE, "cite", "on", _BOTH, curve=True),
    Arm(GATED, "cite", "auto", _DISJOINT),
    Arm(BANK, "cite", "on", _RANDOM, parts=_NO_PART | {"shift": _SHIPPED.shift}, few=True),
    Arm(ASSOCIATION, "cite", "on", _RANDOM, parts=_ASSOCIATION_ALONE, few=True),
    Arm(PRIOR, "cite", "on", _RANDOM, parts=_NO_PART | {"prior": _PRIOR}, few=True),
    Arm(ROCCHIO, "cite", "off", _BOTH, recall=_CENTRED, few=True, moves=True),
    Arm(SHUFFLED_ROCCHIO, "shuffled cite", "off", _BOTH, recall=_CENTRED, few=True, moves=True),
    Arm(LIST, "list", "on", _RANDOM, few=True),
    Arm(SHUFFLED_ORACLE, "shuffled oracle", "on", _RANDOM),
    Arm(SHUFFLED_CITE, "shuffled cite", "on", _BOTH, curve=True),
)
FEW = 2
"""Seeds that arms which are there for comparison take."""


def chosen(signals: tuple[Signal, ...]) -> tuple[Arm, ...]:
    """Return the arms that learn nothing, and those that learn from these signals."""
    return tuple(arm for arm in ARMS if arm.signal is None or arm.signal in signals)


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
